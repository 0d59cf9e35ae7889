"""The fleet: who works on what, on which device, and what waits for whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from sqlalchemy.orm import Session

from api.deps import StoreDep
from api.pages.frame import render
from api.worker_schemas import Worker, worker
from db import ledger, workers
from db.ledger import QueueDepth
from db.models import Work

router = APIRouter()


@router.get("/fleet")
async def show_fleet(request: Request, store: StoreDep) -> Response:
    """Workers that were heard of in the last minute, and every queue that has or serves something."""
    alive, works, depths = await store.read(_fleet)
    served = {queue for each in alive for queue in each.queues}
    known = {depth.queue: depth for depth in depths}
    waiting = [known.get(queue) or QueueDepth(queue, 0, 0, 0, 0.0) for queue in sorted(served | set(known))]
    context: dict[str, Any] = {"workers": alive, "works": works, "queues": waiting, "served": served}
    return render(request, "fleet.html.j2", here="/fleet", **context)


def _fleet(session: Session) -> tuple[list[Worker], dict[str, Work], Sequence[QueueDepth]]:
    rows = workers.list_workers(session)
    return [worker(row) for row in rows], workers.current_works(session, rows), ledger.depths(session)
