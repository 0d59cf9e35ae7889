"""Between its verification and its timings a candidate's process is stopped: others may be timed then."""

from __future__ import annotations

from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from tests.integration.judge.test_referee import CPP, PROBLEM
from worker.judge.baselines import Baselines
from worker.judge.referee import Referee
from worker.judge.report import EvaluationRequest
from worker.judge.runners import quiet
from worker.judge.runners.processes import RefereeOptions
from worker.judge.timing.pace import Pace
from worker.judge.verdict import Verdict


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_nothing_of_a_candidate_runs_while_its_baselines_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    referee = Referee(RefereeOptions(tmp_path, "cpu", eager_only=True), Pace(0.2, 0.2, 9))
    states: list[str] = []
    timed = Referee._time

    def time(self: Referee, trial: Any, *given: Any, **options: Any) -> Any:
        def made(*arguments: Any) -> Baselines:
            pids = quiet.runner_tree(trial.runner._pid)
            deadline = monotonic() + 10
            while set(states) != {"T"} and monotonic() < deadline:  # whoever waits for a core stops when it gets one
                states[:] = [_state(pid) for pid in pids]
                sleep(0.01)
            return make(*arguments)

        make = self._made_baselines
        monkeypatch.setattr(self, "_made_baselines", made)
        return timed(self, trial, *given, **options)

    monkeypatch.setattr(Referee, "_time", time)
    try:
        found = referee.evaluate(EvaluationRequest("c", CPP, "relu", PROBLEM, "cpu", "cpp", own_kernel_share=0.0))
    finally:
        referee.close()
    assert found.verdict is Verdict.OK, found.reason
    assert set(states) == {"T"}
