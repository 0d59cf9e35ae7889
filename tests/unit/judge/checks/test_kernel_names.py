"""Whose kernel is it, by names as CUPTI and torch's profiler give them; symbols of files that a compiler made."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.judge.checks.kernel_names import Owner, base_name, compiles, own_names, owner
from worker.judge.symbols import NotAnElf, functions
from worker.runner import kernelwright

CANDIDATE = '''
import triton
import triton.language as tl
from triton import jit
SOURCE = r"""
template <typename T> __global__ void __launch_bounds__(256) scale(const T* x, T* y) {}
extern "C" __global__ void shift(float* x) {}
"""
@triton.jit
def fused(x, BLOCK: tl.constexpr): pass
@jit
def other(x): pass
@triton.autotune(configs=[], key=[])
@triton.jit(do_not_specialize=["n"])
def tuned(x, n): pass
def plain(x): pass
'''
OWN = own_names(CANDIDATE, [])


@pytest.mark.parametrize(
    "bounds", ["512, 1", "512, blocks(N)", "512, blocks(2 * (N < 4 ? N : half(4)))", "BOUNDS<T, N>"]
)
def test_a_kernel_is_known_whatever_its_launch_bounds_call(bounds: str) -> None:
    kernel = f"template <class T, int N>\n__global__ void __launch_bounds__({bounds}) rows(const T* x) {{}}"
    assert "rows" in own_names(f"SOURCE = {kernel!r}", [])


def test_a_long_text_is_read_once() -> None:
    """It was read anew from each of its words: half a megabyte took four minutes, with the device held alone."""
    assert own_names(f"SOURCE = {'__global__ ' * 50_000!r}", []) == frozenset()


def test_own_names_are_jit_functions_and_kernels_in_the_sources_text() -> None:
    assert {"fused", "other", "tuned", "scale", "shift"} == OWN


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fused", Owner.OWN),
        ("fused_0d1d2de", Owner.OWN),
        ("void scale<float>(float const*, float*)", Owner.OWN),
        ("shift", Owner.OWN),
        ("own:fused", Owner.OWN),
        ("own:invented", Owner.UNKNOWN),
        ("plain", Owner.UNKNOWN),
        ("ampere_sgemm_128x64_nn", Owner.LIBRARY),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", Owner.LIBRARY),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", Owner.LIBRARY),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm>(Params)", Owner.LIBRARY),
        ("void cublasLt::splitKreduce_kernel<32, 16, int>(Params)", Owner.LIBRARY),
        ("void pytorch_flash::flash_fwd_kernel<Traits>(Params)", Owner.LIBRARY),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)", Owner.TORCH),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(ReduceOp)", Owner.TORCH),
        ("aten::mm", Owner.TORCH),
        ("Memcpy DtoD (Device -> Device)", Owner.TORCH),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)", Owner.GLUE),
        ("Memset (Device)", Owner.GLUE),
        ("aten::empty_like", Owner.GLUE),
        ("aten::_reshape_alias", Owner.GLUE),
        ("aten::copy_", Owner.TORCH),
        ("triton_poi_fused_add_0", Owner.UNKNOWN),
    ],
)
def test_names_have_owners(name: str, expected: Owner) -> None:
    assert owner(name, tiny=False, own=OWN, inductor=False) == expected


def test_a_copy_of_few_elements_is_glue_and_inductors_kernels_are_own_when_it_was_asked() -> None:
    assert owner("aten::copy_", tiny=True, own=OWN, inductor=False) == Owner.GLUE
    assert owner("aten::mm", tiny=True, own=OWN, inductor=False) == Owner.TORCH
    assert owner("triton_poi_fused_add_0", tiny=False, own=OWN, inductor=True) == Owner.OWN
    assert compiles("model = torch.compile(model)")
    assert not compiles(CANDIDATE)


def test_a_kernel_that_is_never_launched_lends_its_name_to_no_library() -> None:
    source = "import triton\n@triton.jit\ndef ampere_sgemm_128x64_nn(x): pass\n"
    lent = own_names(source, [])
    assert owner("ampere_sgemm_128x64_nn", tiny=False, own=lent, inductor=False) == Owner.LIBRARY


def test_base_names() -> None:
    assert base_name("void ns::inner::scale<float, 4>(float*, int)") == "scale"
    assert base_name("softmax_2") == "softmax_2"


def test_the_symbols_of_a_shared_library_are_those_that_it_defines(tmp_path: Path) -> None:
    source = 'extern "C" void own_kernel(float* x) { x[0] = 1; }\nextern "C" void second(float* x) { own_kernel(x); }'
    built, _log = kernelwright.compile_cpp(source, (), tmp_path)
    names = functions(built)
    assert {"own_kernel", "second"} <= names
    assert "malloc" not in names
    assert "own_kernel" in own_names("x = 1", [built])


def test_what_is_no_elf_file_is_refused_and_counts_as_nothing(tmp_path: Path) -> None:
    text = tmp_path / "kernel.py"
    text.write_text("import triton")
    cut = tmp_path / "cut.so"
    cut.write_bytes(b"\x7fELF\x02\x01" + bytes(20))
    for path in (text, cut):
        with pytest.raises(NotAnElf):
            functions(path)
    assert own_names("x = 1", [text, cut, tmp_path / "gone"]) == frozenset()
