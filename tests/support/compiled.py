"""Compile Triton candidates ahead of time for Hopper, without a GPU, at the sizes of real workloads.

A program of its own, because the recorder stands in for Triton's driver. Tensors are on the meta device: no memory is
needed.

    python -m tests.support.compiled < request.json > findings.json

The request is a list of {"name", "source"}; the findings are one row per kernel that a recipe launches on the first GPU
workload, with its registers, stack and shared memory.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tests.support.interpreted import HARDWARE, load
from worker.builtin.expressions import Unmatched
from worker.builtin.families import recognise
from worker.builtin.trace import TraceError, call_accepting, load_source, workloads
from worker.builtin.triton import RECIPES, write_candidate
from worker.runner.triton_record import recording


def compile_all(name: str, source: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Compile every recipe that the menu offers for the reference, on its first workload."""
    try:
        matches = recognise(source, HARDWARE, name)
    except TraceError:
        return  # no recipe is offered for it; so are all whose sizes follow from drawn values
    if not matches:
        return
    params = dict(workloads(source, HARDWARE)[0].params)
    namespace = load_source(source)
    init = call_accepting(namespace["get_init_inputs"], params)
    with torch.device("meta"):
        inputs = call_accepting(namespace["get_inputs"], params)
    for match in matches:
        for recipe in (recipe for recipe in RECIPES if recipe.family == match.family):
            try:
                candidate = load(write_candidate(recipe, match, source), f"{name}_{recipe.name}", folder)
            except Unmatched:
                continue
            with recording("sm_90a") as record, torch.device("meta"), torch.no_grad():
                candidate.ModelNew(*init)(*inputs)
            for kernel in record.kernels.values():
                yield {"problem": name, "family": match.family, "recipe": recipe.name, **asdict(kernel)}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for each in json.load(sys.stdin) for row in compile_all(each["name"], each["source"], Path(folder))]
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main()
