"""Arenas on a device, with the driver played by a function."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from worker.runner import memory


def test_a_full_device_is_asked_again_without_what_torch_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def driver(name: str, *_arguments: object) -> None:
        done.append(name)
        if "emptied" not in done:
            raise memory.CudaDriverError("out of memory")

    monkeypatch.setattr(memory, "driver", driver)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("emptied"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(memory.DeviceArena, "__init__", lambda *_arguments, **_named: None)
    memory.DeviceArena.create(1)
    assert done == ["cuMemAlloc_v2", "emptied", "cuMemAlloc_v2"]


@pytest.mark.parametrize(("asked", "pages"), [(1, 1), (2 << 20, 1), ((2 << 20) + 1, 2), (877 << 20, 439)])
def test_an_arena_has_a_whole_number_of_large_pages(monkeypatch: pytest.MonkeyPatch, asked: int, pages: int) -> None:
    allocated: list[int] = []
    monkeypatch.setattr(memory, "_allocated", lambda nbytes: allocated.append(nbytes) or 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(memory.DeviceArena, "__init__", lambda *_arguments, **_named: None)
    memory.DeviceArena.create(asked)
    assert allocated == [pages << 21], "the runner would have it in small pages"


class Driver:
    """A driver that takes every call, and allocates in threads with a context only."""

    def __init__(self) -> None:
        self.with_context: set[int] = set()
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*_arguments: Any) -> int:
            self.called.append(name)
            if name == "cuCtxSetCurrent":
                self.with_context.add(threading.get_ident())
            return 201 if name == "cuMemAlloc_v2" and threading.get_ident() not in self.with_context else 0

        return call


def test_every_thread_that_allocates_has_the_context_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    monkeypatch.setattr(memory, "_library", lambda: driver)
    monkeypatch.setattr(memory, "_thread", memory._Thread())
    failed: list[Exception] = []

    def allocate() -> None:
        try:
            for _twice in range(2):
                memory._allocated(1)
        except memory.CudaDriverError as error:
            failed.append(error)

    threads = [threading.Thread(target=allocate) for _number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert driver.called.count("cuMemAlloc_v2") == 4
    assert driver.called.count("cuCtxSetCurrent") == 2, "once in each thread"
