"""The examples of docs/candidates.md do what the page says: built, run and compared with its reference."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from search.tunables import read_space, with_values
from worker.languages import language
from worker.runner import kernelwright

ROOT = Path(__file__).parents[3]
EXAMPLES: dict[str, str] = dict(
    re.findall(r"^```python (\w+)\n(.*?)^```", (ROOT / "docs" / "candidates.md").read_text(), re.DOTALL | re.MULTILINE)
)
INTERPRETED = """
import sys
from pathlib import Path
from worker.runner import triton_interpret
triton_interpret.use_interpreter()
import torch
from worker.runner.triton_record import module_from
problem, candidate = module_from(Path(sys.argv[1]), "problem"), module_from(Path(sys.argv[2]), "candidate")
reference, model = problem.Model(100), candidate.ModelNew(100)
model.load_state_dict(reference.state_dict())
(x,) = problem.get_inputs(rows=7)
x[0, 0] = float("nan")
torch.testing.assert_close(model(x), reference(x), equal_nan=True)
"""


def module(source: str, name: str) -> Any:
    made = types.ModuleType(name)
    exec(source, made.__dict__)
    return made


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    problem, candidate = tmp_path / "problem.py", tmp_path / "candidate.py"
    problem.write_text(EXAMPLES["problem"])
    candidate.write_text(EXAMPLES["triton"])
    return problem, candidate


def in_a_process(arguments: list[str], scratch: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(scratch / "triton-cache")}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_shows_every_language() -> None:
    assert set(EXAMPLES) == {"problem", "cpp", "triton", "cuda", "load_inline"}
    for name, source in EXAMPLES.items():
        compile(source, name, "exec")


def test_the_cpp_example_equals_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "kernelwright", kernelwright)
    monkeypatch.setattr(kernelwright, "_builder", None)
    problem, candidate = module(EXAMPLES["problem"], "problem"), module(EXAMPLES["cpp"], "candidate")
    reference, model = problem.Model(*problem.get_init_inputs()), candidate.ModelNew(*problem.get_init_inputs())
    model.load_state_dict(reference.state_dict())
    (x,) = problem.get_inputs()
    x[0, 0] = float("nan")
    torch.testing.assert_close(model(x), reference(x), equal_nan=True, rtol=0, atol=0)


def test_the_cpp_examples_flags_are_allowed() -> None:
    flags = re.search(r"flags=(\[.*?\])", EXAMPLES["cpp"])
    assert flags is not None
    assert language("cpp").check_flags(json.loads(flags[1]))


@pytest.mark.skipif(not language("triton").describe()["available"], reason="no Triton here")
def test_the_triton_example_equals_the_reference_in_the_interpreter(files: tuple[Path, Path], tmp_path: Path) -> None:
    in_a_process(["-c", INTERPRETED, *map(str, files)], tmp_path)


@pytest.mark.skipif(not language("triton").describe().get("ahead_of_time"), reason="no assembler of Triton's here")
def test_the_triton_example_builds_ahead_of_time(files: tuple[Path, Path], tmp_path: Path) -> None:
    problem, candidate = map(str, files)
    command = ["-m", "worker.runner.triton_record", "--problem", problem, candidate]
    report = json.loads(in_a_process(command, tmp_path))
    assert [kernel["name"] for kernel in report["kernels"]] == ["bias_relu"]
    assert report["kernels"][0]["cubin_bytes"] > 0


def test_the_triton_examples_tunables_are_read_and_rewritten() -> None:
    space = read_space(EXAMPLES["triton"])
    assert space is not None
    assert space.defaults == {"BLOCK": 256, "WARPS": 4}
    assert "\nBLOCK = 1024\nWARPS = 8\n" in with_values(EXAMPLES["triton"], {"BLOCK": 1024, "WARPS": 8})


@pytest.mark.skipif(not language("cuda").describe()["available"], reason="neither NVRTC nor nvcc is here")
def test_the_cuda_example_compiles(tmp_path: Path) -> None:
    source = re.search(r'SOURCE = r"""(.*?)"""', EXAMPLES["cuda"], re.DOTALL)
    assert source is not None
    assert b"bias_relu" in language("cuda").build(source[1], (), "sm_90a", tmp_path).read_bytes()
