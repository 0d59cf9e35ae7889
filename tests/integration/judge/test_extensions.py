"""A candidate's extension of torch: built once, by the broker, in its sandbox, and loaded by every runner."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.judge.runners.processes import Processes, RefereeOptions
from worker.judge.verdict import Fault, Verdict

SOURCE = """
import torch
from torch.utils.cpp_extension import load_inline

extension = load_inline(
    name="twice",
    cpp_sources="torch::Tensor twice(torch::Tensor x) { return x * 2; }",
    functions=["twice"],
    extra_cflags=["-O1"],
)
print("twice", extension.twice(torch.ones(3)).tolist(), flush=True)

class ModelNew: pass
"""
LOAD = {"op": "load", "subject": "it", "source": SOURCE, "class": "ModelNew", "compile": None}


def test_an_extension_is_built_once_and_by_the_broker(tmp_path: Path) -> None:
    processes = Processes(RefereeOptions(tmp_path, "cpu"), on_gpu=False)
    paths = []
    try:
        for _runner in range(2):
            with processes.runner() as runner:
                runner.ask(LOAD, 60)  # the build aside
                assert [build[0] for build in runner.builds] == ["extension"]
                assert runner.own_artefacts == []
                paths += runner.artefacts
                runner.close()
                assert "twice [2.0, 2.0, 2.0]" in runner.log()
        assert paths[0] == paths[1]
        assert len(list((tmp_path / "cache" / "build").glob("??/*.so"))) == 1
        with processes.runner() as runner:
            with pytest.raises(Fault, match="flags are not allowed: -include") as refused:
                runner.ask(LOAD | {"source": SOURCE.replace("-O1", "-include/etc/passwd")}, 60)
            assert refused.value.verdict is Verdict.BUILD_ERROR
    finally:
        processes.close()


@pytest.mark.exhaustive  # g++ reads all of torch's headers first
def test_what_the_compiler_says_of_an_extension_reaches_its_author(tmp_path: Path) -> None:
    processes = Processes(RefereeOptions(tmp_path, "cpu"), on_gpu=False)
    try:
        with processes.runner() as runner, pytest.raises(Fault, match="‘?nothing’? was not declared"):
            runner.ask(LOAD | {"source": SOURCE.replace("x * 2", "x * nothing")}, 60)
    finally:
        processes.close()
