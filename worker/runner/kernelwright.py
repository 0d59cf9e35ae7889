"""What candidates import as `kernelwright`: the short standard way to call C++ and CUDA source from Python.

    from kernelwright import load_cpp, load_cuda

    lib = load_cpp(SOURCE, flags=("-ffast-math",))
    lib.scale(x, out, x.numel(), 2.0)                 # extern "C" void scale(const float*, float*, int64_t, double)

    mod = load_cuda(SOURCE)
    mod.scale[(blocks,), (256,), 0](x, out, n, 2.0)   # extern "C" __global__ void scale(...), on torch's current stream

Tensors pass their data pointer: no copy, no check of dtype, shape or contiguity (those are the caller's business).
Numbers are passed as the type that the source declares for the parameter; where that cannot be read, an int goes as
int64_t and a float as double (C++), or by the size that the compiled kernel has for it (CUDA).

This one file needs only the standard library and torch, so that a winning candidate runs outside the service: it then
compiles for itself into ~/.cache/kernelwright. Inside the service the judge's build broker compiles (`_set_builder`).
The functions below "toolchain" are also what the service's own builds use.

Exceptions
  BuildError            the compiler refused the source; the message is its log
  ├─ CompilerKilled     it ran out of memory, time or processes: another try may end otherwise
  └─ ToolchainMissing   there is no compiler to ask: the machine's fault, not the source's
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import operator
import os
import re
import shutil
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["BuildError", "CompilerKilled", "ToolchainMissing", "load_cpp", "load_cuda"]

Builder = Callable[[str, str, Sequence[str]], "str | Path"]
Converter = Callable[[Any], Any]

_BUILD_TIMEOUT_S = 120
_MAX_LOG_BYTES = 64 << 10
_KILLED = re.compile(r"Killed signal|out of memory|memory exhausted|Resource temporarily unavailable", re.IGNORECASE)
_builder: Builder | None = None


class BuildError(Exception):
    """The compiler refused the source. The message is the compiler's log: mend the first error in it."""


class CompilerKilled(BuildError):
    """The compiler was stopped before it could judge the source. Make the source smaller, or try again."""


class ToolchainMissing(BuildError):
    """No compiler was found. Install g++ (C++), or nvcc or the nvidia-cuda-nvrtc wheel (CUDA)."""


def load_cpp(source: str, flags: Sequence[str] = ()) -> CppLibrary:
    """Compile C++ and return its extern "C" functions as attributes. Raises BuildError with the compiler's log."""
    return CppLibrary(_artefact("cpp", source, flags), source)


def load_cuda(source: str, flags: Sequence[str] = ()) -> CudaModule:
    """Compile CUDA C++ and return its extern "C" kernels as attributes. Raises BuildError with the compiler's log.

    Needs no device until the first launch.
    """
    return CudaModule(_artefact("cuda", source, flags), source)


def _set_builder(builder: Builder | None) -> None:
    """Let `builder(language, source, flags) -> path of the artefact` compile instead of this process."""
    global _builder
    _builder = builder


def _artefact(language: str, source: str, flags: Sequence[str]) -> Path:
    if isinstance(flags, str):
        raise TypeError('flags is a sequence of strings, e.g. ("-ffast-math",)')
    build = _builder or _build_here
    return Path(build(language, source, tuple(flags)))


# --- declarations: what type does the source give each parameter? -----------------------------------------------------

