"""`python -m tests.redteam`: judge the corpus, print a table; fail on an accepted cheat or a rejected honest one."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.redteam import corpus
from tests.redteam.entry import Entry
from tests.redteam.quick import quick
from tests.redteam.results import Results
from tests.redteam.runner import Outcome, judge_all, row, summary


def main() -> int:
    """Returns 1 when anything was wrong, else 0."""
    arguments = _arguments()
    entries = _chosen(arguments)
    started = time.monotonic()
    results = Results(arguments.json, resume=arguments.resume) if arguments.json else None
    known = results.known(entries) if results else []
    done = {outcome.entry.id for outcome in known}
    if results and known:
        _say(f"{len(known)} results are in the file, {results.other_judges()} of them by another version of the judge")
    with tempfile.TemporaryDirectory(prefix="redteam-") as scratch:
        left = [entry for entry in entries if entry.id not in done]
        home = arguments.home or Path(scratch)
        outcomes = known + judge_all(left, home, arguments.hardware, _teller(results), arguments.jobs)
    _say(*summary(outcomes), f"{time.monotonic() - started:.0f} s")
    return int(any(outcome.failure for outcome in outcomes))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.redteam", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fixed part that takes under five minutes on two cores")
    parser.add_argument("--only", action="append", metavar="ID", help="entries whose id contains this")
    parser.add_argument("--set", choices=("cheats", "honest"), help="one half of the corpus")
    parser.add_argument("--gpu", action="store_true", help="also the entries that need a GPU")
    parser.add_argument("--gpu-only", action="store_true", help="only the entries that need a GPU")
    parser.add_argument("--hardware", default="cpu", help="cpu (default), or a GPU's id such as nvidia-h100")
    parser.add_argument("--home", type=Path, help="keep compiled baselines here; default: a folder that is removed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every result here, as soon as it is known")
    parser.add_argument("--resume", action="store_true", help="skip what --json's file has, unless it changed since")
    parser.add_argument("--jobs", type=int, default=1, help="judges side by side; on a CPU each has a home of its own")
    arguments = parser.parse_args()
    if arguments.resume and not arguments.json:
        parser.error("--resume needs --json: the file to go on with")
    return arguments


def _chosen(arguments: argparse.Namespace) -> list[Entry]:
    entries = [*(corpus.cheating() if arguments.set != "honest" else ())]
    entries += corpus.honest_ones() if arguments.set != "cheats" else ()
    if arguments.gpu_only:
        entries = [entry for entry in entries if entry.needs == "gpu"]
    elif not arguments.gpu:
        entries = [entry for entry in entries if entry.needs == "cpu"]
    if arguments.quick:
        entries = quick(entries)
    if arguments.only:
        entries = [entry for entry in entries if any(part in entry.id for part in arguments.only)]
    return entries


def _teller(results: Results | None) -> Callable[[Outcome], None]:
    """Shows a result, and keeps it where there is a file."""

    def tell(outcome: Outcome) -> None:
        _say(row(outcome))
        if results:
            results.add(outcome)

    return tell


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
