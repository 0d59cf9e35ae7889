"""Packages made of a small problem and imported into this process: no kernel is ever built here."""

from __future__ import annotations

import importlib
import itertools
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from api.packaging import Winner, make_package
from problems.catalog import source_hash
from tests.support.certified import signed

PROBLEM = '''
import torch
from torch import nn

SPEC = {{
    "workloads": [
        {{"name": "small", "params": {{"rows": 8, "cols": 16}}}},
        {{"name": "odd", "params": {{"rows": 5, "cols": 13}}}},
    ],
    "backward": {backward},
    "library": {{"fused": "Fused"}},
}}

FAULTS = []


class Model(nn.Module):
    """A bias and a tanh, scaled."""

    def __init__(self, cols, scale=2.0):
        super().__init__()
        self.scale = scale
        self.bias = nn.Parameter(torch.linspace(0, 1, cols))

    def forward(self, x):
        return torch.tanh(x + self.bias) * self.scale


class Fused(nn.Module):
    def __init__(self, cols, scale=2.0):
        super().__init__()
        self.factor = torch.full((cols,), scale)
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x):
        return torch.tanh(x + self.bias) * self.factor


def get_inputs(rows=8, cols=16):
    return [torch.linspace(-1, 1, rows * cols).view(rows, cols)]


def get_init_inputs(cols=16):
    return [cols]
'''
SIZES = {"small": (8, 16), "odd": (5, 13)}
_numbers = itertools.count()

Import = Callable[..., types.ModuleType]


def _certificate(source: str, baseline: str, missing: dict[str, str]) -> dict[str, Any]:
    """Of a kernel that was surely slower than `baseline` on both workloads."""
    timed = {"speedup": 0.82, "ci95": [0.80, 0.84], "baseline": baseline, "latency_us": 9.0}
    return {
        "certified": True,
        "issued_at": "2026-01-02T03:04:05+00:00",
        "candidate": {"source": "raise RuntimeError('built')", "sha256": "0"},
        "problem": {
            "sha256": source_hash(source),
            "workloads": [
                {"name": name, "params": {"rows": rows, "cols": cols}, "inputs": [f"float32 {rows} x {cols}"]}
                for name, (rows, cols) in SIZES.items()
            ],
        },
        "timing": {"workloads": [{"name": name, **timed} for name in SIZES]},
        "environment": {"cpu": "the processor of the certificate", "baselines_missing": missing},
    }


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """Makes a package and imports it, on the certified machine as far as it knows. Each call makes one of its own name,
    because a custom op is the process's for good."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))

    def imported(
        baseline: str = "compile",
        *,
        backward: bool = False,
        missing: dict[str, str] | None = None,
        change: tuple[str, str] = ("", ""),
    ) -> types.ModuleType:
        name = f"slow_{next(_numbers)}"
        source = PROBLEM.format(backward=backward).replace(*change)
        document = signed(_certificate(source, baseline, missing or {}))
        made = make_package(name, source, [Winner("cand_1", "cpu", "cpp", document, "")])
        for path, text in made.files.items():
            place = tmp_path / made.names.module / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        importlib.invalidate_caches()
        module = importlib.import_module(made.names.module)
        module.dispatch._PROCESSOR = module.dispatch.ROWS[0].kernel.machine
        return module

    # For one small kernel neither a pool of processes nor torch's headers compiled ahead.
    with torch._inductor.config.patch(compile_threads=1, cpp_cache_precompile_headers=False):
        yield imported
    torch._dynamo.reset()
