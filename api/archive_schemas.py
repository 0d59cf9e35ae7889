"""All candidates of the service on the wire: each with its job, its evidence and what it cost, in one object."""

from __future__ import annotations

from typing import Any

from api.candidate_schemas import Candidate
from api.job_parts import ProblemRef, Target
from api.schemas import Resource


class ArchivedCertificate(Resource):
    """Which certificate the candidate has, and whether it says that it is one."""

    id: str
    certified: bool


class ArchivedCandidate(Candidate):
    """A candidate with what a data set of candidates needs. What `include` did not ask for is null."""

    problem: ProblemRef
    target: Target
    labels: dict[str, str]
    retrieval: bool | None
    """Whether its proposer was shown what is known."""
    prompt_version: str | None
    tokens_in: int | None
    tokens_out: int | None
    source_hash: str | None
    source_bytes: int | None
    source: str | None
    baselines_us: dict[str, float]
    """Latencies of the baselines that all workloads have, as geometric means."""
    speedups: dict[str, float]
    """Against each of them."""
    max_relative_error: float | None
    """The largest that the judge found in any check: over rows, columns or blocks, against the fp64 truth."""
    log: str | None
    """The end of what the compiler and the runner said."""
    gpu_s: float | None
    wall_s: float | None
    environment: dict[str, Any] | None
    certificate: ArchivedCertificate | None
    workloads: list[dict[str, Any]] | None
    """Each workload's timings with all samples."""
    profile: dict[str, Any] | None


class ArchivePage(Resource):
    """It may be short, or empty, and still have a next page: a page looks at 5,000 candidates at most."""

    data: list[ArchivedCandidate]
    next_cursor: str | None
    has_more: bool
