"""The lock says what pyproject asks for, litellm by its hash, and nothing about where packages come from."""

from __future__ import annotations

import re
import runpy
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = ROOT / "requirements" / "lock.txt"
LITELLM = ROOT / "requirements" / "litellm.txt"


def _pins(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    # One package is for the first releases of 3.11 only; no other marker is known.
    pin = r"([A-Za-z0-9._-]+)==([0-9][0-9a-z.]*)(?: ; python_full_version < \"3\.11\.3\")?"
    matches = [re.fullmatch(pin, line) for line in lines]
    assert all(matches), [line for line, match in zip(lines, matches, strict=True) if match is None]
    pins = [match.groups() for match in matches if match is not None]
    assert len(pins) == len({canonicalize_name(name) for name, _ in pins}), "a package is pinned twice"
    return {canonicalize_name(name): version for name, version in pins}


def _requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(line for entries in extras.values() for line in entries)]
    parsed = [Requirement(line) for line in lines]
    return [requirement for requirement in parsed if requirement.name != "kernelwright"]


def test_every_requirement_of_every_extra_is_pinned_to_a_version_that_satisfies_it() -> None:
    pins = _pins(LOCK)
    unmet = [
        f"{requirement} but the lock has {pins.get(canonicalize_name(requirement.name))}"
        for requirement in _requirements()
        if not requirement.specifier.contains(pins.get(canonicalize_name(requirement.name), "0.dev0"))
    ]
    assert unmet == []


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the lock is for Python 3.11")
def test_the_lock_leaves_out_nothing_that_is_needed_here() -> None:
    # Versions may be newer in a developer's environment; a package that is not pinned at all is a hole.
    needed = runpy.run_path(str(ROOT / "requirements" / "write_lock.py"))["installed_closure"]()
    assert set(needed) - set(_pins(LOCK)) == set()


def test_torch_is_the_cpu_build_of_2_13_0_with_its_triton() -> None:
    pins = _pins(LOCK)
    assert (pins["torch"], pins["triton"]) == ("2.13.0", "3.7.1")
    assert [name for name in pins if name.startswith("nvidia")] == []


def test_litellm_is_pinned_by_hash_to_the_version_of_the_lock() -> None:
    content = LITELLM.read_text()
    pinned = re.findall(r"^litellm==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}$", content, flags=re.MULTILINE)
    assert pinned == [_pins(LOCK)["litellm"]]
    compromised = {"1.82.7", "1.82.8"}
    assert compromised.isdisjoint(pinned)


def test_the_requirement_files_name_no_index() -> None:
    for path in (LOCK, LITELLM):
        content = path.read_text()
        options = re.findall(r"^\s*(--?[a-z-]+)", content, flags=re.MULTILINE)
        assert "://" not in content, path
        assert set(options) <= {"--hash"}, path
