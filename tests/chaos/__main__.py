"""A fleet under seeded faults, and whether anything was lost, doubled or told wrong: `make chaos`.

    python -m tests.chaos --seeds 0-49 --out chaos.jsonl --resume     # two and a half hours on two cores
    python -m tests.chaos --quick                                     # one short schedule
    python -m tests.chaos --seeds 7 --keep logs                       # that one again, with its journal and logs

The results file has one JSON line for each schedule, with its faults and its violations; `--resume` skips those that it
has. Exit code 0: no violation, and enough jobs were in flight; 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import structlog

from cli.descendants import become_subreaper
from tests.chaos.faults import KINDS
from tests.chaos.mounts import enter_own_mounts
from tests.chaos.run import Load, Outcome, one

QUICK = Load(length_s=45.0)


def main() -> int:
    """Run the schedules that are asked for."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    become_subreaper()
    alone = enter_own_mounts()
    if not alone:
        sys.stderr.write("no mounts of our own here: full disks and shared memory are left out\n")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is stopped
    options = _options()
    load = QUICK if options.quick else Load(length_s=options.length_s, in_flight=options.in_flight)
    done = _done(options.out) if options.resume else set()
    bad = 0
    for seed in (seed for seed in _seeds(options.seeds) if seed not in done):
        outcome = one(seed, load, options.kinds or tuple(KINDS), options.keep)
        _tell(outcome)
        if options.out is not None:
            with options.out.open("a") as file:
                file.write(json.dumps(outcome.to_json(), default=str) + "\n")
        bad += bool(outcome.violations) or outcome.least_in_flight < load.least_in_flight
    return int(bad > 0)


def _tell(outcome: Outcome) -> None:
    sys.stdout.write(f"seed {outcome.seed}: {len(outcome.faults)} faults, {len(outcome.violations)} violations, ")
    sys.stdout.write(f"at least {outcome.least_in_flight} jobs in flight, {outcome.facts}\n")
    for each in outcome.violations:
        sys.stdout.write(f"  {each}\n")
    sys.stdout.flush()


def _seeds(words: str) -> Iterator[int]:
    for word in words.split(","):
        first, _, last = word.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _done(out: Path | None) -> set[int]:
    if out is None or not out.exists():
        return set()
    return {json.loads(line)["seed"] for line in out.read_text().splitlines()}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0", help="of the schedules: 0-49, or 3,7,11-13")
    parser.add_argument("--out", type=Path, help="the results file, one JSON line for each schedule")
    parser.add_argument("--resume", action="store_true", help="skip the seeds that the results file has")
    parser.add_argument("--keep", type=Path, help="a folder for the journals and logs")
    parser.add_argument("--length-s", type=float, default=90.0, help="of the faults of a schedule")
    parser.add_argument("--in-flight", type=int, default=40, help="jobs that are kept under way")
    parser.add_argument("--kinds", action="append", choices=list(KINDS), help="only these faults; may be repeated")
    parser.add_argument("--quick", action="store_true", help="schedules of 45 s")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
