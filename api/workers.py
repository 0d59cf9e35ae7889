"""/v1/workers: who does the work, on what."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from sqlalchemy.orm import Session

from api import examples
from api.deps import ActorDep, StoreDep, known_parameters
from api.errors import BodyTooLarge, BrokenJson, Invalid, NotJson, UnknownWorker, WorkerGone
from api.openapi import answers, example
from api.worker_schemas import Worker, WorkerBody, WorkerList, worker
from db import audit, workers
from db.audit import Actor
from db.vocabulary import AuditAction, WorkerState

router = APIRouter(prefix="/v1/workers", tags=["workers"], dependencies=[Depends(known_parameters)])


_ALIVE = example("All that are alive", {"data": [examples.WORKER]})
_CHANGED = example("The worker now", examples.WORKER | {"state": "draining"})
_BODY_ERRORS = (BrokenJson, BodyTooLarge, NotJson, Invalid)


@router.get("", summary="List the workers", responses=answers({200: _ALIVE}))
async def list_workers(store: StoreDep, include_gone: bool = False) -> WorkerList:
    """With their device, their queues and what they do now. One that was silent for a minute is gone."""
    return await store.read(_list, include_gone)


@router.patch(
    "/{worker_id}",
    summary="Drain a worker, or have it take work again",
    responses=answers({200: _CHANGED}, UnknownWorker, WorkerGone, *_BODY_ERRORS),
)
async def change_worker(worker_id: str, body: WorkerBody, store: StoreDep, actor: ActorDep) -> Worker:
    """A draining worker finishes what it does and claims nothing more, until it is active again. May be repeated."""
    return await store.write(_change, worker_id, WorkerState(body.state), actor)


def _change(session: Session, worker_id: str, state: WorkerState, actor: Actor) -> Worker:
    try:
        row = workers.drain_or_resume(session, worker_id, state)
    except workers.WorkerIsGone as error:
        raise WorkerGone from error
    if row is None:
        raise UnknownWorker
    action = AuditAction.WORKER_DRAIN if state == WorkerState.DRAINING else AuditAction.WORKER_RESUME
    audit.note(session, actor, action, worker_id)
    return worker(row)


def _list(session: Session, include_gone: bool) -> WorkerList:
    return WorkerList(data=[worker(row) for row in workers.list_workers(session, include_gone=include_gone)])
