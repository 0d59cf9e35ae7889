"""A runner whose call failed has left the bell, and is not asked to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from worker.judge.runners.bench import Workbench
from worker.runner import protocol


@pytest.mark.parametrize("failed", [False, True])
def test_a_runner_is_taken_back_from_the_bell_unless_it_has_left_it(*, failed: bool) -> None:
    rung: list[int] = []
    asked: list[str] = []
    runner = SimpleNamespace(
        off_the_bell=failed,
        ring=lambda command, _limit_s: rung.append(command),
        ask=lambda message, _limit_s: asked.append(message["op"]),
    )
    bench: Any = SimpleNamespace(runner=runner, device="cpu")
    bench.use_threads = lambda: Workbench.use_threads(bench)
    Workbench.cool(bench)
    assert (rung, asked) == ([] if failed else [protocol.QUIT], ["threads"])
