"""What the bundled problems name as their `library`, compared with `Model` and with float64 on small sizes.

A program of its own, because Triton's interpreter is for a whole process; it is the runner's, which checks accesses:

    python -m tests.support.libraries < names.json > findings.json

The request is a list of problems' names; the findings are one row for each library, size and type: `error` and
`eager_error` against float64, the gradients of what is trained among them, or `raised`.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from problems.catalog import Outline, bundled
from tests.support.interpreted import LIMITS, error, load
from worker.builtin.trace import call_accepting
from worker.runner.step import Step
from worker.runner.triton_interpret import use_interpreter

_HEADS = {"batch": 2, "heads": 6, "kv_heads": 2, "length": 37, "dim": 16}
_ROWS = ({"rows": 7, "hidden": 33}, {"rows": 9, "hidden": 64})
_TENSORS = ({"layers": 2, "hidden": 7, "inner": 11, "vocab": 13},)

SIZES: dict[str, tuple[dict[str, Any], ...]] = {
    "adamw_multi_tensor": _TENSORS,
    "attention_causal": (_HEADS,),
    "attention_causal_training": (_HEADS,),
    "conv1d": ({"batch": 2, "inner": 3, "outer": 5, "length": 11},),
    "conv2d": ({"batch": 2, "inner": 3, "outer": 5, "height": 7, "width": 9},),
    "conv_relu_pool": ({"batch": 2, "inner": 3, "outer": 5, "size": 9},),
    "cross_entropy": (
        {"rows": 9, "classes": 37},
        {"rows": 9, "classes": 64, "smoothing": 0.1, "ignored": 0.4},
        {"rows": 2, "classes": 33_001, "smoothing": 0.1},  # more than one chunk
    ),
    "decode_attention_paged_gqa": ({"batch": 3, "heads": 6, "kv_heads": 2, "dim": 32, "length": 119},),
    "depthwise_conv": ({"batch": 2, "channels": 5, "size": 9},),
    "embedding_grad_rmsnorm_backward": ({"vocab": 19, "hidden": 12, "tokens": 41},),
    "geglu": _ROWS,
    "gemm_w8a8_fp8": ({"rows": 35, "inner": 64, "outer": 96},),
    "grad_norm_clip": _TENSORS,
    "histogram": (
        {"count": 1001, "bins": 37, "dtype": "int64"},
        {"count": 2003, "bins": 1021, "skew": 1, "dtype": "int32"},
        {"count": 9, "bins": 40_000, "dtype": "int64"},
    ),
    "jagged_to_dense": ({"batch": 7, "total": 59, "dim": 5, "length": 11},),
    "layernorm": _ROWS,
    "lstm_cell": ({"batch": 5, "inner": 7, "hidden": 11},),
    "merge_bucketized_dense": (
        {"rows": 7, "features": 3, "borders": 4},
        {"rows": 9, "features": 5, "borders": 6, "ragged": True},
    ),
    "moe_grouped_gemm": ({"tokens": 64, "experts": 5, "inner": 64, "outer": 72},),
    "pairwise_distance": ({"left": 7, "right": 13, "dim": 33},),
    "rmsnorm_residual": _ROWS,
    "rope": (
        {"batch": 2, "length": 5, "heads": 3, "kv_heads": 1, "dim": 12},
        {"batch": 1, "length": 4, "heads": 8, "kv_heads": 2, "dim": 32},
    ),
    "scatter_add": ({"nodes": 19, "dim": 5, "edges": 211},),
    "sdpa_mlp": ({**_HEADS, "hidden": 44},),
    "swiglu": _ROWS,
    "varlen_softmax": ({"rows": 17, "total": 211}, {"rows": 9, "total": 5}),  # of the second, rows without any
}
"""Sizes that take a moment in the interpreter, one of them odd."""


class _Case:
    """One problem at one size in one type: its inputs, cotangents and parameters, and the truth in float64."""

    def __init__(self, problem: Outline, module: Any, params: dict[str, Any], dtype: str) -> None:
        torch.manual_seed(0)
        given = {"dtype": dtype, **params}
        self.init = call_accepting(module.get_init_inputs, given)
        self.inputs = list(call_accepting(module.get_inputs, given))
        self.model = module.Model(*self.init)
        for parameter in self.model.parameters():
            torch.nn.init.normal_(parameter)
        self.count = len(self.inputs)
        if problem.spec.backward:
            outputs = _tuple(self.model(*self.inputs))
            self.inputs += [torch.randn_like(output) for output in outputs if output.is_floating_point()]
        wide = [each.double() if each.is_floating_point() else each for each in self.inputs]
        self.truth = self._results(copy.deepcopy(self.model).double(), wide)

    def error_of(self, made: Any) -> float:
        """The largest error of a class with the model's parameters. Raises what it raises."""
        model = made(*self.init)
        model.load_state_dict(self.model.state_dict(), strict=True)
        found = self._results(model, [each.clone() for each in self.inputs])
        own = self._results(self.model, self.inputs)
        alike = [(one.shape, one.dtype) == (other.shape, other.dtype) for one, other in zip(found, own, strict=True)]
        return max(map(error, found, self.truth)) if all(alike) else float("inf")

    def _results(self, model: Any, inputs: list[Any]) -> tuple[torch.Tensor, ...]:
        if len(inputs) > self.count:
            return Step(model, model, tuple(name for name, _ in model.named_parameters()), self.count)(*inputs)
        with torch.no_grad():
            return _tuple(model(*inputs))


def _tuple(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def findings(problem: Outline, folder: Path) -> Iterator[dict[str, Any]]:
    """Every library of the problem, at every size, in every type."""
    module = load(problem.source, problem.name, folder)
    for params in SIZES[problem.name]:
        for dtype in LIMITS:
            case = _Case(problem, module, params, str(dtype).removeprefix("torch."))
            for name, made in problem.spec.library.items():
                row = {"problem": problem.name, "library": name, "params": params, "limit": LIMITS[dtype]}
                try:
                    found = case.error_of(getattr(module, made))
                    yield row | {"error": found, "eager_error": case.error_of(module.Model)}
                except (RuntimeError, NotImplementedError) as raised:
                    yield row | {"raised": str(raised)[:300]}


def main() -> None:
    use_interpreter()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for name in json.load(sys.stdin) for row in findings(bundled()[name], Path(folder))]
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main()
