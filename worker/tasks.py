"""The Celery tasks. Thin: claim, call, finish.

A message is a doorbell, and its work id only a hint: whoever hears it takes the first ready row of its own queues, so
priorities hold however the messages arrived, and a repeated or stale message finds nothing to do. Whoever has
evaluated a job's best takes its certificate with it, unless more urgent work waits, and whoever has evaluated one of
its candidates takes the next ones of them for a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, ParamSpec

import structlog
from sqlalchemy.exc import DBAPIError
from structlog.contextvars import bound_contextvars

from db import ledger, recovery, tracing, workers
from db.ledger import Claim, Fenced
from db.vocabulary import WorkKind, WorkState
from worker import client, metrics, runtime, spans
from worker.admitting import admit
from worker.advancing import advance
from worker.app import app
from worker.certifying import certify
from worker.evaluating import evaluate
from worker.heartbeat import CancelRequested
from worker.learning import learn
from worker.proposing import propose
from worker.reaping import EMBED
from worker.runtime import Runtime

P = ParamSpec("P")

log = structlog.get_logger(__name__)

HANDLERS: Final[Mapping[WorkKind, Callable[[Runtime, Claim], None]]] = {
    WorkKind.ADVANCE: advance,
    WorkKind.ADMIT: admit,
    WorkKind.PROPOSE: propose,
    WorkKind.EVALUATE: evaluate,
    WorkKind.CERTIFY: certify,
    WorkKind.LEARN: learn,
}
MAX_BACKOFF_S: Final = 60.0
FOLLOWED_S: Final = 600.0
"""After a longer evaluation its certificate is a task of its own: both have one time limit of Celery's, 1,770 s."""
PASS_ON_S: Final = 2.0
"""How long a worker at rest keeps a doorbell, which may come to it again. At 0.5 s a child of the pool had heard its
200 in less than two minutes, and its judge ended with it (four H100s)."""
FOLLOW_S, _LOOK_S = 2.0, 0.02
"""How long whoever has evaluated a candidate waits to hear whether it is to be certified, and how often it looks."""


def serve(work_id: str) -> None:
    """Answer a doorbell: claim the next ready work of this worker's queues and do it."""
    here = runtime.current()
    claim = _claim(here)
    if claim is None:
        log.debug("doorbell.stale", work_id=work_id)
        _pass_on(here)
        return
    began_at = time.monotonic()
    _serve(here, claim)
    evaluated = claim.kind is WorkKind.EVALUATE and time.monotonic() - began_at < FOLLOWED_S
    if evaluated and (finalist := _finalist(here, claim.job_id)) is not None:
        _serve(here, finalist)


def _pass_on(here: Runtime) -> None:
    """A worker that is drained or quarantined hears doorbells as others do, and one that it kept to itself left them
    waiting for the reaper, up to 5 s for each evaluation."""
    with here.transaction() as session:
        bell = ledger.left_to_others(session, here.queues, here.owner)
    if bell is not None:
        time.sleep(PASS_ON_S)
        client.ring(*bell)


def _serve(here: Runtime, claim: Claim) -> None:
    named = {"job_id": claim.job_id, "candidate_id": claim.candidate_id, "kind": claim.kind.value}
    with bound_contextvars(work_id=claim.id, **named), spans.working(here, claim):
        work(here, claim)


def work(here: Runtime, claim: Claim) -> None:
    """Do claimed work. Whatever goes wrong is written down and the work is given back."""
    log.info("work.claimed", attempt=claim.attempt)
    metrics.claimed(claim.queue, claim.kind.value)
    began_at = time.monotonic()
    outcome = "done"
    failure: Exception | None = None
    try:
        HANDLERS[claim.kind](here, claim)
    except Fenced:
        outcome = "fenced"
        log.warning("work.fenced")
        with here.transaction() as session:
            recovery.record_fenced(session, claim)
    except CancelRequested:
        outcome = "cancelled"
        log.info("work.cancelled")
        with here.transaction() as session:
            ledger.finish(session, claim, state=WorkState.CANCELLED)
    except Exception as error:  # noqa: BLE001 - the task wrapper is one of the three boundaries
        outcome, failure = "failed", error
        log.exception("work.failed")
        _give_back(here, claim, error)
    finally:
        metrics.ended(claim.queue, claim.kind.value, outcome, time.monotonic() - began_at)
        spans.ended(outcome, failure)
        _set_current(here, None)


