"""Does a test notice? `python -m tests.mutations` plants each mutation of the catalog and runs the tests of it.

A mutation counts as caught when each test named for it fails where it passes without the mutation; a failing fixture is
no catch. Exit code 1: a mutation was not caught, or its text is gone from the code.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutations.catalog import MUTATIONS, ROOT, VARIABLE, Mutation, Stale

_LIMIT_S = 300.0


def main() -> int:
    """Run them, print a line for each, and say how many were caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--only", action="append", metavar="TEXT", help="mutations whose name contains this")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once, each with a Postgres of its own")
    arguments = parser.parse_args()
    chosen = [each for each in MUTATIONS if not arguments.only or any(text in each.name for text in arguments.only)]
    if not chosen:
        parser.error("no mutation has such a name")
    started = time.monotonic()
    faults = run_all(chosen, arguments.jobs)
    _say(f"{len(chosen) - len(faults)} of {len(chosen)} mutations caught, {time.monotonic() - started:.0f} s")
    return int(bool(faults))


def run_all(mutations: Sequence[Mutation], jobs: int = 2) -> list[str]:
    """Plant each; the names of those that were not caught. Raises Stale before anything is run."""
    for mutation in mutations:
        mutation.check()
    tests = sorted({test for mutation in mutations for test in mutation.caught_by})
    outcomes = _run(tests, None)
    if wrong := [test for test in tests if outcomes.get(test) != "passed"]:
        _say("These tests do not pass without a mutation, so they can catch none:", *wrong)
        return [mutation.name for mutation in mutations if set(wrong) & set(mutation.caught_by)]
    with ThreadPoolExecutor(jobs) as pool:
        caught = list(pool.map(_caught, mutations))
    return [mutation.name for mutation, each in zip(mutations, caught, strict=True) if not each]


def _caught(mutation: Mutation) -> bool:
    outcomes = _run(mutation.caught_by, mutation.name)
    found = {test: outcomes.get(test, "not run") for test in mutation.caught_by}
    caught = set(found.values()) == {"failed"}
    for test, outcome in found.items():
        name = test.rpartition("/")[2]
        _say(f"{mutation.name:52} {'caught by' if outcome == 'failed' else outcome.upper() + ' in'} {name}")
    return caught


def _run(tests: Sequence[str], mutation: str | None) -> dict[str, str]:
    """What became of each test: passed, failed (in the test itself) or error (in a fixture)."""
    plugin = ["-p", "tests.mutations.planted"] if mutation else []
    environment = {**os.environ, VARIABLE: mutation or ""}
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        report = Path(folder) / "report.xml"
        argv = [sys.executable, "-m", "pytest", *plugin, "-n", "0", "-q", f"--junitxml={report}", *tests]
        done = subprocess.run(
            argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
        if done.returncode not in (0, 1) or not report.exists():
            _say(
                f"pytest left with {done.returncode} ({mutation or 'no mutation'}):",
                *(done.stdout + done.stderr).splitlines()[-20:],
            )
            return {}
        return dict(_outcome(case) for case in ET.parse(report).iter("testcase"))


def _outcome(case: ET.Element) -> tuple[str, str]:
    test = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
    words = {"failure": "failed", "error": "error", "skipped": "skipped"}
    return test, next((words[child.tag] for child in case if child.tag in words), "passed")


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Stale as stale:
        sys.exit(str(stale))