_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_QUALIFIERS = re.compile(r"\b(?:const|volatile|__restrict__|__restrict|__grid_constant__)\b|\bstd::|=.*$", re.DOTALL)
_INTEGERS = frozenset(
    ["char", "short", "int", "long", "signed", "unsigned", "bool"]
    + ["size_t", "ssize_t", "ptrdiff_t", "intptr_t", "uintptr_t"]
    + [f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)


def declared_kinds(source: str, name: str) -> tuple[str, ...] | None:
    """The kinds (pointer, int, float, double, other) of the parameters that `source` defines `name` with.

    None when the definition cannot be read (made by a macro, say) or when there are several that differ.
    """
    text = _COMMENTS.sub(" ", source)
    found = set()
    for match in re.finditer(rf"\b{re.escape(name)}\s*\(", text):
        end = _closing_parenthesis(text, match.end())
        if end is not None and re.match(r"\s*(?:noexcept\s*)?\{", text[end + 1 : end + 200]):
            found.add(tuple(_kind(parameter) for parameter in _split_parameters(text[match.end() : end])))
    return found.pop() if len(found) == 1 else None


def _closing_parenthesis(text: str, start: int) -> int | None:
    depth = 1
    for index in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index
    return None


def _split_parameters(text: str) -> list[str]:
    if text.strip() in ("", "void"):
        return []
    parts, depth = [""], 0
    for character in text:
        depth += {"(": 1, "<": 1, "[": 1, ")": -1, ">": -1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _kind(parameter: str) -> str:
    plain = _QUALIFIERS.sub(" ", parameter)
    if "*" in plain or "[" in plain:
        return "pointer"
    words = plain.split()
    if len(words) > 1 and words[-1] not in _INTEGERS | {"float", "double"}:
        words.pop()  # the parameter's name
    if words in (["float"], ["double"]):
        return words[0]
    return "int" if words and _INTEGERS.issuperset(words) else "other"


def _check_count(name: str, kinds: tuple[str, ...] | None, given: int) -> None:
    if kinds is not None and len(kinds) != given:
        raise TypeError(f"{name}() takes {len(kinds)} arguments, {given} were given")


def _mismatch(name: str, index: int, arg: object, wanted: str) -> TypeError:
    return TypeError(f"{name}(): argument {index + 1} is declared as {wanted}, got {type(arg).__name__}")


def _is_tensor(arg: object) -> bool:
    return hasattr(arg, "data_ptr")


# --- C++: ctypes ------------------------------------------------------------------------------------------------------


class CppLibrary:
    """A loaded shared library; each extern "C" function is an attribute."""

    def __init__(self, path: Path, source: str) -> None:
        self._library = ctypes.CDLL(str(path))
        self._source = source

    def __getattr__(self, name: str) -> CppFunction:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            address = ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value
        except AttributeError:
            raise AttributeError(f'this C++ source exports no function {name!r}; declare it extern "C"') from None
        function = CppFunction(name, address or 0, declared_kinds(self._source, name))
        setattr(self, name, function)  # later look-ups cost a dictionary access and no call
        return function


class CppFunction:
    """One extern "C" function that returns nothing. Calls release the GIL."""

    __slots__ = ("_address", "_kinds", "_plans", "name")

    def __init__(self, name: str, address: int, kinds: tuple[str, ...] | None) -> None:
        self.name = name
        self._address = address
        self._kinds = kinds
        # One ctypes prototype per combination of Python types: a call then costs about 2 us, most of it data_ptr().
        self._plans: dict[tuple[type, ...], tuple[Callable[..., None], tuple[Converter | None, ...]]] = {}

    def __call__(self, *args: Any) -> None:
        """Call with CPU tensors (as pointers), ints, floats, bools, None (a null pointer)."""
        plan = self._plans.get(tuple(map(type, args)))
        call, converters = plan or self._plan(args)
        call(*[arg if convert is None else convert(arg) for convert, arg in zip(converters, args, strict=True)])

    def _plan(self, args: tuple[Any, ...]) -> tuple[Callable[..., None], tuple[Converter | None, ...]]:
        _check_count(self.name, self._kinds, len(args))
        kinds = self._kinds or ("other",) * len(args)
        bound = [_cpp_argument(self.name, i, kind, arg) for i, (kind, arg) in enumerate(zip(kinds, args, strict=True))]
        prototype = ctypes.CFUNCTYPE(None, *[ctype for ctype, _convert in bound])
        plan = prototype(self._address), tuple(convert for _ctype, convert in bound)
        self._plans[tuple(map(type, args))] = plan
        return plan


def _cpp_argument(name: str, index: int, kind: str, arg: object) -> tuple[Any, Converter | None]:
    """The C type of one argument, and how to make a plain Python number of it (None: it is one)."""
    if _is_tensor(arg) or arg is None:
        if kind not in ("pointer", "other"):
            raise _mismatch(name, index, arg, kind)
        return ctypes.c_void_p, None if arg is None else functools.partial(_cpu_pointer, name, index)
    if kind == "pointer":
        return ctypes.c_void_p, operator.index
    if kind in ("float", "double"):
        return (ctypes.c_float if kind == "float" else ctypes.c_double), None if isinstance(arg, float | int) else float
    if isinstance(arg, float) and kind == "int":
        raise _mismatch(name, index, arg, "an integer")
    if hasattr(arg, "__index__"):
        return ctypes.c_int64, None if isinstance(arg, int) else operator.index
    if hasattr(arg, "__float__"):
        return ctypes.c_double, None if isinstance(arg, float) else float
    raise _mismatch(name, index, arg, "a tensor, an int, a float or None")


def _cpu_pointer(name: str, index: int, tensor: Any) -> int:
    if not tensor.is_cpu:
        raise TypeError(f"{name}(): argument {index + 1} is a {tensor.device} tensor; C++ kernels take CPU tensors")
    return tensor.data_ptr()  # type: ignore[no-any-return]


# --- CUDA: the driver API through ctypes ------------------------------------------------------------------------------

_CUDA_SUCCESS, _INVALID_VALUE, _INVALID_CONTEXT, _NOT_FOUND = 0, 1, 201, 500
_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CUfunction_attribute
_STATIC_SHARED_LIMIT = 48 << 10  # more dynamic shared memory than this needs the function's consent
_MAX_CACHED_LAUNCHES = 1024


class CudaModule:
    """A compiled module; each extern "C" kernel is an attribute: `mod.kernel[grid, block, shared_bytes](...)`."""

    def __init__(self, path: Path, source: str) -> None:
        self._cubin = Path(path).read_bytes()
        self._source = source
        self._handles: dict[int, ctypes.c_void_p] = {}

    def __getattr__(self, name: str) -> CudaKernel:
        if name.startswith("_"):
            raise AttributeError(name)
        if name.encode() not in self._cubin:
            raise AttributeError(f'this CUDA source has no kernel {name!r}; declare it extern "C" __global__ void')
        kernel = CudaKernel(self, name, declared_kinds(self._source, name))
        setattr(self, name, kernel)
        return kernel

    def _handle(self, device: int) -> ctypes.c_void_p:
        """The module, loaded into the device's primary context, which is torch's."""
        if device not in self._handles:
            _make_context_current(device)
            handle = ctypes.c_void_p()
            _check(_cuda().cuModuleLoadData(ctypes.byref(handle), self._cubin), "cuModuleLoadData")
            self._handles[device] = handle
        return self._handles[device]


class CudaKernel:
    """One kernel. `kernel[grid, block]` or `kernel[grid, block, shared_bytes]` is what can be called."""

    def __init__(self, module: CudaModule, name: str, kinds: tuple[str, ...] | None) -> None:
        self.name = name
        self.kinds = kinds
        self._module = module
        self._loaded: dict[int, _LoadedKernel] = {}
        self._launches: dict[Any, CudaLaunch] = {}

    def __getitem__(self, config: tuple[Any, ...]) -> CudaLaunch:
        launch = self._launches.get(config)
        if launch is None:
            if not isinstance(config, tuple) or len(config) not in (2, 3):
                raise TypeError(f"{self.name}[grid, block] or {self.name}[grid, block, shared_bytes]")
            if len(self._launches) >= _MAX_CACHED_LAUNCHES:  # a grid that follows ever new shapes must not leak
                self._launches.clear()
            shared = operator.index(config[2]) if len(config) == 3 else 0
            launch = CudaLaunch(self, _three(config[0]), _three(config[1]), shared)
            self._launches[config] = launch
        return launch

    def on(self, device: int) -> _LoadedKernel:
        """This kernel on `device`, loaded at its first use."""
        loaded = self._loaded.get(device)
        if loaded is None:
            function = ctypes.c_void_p()
            code = _cuda().cuModuleGetFunction(ctypes.byref(function), self._module._handle(device), self.name.encode())
            if code == _NOT_FOUND:
                raise AttributeError(f'no kernel {self.name!r} in this module; declare it extern "C" __global__ void')
            _check(code, f"cuModuleGetFunction({self.name})")
            loaded = self._loaded[device] = _LoadedKernel(self.name, function, self.kinds)
        return loaded


class _LoadedKernel:
    """A CUfunction and its packer."""

    def __init__(self, name: str, function: ctypes.c_void_p, kinds: tuple[str, ...] | None) -> None:
        self.name = name
        self.function = function
        self.pack = Packer(name, _parameter_layout(function), kinds).pack
        self._shared_allowed = 0

    def allow_shared(self, shared_bytes: int) -> None:
        """Let the kernel be launched with this much dynamic shared memory."""
        if shared_bytes > max(self._shared_allowed, _STATIC_SHARED_LIMIT):
            code = _cuda().cuFuncSetAttribute(self.function, _MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)
            _check(code, f"{self.name}: {shared_bytes} bytes of dynamic shared memory")
            self._shared_allowed = shared_bytes


class Packer:
    """Packs arguments as a kernel's parameters. `layout` is (offset, size) of each, in bytes."""

    def __init__(self, name: str, layout: list[tuple[int, int]], kinds: tuple[str, ...] | None) -> None:
        self.name = name
        self.layout = layout
        self.kinds = kinds if kinds is not None and len(kinds) == len(layout) else None
        self.size = max((offset + size for offset, size in layout), default=0)
        self.plans: dict[tuple[type, ...], tuple[struct.Struct, tuple[Converter | None, ...]]] = {}
        self._buffers: dict[int, tuple[Any, Any]] = {}  # one per thread: another may launch while this one packs

    def pack(self, args: tuple[Any, ...]) -> Any:
        """Pack the arguments and return the array of pointers to them that cuLaunchKernel takes."""
        plan = self.plans.get(tuple(map(type, args)))
        layout, converters = plan or self._plan(args)
        values = [arg if convert is None else convert(arg) for convert, arg in zip(converters, args, strict=True)]
        buffer, pointers = self._buffers.get(threading.get_ident()) or self._new_buffer()
        try:
            layout.pack_into(buffer, 0, *values)
        except struct.error:  # an unsigned value above the signed range, or one that does not fit at all
            layout.pack_into(buffer, 0, *map(self._as_signed, values, self.layout))
        return pointers

    def _plan(self, args: tuple[Any, ...]) -> tuple[struct.Struct, tuple[Converter | None, ...]]:
        if len(args) != len(self.layout):
            raise TypeError(f"kernel {self.name} takes {len(self.layout)} arguments, {len(args)} were given")
        kinds = self.kinds or ("other",) * len(args)
        codes, converters, end = "<", [], 0
        for index, (arg, kind, (offset, size)) in enumerate(zip(args, kinds, self.layout, strict=True)):
            code, convert = _cuda_argument(self.name, index, kind, arg, size)
            codes += "x" * (offset - end) + code
            end = offset + size
            converters.append(convert)
        plan = struct.Struct(codes), tuple(converters)
        self.plans[tuple(map(type, args))] = plan
        return plan

    def _new_buffer(self) -> tuple[Any, Any]:
        words = (ctypes.c_uint64 * (self.size // 8 + 1))()
        base = ctypes.addressof(words)
        pointers = (ctypes.c_void_p * max(1, len(self.layout)))(*[base + offset for offset, _size in self.layout])
        self._buffers[threading.get_ident()] = words, pointers
        return words, pointers

    def _as_signed(self, value: Any, place: tuple[int, int]) -> Any:
        bits = 8 * place[1]
        if isinstance(value, int) and (1 << (bits - 1)) <= value < (1 << bits):
            return value - (1 << bits)
        if isinstance(value, int) and not -(1 << (bits - 1)) <= value < (1 << bits):
            raise OverflowError(f"kernel {self.name}: {value} does not fit a parameter of {place[1]} bytes")
        return value


class CudaLaunch:
    """A kernel bound to a grid, a block and shared memory. Calling it launches on torch's current stream."""

    __slots__ = ("_block", "_grid", "_kernel", "_ready", "_shared")

    def __init__(self, kernel: CudaKernel, grid: tuple[int, ...], block: tuple[int, ...], shared: int) -> None:
        self._kernel = kernel
        self._grid, self._block, self._shared = grid, block, shared
        self._ready: set[int] = set()

    def __call__(self, *args: Any) -> None:
        """Launch with CUDA tensors (as pointers), ints, floats, bools, None (a null pointer), bytes (a struct)."""
        device = _current_device()
        kernel = self._kernel.on(device)
        if device not in self._ready:
            kernel.allow_shared(self._shared)
            self._ready.add(device)
        pointers = kernel.pack(args)
        launch = _cuda().cuLaunchKernel
        stream = _current_stream(device)
        code = launch(kernel.function, *self._grid, *self._block, self._shared, stream, pointers, None)
        if code == _INVALID_CONTEXT:  # a thread that torch has not touched yet, such as one of the candidate's own
            _make_context_current(device)
            code = launch(kernel.function, *self._grid, *self._block, self._shared, stream, pointers, None)
        if code != _CUDA_SUCCESS:
            _check(code, f"{kernel.name}[{self._grid}, {self._block}, {self._shared}]")


def _three(size: Any) -> tuple[int, int, int]:
    sizes = [operator.index(n) for n in size] if isinstance(size, tuple | list) else [operator.index(size)]
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise ValueError(f"a grid or block is one to three positive integers, got {size!r}")
    sizes += [1] * (3 - len(sizes))
    return sizes[0], sizes[1], sizes[2]


def _cuda_argument(name: str, index: int, kind: str, arg: object, size: int) -> tuple[str, Converter | None]:
    """The struct code of one argument, and how to make a plain Python number of it (None: it is one)."""
    if _is_tensor(arg) or arg is None:
        if kind not in ("pointer", "other") or size != 8:
            raise _mismatch(name, index, arg, kind)
        return "Q", _null if arg is None else functools.partial(_cuda_pointer, name, index)
    if isinstance(arg, bytes):
        return f"{size}s", functools.partial(_whole_struct, name, index, size)
    if kind in ("float", "double") or (isinstance(arg, float) and kind != "int" and size in (4, 8)):
        return ("f" if size == 4 else "d"), None if isinstance(arg, float) else float
    if isinstance(arg, float):
        wanted = "an integer" if kind == "int" else f"a {size}-byte type: pass a float and convert it in the kernel"
        raise _mismatch(name, index, arg, wanted)
    code = {1: "b", 2: "h", 4: "i", 8: "q"}.get(size)
    if code is None or not hasattr(arg, "__index__"):
        raise _mismatch(name, index, arg, f"a value of {size} bytes (pass a tensor, an int, a float, None or bytes)")
    return code, None if isinstance(arg, int) else operator.index


def _cuda_pointer(name: str, index: int, tensor: Any) -> int:
    if not tensor.is_cuda:
        raise TypeError(f"{name}(): argument {index + 1} is a {tensor.device} tensor; CUDA kernels take CUDA tensors")
    return tensor.data_ptr()  # type: ignore[no-any-return]


def _whole_struct(name: str, index: int, size: int, arg: bytes) -> bytes:
    if len(arg) != size:  # struct would pad or cut it without a word
        raise TypeError(f"{name}(): argument {index + 1} is a struct of {size} bytes, got {len(arg)}")
    return arg


def _null(_arg: None) -> int:
    return 0


@functools.lru_cache(maxsize=1)
def _cuda() -> ctypes.CDLL:
    cuda = ctypes.CDLL("libcuda.so.1")
    cuda.cuLaunchKernel.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]
    cuda.cuFuncSetAttribute.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    cuda.cuModuleGetFunction.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p]
    cuda.cuModuleLoadData.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    return cuda


@functools.lru_cache(maxsize=1)
def _torch_hooks() -> tuple[Callable[[], int], Callable[[int], int]]:
    """How to ask torch for its current device and raw stream: its C functions cost 0.1 us, the public ones 1 us."""
    import torch

    torch.cuda.init()  # type: ignore[no-untyped-call]
    device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
    stream = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream)
    return device, stream


def _current_device() -> int:
    return _torch_hooks()[0]()


def _current_stream(device: int) -> int:
    return _torch_hooks()[1](device)


def _make_context_current(device: int) -> None:
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    _check(_cuda().cuDeviceGet(ctypes.byref(handle), device), "cuDeviceGet")
    _check(_cuda().cuDevicePrimaryCtxRetain(ctypes.byref(context), handle), "cuDevicePrimaryCtxRetain")
    _check(_cuda().cuCtxSetCurrent(context), "cuCtxSetCurrent")


def _parameter_layout(function: ctypes.c_void_p) -> list[tuple[int, int]]:
    """(offset, size) in bytes of each parameter of a kernel."""
    try:
        ask = _cuda().cuFuncGetParamInfo
    except AttributeError:
        raise RuntimeError("load_cuda needs a driver for CUDA 12.4 or newer (cuFuncGetParamInfo)") from None
    layout: list[tuple[int, int]] = []
    while True:
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        code = ask(function, ctypes.c_size_t(len(layout)), ctypes.byref(offset), ctypes.byref(size))
        if code == _INVALID_VALUE:  # one past the last parameter
            return layout
        _check(code, "cuFuncGetParamInfo")
        layout.append((offset.value, size.value))


def _check(code: int, what: str) -> None:
    if code != _CUDA_SUCCESS:
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        _cuda().cuGetErrorName(code, ctypes.byref(name))
        _cuda().cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"{what}: {(name.value or b'').decode()} ({code}): {(text.value or b'').decode()}")


