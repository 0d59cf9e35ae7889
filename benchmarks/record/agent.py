"""The outside agent: it answers a job's questions with the kernels that were written for it, and then has no more."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.record.plan import Proposal
from cli.client import TERMINAL_STATES, Client, Conflict

AGENT = "benchmarks.record"
POLL_S = 0.5


def answer(
    client: Client,
    job_id: str,
    proposals: Sequence[Proposal],
    deadline: float,
    judged: Callable[[Any], None] = lambda _job: None,
) -> Any:
    """Tell the proposals in order as questions come, then that there are no more. The job as it ended, or as it is
    at `deadline` (monotonic seconds). `judged` is called with the job after each verdict, but the last one."""
    waiting = list(proposals)
    told = False
    job: Any = client.job(job_id)
    verdicts = job["progress"]["verdicts"]
    while job["state"] not in TERMINAL_STATES and time.monotonic() < deadline:
        if not told:
            told = _answer_open(client, job_id, waiting)
        time.sleep(POLL_S)
        job = client.job(job_id)
        if job["progress"]["verdicts"] != verdicts and job["state"] not in TERMINAL_STATES:
            verdicts = job["progress"]["verdicts"]
            judged(job)
    return job


def _answer_open(client: Client, job_id: str, waiting: list[Proposal]) -> bool:
    """Answer a question, if one is open; whether that was the last."""
    try:
        questions = client.ask(job_id, limit=1, agent=AGENT)
        for question in questions:
            where = job_id, question["candidate_id"], question["token"]
            if not waiting:
                client.tell(*where, exhausted=True, agent=AGENT)
                return True
            proposal = waiting.pop(0)
            client.tell(*where, source=proposal.source, plan=proposal.plan, agent=AGENT)
    except Conflict:  # it has ended meanwhile
        return True
    return False
