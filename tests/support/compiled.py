"""Compile Triton candidates ahead of time for sm_90, without a GPU, at the sizes of real workloads.

A program of its own, because it stands in for Triton's driver. Tensors are on the meta device: no memory is needed.

    python -m tests.support.compiled < request.json > findings.json

The request is a list of {"name", "source"}; the findings are one row per kernel that a recipe launches on the first GPU
workload. A recipe whose kernels do not compile ends the program with Triton's error.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from tests.support.interpreted import HARDWARE, load
from worker.builtin.expressions import Unmatched
from worker.builtin.families import recognise
from worker.builtin.trace import call_accepting, load_source, workloads
from worker.builtin.triton import RECIPES, write_candidate

_launch = JITFunction.run
compiled: list[Any] = []


def _compile_only(kernel: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
    compiled.append(_launch(kernel, *args, grid=grid, warmup=True, **kwargs))
    return compiled[-1]


def stand_in() -> None:
    """Let Triton compile for a Hopper device that is not there, and launch nothing."""
    driver.set_active(
        SimpleNamespace(  # type: ignore[arg-type]
            get_current_target=lambda: GPUTarget("cuda", 90, 32),
            get_current_device=lambda: 0,
            get_current_stream=lambda device: 0,
        )
    )
    JITFunction.run = _compile_only  # type: ignore[method-assign, assignment]


def compile_all(name: str, source: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Compile every recipe that fits the reference, on its first workload."""
    params = dict(workloads(source, HARDWARE)[0].params)
    namespace = load_source(source)
    init = call_accepting(namespace["get_init_inputs"], params)
    with torch.device("meta"):
        inputs = call_accepting(namespace["get_inputs"], params)
    for match in recognise(source, HARDWARE, name):
        for recipe in (recipe for recipe in RECIPES if recipe.family == match.family):
            try:
                candidate = load(write_candidate(recipe, match, source), f"{name}_{recipe.name}", folder)
            except Unmatched:
                continue
            compiled.clear()
            with torch.device("meta"), torch.no_grad():
                candidate.ModelNew(*init)(*inputs)
            for kernel in compiled:
                ptx = kernel.asm["ptx"]
                yield {
                    "candidate": f"{name}_{recipe.name}",
                    "kernel": kernel.metadata.name,
                    "shared": kernel.metadata.shared,
                    "wide_loads": ptx.count(".v4.b32"),
                    "tensor_cores": ptx.count("wgmma.mma_async"),
                    "copy_engine": ptx.count("cp.async.bulk.tensor"),
                    "cubin": len(kernel.asm["cubin"]),
                }


def main() -> None:
    stand_in()
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for each in json.load(sys.stdin) for row in compile_all(each["name"], each["source"], Path(folder))]
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main()
