"""A fleet under seeded faults, and whether anything was lost, doubled or told wrong: `make chaos`.

    python -m tests.chaos --seeds 0-49 --out chaos.jsonl --resume      # schedules: two and a half hours on two cores
    python -m tests.chaos --seeds 7 --keep logs                        # one again, with its journal and logs
    python -m tests.chaos --figures all --out chaos.jsonl             # docs/reliability.md says what they are
    python -m tests.chaos --quick                                      # a short schedule and small figures: CI

The results file has one JSON line for each schedule, with its faults and its violations, and for each figure;
`--resume` skips what it has. Exit code 0: no violation, and enough jobs were in flight; 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import structlog

from cli.descendants import become_subreaper
from tests.chaos import figures
from tests.chaos.checker.violations import Violation
from tests.chaos.faults import KINDS
from tests.chaos.fleet import Options
from tests.chaos.mounts import enter_own_mounts
from tests.chaos.run import Load, Outcome, one
from tests.chaos.soak import soak

QUICK_LENGTH_S, QUICK_IN_FLIGHT = 30.0, 30
FIGURES: dict[str, Callable[[argparse.Namespace], tuple[figures.Figure, list[Violation]]]] = {
    "kills": lambda asked: figures.kills(asked.jobs),
    "recovery": lambda asked: figures.recovery(asked.samples, _leased(asked)),
    "flush": lambda asked: figures.flush(asked.units),
    "soak": lambda asked: soak(asked.soak_s),
}
QUICK_FIGURES = "kills,recovery,flush"


def main() -> int:
    """Run the schedules and figures that are asked for."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    become_subreaper()
    if not enter_own_mounts():
        sys.stderr.write("no mounts of our own here: full disks and shared memory are left out\n")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is stopped
    asked = _options()
    load = Load(asked.length_s, asked.in_flight, least_in_flight=10 if asked.quick else Load.least_in_flight)
    done = _done(asked.out) if asked.resume else {}
    bad = sum(bool(line["violations"]) for line in done.values())
    for seed in (seed for seed in _seeds(asked.seeds) if seed not in done):
        outcome = one(seed, load, asked.kinds or tuple(KINDS), asked.keep)
        _tell(_about(outcome), outcome.violations)
        _store(asked.out, outcome.to_json())
        bad += bool(outcome.violations) or outcome.least_in_flight < load.least_in_flight
    names = FIGURES if asked.figures == "all" else filter(None, asked.figures.split(","))
    for name in (name for name in names if name not in done):
        figure, violations = FIGURES[name](asked)
        _tell(json.dumps(figure), violations)
        _store(asked.out, figure | {"violations": [each.to_json() for each in violations]})
        bad += bool(violations)
    return int(bad > 0)


def _leased(asked: argparse.Namespace) -> Options:
    """A renewal comes four times in a lease, as in production; a candidate takes longer than one beat."""
    return Options(lease_s=asked.lease_s, renew_s=asked.lease_s / 4.5, judge_s=4.0)


def _about(outcome: Outcome) -> str:
    told = f"seed {outcome.seed}: {len(outcome.faults)} faults, {len(outcome.violations)} violations"
    return f"{told}, at least {outcome.least_in_flight} jobs in flight, {outcome.facts}"


def _tell(line: str, violations: Sequence[Violation]) -> None:
    sys.stdout.write("\n".join([line, *(f"  {each}" for each in violations)]) + "\n")
    sys.stdout.flush()


def _store(out: Path | None, result: dict[str, Any]) -> None:
    if out is not None:
        with out.open("a") as file:
            file.write(json.dumps(result, default=str) + "\n")


def _seeds(words: str) -> Iterator[int]:
    for word in filter(None, words.split(",")):
        first, _, last = word.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _done(out: Path | None) -> dict[int | str, dict[str, Any]]:
    """The results that the file has, by seed or by the figure's name."""
    if out is None or not out.exists():
        return {}
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return {line.get("figure", line.get("seed")): line for line in lines}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="", help="of the schedules: 0-49, or 3,7,11-13")
    parser.add_argument("--figures", default="", help="kills, recovery, flush and soak, separated by commas; or all")
    parser.add_argument("--quick", action="store_true", help="one schedule of 30 s and small figures")
    parser.add_argument("--out", type=Path, help="the results file, one JSON line for each schedule and figure")
    parser.add_argument("--resume", action="store_true", help="skip what the results file has")
    parser.add_argument("--keep", type=Path, help="a folder for the journals and logs of schedules")
    parser.add_argument("--length-s", type=float, default=90.0, help="of the faults of a schedule")
    parser.add_argument("--in-flight", type=int, default=50, help="clients at a time, each with its job")
    parser.add_argument("--kinds", action="append", choices=list(KINDS), help="only these faults; may be repeated")
    parser.add_argument("--jobs", type=int, default=500, help="of the figure kills")
    parser.add_argument("--samples", type=int, default=20, help="of the figure recovery")
    parser.add_argument("--lease-s", type=float, default=45.0, help="of the figure recovery")
    parser.add_argument("--units", type=int, default=500, help="of the figure flush")
    parser.add_argument("--soak-s", type=float, default=3600.0, help="of the figure soak, without its first minutes")
    asked = parser.parse_args()
    if asked.quick:
        quick = {"seeds": "3", "figures": QUICK_FIGURES, "length_s": QUICK_LENGTH_S, "in_flight": QUICK_IN_FLIGHT}
        vars(asked).update(quick | {"jobs": 12, "samples": 3, "lease_s": 6.0, "units": 30})
    return asked


if __name__ == "__main__":
    sys.exit(main())
