"""The container files as data, for the tests: there is no Docker engine here, so what they say is read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from db.settings import Settings

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILES = (ROOT / "Dockerfile.api", ROOT / "Dockerfile.gpu-worker")
COMPOSE_FILE = ROOT / "docker-compose.yml"
ENV_EXAMPLE = ROOT / "deploy" / "compose.env.example"

# The command line's own variable beside what every process reads.
KNOWN_SETTINGS = {f"KERNELWRIGHT_{field.upper()}" for field in Settings.model_fields} | {"KERNELWRIGHT_QUEUES"}


def settings_among(variables: Iterable[str]) -> set[str]:
    """Those of the variables that are for us."""
    return {name for name in variables if name.startswith("KERNELWRIGHT_")}


def compose() -> dict[str, Any]:
    """The compose file with its anchors resolved; `${…}` is left as written."""
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE_FILE.read_text())
    return loaded


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Each instruction with its arguments, continued lines joined and comments left out."""
    lines = [line for line in dockerfile.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    found = [line.partition(" ") for line in joined.splitlines() if line.strip()]
    return [(name, arguments.strip()) for name, _, arguments in found]


def arguments_of(dockerfile: Path, name: str) -> list[str]:
    """The arguments of every `name` instruction."""
    return [arguments for instruction, arguments in instructions(dockerfile) if instruction == name]


def copied_from_here(dockerfile: Path) -> list[str]:
    """What COPY takes from the build context: paths relative to the root of the repository."""
    copies = [shlex.split(arguments) for arguments in arguments_of(dockerfile, "COPY")]
    return [source for words in copies if not words[0].startswith("--from") for source in words[:-1]]


def environment_of(dockerfile: Path) -> dict[str, str]:
    """Every ENV of the last stage and before."""
    words = [word for arguments in arguments_of(dockerfile, "ENV") for word in shlex.split(arguments)]
    return dict(word.split("=", 1) for word in words)