# --- toolchain --------------------------------------------------------------------------------------------------------

CPP_FLAGS = ("-O3", "-march=native", "-fopenmp", "-fPIC", "-fmax-errors=20")
CUDA_FLAGS = ("-std=c++17",)


def compile_cpp(source: str, flags: Sequence[str], folder: Path) -> tuple[Path, str]:
    """Compile and link in `folder`; returns the shared library and the compiler's warnings. Raises BuildError.

    Two steps, because g++ 12 given -ffast-math while *linking* adds crtfastmath.o, which switches the loading thread to
    flush-to-zero: the caller's later results would change without a line of the candidate having run.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise ToolchainMissing("g++ was not found on PATH")
    (folder / "kernel.cpp").write_text(source, encoding="utf-8")
    headers, libraries = _torch_options(source)
    log = _run([compiler, *CPP_FLAGS, *headers, *flags, "-c", "kernel.cpp", "-o", "kernel.o"], folder)
    log += _run([compiler, "-shared", "-fopenmp", "kernel.o", *libraries, "-o", "kernel.so"], folder)
    return folder / "kernel.so", log


_TORCH_HEADER = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<(?:torch|ATen|c10)/", re.MULTILINE)


def _torch_options(source: str) -> tuple[list[str], list[str]]:
    """What compiling and linking take for a source that includes torch's headers, as torch.compile's kernels do.

    Torch's vector functions call into its library, which every candidate's process has loaded: its name is enough.
    """
    spec = importlib.util.find_spec("torch") if _TORCH_HEADER.search(source) else None
    if spec is None or not spec.submodule_search_locations:
        return [], []
    root = Path(next(iter(spec.submodule_search_locations)))
    return ["-isystem", str(root / "include")], [f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10"]


def compile_cuda(source: str, flags: Sequence[str], arch: str, folder: Path, form: str = "cubin") -> tuple[Path, str]:
    """Compile in `folder` for `arch` (sm_90a, ...); returns the cubin and the compiler's remarks. Raises BuildError.

    `form` "ptx" stops before the assembler: the text of it is in the file then.

    NVRTC first: 20-40 ms in process. It knows no host headers, so what it refuses gets a second opinion from nvcc.
    """
    nvcc = cuda_tool("nvcc")
    built = folder / f"kernel.{form}"
    if nvrtc() is not None:
        try:
            image, log = compile_nvrtc(source, flags, arch, form)
        except BuildError:
            if nvcc is None:
                raise
        else:
            built.write_bytes(image)
            return built, log
    if nvcc is None:
        raise ToolchainMissing("neither NVRTC nor nvcc was found")
    (folder / "kernel.cu").write_text(source, encoding="utf-8")
    command = [nvcc, f"-{form}", f"-arch={arch}", *CUDA_FLAGS, *flags, "kernel.cu", "-o", built.name]
    return built, _run(command, folder)


def _run(command: list[str], folder: Path) -> str:
    log = folder / "compiler.log"  # a file and no pipe: templates can make the compiler write without end
    with log.open("wb") as sink:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT,
            timeout=_BUILD_TIMEOUT_S, check=False,
        )  # fmt: skip
    with log.open("rb") as written:
        text = written.read(_MAX_LOG_BYTES).decode(errors="replace")
    if done.returncode < 0:
        raise CompilerKilled(f"{Path(command[0]).name} was killed by signal {-done.returncode}\n{text}")
    if done.returncode > 0:
        raise (CompilerKilled if _KILLED.search(text) else BuildError)(text or f"{command[0]} exited silently")
    return text


def cuda_home() -> Path | None:
    """The CUDA toolkit's folder, None without one."""
    nvcc = shutil.which("nvcc")
    named = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    beside = [str(Path(nvcc).resolve().parents[1])] if nvcc else []
    return next((Path(home) for home in [*named, *beside] if home and (Path(home) / "include").is_dir()), None)


