"""`kernelwright export package`: the archive, or its files, in a folder."""

from __future__ import annotations

import json
from pathlib import Path

from cli.client import Client, Job
from tests.integration.api.history import History
from tests.integration.cli.commands.conftest import Kernelwright
from tests.support.certified import certificate


def certified(history: History, job: Job) -> str:
    candidate_id = history.evaluate(job["id"], speedup=2.0)
    document = certificate("softmax")
    del document["sha256"]
    history.certify(job["id"], **document)
    return candidate_id


def test_a_package_lands_in_the_folder_under_its_name(
    kernelwright: Kernelwright, client: Client, history: History, job: Job, tmp_path: Path
) -> None:
    candidate_id = certified(history, job)
    done = kernelwright("export", "package", job["id"], "--out", tmp_path / "dist")
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    assert path.parent == tmp_path / "dist" and path.read_bytes() == client.package_candidate(candidate_id).data
    assert f"pip install {path}" in done.stderr
    done = kernelwright("export", "package", candidate_id, "--format", "wheel", "--out", tmp_path, "--json")
    said = json.loads(done.stdout)
    assert Path(said["package"]).stat().st_size == said["bytes"]


def test_unpacked_it_is_a_project(kernelwright: Kernelwright, history: History, job: Job, tmp_path: Path) -> None:
    certified(history, job)
    done = kernelwright("export", "package", job["id"], "--out", tmp_path, "--unpack")
    project = Path(done.stdout.strip())
    assert (project / "pyproject.toml").is_file() and (project / "src/softmax_kernel/reference.py").is_file()
    refused = kernelwright("export", "package", job["id"], "--unpack", "--format", "wheel")
    assert refused.returncode == 2 and "leave --format wheel out" in refused.stderr


def test_what_the_service_refuses_is_one_line(kernelwright: Kernelwright, job: Job, tmp_path: Path) -> None:
    done = kernelwright("export", "package", job["id"])
    assert done.returncode == 2 and "No candidate of this job is verified yet" in done.stderr
    (tmp_path / "taken").touch()
    assert kernelwright("export").returncode == 2  # and its help
