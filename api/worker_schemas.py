"""Workers on the wire."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from api.schemas import Body, Resource, UtcTime
from db.models import Worker as WorkerRow
from db.vocabulary import WorkerState


class Worker(Resource):
    """A worker process: the queues that it serves, the device behind it, what it does now and when it last said so."""

    id: str
    hostname: str
    pid: int
    queues: list[str]
    hardware: str | None
    device: dict[str, Any]
    state: WorkerState
    state_reason: str | None
    """Why it was quarantined: its device failed, and it takes no work until it is made active again."""
    current_work: str | None
    device_state: dict[str, Any] | None
    """How its GPU was at the last heartbeat: sm_mhz, memory_mhz, power_w, temperature_c, and as `throttled` what held
    the clocks down. Null on a CPU, and where the driver's management library is missing."""
    started_at: UtcTime
    heartbeat_at: UtcTime


class WorkerBody(Body):
    """What a worker shall be: `draining` finishes what it does and claims nothing more, `active` takes work."""

    model_config = {"json_schema_extra": {"examples": [{"state": "draining"}]}}

    state: Annotated[Literal["draining", "active"], Field(description="draining, or active again")]


class WorkerList(Resource):
    data: list[Worker]


def worker(row: WorkerRow) -> Worker:
    """The resource of a worker row."""
    return Worker(
        id=row.id,
        hostname=row.hostname,
        pid=row.pid,
        queues=row.queues,
        hardware=row.hardware,
        device=row.device,
        state=WorkerState(row.state),
        state_reason=row.state_reason,
        current_work=row.current_work,
        device_state=row.device_state,
        started_at=row.started_at,
        heartbeat_at=row.heartbeat_at,
    )
