"""The Dockerfiles pass their linter, copy only what exists, run as nobody special and start what exists."""

from __future__ import annotations

import fnmatch
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import COMMANDS
from tests.unit.containers.files import (
    DOCKERFILES,
    KNOWN_SETTINGS,
    ROOT,
    arguments_of,
    copied_from_here,
    environment_of,
    instructions,
    settings_among,
)

API, GPU_WORKER = DOCKERFILES
each_dockerfile = pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)


@each_dockerfile
def test_hadolint_finds_nothing(dockerfile: Path) -> None:
    linter = Path(sys.executable).with_name("hadolint")
    found = subprocess.run([linter, dockerfile], capture_output=True, text=True, check=False)
    assert found.stdout + found.stderr == ""
    assert found.returncode == 0


@each_dockerfile
def test_what_is_copied_exists(dockerfile: Path) -> None:
    missing = [source for source in copied_from_here(dockerfile) if not (ROOT / source).exists()]
    assert missing == []


@each_dockerfile
def test_every_package_is_copied(dockerfile: Path) -> None:
    packages = {folder.parent.name for folder in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert packages <= set(copied_from_here(dockerfile))


def _ignored(path: str) -> bool:
    """Docker's rule: the last pattern that matches the path or a parent of it decides."""
    ignored = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        bare = pattern.removeprefix("!").removeprefix("**/")
        parts = Path(path).parts
        ways = ["/".join(parts[: end + 1]) for end in range(len(parts))]
        anywhere = list(parts) if "**/" in pattern else []
        if any(fnmatch.fnmatch(candidate, bare) for candidate in [*ways, *anywhere]):
            ignored = not pattern.startswith("!")
    return ignored


@each_dockerfile
def test_what_is_copied_reaches_the_build(dockerfile: Path) -> None:
    assert [source for source in copied_from_here(dockerfile) if _ignored(source)] == []


def test_no_secret_and_no_history_reaches_the_build() -> None:
    for path in (".env", ".git/config", ".venv/bin/python", "tests/unit/x.py", "deploy/compose.env.example"):
        assert _ignored(path), path
    assert _ignored("worker/__pycache__/app.cpython-311.pyc")


@each_dockerfile
def test_it_runs_as_an_ordinary_user(dockerfile: Path) -> None:
    steps = instructions(dockerfile)
    users = [(index, arguments) for index, (name, arguments) in enumerate(steps) if name == "USER"]
    assert [arguments for _, arguments in users] == ["10001:10001"]
    made = [arguments for name, arguments in steps if name == "RUN" and "useradd" in arguments]
    assert all("--uid 10001 --gid 10001" in arguments for arguments in made)
    assert len(made) == 1
    # What comes after is what the user may not undo: no RUN as root behind the user's back.
    assert "RUN" not in [name for name, _ in steps[users[0][0] :]]


@each_dockerfile
def test_base_images_are_pinned_to_a_version(dockerfile: Path) -> None:
    defaults = dict(argument.split("=", 1) for argument in arguments_of(dockerfile, "ARG") if "=" in argument)
    for arguments in arguments_of(dockerfile, "FROM"):
        image = arguments.split()[0].replace("${BASE_IMAGE}", defaults.get("BASE_IMAGE", ""))
        name, _, tag = image.partition(":")
        assert name and any(digit.isdigit() for digit in tag), image


def test_the_gpu_image_has_a_compiler_for_cuda() -> None:
    assert "ARG BASE_IMAGE=nvidia/cuda:13.0.2-devel-ubuntu24.04" in GPU_WORKER.read_text().splitlines()


def _started(dockerfile: Path) -> list[list[str]]:
    commands: list[str] = arguments_of(dockerfile, "CMD")
    commands += [arguments.partition("CMD ")[2] for arguments in arguments_of(dockerfile, "HEALTHCHECK")]
    return [json.loads(command) for command in commands]


@each_dockerfile
def test_it_starts_and_checks_itself_with_commands_that_exist(dockerfile: Path) -> None:
    started = _started(dockerfile)
    assert len(started) == 2, "one CMD and one HEALTHCHECK"
    for program, *rest in started:
        if program == "kernelwright":
            assert rest[0] in COMMANDS
        else:
            assert program == "python"
            assert rest[0] == "-c" or (ROOT / rest[1] / "__main__.py").exists()


def test_the_api_checks_the_port_that_it_serves() -> None:
    serve, check = _started(API)
    port = serve[serve.index("--port") + 1]
    assert arguments_of(API, "EXPOSE") == [port]
    assert f":{port}/healthz" in check[-1]


def test_a_gpu_node_serves_its_gpus_and_the_models_unless_told_otherwise() -> None:
    assert environment_of(GPU_WORKER)["KERNELWRIGHT_QUEUES"] == "gpu,llm"


@each_dockerfile
def test_settings_exist(dockerfile: Path) -> None:
    assert settings_among(environment_of(dockerfile)) <= KNOWN_SETTINGS


def test_the_api_image_has_neither_torch_nor_models_nor_a_private_database() -> None:
    installed = [arguments for arguments in arguments_of(API, "RUN") if "pip install" in arguments]
    assert len(installed) == 1
    assert shlex.split(installed[0])[-3:] == ["-c", "requirements/lock.txt", ".[api,telemetry]"]


def test_litellm_comes_by_its_hash_and_first() -> None:
    installed = [arguments for arguments in arguments_of(GPU_WORKER, "RUN") if "pip install" in arguments]
    assert installed[0].startswith("pip install --no-deps --require-hashes -r requirements/litellm.txt")
    for arguments in installed[1:]:
        assert "-c requirements/lock.txt" in arguments