def cuda_tool(name: str) -> str | None:
    """The path of a program of the CUDA toolkit, None without it."""
    home = cuda_home()
    return shutil.which(name) or (shutil.which(name, path=str(home / "bin")) if home else None)


def _wheel_folders() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or []) if spec else []
    # CUDA 13 wheels share nvidia/cu13; those of CUDA 12 have a folder per library.
    parts = ("cu13", "cuda_nvrtc", "cuda_runtime")
    return [Path(root) / part for root in roots for part in parts if (Path(root) / part).is_dir()]


def _include_folders() -> list[Path]:
    home = cuda_home()
    folders = [folder / "include" for folder in [*([home] if home else []), *_wheel_folders()]]
    folders += [folder / "cccl" for folder in folders]
    return [folder for folder in folders if folder.is_dir()]


@functools.lru_cache(maxsize=1)
def nvrtc() -> ctypes.CDLL | None:
    """The NVRTC library, loaded; None where there is none."""
    home = cuda_home()
    folders = [folder / "lib" for folder in _wheel_folders()] + ([home / "lib64"] if home else [])
    for folder in folders:
        found = sorted(folder.glob("libnvrtc.so.[0-9]*"))
        if found:
            with contextlib.suppress(OSError, IndexError):
                # NVRTC looks its builtins up by bare name: they must be in the process, globally, before it is.
                ctypes.CDLL(str(sorted(folder.glob("libnvrtc-builtins.so*"))[-1]), mode=ctypes.RTLD_GLOBAL)
            with contextlib.suppress(OSError):
                return ctypes.CDLL(str(found[-1]))
    for name in ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return None


