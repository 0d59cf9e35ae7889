"""A job: its best so far, where its candidates came from, what became of each, what it cost and why it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response

from api import candidates, jobs
from api.deps import ActorDep, StoreDep
from api.job_schemas import CancelBody, Job
from api.pages.curve import curve
from api.pages.frame import form_of, render, see_other, unchanged
from api.pages.jobs import tried
from api.pages.lineage import lineage
from api.paging import Cursor
from api.waiting import load_job
from db.candidates import TreeRow, load_tree
from db.vocabulary import CandidateState, Verdict

PAGE_SIZE = 50
WIDE, NARROW = 860, 340
"""Pixels of the curve on a desk and on a phone: text keeps its size, so there are two drawings."""

router = APIRouter()

Sort = Annotated[Literal["ordinal", "-ordinal", "-speedup"], Query()]


@router.get("/jobs/{job_id}")
async def show_job(
    job_id: str,
    request: Request,
    store: StoreDep,
    verdict: Verdict | None = None,
    state: CandidateState | None = None,
    sort: Sort = "ordinal",
    cursor: Cursor = None,
) -> Response:
    """The whole page; whoever has this version of the job is told so before anything else is read."""
    job = await store.read(load_job, job_id)
    tag = f"{jobs.job_tag(job.version, job.queue.position)}.{request.url.query}"
    same = unchanged(request, tag)
    if same is not None:
        return same
    tree = await store.read(load_tree, job_id)
    page = await candidates.list_candidates(
        job_id, request, Response(), store, verdict=verdict, state=state, sort=sort, limit=PAGE_SIZE, cursor=cursor
    )
    chosen: _Query = {"verdict": verdict, "state": state, "sort": sort if sort != "ordinal" else None}
    return render(
        request,
        "job.html.j2",
        tag=tag,
        job=job,
        tried=tried(job),
        **await asyncio.to_thread(_drawn, tree, job),
        candidates=page.data,
        chosen=chosen,
        filters=_filters(job, chosen),
        sorts={name: _link(job, {**chosen, "sort": way}) for name, way in _SORTS.items()},
        first=_link(job, chosen) if cursor is not None else None,
        following=_link(job, {**chosen, "cursor": page.next_cursor}) if page.next_cursor is not None else None,
        here=f"{request.url.path}?{request.url.query}",
        live=not job.state.terminal,
    )


@router.post("/jobs/{job_id}/cancel")
async def cancel_job(job_id: str, request: Request, store: StoreDep, actor: ActorDep) -> Response:
    """What the button does."""
    await form_of(request)
    await jobs.cancel_job(job_id, Response(), store, actor, CancelBody(reason="cancelled on the web page"))
    return see_other(f"/jobs/{job_id}")


_Query = Mapping[str, str | None]
_SORTS = {"in order": None, "latest first": "-ordinal", "fastest first": "-speedup"}


def _drawn(tree: Sequence[TreeRow], job: Job) -> dict[str, Any]:
    """What is drawn of the tree: work for a thread, a long job has thousands of candidates."""
    sizes = {"wide": WIDE, "narrow": NARROW}
    return {
        "curves": {name: curve(tree, job.budget.candidates, width) for name, width in sizes.items()},
        "lineage": lineage(tree, job.best.candidate_id if job.best else None),
        "ordinals": {row.id: row.ordinal for row in tree},
    }


def _filters(job: Job, chosen: _Query) -> list[tuple[str, int, str, bool]]:
    """Word, count, address and whether it is chosen: everything, each verdict that occurs, and the rejected."""
    kept = {"sort": chosen["sort"]}
    none = chosen["verdict"] is None and chosen["state"] is None
    found = [("all", sum(job.progress.candidates.values()), _link(job, kept), none)]
    for word, count in job.progress.verdicts.items():
        if count:
            found.append((word, count, _link(job, {**kept, "verdict": word}), chosen["verdict"] == word))
    rejected = job.progress.candidates["rejected"]
    if rejected:
        found.append(("rejected", rejected, _link(job, {**kept, "state": "rejected"}), chosen["state"] == "rejected"))
    return found


def _link(job: Job, query: _Query) -> str:
    given = {name: str(value) for name, value in query.items() if value is not None}
    return f"/jobs/{job.id}" + (f"?{urlencode(given)}" if given else "") + "#candidates"
