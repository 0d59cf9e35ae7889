"""Run CUDA C++ kernels on the processor: a thread per CUDA thread, real barriers and shuffles, block after block.

`load_cuda` stands in for `kernelwright.load_cuda` where there is no GPU, so that a recipe's kernels can be checked for
what they compute. g++ compiles the very source that nvcc would get; only CUDA's own headers for half types are needed.
It finds wrong indices, sums and barriers; it says nothing about speed, and little about races.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from worker.runner import kernelwright

_RUNTIME = r"""
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <tuple>
#include <vector>
#include <vector_types.h>
#undef __global__
#undef __device__
#undef __shared__
#undef __launch_bounds__
#undef __forceinline__
#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)
#define __forceinline__ inline
namespace on_cpu {
struct Warp { std::barrier<> gate; uint64_t slot[32]; explicit Warp(int n) : gate(n) {} };
struct Block { std::barrier<> gate; std::vector<std::unique_ptr<Warp>> warps; explicit Block(int n) : gate(n) {} };
inline thread_local Block* block; inline thread_local Warp* warp; inline thread_local int lane;
inline thread_local uint3 thread_index, block_index;
template <class T> T exchanged(T x, int from) {
    memcpy(&warp->slot[lane], &x, sizeof(T));
    warp->gate.arrive_and_wait();
    T result;
    memcpy(&result, &warp->slot[from >= 0 && from < 32 ? from : lane], sizeof(T));
    warp->gate.arrive_and_wait();
    return result;
}
}
#define threadIdx on_cpu::thread_index
#define blockIdx on_cpu::block_index
#define __syncthreads() on_cpu::block->gate.arrive_and_wait()
#define __shfl_xor_sync(mask, x, apart) on_cpu::exchanged(x, on_cpu::lane ^ (apart))
#define __shfl_up_sync(mask, x, apart) on_cpu::exchanged(x, on_cpu::lane - (int)(apart))
inline float __int_as_float(int bits) { float x; memcpy(&x, &bits, 4); return x; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
"""

_LAUNCHER = r"""
namespace on_cpu {
template <class... A, size_t... I>
void launch(void (*kernel)(A...), int grid, int threads, void** args, std::index_sequence<I...>) {
    std::tuple<A...> values(*(std::remove_const_t<A>*)args[I]...);
    for (int b = 0; b < grid; b++) {
        Block shared(threads);
        for (int w = 0; w * 32 < threads; w++)
            shared.warps.push_back(std::make_unique<Warp>(threads - w * 32 < 32 ? threads - w * 32 : 32));
        std::vector<std::thread> running;
        for (int t = 0; t < threads; t++) running.emplace_back([&, t] {
            block = &shared; warp = shared.warps[t / 32].get(); lane = t % 32;
            thread_index = {(unsigned)t, 0, 0}; block_index = {(unsigned)b, 0, 0};
            std::apply(kernel, values);
            // One that is done must not be waited for: the rest of a block or warp goes on without it.
            warp->gate.arrive_and_drop();
            shared.gate.arrive_and_drop();
        });
        for (auto& each : running) each.join();
    }
}
template <class... A> void launch(void (*kernel)(A...), int grid, int threads, void** args) {
    launch(kernel, grid, threads, args, std::index_sequence_for<A...>());
}
}
"""


_KERNELS = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\([^()]*\) )?(\w+)\(')


class _Kernel:
    def __init__(self, function: Any, kinds: Sequence[str]) -> None:
        self.function = function
        self.kinds = kinds

    def __getitem__(self, config: tuple[Any, ...]) -> Any:
        (grid,), (threads,) = config[:2]
        return functools.partial(self._launch, grid, threads)

    def _launch(self, grid: int, threads: int, *args: Any) -> None:
        values = [self._value(arg, kind) for arg, kind in zip(args, self.kinds, strict=True)]
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
        self.function(grid, threads, pointers)

    @staticmethod
    def _value(arg: Any, kind: str) -> Any:
        if isinstance(arg, torch.Tensor):
            assert kind == "pointer"
            return ctypes.c_void_p(arg.data_ptr())
        assert kind in ("int", "float"), kind
        return ctypes.c_longlong(arg) if kind == "int" else ctypes.c_float(arg)


class _Module:
    def __init__(self, library: ctypes.CDLL, source: str) -> None:
        self._library, self._source = library, source

    def __getattr__(self, name: str) -> _Kernel:
        kinds = kernelwright.declared_kinds(self._source, name)
        assert kinds is not None, name
        return _Kernel(getattr(self._library, f"launch_{name}"), kinds)


class Loader:
    """A `load_cuda` whose builds go to `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources: list[str] = []

    def __call__(self, source: str, flags: Sequence[str] = ()) -> _Module:
        self.sources.append(source)
        names = _KERNELS.findall(source)
        launchers = "".join(
            f'extern "C" void launch_{name}(int grid, int threads, void** args) '
            f"{{ on_cpu::launch({name}, grid, threads, args); }}\n"
            for name in names
        )
        headers = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
        text = headers + _RUNTIME + source + _LAUNCHER + launchers
        path = self.folder / (hashlib.sha256(text.encode()).hexdigest()[:16] + ".so")
        if not path.exists():
            home = kernelwright.cuda_home()
            assert home is not None
            code = path.with_suffix(".cpp")
            code.write_text(text)
            command = ["g++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-pthread", f"-I{home}/include"]
            done = subprocess.run([*command, str(code), "-o", str(path)], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[:4000]
        return _Module(ctypes.CDLL(str(path)), source)
