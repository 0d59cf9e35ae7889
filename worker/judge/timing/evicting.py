"""Cold caches, by the judge's own hand (CPU) or with proof (GPU).

On a CPU the judge writes a buffer of twice the last-level cache itself, after it wrote the inputs: nothing in the
runner's process is asked to. On a GPU the runner evicts between the calls of a chain, in memory that the judge owns,
and the judge repeats the steps on a copy (`worker.runner.eviction`).
"""

from __future__ import annotations

import random

import torch

from worker.judge.runners.sessions import Runner
from worker.runner import eviction, memory

_HOST_BYTES = 64 << 20
"""Twice the last-level cache of the machines seen (32 MiB); read and written, so that dirty lines leave too."""


class HostEviction:
    """A buffer that pushes everything else out of the last-level cache."""

    def __init__(self) -> None:
        self._buffer = torch.zeros(_HOST_BYTES // 4, dtype=torch.int32)

    def flush(self) -> None:
        """Evict."""
        self._buffer.add_(1)


class DeviceEviction:
    """The eviction buffer of one runner, with the record of the steps that it was asked for."""

    def __init__(self, runner: Runner) -> None:
        self._arena = memory.create(eviction.BYTES, "cuda:0")
        handle, fds = self._arena.handle()
        runner.ask({"op": "evict", "arena": handle}, 60, fds)
        self._evictor = eviction.Evictor(self._arena.bytes)
        self._chains: list[tuple[int, int, int]] = []
        """(nonce, steps of the lead-in, steps after it) of every chain since the last reset."""
        self._seed = 0

    def reset(self, rng: random.Random) -> None:
        """Fill the buffer with numbers that the runner has not seen."""
        self._seed = rng.randrange(1 << 40)
        self._fill(self._arena.bytes)
        torch.cuda.synchronize()
        self._chains.clear()

    def asked(self, nonce: int, lead: int, count: int) -> None:
        """Note that the runner was asked for a chain with `lead` evictions before it and `count` within."""
        self._chains.append((nonce, lead, count))
        self._evictor.source = (self._evictor.source + lead + count) % 2

    def proven(self) -> bool:
        """Whether the buffer holds what all chains since the last reset make of it."""
        scratch = torch.empty(eviction.BYTES, dtype=torch.uint8, device="cuda:0")
        self._fill(scratch)
        mirror = eviction.Evictor(scratch)
        taken = sum(lead + count for _nonce, lead, count in self._chains)
        mirror.source = (self._evictor.source + taken) % 2
        for nonce, lead, count in self._chains:
            mirror.lead_in(nonce, lead)
            for step in range(count):
                mirror.step(nonce, step)
        return bool(torch.equal(scratch.view(torch.int32), self._arena.bytes[: eviction.BYTES].view(torch.int32)))

    def close(self) -> None:
        """Release the memory."""
        self._arena.close()

    def _fill(self, buffer: torch.Tensor) -> None:
        words = buffer[: eviction.BYTES].view(torch.int32)
        words.random_(generator=torch.Generator(device="cuda:0").manual_seed(self._seed))
