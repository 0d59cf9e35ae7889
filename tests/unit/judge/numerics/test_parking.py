"""What waits in the host's memory, with the driver played by a function."""

from __future__ import annotations

import pytest
import torch

from worker.judge.numerics import parking
from worker.runner.memory import CudaDriverError


def test_memory_is_pinned_until_its_tensor_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, int]] = []
    monkeypatch.setattr(parking, "driver", lambda name, pointer, *_sizes: done.append((name, pointer.value)))
    held = torch.zeros(8)
    place = held.data_ptr()
    assert parking.pin(held)
    same = held.copy_(torch.ones(8))
    del held
    assert done == [("cuMemHostRegister_v2", place)]
    del same
    assert done == [("cuMemHostRegister_v2", place), ("cuMemHostUnregister", place)]


def test_what_the_driver_does_not_pin_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def driver(name: str, *_arguments: object) -> None:
        raise CudaDriverError(f"{name}: out of memory")

    monkeypatch.setattr(parking, "driver", driver)
    held = torch.zeros(8)
    assert not parking.pin(held)
    del held
