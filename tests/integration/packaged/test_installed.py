"""A C++ winner through the endpoint, pip and a fresh environment: its own tests pass there, with nothing of ours.

`make test` runs the quick half of softmax's tests; the whole of three packages is exhaustive, as Inductor compiles.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import pytest
import torch

from cli.client import Client
from tests.integration.api.history import History
from tests.integration.packaged.conftest import Environment, certified_job

QUICK = "opcheck or signed or certified_workload or other_calls or switch or through_the_op"


def installed(
    client: Client,
    history: History,
    environment: Environment,
    name: str,
    format: Literal["sdist", "wheel"],
    also: list[str] | None = None,
    *,
    slower: str = "",
) -> str:
    job = certified_job(client, history, name, slower=slower)
    archive, data = client.package_job(job, also=also, format=format)
    path = environment.folder / archive
    path.write_bytes(data)
    environment.install(path)
    return f"{name}_kernel"


def passed(said: str) -> int:
    found = re.search(r"(\d+) passed", said)
    return int(found[1]) if found else 0


TRITON = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def softmax(x, y, cols, BLOCK: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64) * cols, tl.arange(0, BLOCK)
    value = tl.load(x + row + at, mask=at < cols, other=-float("inf")).to(tl.float32)
    power = tl.exp(value - tl.max(value, 0))
    tl.store(y + row + at, power / tl.sum(power, 0), mask=at < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        softmax[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
"""


def test_softmax_for_two_machines_installs_and_is_sound_on_this_one(
    client: Client, history: History, environment: Environment
) -> None:
    on_gpu = certified_job(client, history, "softmax", triton=TRITON)
    package = installed(client, history, environment, "softmax", "wheel", also=[on_gpu])
    said = environment.test(package, "-k", QUICK)
    assert passed(said) >= 15, said
    assert "cannot be built" not in said
    if not torch.cuda.is_available():
        assert "needs a CUDA device" in said
    built = list((environment.folder / "cache" / "kernelwright").glob("*.so"))
    assert len(built) == 1
    ours = "import importlib.util as u; print([n for n in ('kernelwright', 'worker', 'api', 'cli') if u.find_spec(n)])"
    assert environment.run("-c", ours).stdout == "[]\n"


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["softmax", "rmsnorm_residual", "rmsnorm_train"])
def test_every_test_of_a_package_passes(client: Client, history: History, environment: Environment, name: str) -> None:
    package = installed(client, history, environment, name, "sdist")
    said = environment.test(package)
    assert passed(said) >= 25, said
    assert "cannot be built" not in said


@pytest.mark.exhaustive
def test_where_the_kernel_lost_the_baseline_and_its_gradients_are_right(
    client: Client, history: History, environment: Environment
) -> None:
    package = installed(client, history, environment, "rmsnorm_train", "wheel", slower="even")
    said = environment.test(package, "-k", "baseline and even")
    assert passed(said) == 2 and "skipped" not in said, said


WITHOUT_COMPILER = """
import torch
import softmax_kernel as package
from softmax_kernel import dispatch
dispatch._PROCESSOR = dispatch.ROWS[0].kernel.machine  # as if it had been certified on this one
module, x = package.Softmax(), torch.randn(1024, 1024)
print(module.explain(x))
torch.testing.assert_close(module(x), torch.softmax(x, -1), rtol=0, atol=0)
print(module.explain(x))
package.use("kernel")
try:
    module(x)
except package.NotCovered as refused:
    print("refused:", refused)
"""


def test_without_a_compiler_it_warns_and_falls_back(
    client: Client, history: History, environment: Environment, tmp_path: Path
) -> None:
    installed(client, history, environment, "softmax", "wheel")
    done = environment.run("-c", WITHOUT_COMPILER, PATH=str(tmp_path))
    before, after, refused = done.stdout.splitlines()
    assert before.startswith("kernel: kernel_cpu_cpp on small, certified ")
    missing = "kernel_cpu_cpp cannot be built here: ToolchainMissing: g++ was not found on PATH"
    assert done.stderr.count(f"UserWarning: softmax_kernel: {missing}. The reference is used instead.") == 1
    assert after == f"reference: kernel_cpu_cpp on small: {missing}"
    assert refused == f"refused: {after}"
