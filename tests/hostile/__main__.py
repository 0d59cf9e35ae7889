"""`python -m tests.hostile`: make every escape attempt at every sandbox level, print the table; fail on a success."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from tests.hostile.attempt import DEFAULT, Attempt, Outcome
from tests.hostile.corpus import ATTEMPTS
from tests.hostile.ground import Ground
from tests.hostile.table import table
from worker.runner.sandbox import LEVELS


def main() -> int:
    """Returns 1 when an attempt succeeded at the default level, or at another without being documented, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--only", action="append", metavar="ID", help="attempts whose id contains this")
    parser.add_argument("--level", action="append", choices=(*LEVELS, "none"), help="default: all sandbox levels")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every result here")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the table for docs/sandbox.md here")
    arguments = parser.parse_args()
    chosen = [each for each in ATTEMPTS if not arguments.only or any(part in each.id for part in arguments.only)]
    outcomes = [outcome for level in arguments.level or LEVELS for outcome in run(level, chosen)]
    wrong = [outcome for outcome in outcomes if outcome.level != "none" and not outcome.documented]
    if arguments.json:
        arguments.json.write_text(json.dumps([_row(outcome) for outcome in outcomes], indent=1) + "\n")
    if arguments.table:
        arguments.table.write_text(table(outcomes))
    escaped = sum(bool(outcome.seen) for outcome in outcomes if outcome.level == DEFAULT)
    _say(f"{len(chosen)} attempts; succeeded at the default level ({DEFAULT}): {escaped}; undocumented: {len(wrong)}")
    return int(bool(wrong))


def run(level: str, attempts: Iterable[Attempt]) -> list[Outcome]:
    """Make these attempts at one level; `none` is without a sandbox, for those whose trap can be tried that way."""
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="hostile-home-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        with Ground(level, Path(folder)) as ground:
            for attempt in attempts:
                if level == "none" and not attempt.control:
                    continue
                started = time.monotonic()
                outcome = ground.attempt(attempt)
                outcomes.append(outcome)
                mark = "refused" if not outcome.seen else "limit" if outcome.documented else "SEEN"
                wall_s = time.monotonic() - started
                _say(f"{level:10s} {mark:7s} {attempt.id:32s} {wall_s:5.1f} s  {outcome.seen or outcome.ended[:90]}")
    return outcomes


def _row(outcome: Outcome) -> dict[str, object]:
    row = asdict(outcome)
    attempt = row.pop("attempt")
    return {"id": attempt["id"], "topic": attempt["topic"], "what": attempt["what"]} | row


def _say(line: str) -> None:
    sys.stdout.write(line.encode("ascii", "backslashreplace").decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
