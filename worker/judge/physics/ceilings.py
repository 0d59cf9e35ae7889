"""What this very device can do at most: measured bandwidths, matrix products, the size of its last cache.

Measured when first asked for (0.3 s on a GPU, about a second on two cores) and kept. A ceiling measured while the
machine was busy is too low and would call an honest kernel faster than light, so the best of several tries counts, and
`again` measures once more and keeps the better figure.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import torch

from worker.profile import host

_PROBE_BYTES = {"cpu": 128 << 20, "cuda": 1 << 30}
"""Per buffer: well beyond any last-level cache, and small beside a device's memory."""
_PROBE_SIZE = {"cpu": 1024, "cuda": 8192}
_SMALL_PRODUCT = 64
_REPEATS = 6
_UNKNOWN_CACHE_BYTES = 64 << 20
"""For a processor that does not say: as large as common ones, so that nothing is called too fast by mistake."""
_LAUNCHES = 20
"""Calls on cached data between two looks at the clock, on a GPU launched as one graph: a call takes 3 us there and its
launch 6, which made the L2 of an H200 look 1.08 times as fast as its memory."""


class Ceilings:
    """One device's limits; every figure is the best ever seen by this object."""

    def __init__(self, device: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self.device, self._clock = device, clock
        self._kind = torch.device(device).type
        self._bandwidths: dict[str, float] = {}
        self._products: dict[tuple[torch.dtype, bool], float] = {}

    @property
    def cache_bytes(self) -> int:
        """The L2 of a GPU, the last-level caches of a CPU."""
        if self._kind == "cuda":
            return int(torch.cuda.get_device_properties(0).L2_cache_size)
        return host.last_level_cache_bytes() or _UNKNOWN_CACHE_BYTES

    @property
    def bytes_per_s(self) -> float:
        """Main memory: the best of copying (reads and writes counted), reading and filling."""
        return self._bandwidth("memory")

    @property
    def cache_bytes_per_s(self) -> float:
        """The same for buffers that fit the last cache together; never below main memory's."""
        return max(self._bandwidth("cache"), self.bytes_per_s)

    def flops_per_s(self, dtype: torch.dtype, *, tf32: bool = False) -> float:
        """Square matrix products of random values: a GPU multiplies zeros 13 % faster, for want of heat. 8-bit
        floats are multiplied as they are where the device has instructions for that, and widened elsewhere."""
        key = (dtype, tf32)
        if key not in self._products:
            self._products[key] = (
                self._measure_product(dtype, tf32=tf32) if dtype.itemsize > 1 else self._measure_eight_bits()
            )
        return self._products[key]

    def again(self) -> None:
        """Measure main memory once more."""
        self._bandwidths["memory"] = max(self.bytes_per_s, self._measure_bandwidth(self._memory_probe_bytes(), 1))

    def reached(self, bytes_per_s: float) -> None:
        """A trusted baseline moved so many bytes per second: the ceiling is no lower."""
        self._bandwidths["memory"] = max(self.bytes_per_s, bytes_per_s)

    def _bandwidth(self, which: str) -> float:
        if which not in self._bandwidths:
            size, calls = (
                (self._memory_probe_bytes(), 1)
                if which == "memory"
                else (max(1 << 16, self.cache_bytes // 4), _LAUNCHES)
            )
            self._bandwidths[which] = self._measure_bandwidth(size, calls)
        return self._bandwidths[which]

    def _memory_probe_bytes(self) -> int:
        return max(_PROBE_BYTES[self._kind], 4 * self.cache_bytes)

    def _measure_bandwidth(self, nbytes: int, calls: int) -> float:
        source = torch.ones(nbytes // 4, device=self.device)  # ones: untouched zero pages are all one page of a CPU
        target = torch.ones_like(source)
        copying = 2 * nbytes / self._best_s(lambda: target.copy_(source), calls)
        reading = nbytes / self._best_s(source.sum, calls)
        filling = nbytes / self._best_s(lambda: target.fill_(2.0), calls)
        return max(copying, reading, filling)

    def _measure_product(self, dtype: torch.dtype, *, tf32: bool) -> float:
        size = _PROBE_SIZE[self._kind]
        left, right = (torch.randn(size, size, device=self.device).to(dtype) for _side in range(2))
        out = torch.empty_like(left)
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = tf32
        try:
            return float(2.0 * size**3 / self._best_s(lambda: torch.mm(left, right, out=out), 1))
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    def _measure_eight_bits(self) -> float:
        size, one = _PROBE_SIZE[self._kind], torch.ones((), device=self.device)
        widened = self.flops_per_s(torch.float16 if self._kind == "cuda" else torch.float32)

        def rate(size: int) -> float:
            left, right = (torch.randn(size, size, device=self.device).to(torch.float8_e4m3fn) for _side in range(2))
            # Both types of 8 bits have one rate, and torch multiplies no two matrices of e5m2.
            multiply = functools.partial(torch._scaled_mm, left, right.t(), one, one, out_dtype=torch.bfloat16)
            multiply()
            return 2.0 * size**3 / self._best_s(multiply, 1)

        try:
            # A CPU without the instruction multiplies number by number: 46 s for the whole product (measured).
            hopeless = self._kind == "cpu" and rate(_SMALL_PRODUCT) < widened / 4
            return widened if hopeless else max(widened, rate(size))
        except RuntimeError:  # no such instruction
            return widened

    def _best_s(self, call: Callable[[], object], calls: int) -> float:
        run = self._repeated(call, calls)
        times = []
        for _repeat in range(_REPEATS):
            self._wait()
            start = self._clock()
            run()
            self._wait()
            times.append((self._clock() - start) / calls)
        return max(min(times), 1e-9)

    def _repeated(self, call: Callable[[], object], calls: int) -> Callable[[], object]:
        """So many calls, one after another, as one."""

        def run() -> None:
            for _call in range(calls):
                call()

        if self._kind != "cuda" or calls == 1:
            return run
        call()  # what allocates at its first call must not do so while it is captured
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return graph.replay

    def _wait(self) -> None:
        if self._kind == "cuda":
            torch.cuda.synchronize()
