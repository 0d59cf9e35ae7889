"""/v1/candidates/{id}/ptx, /sass, /assembly, /ttgir and /llvm: what became of a candidate's source on the way to the
device."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Response
from sqlalchemy.orm import Session

from api import code_examples
from api.deps import StoreDep, known_parameters
from api.errors import NoCode, UnknownCandidate
from api.negotiation import etag, matches
from api.openapi import answers, example
from db import generated, listing
from db.jobs import fetch_job
from db.listing import CandidateRow
from db.vocabulary import CodeKind, Language, Verdict

TEXT = "text/plain"
LANGUAGES = {
    Language.CPP: (CodeKind.ASSEMBLY,),
    Language.CUDA: (CodeKind.PTX, CodeKind.SASS),
    Language.TRITON: (CodeKind.TTGIR, CodeKind.LLVM, CodeKind.PTX, CodeKind.SASS),
}
"""What a kernel of each language is compiled to."""
_UNTRUSTED = "What Triton compiles comes from the candidate's own process: it is the candidate's word."
_WHAT = {
    CodeKind.TTGIR: f"Triton's intermediate code for a GPU. {_UNTRUSTED}",
    CodeKind.LLVM: f"The LLVM code that Triton makes. {_UNTRUSTED}",
    CodeKind.PTX: f"The PTX of a CUDA or Triton kernel. {_UNTRUSTED}",
    CodeKind.SASS: f"The machine code of a CUDA or Triton kernel, by nvdisasm. {_UNTRUSTED}",
    CodeKind.ASSEMBLY: "The machine code of a C++ kernel, by objdump.",
}
"""What an endpoint serves, for its description."""

router = APIRouter(tags=["candidates"], dependencies=[Depends(known_parameters)])

_Endpoint = Callable[[str, StoreDep, str | None], Awaitable[Response]]


def _endpoint(kind: CodeKind) -> _Endpoint:
    async def show_code(
        candidate_id: str, store: StoreDep, if_none_match: Annotated[str | None, Header()] = None
    ) -> Response:
        kept = await find_code(candidate_id, kind, store)
        headers = {"ETag": etag(kept.sha256)}
        if matches(if_none_match, headers["ETag"]):
            return Response(status_code=304, headers=headers)
        return Response(await read_code(kept, store), media_type=f"{TEXT}; charset=utf-8", headers=headers)

    return show_code


for _kind in CodeKind:
    router.add_api_route(
        f"/v1/candidates/{{candidate_id}}/{_kind}",
        _endpoint(_kind),
        name=f"show_{_kind}",
        summary=f"Read a candidate's {code_examples.NAMES[_kind]}",
        description=f"{_WHAT[_kind]} Kept of candidates that the judge accepted, up to 1 MiB.",
        response_class=Response,
        responses=answers(
            {200: example("The code", code_examples.CODE[_kind], TEXT), 304: {"description": "The client has it"}},
            UnknownCandidate,
            NoCode,
        ),
    )


async def find_code(candidate_id: str, kind: CodeKind, store: StoreDep) -> generated.Listed:
    """A kind of a candidate's code, without its text. Raises UnknownCandidate, NoCode."""
    return await store.read(_kept, candidate_id, kind)


async def read_code(kept: generated.Listed, store: StoreDep) -> str:
    """Its text."""
    return await store.read(generated.text_of, kept.sha256)


def _kept(session: Session, candidate_id: str, kind: CodeKind) -> generated.Listed:
    row = listing.get_candidate(session, candidate_id)
    if row is None:
        raise UnknownCandidate
    kept = generated.listed(session, candidate_id)
    for each in kept:
        if each.kind is kind:
            return each
    language = Language(fetch_job(session, row.candidate.job_id).language)
    raise NoCode(_why_none(row, language, kind, [each.kind for each in kept]))


def _why_none(row: CandidateRow, language: Language, kind: CodeKind, kept: list[CodeKind]) -> str:
    """Why there is no such code of this candidate, in one sentence."""
    if row.candidate.duplicate_of is not None:
        twin = f"/v1/candidates/{row.candidate.duplicate_of}/{kind}"
        return f"this candidate is another one again, and that one was judged: see {twin}"
    if row.evaluation is None:
        return f"this candidate was not judged (state {row.candidate.state}): code is kept of what the judge accepted"
    if row.evaluation.verdict != Verdict.OK:
        return f"code is kept of what the judge accepted, and the verdict of this candidate is {row.evaluation.verdict}"
    if kind not in LANGUAGES[language]:
        return f"a {language} kernel has no {kind}: it has {', '.join(LANGUAGES[language])}"
    if kept:
        return f"the worker that judged this candidate could not read its {kind}: its log says why (code.missing)"
    return "this candidate was judged before code was kept, or by a worker that keeps none (KERNELWRIGHT_KEEP_CODE)"
