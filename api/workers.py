"""/v1/workers: who does the work, on what."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from sqlalchemy.orm import Session

from api import examples
from api.deps import StoreDep, known_parameters
from api.openapi import answers, example
from api.worker_schemas import WorkerList, worker
from db import workers

router = APIRouter(prefix="/v1/workers", tags=["workers"], dependencies=[Depends(known_parameters)])


_ALIVE = example("All that are alive", {"data": [examples.WORKER]})


@router.get("", summary="List the workers", responses=answers({200: _ALIVE}))
async def list_workers(store: StoreDep, include_gone: bool = False) -> WorkerList:
    """With their device, their queues and what they do now. One that was silent for a minute is gone."""
    return await store.read(_list, include_gone)


def _list(session: Session, include_gone: bool) -> WorkerList:
    return WorkerList(data=[worker(row) for row in workers.list_workers(session, include_gone=include_gone)])
