"""How often the share of own code is measured, behind how many evictions, and what Python may take.

A slow host is not a hidden kernel.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from worker.judge.checks import provenance
from worker.judge.checks.kernel_names import Owner
from worker.judge.checks.provenance import Entry, Usage
from worker.judge.verdict import Fault, Verdict

WANTED = 0.9


def usage(unexplained_us: float) -> Usage:
    return Usage("small", 10, (Entry("mine", False, 10, 100.0, Owner.OWN),), 1000.0, unexplained_us, 0.0)


def best(monkeypatch: pytest.MonkeyPatch, unexplained_us: dict[int, float]) -> tuple[Usage, list[int]]:
    """The usage that is kept, and behind how many times the usual evictions each attempt was."""
    tried: list[int] = []

    def measured(*_parts: Any, inductor: bool, times: int = 1) -> Usage:
        tried.append(times)
        return usage(unexplained_us[times])

    monkeypatch.setattr(provenance, "measure", measured)
    monkeypatch.setattr(provenance, "_PAUSE_S", 0.0)
    request = SimpleNamespace(candidate_source="", own_kernel_share=WANTED)
    trial: Any = SimpleNamespace(runner=None, request=request)
    return provenance._best_of(trial, None, "small", frozenset({"mine"})), tried  # type: ignore[arg-type]


def test_a_slow_host_is_measured_behind_more_evictions(monkeypatch: pytest.MonkeyPatch) -> None:
    found, tried = best(monkeypatch, {1: 400.0, 2: 200.0, 4: 0.0})
    assert tried == [1, 2, 4]
    assert found.share == 1.0


def test_what_no_eviction_hides_is_somebody_else_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance.quiet, "overloaded", lambda: False)
    found, tried = best(monkeypatch, dict.fromkeys((1, 2, 4, 8, 16), 400.0))
    assert tried == [1, 2, 4, 8, 16, 16]
    assert found.share == pytest.approx(0.2)


def test_a_machine_that_is_too_busy_to_tell_is_not_held_against_a_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance.quiet, "overloaded", lambda: True)
    with pytest.raises(Fault) as told:
        best(monkeypatch, dict.fromkeys((1, 2, 4, 8, 16), 400.0))
    assert told.value.verdict is Verdict.INFRA_ERROR


@pytest.mark.parametrize(("slowness", "unexplained_us"), [(1.0, 3600.0), (1.3, 0.0), (2.5, 0.0)])
def test_python_on_slow_cores_needs_no_explanation(
    monkeypatch: pytest.MonkeyPatch, slowness: float, unexplained_us: float
) -> None:
    """An honest training step of 356 us: 200 in its kernels, 120 are Python's on fast cores."""

    class Steps:
        def __init__(self, *_parts: Any) -> None: ...
        def begin(self) -> None: ...
        def enough_calls(self) -> int:
            return 100

        def calls(self, count: int) -> float:
            return 0.001 + count * 356e-6

        def end(self) -> dict[str, Any]:
            return {"entries": [["mine", False, 100, 20_000.0]], "events": 2000}

    monkeypatch.setattr(provenance, "_Session", Steps)
    monkeypatch.setattr(provenance.quiet, "caller_waited_s", lambda _pid: 0.0)
    monkeypatch.setattr(provenance.glue, "slowness", lambda: slowness)
    bench: Any = SimpleNamespace(device="cpu", write=lambda _slot, _seed: None)
    runner: Any = SimpleNamespace(_pid=1)
    found = provenance.measure(runner, bench, "small", frozenset({"mine"}), inductor=False)
    assert found.unexplained_us == pytest.approx(unexplained_us)
