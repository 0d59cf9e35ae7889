"""Arenas on a device, with the driver played by a function."""

from __future__ import annotations

import pytest
import torch

from worker.runner import memory


def test_a_full_device_is_asked_again_without_what_torch_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def driver(name: str, *_arguments: object) -> None:
        done.append(name)
        if "emptied" not in done:
            raise memory.CudaDriverError("out of memory")

    monkeypatch.setattr(memory, "_driver", driver)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("emptied"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(memory.DeviceArena, "__init__", lambda *_arguments, **_named: None)
    memory.DeviceArena.create(1)
    assert done == ["cuMemAlloc_v2", "emptied", "cuMemAlloc_v2"]
