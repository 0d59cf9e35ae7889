"""Generated code of a candidate: a page of its own; a candidate's page fetches the text from it when asked to."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from api import candidates, generated
from api.code_examples import NAMES
from api.deps import StoreDep
from api.pages.code import coloured_code
from api.pages.frame import render, unchanged
from api.waiting import load_job
from db.vocabulary import CodeKind

router = APIRouter()


@router.get("/candidates/{candidate_id}/code/{kind}")
async def show_code(candidate_id: str, kind: CodeKind, request: Request, store: StoreDep) -> Response:
    """One kind of it, coloured where it is not too long."""
    kept = await generated.find_code(candidate_id, kind, store)
    known = unchanged(request, kept.sha256)
    if known is not None:
        return known
    found = await candidates.show_candidate(candidate_id, store)
    job = await store.read(load_job, found.job_id)
    text = await generated.read_code(kept, store)
    html = await asyncio.to_thread(coloured_code, text, kind)
    return render(
        request, "code.html.j2", tag=kept.sha256, found=found, job=job, kind=kind, name=NAMES[kind], html=html
    )
