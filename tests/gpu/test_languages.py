"""Kernel languages on a real GPU: `pytest tests/gpu/test_languages.py` on a machine with CUDA (see docs/results)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from worker.languages import language
from worker.languages.cache import BuildCache
from worker.profile.gpus import gpus
from worker.runner import kernelwright
from worker.runner.kernelwright import BuildError, load_cuda

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

ROOT = Path(__file__).parents[2]
EXAMPLES: dict[str, str] = dict(
    re.findall(r"^```python (\w+)\n(.*?)^```", (ROOT / "docs" / "candidates.md").read_text(), re.DOTALL | re.MULTILINE)
)
SOURCE = r"""
#include <cstdint>
#include <cuda_fp16.h>
extern "C" __global__ void axpb(const float* x, const float* y, float* out, int n, float a, int64_t shift, double b) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] * a + (y ? y[i] : 0.0f) + (float)(shift >> 32) + (float)b;
}
extern "C" __global__ void reverse(const float* x, float* out, int n) {
    extern __shared__ float tile[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) tile[i] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = tile[n - 1 - i];
}
struct Pair { float first; int second; };
extern "C" __global__ void whole(Pair pair, unsigned char small, bool flag, unsigned big, float* out) {
    out[0] = pair.first; out[1] = pair.second; out[2] = small; out[3] = flag; out[4] = big == 0xffffffffu;
}
extern "C" __global__ void half_sum(const __half* x, float* out, int n) {
    float total = 0;
    for (int i = 0; i < n; i++) total += __half2float(x[i]);
    out[0] = total;
}
#define KERNEL(name) extern "C" __global__ void name(float* out, long long n, float value) { if (threadIdx.x < n) out[threadIdx.x] = value; }
KERNEL(from_a_macro)
extern "C" __global__ void spin(long long cycles) { long long start = clock64(); while (clock64() - start < cycles) {} }
__global__ void mangled(float* x) {}
extern "C" __global__ void nothing(const float* a, const float* b, float* c, int n, float s) {}
"""  # noqa: E501 - a macro is one line


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    try:
        yield load_cuda(SOURCE)
    finally:
        os.environ.pop("XDG_CACHE_HOME")
        if before is not None:
            os.environ["XDG_CACHE_HOME"] = before


def test_pointers_ints_floats_and_int64_arrive(module: Any) -> None:
    x, y = torch.randn(1000, device="cuda"), torch.randn(1000, device="cuda")
    out = torch.empty_like(x)
    module.axpb[(4,), (256,)](x, y, out, 1000, 2, 3 << 32, 0.5)
    torch.testing.assert_close(out, x * 2 + y + 3.5)
    module.axpb[4, 256, 0](x, None, out, 1000, 2.0, -1, -1)
    torch.testing.assert_close(out, x * 2 - 2)


def test_structs_bytes_bools_and_unsigned_arrive(module: Any) -> None:
    import struct

    out = torch.zeros(5, device="cuda")
    module.whole[1, 1](struct.pack("<fi", 1.5, -7), 200, True, 0xFFFFFFFF, out)
    assert out.tolist() == [1.5, -7, 200, 1, 1]


def test_an_unreadable_declaration_goes_by_the_kernels_sizes(module: Any) -> None:
    out = torch.zeros(4, device="cuda")
    module.from_a_macro[1, 32](out, 3, 0.25)
    assert out.tolist() == [0.25, 0.25, 0.25, 0]


@pytest.mark.parametrize("n", [1000, 12_000, 50_000])
def test_dynamic_shared_memory_above_48_kilobytes(module: Any, n: int) -> None:
    x = torch.randn(n, device="cuda")
    out = torch.empty_like(x)
    module.reverse[1, 1024, 4 * n](x, out, n)
    torch.testing.assert_close(out, x.flip(0))


def test_too_much_shared_memory_and_threads_raise_at_the_launch(module: Any) -> None:
    x = torch.zeros(4, device="cuda")
    with pytest.raises(RuntimeError, match="1048576 bytes of dynamic shared memory: CUDA_ERROR_INVALID_VALUE"):
        module.reverse[1, 32, 1 << 20](x, x, 4)
    with pytest.raises(RuntimeError, match=r"reverse\[\(1, 1, 1\), \(2048, 1, 1\), 0\]: CUDA_ERROR_INVALID_VALUE"):
        module.reverse[1, 2048](x, x, 4)


def test_headers_of_the_toolkit_are_found(module: Any) -> None:
    x, out = torch.ones(100, device="cuda", dtype=torch.float16), torch.zeros(1, device="cuda")
    module.half_sum[1, 1](x, out, 100)
    assert out.item() == 100


def test_a_kernel_without_extern_c_is_explained(module: Any) -> None:
    with pytest.raises(AttributeError, match='declare it extern "C"'):
        module.mangled[1, 1](None)


def test_arguments_on_the_cpu_are_refused(module: Any) -> None:
    with pytest.raises(TypeError, match="argument 1 is a cpu tensor"):
        module.reverse[1, 1](torch.zeros(1), torch.zeros(1, device="cuda"), 1)


def test_launches_follow_torchs_current_stream(module: Any) -> None:
    out = torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        module.spin[1, 1](4_000_000_000)  # some 2 s, during which the default stream runs on
        module.from_a_macro[1, 32](out, 4, 1.0)
    assert out.tolist() == [0.0] * 4, "the launch went to the default stream"
    stream.synchronize()
    assert out.tolist() == [1.0] * 4


def test_launches_are_captured_into_graphs(module: Any) -> None:
    x, out = torch.arange(8.0, device="cuda"), torch.zeros(8, device="cuda")
    module.reverse[1, 32, 32](x, out, 8)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module.reverse[1, 32, 32](x, out, 8)
    out.zero_()
    x += 1
    graph.replay()
    assert out.tolist() == [8, 7, 6, 5, 4, 3, 2, 1]


def test_a_thread_that_torch_has_not_seen_can_launch(module: Any) -> None:
    x, out = torch.arange(8.0, device="cuda"), torch.zeros(8, device="cuda")
    thread = threading.Thread(target=lambda: module.reverse[1, 32, 32](x, out, 8))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert out.tolist() == [7, 6, 5, 4, 3, 2, 1, 0]


def test_launch_overhead_is_reported(module: Any, record_property: Any) -> None:
    """No assertion on time: the number goes into the report (and with -s onto the terminal)."""
    x = torch.zeros(8, device="cuda")
    launch = module.nothing[1, 32]
    for _ in range(100):
        launch(x, x, x, 8, 1.0)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(1000):
        module.nothing[1, 32](x, x, x, 8, 1.0)
    per_launch_us = (time.perf_counter() - started) * 1000
    torch.cuda.synchronize()
    record_property("launch_us", per_launch_us)
    sys.stdout.write(f"\nlaunch overhead: {per_launch_us:.2f} us\n")


def test_the_confined_cache_builds_for_this_gpu(tmp_path: Path) -> None:
    builds = BuildCache(tmp_path / "builds")
    arch = gpus()[0].arch
    first, again = (builds.build("cuda", SOURCE, ["-use_fast_math"], arch) for _ in range(2))
    sys.stdout.write(f"\nlevel {builds.level}, {language('cuda').describe()}, {first.wall_s:.3f} s\n")
    assert (first.cached, again.cached) == (False, True)
    assert "registers" in first.log
    kernelwright._set_builder(lambda _language, _source, _flags: first.path)
    try:
        x, out = torch.arange(8.0, device="cuda"), torch.zeros(8, device="cuda")
        load_cuda(SOURCE).reverse[1, 32, 32](x, out, 8)
        assert out.tolist() == [7, 6, 5, 4, 3, 2, 1, 0]
    finally:
        kernelwright._set_builder(None)
    with pytest.raises(BuildError, match="undeclared_thing"):
        builds.build("cuda", SOURCE.replace("total += ", "total += undeclared_thing + "), (), arch)


@pytest.mark.parametrize("name", ["cuda", "triton", "load_inline"])
def test_the_candidates_page_examples_run(name: str, tmp_path: Path) -> None:
    (tmp_path / "problem.py").write_text(EXAMPLES["problem"])
    (tmp_path / "candidate.py").write_text(EXAMPLES[name])
    code = (
        "import sys, time, torch\n"
        "from worker.runner import kernelwright\n"
        "sys.modules['kernelwright'] = kernelwright\n"
        "started = time.perf_counter()\n"
        "import problem, candidate\n"
        "reference, model = problem.Model(100).cuda(), candidate.ModelNew(100).cuda()\n"
        "model.load_state_dict(reference.state_dict())\n"
        "x = problem.get_inputs()[0].cuda()\n"
        "x[0, 0] = float('nan')\n"
        "torch.testing.assert_close(model(x), reference(x), equal_nan=True, rtol=0, atol=0)\n"
        "print(round(time.perf_counter() - started, 2), 's')\n"
    )
    caches = {"XDG_CACHE_HOME": "cache", "TRITON_CACHE_DIR": "triton", "TORCH_EXTENSIONS_DIR": "extensions"}
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    environment |= {variable: str(tmp_path / folder) for variable, folder in caches.items()}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    sys.stdout.write(f"\n{name}: {done.stdout}")


def test_the_device_is_described() -> None:
    hardware = gpus()[0].hardware
    command = [sys.executable, "-m", "worker.profile.device", hardware]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    described = json.loads(done.stdout)
    sys.stdout.write(f"\n{done.stdout}")
    assert described["hardware"] == hardware
    assert described["name"] == torch.cuda.get_device_name(0)
    assert described["copy_gbps"] > 0
    assert min(described["matmul_tflops"].values()) > 0
