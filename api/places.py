"""Places in the queue, for job resources.

A place is found by ranking everything that waits (14 ms for each 1,000 jobs), so it is found for all at once, and while
more than `LONG` wait it is held for a second for each 1,000, at least for one: who is 700th does not see the
difference. A job that was submitted meanwhile stands behind all others until it is over. Submissions themselves take a
ranking that is up to a minute old: with 6,000 waiting and 100 submitted a second, one in fifty would else wait 0.1 s.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from db import ledger

LONG: Final = 100
HELD_S_PER_JOB: Final = 1e-3
HELD_AT_LEAST_S: Final = 1.0
HELD_FOR_NEW_S: Final = 60.0


@dataclass(slots=True)
class _Ranking:
    at: float
    places: dict[str, int]

    def left_s(self, *, new: bool = False) -> float:
        if len(self.places) <= LONG:
            return 0.0
        held_s = HELD_FOR_NEW_S if new else max(HELD_AT_LEAST_S, HELD_S_PER_JOB * len(self.places))
        return self.at + held_s - time.monotonic()


_rankings: Final[WeakKeyDictionary[Engine | Connection, _Ranking]] = WeakKeyDictionary()
"""By database: one for each pool of connections."""


def queue_places(session: Session, job_ids: Sequence[str], *, new: bool = False) -> dict[str, int]:
    """The places of these waiting jobs, which may be `new` ones; 1 is next. One that is being started may have none."""
    if not job_ids:
        return {}
    database = session.get_bind()
    ranking = _rankings.get(database)
    if ranking is None or ranking.left_s(new=new) <= 0:
        if ranking is not None:
            ranking.at = time.monotonic()  # whoever asks while this one ranks is given the old places
        ranking = _rankings[database] = _Ranking(time.monotonic(), ledger.places(session))
    else:
        for job_id in job_ids:
            ranking.places.setdefault(job_id, len(ranking.places) + 1)
    return {job_id: ranking.places[job_id] for job_id in job_ids if job_id in ranking.places}


def held_s(session: Session) -> float:
    """How long places are still held."""
    ranking = _rankings.get(session.get_bind())
    return 0.0 if ranking is None else max(0.0, ranking.left_s())
