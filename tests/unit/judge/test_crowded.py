"""Where other judges fill the device, running out of memory is no candidate's fault, and the problem asks for more."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from worker.judge.referee import Referee
from worker.judge.report import EvaluationRequest
from worker.judge.room import Shortfall
from worker.judge.runners.processes import RefereeOptions
from worker.judge.verdict import Fault, Verdict

FULL = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


@pytest.mark.parametrize(
    ("crowded", "reason", "verdict", "times"),
    [
        (True, FULL, Verdict.INFRA_ERROR, 1.5),
        (False, FULL, Verdict.LAUNCH_ERROR, 1.0),
        (True, "RuntimeError: no kernel image", Verdict.LAUNCH_ERROR, 1.0),
    ],
    ids=["others fill it", "alone", "another fault"],
)
def test_whose_fault_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crowded: bool, reason: str, verdict: Verdict, times: float
) -> None:
    def fail(*_: Any) -> None:
        raise Fault(Verdict.LAUNCH_ERROR, reason)

    referee: Any = Referee(RefereeOptions(tmp_path, "cpu"))
    try:
        monkeypatch.setattr(referee, "exhibits_for", lambda _request: None)
        monkeypatch.setattr(referee, "_judge", fail)
        referee._room = SimpleNamespace(crowded=crowded)
        referee._shortfall = Shortfall(tmp_path / "room.json")
        found = referee.evaluate(EvaluationRequest("cand_1", "class ModelNew: pass", "relu", "it", "cpu", "cpp"))
        assert (found.verdict, found.reason, referee._shortfall.times) == (verdict, reason, times)
    finally:
        referee._room = None
        referee.close()