def _claim(here: Runtime) -> Claim | None:
    with here.transaction() as session:
        near, claim = here.near(), None
        if near is not None:
            claim = ledger.claim_near(session, near, here.queues, here.owner, lease_s=here.settings.lease_s)
        if claim is None:
            claim = ledger.claim_next(session, here.queues, here.owner, lease_s=here.settings.lease_s)
        if claim is not None:
            workers.set_current(session, here.owner, claim.id)
        return claim


def _finalist(here: Runtime, job_id: str) -> Claim | None:
    """What was just evaluated, to be certified, if that is what its job does next: decided within some 50 ms."""
    deadline = time.monotonic() + FOLLOW_S
    while True:
        with here.transaction() as session:
            undecided = ledger.to_be_certified(session, job_id, here.owner)
            claim = ledger.claim_finalist(session, job_id, here.owner, lease_s=here.settings.lease_s)
            if claim is not None:
                workers.set_current(session, here.owner, claim.id)
        if claim is not None or not undecided or time.monotonic() > deadline:
            return claim
        time.sleep(_LOOK_S)


def _set_current(here: Runtime, work_id: str | None) -> None:
    with here.transaction() as session:
        workers.set_current(session, here.owner, work_id)


def _give_back(here: Runtime, claim: Claim, error: Exception) -> None:
    delay_s = min(MAX_BACKOFF_S, 2.0**claim.attempt)
    try:
        with here.transaction() as session:
            recovery.give_back(session, claim, _told(error), delay_s=delay_s)
    except Fenced:
        log.warning("work.fenced")


def _told(error: Exception) -> str:
    """What the job's events say of a failure. Of a statement that failed only why: not its SQL, which is ours."""
    if isinstance(error, DBAPIError):
        why = str(error.orig).partition("\n")[0]
        return f"{type(error).__name__}: {why}"
    return f"{type(error).__name__}: {error}"


def _task(name: str, **options: Any) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """`app.task` with types: Celery has none."""
    decorate: Callable[[Callable[P, None]], Callable[P, None]] = app.task(name=name, **options)
    return decorate


@_task("kernelwright.advance")
def advance_task(work_id: str) -> None:
    """Decide what a job does next."""
    serve(work_id)


@_task("kernelwright.admit")
def admit_task(work_id: str) -> None:
    """Examine a problem."""
    serve(work_id)


@_task("kernelwright.propose")
def propose_task(work_id: str) -> None:
    """Make a candidate's source."""
    serve(work_id)


@_task("kernelwright.evaluate")
def evaluate_task(work_id: str) -> None:
    """Judge a candidate."""
    serve(work_id)


@_task("kernelwright.certify")
def certify_task(work_id: str) -> None:
    """Certify a finalist."""
    serve(work_id)


@_task("kernelwright.draft")
def draft_task(request_id: str) -> None:
    """Write the reference for a request in plain words."""
    # Needs litellm, which only the workers of the queue `llm` have.
    from worker.drafting import draft

    named = {"kernelwright.request.id": request_id}
    with bound_contextvars(request_id=request_id), tracing.span("draft", named, kind="consumer"):
        draft(runtime.current(), request_id)


@_task("kernelwright.embed")
def embed_task(embedder: str) -> None:
    """Embed what the knowledge base holds, by this worker's own setting: the message's is a hint."""
    # Needs litellm, as drafting does.
    from worker.embedding import embed

    if embed(runtime.current()):
        client.heard(EMBED)


@_task("kernelwright.learn")
def learn_task(work_id: str) -> None:
    """Learn from a job that has ended."""
    serve(work_id)
