"""What leaves the service: all its candidates, packages of kernels, the code that candidates were compiled to."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

import httpx2

from cli.client.calls import Call, operation, text
from cli.client.types import ArchivePage, Language, Verdict


class NamedFile(NamedTuple):
    """A file as the server names it; an empty name when it gives none."""

    name: str
    data: bytes


def _file(response: httpx2.Response) -> NamedFile:
    found = re.search(r'filename="([^"]*)"', response.headers.get("content-disposition", ""))
    return NamedFile(found[1] if found else "", response.content)


def _code(kind: str, candidate_id: str) -> Call[str]:
    return Call("GET", f"/v1/candidates/{{candidate_id}}/{kind}", {"candidate_id": candidate_id}, read=text)


class ExportCalls:
    """Read, to be used elsewhere."""

    @operation
    def all_candidates(
        self,
        *,
        job: str | None = None,
        problem: str | None = None,
        hardware: str | None = None,
        language: Language | None = None,
        verdict: Verdict | None = None,
        created_after: str | None = None,
        include: list[Literal["source", "workloads", "profile"]] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Call[ArchivePage]:
        """A page of all candidates of the service, oldest first."""
        where = {"job": job, "problem": problem, "hardware": hardware, "language": language, "verdict": verdict}
        what = {"created_after": created_after, "include": include, "limit": limit, "cursor": cursor}
        return Call("GET", "/v1/candidates", query={**where, **what})

    @operation
    def package_job(
        self, job_id: str, *, also: list[str] | None = None, format: Literal["sdist", "wheel"] | None = None
    ) -> Call[NamedFile]:
        """The package of a job's best kernel, with those of `also` beside it. NotFound while there is none."""
        return Call(
            "GET", "/v1/jobs/{job_id}/package", {"job_id": job_id}, {"also": also, "format": format}, read=_file
        )

    @operation
    def package_candidate(
        self, candidate_id: str, *, also: list[str] | None = None, format: Literal["sdist", "wheel"] | None = None
    ) -> Call[NamedFile]:
        """The package of a certified candidate, likewise."""
        where, query = {"candidate_id": candidate_id}, {"also": also, "format": format}
        return Call("GET", "/v1/candidates/{candidate_id}/package", where, query, read=_file)

    @operation
    def ttgir(self, candidate_id: str) -> Call[str]:
        """Triton's intermediate code of a candidate. NotFound, which says why, where none is kept; so with the rest."""
        return _code("ttgir", candidate_id)

    @operation
    def llvm(self, candidate_id: str) -> Call[str]:
        """The LLVM code of a Triton candidate."""
        return _code("llvm", candidate_id)

    @operation
    def ptx(self, candidate_id: str) -> Call[str]:
        """The PTX of a CUDA or Triton candidate."""
        return _code("ptx", candidate_id)

    @operation
    def sass(self, candidate_id: str) -> Call[str]:
        """The machine code of a CUDA or Triton candidate."""
        return _code("sass", candidate_id)

    @operation
    def assembly(self, candidate_id: str) -> Call[str]:
        """The machine code of a C++ candidate."""
        return _code("assembly", candidate_id)
