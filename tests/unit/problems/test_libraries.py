"""What a problem names as its `library` gives what `Model` gives, gradients too; Triton's kernels are interpreted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from typing import Any

import pytest
import torch

from problems.catalog import bundled
from tests.support.libraries import SIZES

pytest.importorskip("triton")

LIBRARIES = [(problem.name, name) for problem in bundled().values() for name in problem.spec.library]
GPU_ONLY = {
    ("attention_causal", "flash"),
    ("attention_causal", "cudnn"),
    ("attention_causal_training", "flash"),
    ("attention_causal_training", "cudnn"),
    ("conv1d", "searched"),
    ("conv2d", "searched"),
    ("conv_relu_pool", "fused"),
    ("depthwise_conv", "searched"),
    ("embedding_grad_rmsnorm_backward", "autograd"),
    ("lstm_cell", "fused"),
}
"""What a CPU does not have, or has under another name."""
ONLY_SOME = {("gemm_w8a8_fp8", "scaled_mm")}
"""What raises for types that the library does not take."""


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """One process for all: the interpreter changes it for good."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.libraries"],
        input=json.dumps(sorted(SIZES)),
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(ran.stdout)
    return found


def test_all_libraries_are_compared() -> None:
    assert {problem for problem, _ in LIBRARIES} == set(SIZES)


@pytest.mark.parametrize(("problem", "library"), LIBRARIES)
def test_a_library_gives_what_the_reference_gives(problem: str, library: str, rows: list[dict[str, Any]]) -> None:
    """No farther from float64 than thrice what eager is, or some units in the last place of the type."""
    mine = [row for row in rows if (row["problem"], row["library"]) == (problem, library)]
    ran = [row for row in mine if "error" in row]
    if (problem, library) in GPU_ONLY:
        assert mine and not ran
        return
    assert ran and (len(ran) == len(mine) or (problem, library) in ONLY_SOME), mine
    far = [row for row in ran if row["error"] > max(row["limit"], 3 * row["eager_error"])]
    assert not far


@pytest.mark.parametrize("problem", sorted({problem for problem, library in LIBRARIES if library == "liger"}))
def test_where_there_is_no_triton_the_reference_runs_and_its_library_says_why_not(
    problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    module = types.ModuleType(problem)
    exec(compile(bundled()[problem].source, problem, "exec"), module.__dict__)
    init, inputs = (getattr(module, name)() for name in ("get_init_inputs", "get_inputs"))
    assert all(torch.isfinite(each).all() for each in _tuple(module.Model(*init)(*inputs)))
    with pytest.raises(RuntimeError, match="need Triton and a GPU"):
        module.Liger(*init)(*inputs)


def _tuple(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(result) if isinstance(result, tuple | list) else (result,)
