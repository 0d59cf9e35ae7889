"""A C++ winner through the endpoint, pip and a fresh environment: its own tests pass there, and nothing of ours is needed.

`make test` runs the quick half of softmax's tests; the whole of three packages is exhaustive, as Inductor compiles.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import pytest

from cli.client import Client
from tests.integration.api.history import History
from tests.integration.packaged.conftest import Environment, certified_job

QUICK = "opcheck or signed or certified_workload or other_calls or switch or through_the_op"


def installed(
    client: Client, history: History, environment: Environment, name: str, format: Literal["sdist", "wheel"]
) -> str:
    archive, data = client.package(certified_job(client, history, name), format=format)
    path = environment.folder / archive
    path.write_bytes(data)
    environment.install(path)
    return f"{name}_kernel"


def passed(said: str) -> int:
    found = re.search(r"(\d+) passed", said)
    return int(found[1]) if found else 0


def test_softmax_installs_and_its_op_is_sound(client: Client, history: History, environment: Environment) -> None:
    package = installed(client, history, environment, "softmax", "wheel")
    said = environment.test(package, "-k", QUICK)
    assert passed(said) >= 9, said
    assert "cannot be built" not in said
    built = list((environment.folder / "cache" / "kernelwright").glob("*.so"))
    assert len(built) == 1
    ours = "import importlib.util as u; print([n for n in ('kernelwright', 'worker', 'api', 'cli') if u.find_spec(n)])"
    assert environment.run("-c", ours).stdout == "[]\n"


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["softmax", "residual_rmsnorm", "rmsnorm_train"])
def test_every_test_of_a_package_passes(client: Client, history: History, environment: Environment, name: str) -> None:
    package = installed(client, history, environment, name, "sdist")
    said = environment.test(package)
    assert passed(said) >= 25, said
    assert "cannot be built" not in said


SAY = """
import torch
import {package} as package
module = package.{module}
inputs = [torch.randn({shape}) for _ in range({count})]
with torch.no_grad():
    print(module.explain(*inputs))
    torch.testing.assert_close(module(*inputs), super(package.DropIn, module).forward(*inputs))
    print(module.explain(*inputs))
"""


def test_without_a_compiler_it_warns_and_falls_back(
    client: Client, history: History, environment: Environment, tmp_path: Path
) -> None:
    package = installed(client, history, environment, "softmax", "wheel")
    code = SAY.format(package=package, module="Softmax()", shape="1024, 1024", count=1)
    done = environment.run("-c", code, PATH=str(tmp_path), SOFTMAX_KERNEL_USE="kernel")
    assert done.returncode == 1 and "NotCovered" in done.stderr and "g++ was not found" in done.stderr
    code = code.replace("module.explain(*inputs)", "0", 1)
    machine = "import softmax_kernel.dispatch as d; d._machine = lambda *_: True"
    done = environment.run("-c", machine + code, PATH=str(tmp_path))
    assert "UserWarning: softmax_kernel: kernel_cpu_cpp cannot be built here: ToolchainMissing" in done.stderr
    assert "reference: kernel_cpu_cpp on small: kernel_cpu_cpp cannot be built here" in done.stdout, done.stderr
