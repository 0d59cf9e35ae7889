"""One candidate, and what is on record of how a search went."""

from __future__ import annotations

from cli.client.calls import Call, operation, text
from cli.client.types import (
    CandidateDetail,
    Comparison,
    DecisionPage,
    Judging,
    Proposal,
    ProposalPage,
    Recalled,
    SearchTree,
)


class RecordCalls:
    """Candidates one by one, decisions, prompts and answers."""

    @operation
    def candidate(self, candidate_id: str) -> Call[CandidateDetail]:
        """One candidate with its source and the judge's report."""
        return Call("GET", "/v1/candidates/{candidate_id}", {"candidate_id": candidate_id})

    @operation
    def candidate_source(self, candidate_id: str) -> Call[str]:
        """The candidate's source as it stands. NotFound before it has one."""
        return Call("GET", "/v1/candidates/{candidate_id}/source", {"candidate_id": candidate_id}, read=text)

    @operation
    def candidate_log(self, candidate_id: str) -> Call[str]:
        """What the compiler and the candidate itself printed. NotFound before it was evaluated."""
        return Call("GET", "/v1/candidates/{candidate_id}/log", {"candidate_id": candidate_id}, read=text)

    @operation
    def compare(self, first_id: str, second_id: str) -> Call[Comparison]:
        """Two candidates side by side: speedups, intervals, timings of each workload, the diff of their sources."""
        where = {"candidate_id": first_id, "other_id": second_id}
        return Call("GET", "/v1/candidates/{candidate_id}/compare/{other_id}", where)

    @operation
    def proposal(self, candidate_id: str) -> Call[Proposal]:
        """How the candidate was made: the prompt, what it was made from, the answer."""
        return Call("GET", "/v1/candidates/{candidate_id}/proposal", {"candidate_id": candidate_id})

    @operation
    def recalled(self, candidate_id: str) -> Call[Recalled]:
        """What of the knowledge base was found for the candidate, and whether its prompt showed it."""
        return Call("GET", "/v1/candidates/{candidate_id}/knowledge", {"candidate_id": candidate_id})

    @operation
    def decisions(self, job_id: str, *, limit: int | None = None, cursor: str | None = None) -> Call[DecisionPage]:
        """A page of what the job's search decided, each time it was looked at."""
        query = {"limit": limit, "cursor": cursor}
        return Call("GET", "/v1/jobs/{job_id}/decisions", {"job_id": job_id}, query=query)

    @operation
    def proposals(self, job_id: str, *, limit: int | None = None, cursor: str | None = None) -> Call[ProposalPage]:
        """A page of how the job's candidates were made."""
        query = {"limit": limit, "cursor": cursor}
        return Call("GET", "/v1/jobs/{job_id}/proposals", {"job_id": job_id}, query=query)

    @operation
    def tree(self, job_id: str) -> Call[SearchTree]:
        """The job's nodes as the search sees them now."""
        return Call("GET", "/v1/jobs/{job_id}/tree", {"job_id": job_id})

    @operation
    def judging(self, job_id: str) -> Call[Judging]:
        """What the job's judge is asked, beside the candidate; its `seed` is null while the job runs."""
        return Call("GET", "/v1/jobs/{job_id}/judging", {"job_id": job_id})
