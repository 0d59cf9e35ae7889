"""From a submission's body to a stored job: the problem is resolved, the rest was checked by the schema."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from functools import lru_cache, partial
from typing import Any

from sqlalchemy.orm import Session

from api.admission_views import admission_view
from api.errors import BudgetUsed, FieldError, KeyReused, QuotaUsed, Refused, UnknownJob, invalid
from api.estimating import estimate_of
from api.job_parts import ProblemRef
from api.job_schemas import DryRun, Job, JobBody, ProblemChoice
from api.job_views import job_view
from api.problem_schemas import outlined
from db import budgets, jobs
from db.admissions import ProblemRefused, current_admission, raise_if_refused
from db.audit import Actor
from db.budgets import BudgetSpent, check_submission
from db.storable import storable_json
from db.vocabulary import Proposer, target_queue
from db.workers import live_workers
from problems.catalog import Outline, ProblemError, bundled, outline


def resolve(choice: ProblemChoice, hardware: str) -> Outline:
    """The problem that is meant, read but not run.

    Raises:
        Invalid: no bundled problem has the name, the source does not parse (with its line), or it has no workload for
            the hardware.
    """
    found = _bundled(choice.name) if choice.source is None else _own(choice.name, choice.source)
    try:
        found.spec.workloads_for(hardware)
    except ProblemError as error:
        raise invalid("#/target/hardware", str(error)) from error
    return found


def dry_run(session: Session, body: JobBody, problem: Outline) -> DryRun:
    """What the submission would become. Stores nothing.

    Raises:
        Refused: the judge has refused the problem on this hardware.
    """
    known = current_admission(session, problem.source_hash, body.target.hardware)
    try:
        raise_if_refused(known)
    except ProblemRefused as error:
        raise _refused(error) from error
    spec = body.model_dump(mode="json", exclude={"problem"})
    reference = ProblemRef(name=problem.name, hash=problem.source_hash).model_dump()
    queue = target_queue(body.target.hardware)
    waits = f"no worker serves the queue {queue} now: the job would wait for one"
    unserved = [] if live_workers(session, queue) else [waits]
    return DryRun(
        job={"problem": reference, **spec},
        problem=outlined(problem),
        admission=admission_view(known),
        estimate=estimate_of(session, body, problem),
        warnings=[*unserved, *_waits_for_agents(body)],
    )


def _waits_for_agents(body: JobBody) -> list[str]:
    """What a job says that asks outside agents and has no end in time."""
    if Proposer.ASK_TELL not in body.models or body.budget.wall_s is not None:
        return []
    return ["ask/tell is among the models: without budget.wall_s the job waits for agents as long as it takes"]


def submit(
    session: Session, body: JobBody, problem: Outline, key: str | None, actor: Actor, key_id: str | None = None
) -> tuple[Job, bool]:
    """Store the job with its event and its first work; also whether the key was seen before with this body.

    Raises:
        KeyReused: the key stands for another body.
        Refused: the judge has refused the problem on this hardware.
        BudgetUsed: a cap of the API key is used up.
        QuotaUsed: it has too many jobs; one that was stored before under the same key is answered all the same.
    """
    key_id = key_id or actor.key_id
    idempotency = None if key is None else jobs.IdempotencyKey(_scoped(key, actor), fingerprint(body))
    return _created(session, new_job(body, problem, key_id), idempotency, actor)


def rerun(session: Session, job_id: str, key: str | None, actor: Actor) -> tuple[Job, bool]:
    """Store a job that asks for the same as this one, which becomes its parent; paid for by the key that asks now.

    Raises:
        UnknownJob: there is no such job.
        KeyReused, Refused, BudgetUsed, QuotaUsed: as `submit`.
    """
    row = jobs.get_job(session, job_id)
    if row is None:
        raise UnknownJob
    meant = hashlib.sha256(f"rerun {job_id}".encode()).hexdigest()
    idempotency = None if key is None else jobs.IdempotencyKey(_scoped(key, actor), meant)
    return _created(session, jobs.same_again(session, row, actor.key_id), idempotency, actor)


def _scoped(key: str, actor: Actor) -> str:
    """What the Idempotency-Key of this caller is stored as: two teams that both choose `nightly` do not meet.

    No client's own can look like it: they have no space in them.
    """
    return key if actor.key_id is None else f"{actor.key_id} {key}"


def _created(
    session: Session, new: jobs.NewJob, idempotency: jobs.IdempotencyKey | None, actor: Actor
) -> tuple[Job, bool]:
    allow = partial(check_submission, session, new.key_id, models=bool(new.models))
    try:
        created = jobs.create_job(session, new, idempotency, allow, actor)
    except jobs.IdempotencyMismatch as error:
        raise KeyReused from error
    except ProblemRefused as error:
        raise _refused(error) from error
    except BudgetSpent as error:
        raise BudgetUsed(str(error)) from error
    except budgets.QuotaUsed as error:
        raise QuotaUsed(str(error), headers={"Retry-After": str(math.ceil(error.retry_s))}) from error
    return job_view(session, created.job, new=not created.replayed), created.replayed


def fingerprint(body: JobBody) -> str:
    """A hash of what the body means: the order of its fields and the defaults left out make no difference."""
    meaning = json.dumps(body.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(meaning.encode()).hexdigest()


def new_job(body: JobBody, problem: Outline, key_id: str | None = None) -> jobs.NewJob:
    """The row to be, from the body and the problem that it names."""
    return jobs.NewJob(
        problem_hash=problem.source_hash,
        problem_name=problem.name,
        problem_source=problem.source,
        problem_spec=_spec(problem),
        hardware=body.target.hardware,
        language=body.target.language,
        budget_candidates=body.budget.candidates,
        budget_usd=body.budget.usd,
        budget_wall_s=body.budget.wall_s,
        budget_gpu_s=body.budget.gpu_s,
        budget_calls=body.budget.calls,
        budget_tokens=body.budget.tokens,
        target_speedup=body.stop.target_speedup,
        stagnation=body.stop.stagnation,
        models=tuple(body.models),
        diagnosis_model=body.diagnosis_model,
        labels=body.labels,
        priority=body.priority,
        seed=body.seed,
        own_kernel_share=body.policy.own_kernel_share,
        search_policy=body.policy.search,
        admit=body.admit,
        certify=body.certify,
        key_id=key_id,
    )


def _spec(problem: Outline) -> dict[str, Any]:
    known = bundled().get(problem.name)
    return _bundled_spec(problem.name) if known is problem else _stored(problem)


@lru_cache(maxsize=256)
def _bundled_spec(name: str) -> dict[str, Any]:
    return _stored(bundled()[name])


def _stored(problem: Outline) -> dict[str, Any]:
    stored: dict[str, Any] = storable_json(dataclasses.asdict(problem.spec))
    return stored


def _refused(error: ProblemRefused) -> Refused:
    return Refused(str(error), errors=[FieldError(pointer="#/problem", detail=str(error))])


def _bundled(name: str) -> Outline:
    known = bundled()
    if name not in known:
        listed = ", ".join(known)
        raise invalid("#/problem", f'no bundled problem is called "{name}"; there are {listed}; or add your "source"')
    return known[name]


def _own(name: str, source: str) -> Outline:
    try:
        return outline(source, name)
    except ProblemError as error:
        raise invalid("#/problem/source", str(error)) from error
