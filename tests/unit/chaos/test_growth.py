"""What the soak calls growth: a leak is found, what comes and goes is not."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.chaos import growth
from tests.chaos.growth import MIB, Sample, Table, check, settled_processes

Change = Callable[[Sample, float], Sample]


def steady(at_s: float, dice: random.Random) -> Sample:
    """A fleet whose memory and connections breathe, and whose tables gain rows."""
    rows = 20_000 + int(at_s * 10)
    return Sample(
        at_s=at_s,
        memory={"api-0": 120 * MIB + dice.randrange(20 * MIB), "llm": 300 * MIB},
        handles={"api-0": 60 + dice.randrange(6), "llm": 80},
        connections={"Postgres": 30 + dice.randrange(3), "Valkey": 24},
        valkey_bytes=4 * MIB + dice.randrange(MIB),
        files=12 + dice.randrange(4),
        tables={"work": Table(rows * 400, rows, dice.randrange(rows // 5)), "keys": Table(8192, 0, 9)},
    )


def hour(change: Change | None = None) -> list[Sample]:
    dice = random.Random(1)
    samples = [steady(15.0 * number, dice) for number in range(240)]
    return [change(each, each.at_s / 3600) for each in samples] if change else samples


def test_what_breathes_does_not_grow() -> None:
    assert check(hour()) == []


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("memory of api-0", lambda s, h: replace(s, memory={**s.memory, "api-0": 120 * MIB + int(40 * MIB * h)})),
        ("memory of llm", lambda s, h: replace(s, memory={**s.memory, "llm": s.memory["llm"] + int(40 * MIB * h)})),
        ("files and threads of llm", lambda s, h: replace(s, handles={**s.handles, "llm": 80 + int(20 * h)})),
        ("connections to Postgres", lambda s, h: replace(s, connections={"Postgres": 30 + int(20 * h)})),
        ("Valkey", lambda s, h: replace(s, valkey_bytes=4 * MIB + int(20 * MIB * h))),
        ("temporary files", lambda s, h: replace(s, files=12 + int(40 * h))),
        ("dead rows of work", lambda s, h: replace(s, tables={"work": Table(8 * MIB, 20_000, 15_000)})),
        ("bytes per row of work", lambda s, h: replace(s, tables={"work": Table(int((1 + h) * 8 * MIB), 20_000, 0)})),
    ],
)  # fmt: skip
def test_a_leak_is_found(what: str, change: Change) -> None:
    (found,) = check(hour(change))
    assert found.rows and all(row.startswith(what) for row in found.rows), found


def test_a_process_that_has_just_started_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "20"]) as child:
        assert settled_processes(child.pid) == []
        monkeypatch.setattr(growth, "SETTLED_AGE_S", -1.0)
        assert settled_processes(child.pid) == [child.pid]
        assert growth.memory([child.pid]) > 0 and growth.handles([child.pid]) >= 4
        child.kill()
    assert (growth.memory([child.pid]), growth.handles([child.pid])) == (0, 0)