# NVRTC has no host headers. Kernels include these out of habit and use little of them: enough is declared here.
_STDINT = """#pragma once
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t; typedef long long intptr_t; typedef unsigned long long uintptr_t;
"""
_LIMITS = """#pragma once
#define FLT_MAX 3.402823466e+38F
#define FLT_MIN 1.175494351e-38F
#define FLT_EPSILON 1.192092896e-07F
#define DBL_MAX 1.7976931348623157e+308
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295u
#define LLONG_MAX 9223372036854775807LL
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#endif
"""
_NVRTC_HEADERS = {
    "stdint.h": _STDINT,
    "cstdint": '#include "stdint.h"\nnamespace std { using ::int32_t; using ::int64_t; using ::uint32_t; }\n',
    **dict.fromkeys(("float.h", "cfloat", "limits.h", "climits", "math.h", "cmath"), _LIMITS),
    **dict.fromkeys(("stddef.h", "cstddef", "stdio.h", "cstdio", "stdlib.h", "cstdlib", "cuda_runtime.h"), ""),
}


def compile_nvrtc(source: str, flags: Sequence[str], arch: str, form: str = "cubin") -> tuple[bytes, str]:
    """Compile in process; returns the cubin (or the PTX, whose text ends with a NUL) and the log. Raises BuildError."""
    library = nvrtc()
    if library is None:
        raise ToolchainMissing("NVRTC was not found")
    program = ctypes.c_void_p()
    headers = [text.encode() for text in _NVRTC_HEADERS.values()]
    names = [name.encode() for name in _NVRTC_HEADERS]
    strings = ctypes.c_char_p * len(names)
    code = library.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), b"kernel.cu", len(names), strings(*headers), strings(*names)
    )
    if code != 0:
        raise BuildError(f"nvrtcCreateProgram failed with {code}")
    try:
        options = [f"--gpu-architecture={arch}", *CUDA_FLAGS, "--pre-include=stdint.h", *_nvrtc_flags(flags)]
        options += [f"-I{folder}" for folder in _include_folders()]
        encoded = [option.encode() for option in options]
        code = library.nvrtcCompileProgram(program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded))
        log = _nvrtc_text(library, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if code != 0:
            raise BuildError(log or f"nvrtcCompileProgram failed with {code}")
        return _nvrtc_text(library, program, form.upper()), log
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _nvrtc_text(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    if getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) != 0:
        return b""
    buffer = ctypes.create_string_buffer(max(1, size.value))
    getattr(library, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw[: size.value]


def _nvrtc_flags(flags: Sequence[str]) -> list[str]:
    """nvcc's spelling of flags, as NVRTC understands them: it always optimises, and has no -Xptxas."""
    spelled = []
    for flag in flags:
        if re.fullmatch(r"-O[0-3]|-lineinfo|--expt-(relaxed-constexpr|extended-lambda)", flag):
            spelled += ["-lineinfo"] if flag == "-lineinfo" else []
        elif flag.startswith("-Xptxas="):
            spelled.append("--ptxas-options=" + flag.removeprefix("-Xptxas="))
        else:
            spelled.append("--use_fast_math" if flag == "-use_fast_math" else flag)
    return spelled


@functools.lru_cache(maxsize=1)
def native_cpu() -> str:
    """What -march=native depends on, as a short hash: the processor's model and features."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        first = ""
    # Not the whole block: it holds the momentary clock.
    lines = [line for line in first.splitlines() if re.match(r"(model name|flags|Features|CPU part)\b", line)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


@functools.lru_cache(maxsize=4)
def compiler_version(language: str) -> str:
    """The version line of the compiler that builds `language` ("cpp" or "cuda"). Raises ToolchainMissing."""
    if language == "cuda" and (library := nvrtc()) is not None:
        major, minor = ctypes.c_int(), ctypes.c_int()
        library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return f"nvrtc {major.value}.{minor.value}"
    program = shutil.which("g++") if language == "cpp" else cuda_tool("nvcc")
    if program is None:
        raise ToolchainMissing("g++ was not found on PATH" if language == "cpp" else "neither NVRTC nor nvcc was found")
    lines = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()
    return next((line for line in lines if "release" in line), lines[0])


def _device_arch() -> str:
    import torch

    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")  # the "a" family has wgmma and tcgen05


def _build_here(language: str, source: str, flags: Sequence[str]) -> Path:
    """Compile in this process into the user's cache: the standalone builder."""
    target = native_cpu() if language == "cpp" else _device_arch()
    parts = [language, source, *flags, target, compiler_version(language)]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernelwright"
    path = cache / (key + (".so" if language == "cpp" else ".cubin"))
    if path.exists():
        return path
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=cache, prefix="build-") as scratch:
        folder = Path(scratch)
        try:
            if language == "cpp":
                built, _log = compile_cpp(source, flags, folder)
            else:
                built, _log = compile_cuda(source, flags, target, folder)
        except subprocess.TimeoutExpired:
            raise CompilerKilled(f"the compiler took longer than {_BUILD_TIMEOUT_S} s") from None
        built.replace(path)  # atomic: two processes that build the same thing both end with a whole file
    return path
