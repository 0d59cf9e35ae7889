"""Built files as text: a library that g++ made, cubins of nvcc and of Triton's, and what is no built file at all."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from worker.languages import INPUT, BuildError, language, machine_code
from worker.languages.cache import BuildCache

LOOP = """\
#include <cstdint>
extern "C" void scaled(const float* __restrict__ x, float* __restrict__ y, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * 2.0f + 1.0f;
}
"""
KERNEL = """\
extern "C" __global__ void scaled(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * 2.0f;
}
"""

needs_objdump = pytest.mark.skipif(
    shutil.which("g++") is None or shutil.which("objdump") is None or platform.machine() != "x86_64",
    reason="needs g++, objdump and an x86-64 processor",
)
needs_nvdisasm = pytest.mark.skipif(machine_code.nvdisasm() is None, reason="needs nvdisasm")
needs_cuda_compiler = pytest.mark.skipif(
    not language("cuda").describe()["available"], reason="neither NVRTC nor nvcc is here"
)


@triton.jit
def shifted(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) + 1.0, mask=at < n)


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    return BuildCache(tmp_path / "builds")


@needs_objdump
def test_a_library_is_its_functions_with_their_vector_instructions(cache: BuildCache) -> None:
    library = cache.build("cpp", LOOP, ("-mprefer-vector-width=256",)).path
    text = cache.read("machine_code", library).path.read_text()
    assert "<scaled>:" in text and "%ymm" in text
    assert "tm_clones" not in text and "file format" not in text
    assert cache.read("machine_code", library).cached


@needs_nvdisasm
@needs_cuda_compiler
def test_a_cuda_source_is_ptx_and_its_cubin_is_sass(cache: BuildCache) -> None:
    cubin = cache.build("cuda", KERNEL, ("-use_fast_math",), "sm_90a").path
    assert ".text.scaled:" in (sass := cache.read("machine_code", cubin).path.read_text())
    assert "FADD" in sass or "FMUL" in sass
    ptx = cache.build("cuda_ptx", KERNEL, ("-use_fast_math",), "sm_90a").path.read_text()
    assert ".target sm_90a" in ptx and ".entry scaled(" in ptx


@needs_nvdisasm
def test_a_cubin_of_triton_is_sass(cache: BuildCache, tmp_path: Path) -> None:
    signature = {"x": "*fp32", "y": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    source = ASTSource(shifted, signature=signature, constexprs={"BLOCK": 256})
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"])
    text = cache.read("machine_code", cubin).path.read_text()
    assert ".text.shifted:" in text and "LDG.E" in text and "FADD" in text


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\nexit 0\n", b"\x7fELF" + b"\0" * 10, b"\x7fELF" + b"\xff" * 400])
def test_what_is_no_built_file_is_refused(cache: BuildCache, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(BuildError):
        cache.read("machine_code", path)


@needs_objdump
def test_a_long_text_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = language("cpp").build(LOOP, (), "native", tmp_path)
    built.rename(tmp_path / INPUT)
    monkeypatch.setattr(machine_code, "MAX_BYTES", 500)
    assert len(language("machine_code").build("digest", (), "native", tmp_path).read_bytes()) <= 501
