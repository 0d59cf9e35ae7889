"""Requests in plain words, and ask and tell for agents of your own (docs/ask-tell.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cli.client.calls import Call, data, given, operation
from cli.client.types import DryRun, Job, PlainRequest, Question, Renewed, RequestBody, Told


class AskingCalls:
    """What is asked of a model or of an agent."""

    @operation
    def request(self, body: RequestBody | Mapping[str, Any]) -> Call[PlainRequest]:
        """Ask in plain words: `{"request": "softmax on my CPU"}`. Nothing is searched before it is confirmed."""
        return Call("POST", "/v1/requests", body=body)

    @operation
    def plain_request(self, request_id: str, *, wait_s: float | None = None) -> Call[PlainRequest]:
        """A request; with `wait_s` (at most 60) once no model writes for it, or when the time is over."""
        where = {"request_id": request_id}
        return Call("GET", "/v1/requests/{request_id}", where, query={"wait": wait_s}, extra_s=wait_s or 0.0)

    @operation
    def preview(self, request_id: str) -> Call[DryRun]:
        """What confirming a request would make."""
        where, query = {"request_id": request_id}, {"dry_run": True}
        return Call("POST", "/v1/requests/{request_id}/confirm", where, query=query, again="safe")

    @operation
    def confirm(self, request_id: str) -> Call[Job]:
        """Submit the job that a request proposes; again, and it is the same job. Conflict: nothing to confirm."""
        return Call("POST", "/v1/requests/{request_id}/confirm", {"request_id": request_id}, again="safe")

    @operation
    def ask(
        self, job_id: str, *, limit: int = 1, lease_s: float | None = None, agent: str | None = None
    ) -> Call[list[Question]]:
        """Up to `limit` open questions of the job; none when nothing is open now. Conflict for a job that has ended."""
        body = given(limit=limit, lease_s=lease_s, agent=agent)
        return Call("POST", "/v1/jobs/{job_id}/ask", {"job_id": job_id}, body=body, read=data)

    @operation
    def tell(
        self,
        job_id: str,
        candidate_id: str,
        token: str,
        *,
        answer: str | None = None,
        source: str | None = None,
        exhausted: bool | None = None,
        plan: str | None = None,
        agent: str | None = None,
    ) -> Call[Told]:
        """Answer a question with `answer`, with `source` (and `plan`), or that ideas are `exhausted`; `agent` says who.

        Conflict: too late.
        """
        said = given(answer=answer, source=source, exhausted=exhausted, plan=plan, agent=agent)
        body = {"candidate_id": candidate_id, "token": token} | said
        # The same answer with the same token is answered as it was the first time.
        return Call("POST", "/v1/jobs/{job_id}/tell", {"job_id": job_id}, body=body, again="safe")

    @operation
    def renew(self, job_id: str, candidate_id: str, token: str, *, lease_s: float | None = None) -> Call[Renewed]:
        """Have a question for longer, while it is still yours."""
        body = {"candidate_id": candidate_id, "token": token} | given(lease_s=lease_s)
        return Call("POST", "/v1/jobs/{job_id}/renew", {"job_id": job_id}, body=body, again="safe")
