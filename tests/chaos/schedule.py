"""A seeded schedule: the same seed gives the same faults at the same seconds, to be printed, run and run again."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence

import structlog

from tests.chaos.faults import KINDS, Fault, draw
from tests.chaos.fleet import Fleet

GAP_S = (1.0, 4.0)
"""Between the beginnings of two faults; what lasts overlaps."""
TICK_S = 0.05

log = structlog.get_logger("chaos")


def plan(seed: int, length_s: float, kinds: Sequence[str] = tuple(KINDS)) -> list[Fault]:
    """The faults of a schedule in order, from its first second to `length_s`."""
    return list(_plan(random.Random(f"schedule {seed}"), length_s, tuple(kinds)))


def _plan(dice: random.Random, length_s: float, kinds: tuple[str, ...]) -> Iterator[Fault]:
    at_s = dice.uniform(*GAP_S)
    while at_s < length_s:
        yield draw(dice, at_s, kinds)
        at_s += dice.uniform(*GAP_S)


def run(fleet: Fleet, faults: Sequence[Fault], length_s: float) -> list[str]:
    """Do the faults at their time, restart what died, undo what lasted; what was done, one line each."""
    began = time.monotonic()
    waiting, lasting, told = list(faults), [], []
    while (now_s := time.monotonic() - began) < length_s or lasting:
        for fault in [fault for fault in lasting if fault.at_s + fault.length_s <= now_s]:
            lasting.remove(fault)
            _end(fleet, fault)
        while waiting and waiting[0].at_s <= now_s:
            fault = waiting.pop(0)
            done = KINDS[fault.kind].begin(fleet, fault)
            what = f"{fault.kind} {fault.target}".strip() + (f" for {fault.length_s} s" if fault.length_s else "")
            told.append(f"{now_s:.1f} s: {what}: {done or 'nothing there'}")
            log.info("chaos.fault", at_s=round(now_s, 1), kind=fault.kind, target=fault.target, done=done)
            if fault.length_s:
                lasting.append(fault)
        fleet.tend()
        time.sleep(TICK_S)
    return told


def _end(fleet: Fleet, fault: Fault) -> None:
    end = KINDS[fault.kind].end
    if end is not None:
        end(fleet, fault)
