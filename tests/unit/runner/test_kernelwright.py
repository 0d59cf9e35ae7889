"""The loader that candidates import: what reaches C++ and CUDA, and what is refused with which words."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from worker.runner import kernelwright
from worker.runner.kernelwright import BuildError, Packer, declared_kinds, load_cpp, load_cuda

SOURCE = r"""
#include <cstdint>
#include <cmath>
#include <omp.h>
extern "C" void axpb(const float* x, float* out, int64_t n, float a, double b) {
    for (int64_t i = 0; i < n; i++) out[i] = x[i] * a + static_cast<float>(b);
}
extern "C" void types(double* out, int i, bool flag, uint8_t byte, long n, float f, double d, const void* null) {
    out[0] = i; out[1] = flag; out[2] = byte; out[3] = n; out[4] = f; out[5] = d; out[6] = null == nullptr;
}
#define DEFINE(name) extern "C" void name(double* out, int64_t n, double value) { for (int64_t i = 0; i < n; i++) out[i] = value; }
DEFINE(filled)
extern "C" void threads(int64_t* out) { out[0] = omp_get_max_threads(); }
"""  # noqa: E501 - a macro is one line


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def private_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(kernelwright, "_builder", None)


def test_tensors_and_numbers_arrive() -> None:
    x, out = torch.randn(37), torch.empty(37)
    load_cpp(SOURCE).axpb(x, out, 37, 2.5, -1)
    torch.testing.assert_close(out, x * 2.5 - 1)


def test_a_view_is_passed_where_it_lies() -> None:
    pool = torch.zeros(10)
    load_cpp(SOURCE).axpb(torch.ones(3), pool[4:], 3, 2.0, 1.0)
    assert pool.tolist() == [0, 0, 0, 0, 3, 3, 3, 0, 0, 0]


def test_each_number_is_passed_as_its_declared_type() -> None:
    out = torch.zeros(7, dtype=torch.float64)
    load_cpp(SOURCE).types(out, -7, True, 200, 1 << 40, 0.5, 0.1, None)
    assert out.tolist() == [-7, 1, 200, 1 << 40, 0.5, 0.1, 1]


def test_an_unreadable_declaration_falls_back_to_int64_and_double() -> None:
    assert declared_kinds(SOURCE, "filled") is None
    out = torch.zeros(3, dtype=torch.float64)
    load_cpp(SOURCE).filled(out, 3, 0.1)
    assert out.tolist() == [0.1] * 3


def test_openmp_uses_torchs_threads() -> None:
    before = torch.get_num_threads()
    out = torch.zeros(1, dtype=torch.int64)
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            load_cpp(SOURCE).threads(out)
            assert out.item() == count
    finally:
        torch.set_num_threads(before)


def test_fast_math_does_not_flush_the_callers_denormals() -> None:
    library = load_cpp(SOURCE + "// linked apart", flags=["-ffast-math"])
    out = torch.empty(1)
    library.axpb(torch.ones(1), out, 1, 1.0, 0.0)
    assert (torch.full((1,), 1e-39) * 1.0).item() != 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.ones(1), torch.ones(1), 1, 2.0), "takes 5 arguments, 4 were given"),
        ((torch.ones(1), torch.ones(1), 1.0, 2.0, 3.0), "argument 3 is declared as an integer, got float"),
        ((torch.ones(1), torch.ones(1), 1, torch.ones(1), 3.0), "argument 4 is declared as float, got Tensor"),
        ((torch.ones(1, device="meta"), torch.ones(1), 1, 1.0, 3.0), "argument 1 is a meta tensor"),
    ],
)
def test_wrong_arguments_are_refused_before_the_call(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        load_cpp(SOURCE).axpb(*arguments)


def test_a_missing_function_says_extern_c() -> None:
    with pytest.raises(AttributeError, match="no function 'axpy'; declare it extern \"C\""):
        _ = load_cpp(SOURCE).axpy


def test_a_compile_error_carries_the_compilers_words() -> None:
    with pytest.raises(BuildError, match=r"kernel.cpp:1:\d+: error: .*undeclared_thing"):
        load_cpp("int x = undeclared_thing;")


def test_a_flag_string_is_refused() -> None:
    with pytest.raises(TypeError, match="sequence of strings"):
        load_cpp(SOURCE, flags="-ffast-math")


def test_a_second_load_compiles_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_cpp(SOURCE)
    monkeypatch.setenv("PATH", "")
    x, out = torch.ones(2), torch.empty(2)
    load_cpp(SOURCE).axpb(x, out, 2, 1.0, 1.0)
    assert out.tolist() == [2, 2]
    assert not list((cache / "kernelwright").glob("build-*")), "scratch folders stay behind"


def test_an_injected_builder_does_the_work(tmp_path: Path) -> None:
    path, _log = kernelwright.compile_cpp(SOURCE, (), tmp_path)
    asked: list[tuple[str, str, Sequence[str]]] = []

    def build(language: str, source: str, flags: Sequence[str]) -> str:
        asked.append((language, source, flags))
        return str(path)

    kernelwright._set_builder(build)
    out = torch.zeros(2)
    load_cpp(SOURCE, flags=["-DA=1"]).axpb(torch.ones(2), out, 2, 3.0, 0.0)
    assert asked == [("cpp", SOURCE, ("-DA=1",))]
    assert out.tolist() == [3, 3]


@pytest.mark.parametrize(
    ("definition", "kinds"),
    [
        ("void f(const float* x, float *__restrict__ y) {", ("pointer", "pointer")),
        ("void f(float x[], int n) {", ("pointer", "int")),
        ("void f(std::int64_t n, unsigned long long m, size_t) {", ("int", "int", "int")),
        ("void f(float scale, const double eps, float) {", ("float", "double", "float")),
        ("void f(float4 v, half h, Foo<int, 3> t) {", ("other", "other", "other")),
        ("void __launch_bounds__(256) f(int n = 3, float s = 2.f) {", ("int", "float")),
        ("void f() {", ()),
        ("void f(void) noexcept {", ()),
        ("void f(int n /* (length), */, // of x\n float s) {", ("int", "float")),
        ("void f(const __grid_constant__ CUtensorMap map, int n) {", ("other", "int")),
        ("void g() { f(1, 2); } void f(float a, int b) {", ("float", "int")),
        ("void f(int a); void f(int a) {", ("int",)),
        ("#ifdef A\nvoid f(int a) {\n#else\nvoid f(float a) {\n#endif", None),
        ("void f(int a, float b);", None),
        ("void prefix_f(int a) {", None),
    ],
)
def test_declarations_are_read(definition: str, kinds: tuple[str, ...] | None) -> None:
    assert declared_kinds(f'extern "C" {definition} }}', "f") == kinds


# --- CUDA without a device: packing arguments -------------------------------------------------------------------------

FIVE = [(0, 8), (8, 4), (16, 8), (24, 4), (32, 8)]


def packed(packer: Packer, *args: object) -> list[bytes]:
    """What cuLaunchKernel would read behind each pointer."""
    pointers = packer.pack(args)
    return [ctypes.string_at(pointers[i], size) for i, (_offset, size) in enumerate(packer.layout)]


def test_arguments_are_packed_at_their_offsets() -> None:
    packer = Packer("k", FIVE, ("pointer", "int", "int", "float", "double"))
    got = packed(packer, None, -3, 1 << 40, 0.5, 2)
    assert got == [bytes(8), struct.pack("<i", -3), struct.pack("<q", 1 << 40), struct.pack("<f", 0.5),
                   struct.pack("<d", 2.0)]  # fmt: skip


def test_without_a_declaration_the_size_decides() -> None:
    packer = Packer("k", FIVE, None)
    got = packed(packer, None, True, -1, 0.5, 0.25)
    assert got[1:] == [struct.pack("<i", 1), struct.pack("<q", -1), struct.pack("<f", 0.5), struct.pack("<d", 0.25)]


def test_unsigned_values_above_the_signed_range_fit() -> None:
    packer = Packer("k", [(0, 4), (8, 8)], None)
    assert packed(packer, 0xFFFFFFFF, 1 << 63) == [b"\xff" * 4, struct.pack("<Q", 1 << 63)]


def test_a_value_that_does_not_fit_raises() -> None:
    with pytest.raises(OverflowError, match="4294967296 does not fit a parameter of 4 bytes"):
        Packer("k", [(0, 4)], None).pack((1 << 32,))


def test_bytes_fill_a_struct() -> None:
    packer = Packer("k", [(0, 128), (128, 4)], ("other", "int"))
    assert packed(packer, bytes(range(128)), 5) == [bytes(range(128)), struct.pack("<i", 5)]
    with pytest.raises(TypeError, match="a struct of 128 bytes, got 64"):
        packer.pack((bytes(64), 5))


@pytest.mark.parametrize(
    ("layout", "kinds", "arguments", "message"),
    [
        ([(0, 8)], ("pointer",), (torch.ones(1),), "argument 1 is a cpu tensor; CUDA kernels take CUDA tensors"),
        ([(0, 4)], ("int",), (1.5,), "declared as an integer, got float"),
        ([(0, 2)], ("other",), (1.5,), "pass a float and convert it in the kernel"),
        ([(0, 4)], ("float",), (None,), "declared as float, got NoneType"),
        ([(0, 8), (8, 4)], None, (1,), "takes 2 arguments, 1 were given"),
    ],
)
def test_wrong_kernel_arguments_are_refused(
    layout: list[tuple[int, int]], kinds: tuple[str, ...] | None, arguments: tuple[object, ...], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        Packer("k", layout, kinds).pack(arguments)


def test_threads_do_not_share_a_buffer() -> None:
    packer = Packer("k", [(0, 8)], None)
    here = packer.pack((1,))
    elsewhere: list[object] = []
    thread = threading.Thread(target=lambda: elsewhere.append(packer.pack((2,))))
    thread.start()
    thread.join()
    assert ctypes.string_at(here[0], 8) == struct.pack("<q", 1)


def test_a_cuda_module_needs_no_device_until_it_launches(tmp_path: Path) -> None:
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(b"\x7fELF...\0bias_relu\0...")
    kernelwright._set_builder(lambda language, source, flags: cubin)
    module = load_cuda('extern "C" __global__ void bias_relu(float* x) { }')
    launch = module.bias_relu[(4, 2), 128, 1024]
    assert launch is module.bias_relu[(4, 2), 128, 1024], "a launch configuration is prepared once"
    with pytest.raises(AttributeError, match="no kernel 'relu_bias'; declare it extern \"C\" __global__"):
        _ = module.relu_bias
    with pytest.raises(ValueError, match="one to three positive integers"):
        _ = module.bias_relu[0, 128]
    with pytest.raises(TypeError, match=r"bias_relu\[grid, block\]"):
        _ = module.bias_relu[4]  # type: ignore[index]
