"""How many threads a runner has."""

from __future__ import annotations

import pytest
import torch

from worker.judge.runners.processes import threads_for


def test_a_runner_has_its_judges_threads_and_few_beside_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    assert threads_for(on_gpu=False) == 64 and threads_for(on_gpu=True) == 4
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert threads_for(on_gpu=False) == threads_for(on_gpu=True) == 2
