"""In which order a runner on a CPU gets its values, runs and is called."""

from __future__ import annotations

from typing import Any

import torch

from worker.judge.timing.clocks import HostClock, Round


class _Told:
    """Whatever is asked of it is written down."""

    def __init__(self, done: list[str], answers: dict[str, Any]) -> None:
        self._done, self._answers = done, answers

    def __getattr__(self, name: str) -> Any:
        if name not in self._answers:
            raise AttributeError(name)

        def call(*_arguments: Any, **_named: Any) -> Any:
            self._done.append(name)
            return self._answers[name]

        return call


def test_what_nobody_could_know_is_written_when_the_runner_runs_and_just_before_it_is_called() -> None:
    done: list[str] = []
    runner = _Told(done, {"freeze": None, "thaw": None, "ring": 1e-3, "waited_s": 0.0})
    bench = _Told([], {"slot_tensors": [torch.zeros(1)], "poison": None, "read": (torch.zeros(1),)})
    vars(bench)["runner"] = runner
    fresh: Any = _Told(done, {"fill": None, "mix_into": None})
    eviction: Any = _Told(done, {"flush": None})
    contender: Any = _Told([], {})
    vars(contender)["bench"] = bench
    clock = HostClock(contender, fresh, eviction, kept=True, trusted=False)
    source: Any = None
    assert clock.sample(Round(source, 1, 2, 0)).call_s == 1e-3
    assert done == [
        *("freeze", "fill", "flush", "waited_s"),
        *("thaw", "mix_into", "ring", "ring", "freeze", "waited_s"),
    ]
