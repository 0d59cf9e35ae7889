"""Jobs: submit, read, wait, stop; the winner and its evidence."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal
from uuid import uuid4

from cli.client.calls import Call, Flow, given, operation, steps, text
from cli.client.types import (
    Cancelled,
    CandidateDetail,
    CandidatePage,
    CandidateState,
    DryRun,
    EventPage,
    Job,
    JobBody,
    JobPage,
    JobState,
    Json,
    Language,
    Verdict,
)

TERMINAL_STATES = frozenset({"succeeded", "failed", "cancelled"})

_HOLD_S = 30.0
"""The server holds a long-poll for up to 60 s; proxies cut what is silent for as long."""


def new_key() -> str:
    """An Idempotency-Key of the client's own, so that a repeated submission never makes two jobs."""
    return f"client-{uuid4().hex}"


class JobCalls:
    """What is done with jobs."""

    @operation
    def submit(self, body: JobBody | Mapping[str, Any], *, idempotency_key: str | None = None) -> Call[Job]:
        """Submit a job. Sending the same body again with the same key returns the first job; without a key the client
        makes one, so that its own retries make one job."""
        headers = {"Idempotency-Key": idempotency_key or new_key()}
        return Call("POST", "/v1/jobs", headers=headers, body=body, again="safe")

    @operation
    def dry_run(self, body: JobBody | Mapping[str, Any]) -> Call[DryRun]:
        """Validate a submission without storing anything."""
        return Call("POST", "/v1/jobs", query={"dry_run": True}, body=body, again="safe")

    @operation
    def job(self, job_id: str, *, wait_s: float | None = None, since_version: int | None = None) -> Call[Job]:
        """One job. With `wait_s` (at most 60), once the version is above `since_version`, or when the time is over."""
        query = {"wait": wait_s, "since_version": since_version}
        return Call("GET", "/v1/jobs/{job_id}", {"job_id": job_id}, query=query, extra_s=wait_s or 0.0)

    @steps
    def wait(self, job_id: str, *, timeout_s: float | None = None) -> Flow[Job]:
        """The job once it has ended, or as it is after `timeout_s`: look at its `state`."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        job: Job = yield JobCalls.job.describe(self, job_id)
        while job["state"] not in TERMINAL_STATES:
            left_s = _HOLD_S if until is None else min(_HOLD_S, until - time.monotonic())
            if left_s <= 0:
                break
            job = yield JobCalls.job.describe(self, job_id, wait_s=left_s, since_version=job["version"])
        return job

    @operation
    def jobs(
        self,
        *,
        state: JobState | None = None,
        problem: str | None = None,
        hardware: str | None = None,
        language: Language | None = None,
        label: str | list[str] | None = None,
        created_after: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Call[JobPage]:
        """A page of jobs, newest first. A label is `key:value`, `created_after` RFC 3339."""
        query = {
            "state": state,
            "problem": problem,
            "hardware": hardware,
            "language": language,
            "label": label,
            "created_after": created_after,
            "limit": limit,
            "cursor": cursor,
        }
        return Call("GET", "/v1/jobs", query=query)

    @operation
    def events(self, job_id: str, *, after: int = 0, limit: int | None = None) -> Call[EventPage]:
        """A page of a job's events with a seq above `after`, oldest first."""
        query = {"after": after, "limit": limit}
        return Call("GET", "/v1/jobs/{job_id}/events", {"job_id": job_id}, query=query)

    @operation
    def candidates(
        self,
        job_id: str,
        *,
        verdict: Verdict | None = None,
        state: CandidateState | None = None,
        sort: Literal["ordinal", "-ordinal", "-speedup"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Call[CandidatePage]:
        """A page of a job's candidates, in the order they were made unless `sort` says otherwise."""
        query = {"verdict": verdict, "state": state, "sort": sort, "limit": limit, "cursor": cursor}
        return Call("GET", "/v1/jobs/{job_id}/candidates", {"job_id": job_id}, query=query)

    @operation
    def best(self, job_id: str) -> Call[CandidateDetail]:
        """The job's best verified candidate. NotFound while there is none."""
        return Call("GET", "/v1/jobs/{job_id}/best", {"job_id": job_id})

    @operation
    def best_source(self, job_id: str) -> Call[str]:
        """The source of the job's best verified candidate. NotFound while there is none."""
        headers = {"Accept": "text/x-python"}
        return Call("GET", "/v1/jobs/{job_id}/best", {"job_id": job_id}, headers=headers, read=text)

    @operation
    def certificate(self, job_id: str) -> Call[Json]:
        """The certificate of the job's champion, as the judge wrote it. NotFound while there is none."""
        return Call("GET", "/v1/jobs/{job_id}/certificate", {"job_id": job_id})

    @operation
    def certificate_page(self, job_id: str) -> Call[str]:
        """The certificate as an HTML page. NotFound while there is none."""
        headers = {"Accept": "text/html"}
        return Call("GET", "/v1/jobs/{job_id}/certificate", {"job_id": job_id}, headers=headers, read=text)

    @operation
    def cancel(self, job_id: str, *, reason: str | None = None) -> Call[Cancelled]:
        """Ask a job to stop. `changed` is false when it had ended, or was asked before."""
        body = given(reason=reason) or None
        return Call("POST", "/v1/jobs/{job_id}/cancel", {"job_id": job_id}, body=body, again="safe")

    @operation
    def rerun(self, job_id: str, *, idempotency_key: str | None = None) -> Call[Job]:
        """Submit what a job asked for again: a new job whose `parent_id` is the first."""
        headers = {"Idempotency-Key": idempotency_key or new_key()}
        return Call("POST", "/v1/jobs/{job_id}/rerun", {"job_id": job_id}, headers=headers, again="safe")
