"""Writes lock.txt: what is installed in this environment, as far as the extras [all,dev] need it.

    .venv/bin/python requirements/write_lock.py > requirements/lock.txt

Run it with the interpreter of an environment that passes the tests, on Python 3.11, Linux, x86-64. Packages that happen
to be installed but that nothing of ours needs stay out, and so do local version labels: torch's `2.13.0+cpu` is pinned
as `2.13.0`.
"""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent

HEADER = """\
# Every package of the extras [all,dev], pinned, for Python 3.11 on Linux x86-64. Written by requirements/write_lock.py.
# torch is meant as its CPU build, which pulls no nvidia packages. On a GPU box use this file as constraints (pip's -c):
# the CUDA build of the same torch wants the same triton, and brings its nvidia packages with pins of its own.
# litellm is also in requirements/litellm.txt, with its hash: install that one first.
"""

OLDER_PYTHONS = {"async-timeout": '5.0.1 ; python_full_version < "3.11.3"'}
"""What redis and valkey need on the first three releases of 3.11 only, Debian 12's among them."""


def main() -> None:
    """Print the lock. Exits with one line when a requirement is not installed or not satisfied."""
    pins = installed_closure() | OLDER_PYTHONS
    sys.stdout.write(HEADER)
    sys.stdout.writelines(f"{name}=={pins[name]}\n" for name in sorted(pins))


def installed_closure() -> dict[str, str]:
    """Name and version of all that [all,dev] needs, as installed here. Exits when something is missing."""
    return dict(_closure(*_project()))


def _project() -> tuple[dict[str, list[Requirement]], list[Requirement]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: [Requirement(line) for line in lines] for name, lines in project["optional-dependencies"].items()}
    wanted = [Requirement(line) for line in project["dependencies"]]
    return extras, [*wanted, *extras["all"], *extras["dev"]]


def _closure(own: dict[str, list[Requirement]], wanted: Iterable[Requirement]) -> Iterator[tuple[str, str]]:
    seen: set[tuple[str, str]] = set()
    todo = list(wanted)
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name == "kernelwright":
            todo.extend(entry for extra in requirement.extras for entry in own[extra])
            continue
        yield name, _installed(requirement)
        for extra in {"", *requirement.extras} - {extra for known, extra in seen if known == name}:
            seen.add((name, extra))
            todo.extend(_needs(name, extra))


def _needs(name: str, extra: str) -> Iterator[Requirement]:
    for line in importlib.metadata.requires(name) or []:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def _installed(requirement: Requirement) -> str:
    try:
        version = Version(importlib.metadata.version(requirement.name))
    except importlib.metadata.PackageNotFoundError:
        sys.exit(f"{requirement} is not installed in {sys.prefix}")
    if not requirement.specifier.contains(version, prereleases=True):
        sys.exit(f"{requirement} is not satisfied: {version} is installed in {sys.prefix}")
    return version.public


if __name__ == "__main__":
    main()
