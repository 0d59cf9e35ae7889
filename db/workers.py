"""The workers table: who is alive, what it serves, what it measured about its device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import ColumnElement, bindparam, func, null, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from db.models import Work, Worker
from db.storable import storable_json, storable_text
from db.vocabulary import WorkerState

GONE_AFTER_S: Final = 60.0
"""A worker that was silent for six beats counts as gone."""


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a worker says about itself when it starts."""

    id: str
    hostname: str
    pid: int
    queues: tuple[str, ...]
    hardware: str | None = None
    device: Mapping[str, Any] = field(default_factory=dict)


def register(session: Session, facts: WorkerFacts) -> None:
    """Insert the worker's row, or bring it back if it was thought gone."""
    values = {
        "id": facts.id,
        "hostname": facts.hostname,
        "pid": facts.pid,
        "queues": list(facts.queues),
        "hardware": facts.hardware,
        "device": storable_json(facts.device),
        "state": WorkerState.ACTIVE.value,
    }
    again = {**values, "heartbeat_at": func.now()}
    session.execute(insert(Worker).values(values).on_conflict_do_update(index_elements=["id"], set_=again))


def beat(session: Session, worker_id: str, device_state: Mapping[str, Any] | None = None) -> WorkerState | None:
    """Say that the worker is alive, and how its device is now.

    Returns the worker's state (an operator may have set `draining`), None when it has no row.
    A worker that was thought gone is active again.
    """
    query = (
        update(Worker)
        .where(Worker.id == worker_id)
        .values(
            heartbeat_at=func.now(),
            device_state=null() if device_state is None else storable_json(device_state),
            state=text("CASE WHEN workers.state = 'gone' THEN 'active' ELSE workers.state END"),
        )
        .returning(Worker.state)
        .execution_options(synchronize_session=False)
    )
    state = session.execute(query).scalar_one_or_none()
    return None if state is None else WorkerState(state)


def set_current(session: Session, worker_id: str, work_id: str | None) -> None:
    """Say what the worker is doing, for people who look at the workers page."""
    session.execute(
        update(Worker).where(Worker.id == worker_id).values(current_work=work_id),
        execution_options={"synchronize_session": False},
    )


def set_state(session: Session, worker_id: str, state: WorkerState) -> bool:
    """Drain a worker, make it active again, or say that it left. False when there is no such worker."""
    values = {"state": state.value} | ({"current_work": None} if state is WorkerState.GONE else {})
    query = update(Worker).where(Worker.id == worker_id).values(**values).returning(Worker.id)
    return session.execute(query.execution_options(synchronize_session=False)).one_or_none() is not None


def quarantine(session: Session, worker_id: str, reason: str) -> bool:
    """Have a worker whose device failed claim nothing more until somebody resumes it. False without such a worker."""
    query = (
        update(Worker)
        .where(Worker.id == worker_id)
        .values(state=WorkerState.QUARANTINED.value, state_reason=storable_text(reason))
        .returning(Worker.id)
    )
    return session.execute(query.execution_options(synchronize_session=False)).one_or_none() is not None


class WorkerIsGone(Exception):
    """This worker has left or fell silent: there is nothing to drain or to resume. A new one registers by itself."""

    def __str__(self) -> str:
        return str(self.__doc__)


def drain_or_resume(session: Session, worker_id: str, state: WorkerState) -> Worker | None:
    """Have a worker claim nothing more after what it does now, or take work again; None when there is no such worker.

    Raises WorkerIsGone.
    """
    worker = session.get(Worker, worker_id, with_for_update=True, populate_existing=True)
    if worker is None:
        return None
    if worker.state == WorkerState.GONE:
        raise WorkerIsGone
    worker.state = state.value
    if state is WorkerState.ACTIVE:
        worker.state_reason = None
    session.flush()
    return worker


def list_workers(session: Session, *, include_gone: bool = False) -> Sequence[Worker]:
    """The workers, oldest first; those that are gone on request."""
    query = select(Worker).order_by(Worker.started_at, Worker.id)
    if not include_gone:
        query = query.where(_alive())
    return session.scalars(query).all()


def current_works(session: Session, alive: Sequence[Worker]) -> dict[str, Work]:
    """The work that these workers say they do now, by its id."""
    ids = [worker.current_work for worker in alive if worker.current_work is not None]
    return {work.id: work for work in session.scalars(select(Work).where(Work.id.in_(ids)))} if ids else {}


def live_workers(session: Session, queue: str) -> int:
    """How many active workers serve the queue."""
    query = select(func.count()).where(
        _alive(), Worker.state == WorkerState.ACTIVE.value, Worker.queues.contains([queue])
    )
    return session.scalar(query) or 0


def served_queues(session: Session) -> set[str]:
    """The queues that some active worker serves."""
    rows = session.scalars(select(Worker.queues).where(_alive(), Worker.state == WorkerState.ACTIVE.value))
    return {queue for queues in rows for queue in queues}


_DEVICE_FACTS: Final = (
    select(Worker.device)
    .where(Worker.hardware == bindparam("hardware"), Worker.device != {})
    .order_by(Worker.heartbeat_at.desc())
    .limit(1)
)


def device_facts(session: Session, hardware: str) -> dict[str, Any]:
    """What the most recently heard worker of this hardware measured about it; empty when there has been none."""
    return session.scalar(_DEVICE_FACTS, {"hardware": hardware}) or {}


def mark_gone(session: Session, silent_s: float = GONE_AFTER_S) -> list[str]:
    """Write down who has been silent for too long; returns their ids."""
    query = (
        update(Worker)
        .where(Worker.state != WorkerState.GONE.value, ~_alive(silent_s))
        .values(state=WorkerState.GONE.value, current_work=None)
        .returning(Worker.id)
        .execution_options(synchronize_session=False)
    )
    return list(session.scalars(query))


def _alive(silent_s: float = GONE_AFTER_S) -> ColumnElement[bool]:
    heard = Worker.heartbeat_at > func.now() - func.make_interval(0, 0, 0, 0, 0, 0, silent_s)
    return heard & (Worker.state != WorkerState.GONE.value)
