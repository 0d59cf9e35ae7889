"""Whose kernel is it? By name: the candidate's own, a library's, torch's, or glue that computes nothing.

Own names come from the judge's side: functions under `@triton.jit` and `__global__` functions in the candidate's text,
and symbols of what the build broker built for it. Library names are looked at first, so that a kernel that is never
launched cannot lend its name to one of cuBLAS's.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from worker.judge.symbols import NotAnElf, functions
from worker.runner.provenance import OWN


class Owner(StrEnum):
    """Who wrote what ran."""

    OWN = "own"
    LIBRARY = "library"
    TORCH = "torch"
    GLUE = "glue"
    """Allocation, views, filling, and copies of tiny tensors."""
    UNKNOWN = "unknown"


_LIBRARY = re.compile(
    r"cublas|cudnn|cutlass|cusparse|cufft|cusolver|nvjet|xmma|nccl|\bcub::|thrust::|flash_?fwd|flash_?bwd|pytorch_flash"
    r"|fmha|magma_|^(ampere|volta|turing|hopper|maxwell|sm\d+)_\w*(gemm|conv|fprop|dgrad|wgrad)|splitKreduce|gemv2T|gemvN",
    re.IGNORECASE,
)
_TORCH = re.compile(r"\bat::|\bc10::|at_cuda_detail|^aten::|torch::")
_FILL = re.compile(r"FillFunctor|fill_kernel|^Memset", re.IGNORECASE)
_COPY = re.compile(r"^Memcpy|direct_copy_kernel|copy_device_to_device", re.IGNORECASE)
_INDUCTOR = re.compile(r"triton_(poi|red|per|for|tem|mm|bmm|spl|unk)_")
_GLUE_OPERATORS = re.compile(
    r"aten::(empty\w*|new_\w+|as_strided|view\w*|reshape|_reshape_alias|expand\w*|permute|transpose|t|mT|T|swapaxes|movedim"
    r"|squeeze|unsqueeze|slice|select|narrow|split\w*|chunk|unbind|flatten|unflatten|_?unsafe_view|detach|alias|set_"
    r"|resize_|lift_fresh|result_type|is_nonzero|item|_local_scalar_dense|resolve_conj|resolve_neg|contiguous|clone|to"
    r"|_to_copy|zeros\w*|zero_|fill_|full\w*|ones\w*|size|stride|numel|dim|storage_offset|is_contiguous)"
)
"""Operators whose own time (without that of the operators inside) is spent on sizes, memory and views. `contiguous`,
`clone` and `to` do their work in `copy_`, which is judged by its size."""
_GLUE_WHEN_TINY = frozenset({"aten::copy_", "aten::cat", "aten::index", "aten::arange"})
_NESTED = functools.reduce(lambda inside, _level: rf"(?:[^()]++|\({inside}\))*+", range(4), "[^()]*+")
_BOUNDS = rf"__launch_bounds__\s*\({_NESTED}\)\s*"
"""With calls among its arguments: `__launch_bounds__(512, blocks(2 * (A < B ? A : half(B))))`."""
_GLOBAL = re.compile(rf"__global__\s+(?:{_BOUNDS})?(?:\w+\s+){{0,8}}?void\s+(?:{_BOUNDS})?(\w+)\s*\(")


def own_names(source: str, artefacts: Iterable[Path]) -> frozenset[str]:
    """Names of functions that are the candidate's own. An artefact that is no ELF file has none (Triton's is text)."""
    tree = ast.parse(source)
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _is_jit(node)}
    names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and _is_function(node)}
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    for text in texts:
        names |= set(_GLOBAL.findall(text))
    for artefact in artefacts:
        try:
            names |= functions(artefact)
        except (NotAnElf, OSError):
            continue
    return frozenset(names)


def compiles(source: str) -> bool:
    """Whether the candidate's text asks Inductor for kernels, which then carry Inductor's names."""
    return "torch.compile" in source


def owner(name: str, *, tiny: bool, own: frozenset[str], inductor: bool) -> Owner:
    """Whose it is; `tiny` for host operators on few elements."""
    if name.startswith(OWN):
        return Owner.OWN if name.removeprefix(OWN) in own else Owner.UNKNOWN
    # The bookkeeping around a torch.autograd.Function; what runs inside is listed too.
    if name.startswith("autograd::") or (name.endswith("Backward") and name.removesuffix("Backward") in own):
        return Owner.GLUE
    if _GLUE_OPERATORS.fullmatch(name) or (tiny and name in _GLUE_WHEN_TINY) or _FILL.search(name):
        return Owner.GLUE
    if _LIBRARY.search(name):
        return Owner.LIBRARY
    if _TORCH.search(name) or _COPY.search(name):
        return Owner.TORCH
    if base_name(name) in own or (inductor and _INDUCTOR.match(name)):
        return Owner.OWN
    return Owner.UNKNOWN


def base_name(name: str) -> str:
    """`scale` for `void ns::scale<float>(float const*, int)`, and for `scale_0d1d2`, as older Tritons say."""
    bare = re.sub(r"^(void|static|__global__)\s+", "", name)
    bare = re.split(r"[<(]", bare, maxsplit=1)[0].rsplit("::", 1)[-1].strip()
    return re.sub(r"_(\d+[dc]?e?)+$", "", bare) if re.search(r"_\d+d", bare) else bare


def _is_function(node: ast.ClassDef) -> bool:
    """Whether a class looks like a torch.autograd.Function."""
    return any(ast.unparse(base).endswith("Function") for base in node.bases)


def _is_jit(node: ast.FunctionDef) -> bool:
    for decorator in node.decorator_list:
        call = decorator.func if isinstance(decorator, ast.Call) else decorator
        if (isinstance(call, ast.Attribute) and call.attr == "jit") or (
            isinstance(call, ast.Name) and call.id == "jit"
        ):
            return True
    return False
