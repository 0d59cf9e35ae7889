"""Each language's own rules: flags, archs, what it says of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.languages import LANGUAGES, BuildError, ToolchainMissing, language
from worker.languages.flags import FlagRefused
from worker.languages.triton import INTERPRET, RECORD, environment, jit_functions
from worker.runner import kernelwright

KERNEL = r"""
#include <cfloat>
#include <cstdint>
#include <cuda_fp16.h>
extern "C" __global__ void __launch_bounds__(256) scale(const __half* x, float* out, int64_t n, float by) {
    extern __shared__ float tile[];
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    tile[threadIdx.x] = i < n ? __half2float(x[i]) : -FLT_MAX;
    if (i < n) out[i] = tile[threadIdx.x] * by;
}
"""


def has_cuda_compiler() -> bool:
    return bool(language("cuda").describe()["available"])


needs_cuda_compiler = pytest.mark.skipif(not has_cuda_compiler(), reason="neither NVRTC nor nvcc is here")


@pytest.mark.parametrize("name", LANGUAGES)
def test_each_language_describes_itself(name: str) -> None:
    tool = language(name)
    described = tool.describe()
    assert tool.name == name
    if described["available"]:
        assert described["compiler"]
        assert tool.toolchain()
    else:
        assert described["why"]
        with pytest.raises(ToolchainMissing):
            tool.toolchain()


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("cpp", "-ffast-math"), ("cpp", "-Ofast"), ("cpp", "-fno-math-errno"), ("cpp", "-funroll-loops"),
        ("cpp", "-mprefer-vector-width=512"), ("cpp", "-mavx512f"), ("cpp", "-DBLOCK=128"), ("cpp", "-DFAST"),
        ("cpp", "-std=c++20"), ("cpp", "-Wall"), ("cpp", "-Wno-unused-variable"), ("cpp", "-march=x86-64-v3"),
        ("cpp", "--param=max-unroll-times=8"),
        ("cuda", "-use_fast_math"), ("cuda", "--use_fast_math"), ("cuda", "-O3"), ("cuda", "-DTILE=64"),
        ("cuda", "-maxrregcount=128"), ("cuda", "--std=c++20"), ("cuda", "-Xptxas=-v"), ("cuda", "-lineinfo"),
    ],
)  # fmt: skip
def test_flags_that_tune_a_kernel_are_allowed(name: str, flag: str) -> None:
    assert language(name).check_flags([flag]) == (flag,)


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("cpp", "-fplugin=/x.so"), ("cpp", "-Wl,-rpath,/x"), ("cpp", "-Xlinker"), ("cpp", "-include"), ("cpp", "/x"),
        ("cpp", "-I/"), ("cpp", "-L/"), ("cpp", "-o"), ("cpp", "-save-temps"), ("cpp", "-fdump-tree-all=/x"),
        ("cpp", "-DX=\"/etc\""), ("cpp", "@/etc/passwd"), ("cpp", "-wrapper"), ("cpp", "-specs=/x"), ("cpp", "-B/x"),
        ("cpp", "-fsanitize=address"), ("cpp", "-fprofile-use=/x"), ("cpp", "-march=x86-64\n-o/x"), ("cpp", ""),
        ("cpp", "-Wp,-MD,/x"), ("cpp", "-x"), ("cpp", "-lssl"), ("cpp", "-fuse-ld=/x"), ("cpp", "-ffast-math -o x"),
        ("cuda", "-ccbin=/x"), ("cuda", "-I/"), ("cuda", "-Xcompiler=-fplugin=x"), ("cuda", "--options-file"),
        ("cuda", "-include=/x"), ("cuda", "-Xptxas=--output-file=/x"), ("cuda", "-keep"), ("cuda", "--dopt=on"),
        ("triton", "-O3"),
    ],
)  # fmt: skip
def test_flags_that_reach_the_machine_are_refused(name: str, flag: str) -> None:
    with pytest.raises(FlagRefused, match="not allowed"):
        language(name).check_flags(["-DA" if name != "triton" else flag, flag])


def test_too_many_flags_are_refused() -> None:
    with pytest.raises(FlagRefused, match="at most 64"):
        language("cpp").check_flags(["-DA"] * 65)


def test_cpp_is_built_for_this_machine_only(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="arch is native, not sm_90a"):
        language("cpp").build("", (), "sm_90a", tmp_path)


def test_cpp_links_without_the_start_up_code_of_fast_math(tmp_path: Path) -> None:
    artefact = language("cpp").build('extern "C" void f() {}', ["-ffast-math"], "native", tmp_path)
    assert b"set_fast_math" not in artefact.read_bytes()


@needs_cuda_compiler
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_cuda_builds_a_cubin_for_the_arch(tmp_path: Path, arch: str) -> None:
    artefact = language("cuda").build(KERNEL, ["-use_fast_math", "-O3"], arch, tmp_path)
    image = artefact.read_bytes()
    assert image.startswith(b"\x7fELF")
    assert b"scale" in image
    assert "registers" in (tmp_path / "build.log").read_text()


@needs_cuda_compiler
def test_a_cuda_error_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"kernel.cu\(\d+\): error: .*undeclared_thing"):
        language("cuda").build(KERNEL.replace("* by", "* undeclared_thing"), (), "sm_90a", tmp_path)


@pytest.mark.parametrize("arch", ["native", "sm_90a -o /x", "90", ""])
def test_cuda_wants_a_real_arch(tmp_path: Path, arch: str) -> None:
    with pytest.raises(BuildError, match="is no CUDA arch"):
        language("cuda").build(KERNEL, (), arch, tmp_path)


def test_nvrtc_gets_flags_in_its_own_spelling() -> None:
    given = ["-O3", "-use_fast_math", "-Xptxas=-v", "-DTILE=4", "--expt-relaxed-constexpr", "-lineinfo"]
    assert kernelwright._nvrtc_flags(given) == ["--use_fast_math", "--ptxas-options=-v", "-DTILE=4", "-lineinfo"]


def test_jit_functions_are_found() -> None:
    source = "@triton.autotune([], key=[])\n@triton.jit\ndef a(): pass\n@jit\ndef b(): pass\n@triton.jit(debug=True)\ndef c(): pass\ndef d(): pass\n"  # noqa: E501
    assert jit_functions(source) == ["a", "b", "c"]


def test_triton_source_is_checked_before_anything_runs(tmp_path: Path) -> None:
    tool = language("triton")
    with pytest.raises(BuildError, match="not Python"):
        tool.build("def f(:", (), "sm_90a", tmp_path)
    with pytest.raises(BuildError, match="no function of this source is decorated"):
        tool.build("def f(): pass", (), "sm_90a", tmp_path)
    with pytest.raises(BuildError, match="is no CUDA arch"):
        tool.build("@triton.jit\ndef f(): pass", (), "native", tmp_path)
    artefact = tool.build("@triton.jit\ndef f(): pass", (), "sm_90a", tmp_path)
    assert artefact.suffix == tool.suffix
    assert artefact.read_text() == "@triton.jit\ndef f(): pass"


def test_triton_processes_get_a_private_cache(tmp_path: Path) -> None:
    assert environment(INTERPRET, tmp_path) == {
        "TRITON_INTERPRET": "1",
        "TRITON_CACHE_DIR": str(tmp_path / "triton-cache"),
    }
    assert "TRITON_INTERPRET" not in environment(RECORD, tmp_path)
    with pytest.raises(ValueError, match="mode is"):
        environment("simulate", tmp_path)
