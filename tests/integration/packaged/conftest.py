"""Packages as a user gets them: by REST, installed by pip into an environment of their own, run by its interpreter.

That environment sees this one's packages (torch, pytest, setuptools) but nothing of ours: no checkout, no PYTHONPATH.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy.orm import Session, sessionmaker

from api.app import create_app
from cli.client import Client
from db.settings import Settings
from tests.integration.api.history import History
from tests.integration.api.server import serving
from tests.support.certified import certificate, elsewhere, problem_source
from worker.judge.environment import describe

LIMIT_S = 280


@dataclass(frozen=True)
class Environment:
    """A virtual environment with one package of ours."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def install(self, archive: Path) -> None:
        options = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet"]
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "install", *options, str(archive)]
        done = subprocess.run(command, env=self._variables(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.python), *arguments], cwd=self.folder, env=self._variables() | variables,
            capture_output=True, text=True, check=False, timeout=LIMIT_S,
        )  # fmt: skip

    def test(self, package: str, *arguments: str, **variables: str) -> str:
        """Run the tests inside the package; what pytest said. Fails where they do."""
        options = ["-q", "-rs", "-p", "no:cacheprovider", "--pyargs", package]
        done = self.run("-m", "pytest", *options, *arguments, **variables)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        return done.stdout

    def _variables(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        cache = self.folder / "cache"
        return kept | {"HOME": str(self.folder), "XDG_CACHE_HOME": str(cache), "TORCHINDUCTOR_CACHE_DIR": str(cache)}


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=False, symlinks=True)
    made = Environment(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return made


@pytest.fixture
def client(settings: Settings) -> Iterator[Client]:
    with serving(create_app(settings, ring=lambda _bells: None)) as url, Client(url) as client:
        yield client


@pytest.fixture
def history(sessions: sessionmaker[Session]) -> History:
    return History(sessions)


def certified_job(client: Client, history: History, name: str, triton: str = "", *, slower: str = "") -> str:
    """A job whose best has the recorded certificate of that name, or `triton` on an H200; its id. On the workload
    `slower` this is the machine of the certificate, and the kernel has lost to torch.compile."""
    problem = {"name": name, "source": problem_source(name)}
    target = {"hardware": "nvidia-h200", "language": "triton"} if triton else {"hardware": "cpu", "language": "cpp"}
    job = client.submit({"problem": problem, "target": target})
    history.evaluate(job["id"], speedup=2.0)
    document = elsewhere(triton) if triton else certificate(name)
    if slower:
        (lost,) = (each for each in document["timing"]["workloads"] if each["name"] == slower)
        lost |= {"speedup": 0.82, "ci95": [0.80, 0.84], "baseline": "compile"}
        document["environment"]["cpu"] = describe("cpu", "")["cpu"]
    del document["sha256"]
    history.certify(job["id"], **document)
    return job["id"]
