"""What the ledger promises, as a dictionary of units of work: no SQL, no locks, one thread. Tests compare the two."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from db.finishing import LEARN_PRIORITY
from db.ledger import MAX_RETURNS
from db.vocabulary import WorkKind

LIVE = ("queued", "running")
_ALWAYS = (WorkKind.ADVANCE, WorkKind.LEARN)
"""Kinds that are claimed although their job is being cancelled."""


@dataclass
class ModelJob:
    """What the ledger asks of a job."""

    key: str
    priority: int
    cancelled: bool = False
    ended: bool = False
    sources: set[str] = field(default_factory=set)
    evaluated: set[str] = field(default_factory=set)


@dataclass(eq=False)
class Unit:
    """A unit of work; `token` is the claim that holds it, `lapsed` says that its lease ran out."""

    kind: WorkKind
    queue: str
    job: str
    candidate: str | None
    priority: int
    due: bool = True
    id: str = ""
    state: str = "queued"
    attempt: int = 0
    returned: int = 0
    token: UUID | None = None
    lapsed: bool = False


class Model(dict[str, Unit]):
    """Units by id. `fresh` are those that the ledger must have made since they were last taken over by their ids."""

    def __init__(self, attempts: int) -> None:
        super().__init__()
        self.attempts = attempts
        self.jobs: dict[str, ModelJob] = {}
        self.draining: set[str] = set()
        self.served: dict[tuple[str, str], int] = {}
        self.fresh: list[Unit] = []

    # --- what may be claimed ---

    def claimable(self, unit: Unit) -> bool:
        return unit.state == "queued" and unit.due and (unit.kind in _ALWAYS or not self.jobs[unit.job].cancelled)

    def next(self, queues: Iterable[str], without: Unit | None = None) -> list[Unit]:
        """Who may come next: of each queue with the first turn its oldest. More than one only at a tie of queues."""
        ready = [
            unit for unit in self.values() if unit.queue in queues and self.claimable(unit) and unit is not without
        ]
        first = min(map(self._turn, ready), default=None)
        heads = [unit for unit in ready if self._turn(unit) == first]
        return [min((u for u in heads if u.queue == queue), key=lambda u: u.id) for queue in {u.queue for u in heads}]

    def _turn(self, unit: Unit) -> tuple[int, int, int, str]:
        key = self.jobs[unit.job].key
        running = sum(u.state == "running" and self._lane(u) == (unit.queue, key) for u in self.values())
        return -unit.priority, running, self.served.get((unit.queue, key), 0), key

    def _lane(self, unit: Unit) -> tuple[str, str]:
        return unit.queue, self.jobs[unit.job].key

    # --- moves ---

    def take(self, unit: Unit, token: UUID) -> None:
        unit.state, unit.token, unit.lapsed, unit.attempt = "running", token, False, unit.attempt + 1
        self.served[self._lane(unit)] = max(self.served.values(), default=0) + 1

    def end(self, unit: Unit, state: str) -> None:
        unit.state, unit.token, unit.lapsed = state, None, False

    def add(self, unit: Unit) -> None:
        self.fresh.append(unit)

    def wake(self, job_id: str) -> None:
        """One queued advance is enough for any number of changes."""
        if not self._queued_advances(job_id):
            self.add(Unit(WorkKind.ADVANCE, "control", job_id, None, self.jobs[job_id].priority))

    def _queued_advances(self, job_id: str) -> list[Unit]:
        known = [*self.values(), *self.fresh]
        return [u for u in known if u.kind is WorkKind.ADVANCE and u.job == job_id and u.state == "queued"]

    def evaluated(self, unit: Unit) -> None:
        assert unit.candidate is not None and unit.candidate not in self.jobs[unit.job].evaluated
        self.jobs[unit.job].evaluated.add(unit.candidate)
        self.wake(unit.job)

    def give_back(self, unit: Unit, *, counts: bool, due: bool) -> None:
        self._drop_twin(unit)
        over = unit.attempt >= self.attempts if counts else unit.returned >= MAX_RETURNS
        if not counts:
            unit.attempt, unit.returned = unit.attempt - 1, unit.returned + 1
        self._again(unit, over=over, due=due)

    def reap(self) -> tuple[int, int]:
        """How many were queued again and how many died."""
        counts = {"queued": 0, "dead": 0}
        for unit in sorted((u for u in self.values() if u.lapsed), key=lambda u: (u.job, u.id)):
            self._drop_twin(unit)
            if unit.state == "running":  # an advance that died before it in this round has ended the job
                self._again(unit, over=unit.attempt >= self.attempts, due=True)
                counts[unit.state] += 1
        return counts["queued"], counts["dead"]

    def _drop_twin(self, unit: Unit) -> None:
        if unit.kind is WorkKind.ADVANCE:
            for twin in self._queued_advances(unit.job):
                self.end(twin, "cancelled")

    def _again(self, unit: Unit, *, over: bool, due: bool) -> None:
        self.end(unit, "dead" if over else "queued")
        unit.due = due
        if not over or unit.kind is WorkKind.LEARN:
            return
        if unit.kind is WorkKind.ADVANCE:
            self.finish_job(unit.job, error=True)
        elif unit.kind is WorkKind.EVALUATE:
            self.evaluated(unit)
        else:
            self.wake(unit.job)

    def cancel(self, job_id: str) -> bool:
        job = self.jobs[job_id]
        if job.ended or job.cancelled:
            return False
        job.cancelled = True
        self.wake(job_id)
        return True

    def finish_job(self, job_id: str, *, error: bool) -> bool:
        job = self.jobs[job_id]
        if job.ended:
            return False
        job.ended = True
        for unit in [*self.values(), *self.fresh]:
            if unit.job == job_id and unit.state in LIVE:
                self.end(unit, "cancelled")
        if job.evaluated and not error:
            self.add(Unit(WorkKind.LEARN, "control", job_id, None, LEARN_PRIORITY))
        return True

    def idle(self) -> list[str]:
        """Jobs that nothing else would wake."""
        idle = []
        for job_id, job in sorted(self.jobs.items()):
            live = [unit for unit in self.values() if unit.job == job_id and unit.state in LIVE]
            if not job.ended and not any(u.kind is WorkKind.ADVANCE for u in live) and (not live or job.cancelled):
                idle.append(job_id)
        return idle
