"""How far the judge's timings can be trusted, and what its judgements cost, on this machine.

    python -m benchmarks.judge --out judge.json                           # all parts, on the GPU if there is one
    python -m benchmarks.judge --quick --out judge.json                   # under five minutes
    python -m benchmarks.judge --only aa,planted --out judge.json         # other parts in the file are kept
    python -m benchmarks.judge --hardware cpu --quick --count 2 --limit-s 20 --out judge.json     # does it run?

aa        the reference against itself, 50 judgements: how often the interval holds 1, how often it claims a speedup
planted   a kernel that moves 3 % more bytes against one that does not, 20 races: how often the two are told apart
cost      40 candidates, 60 % of them bad: device seconds until rejection, a survivor's judgement, candidates per hour
protocol  the same 40 under KernelBench's published protocol: device seconds held, and what it accepts (after `cost`)

The file holds every run's raw data and the environment, and is written anew after every run. Each part starts nothing
more after its limit (--limit-s, counted from the end of its warm-up). Nothing else may run on the machine meanwhile.
Exit code 1: a required figure was not met.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import structlog

from benchmarks.judge import aa, cost, planted, protocol
from benchmarks.judge.judges import Judges
from benchmarks.judge.plan import PARTS, Plan
from benchmarks.judge.results import Results
from benchmarks.judge.table import table
from worker.profile.gpus import detect_hardware


def main() -> int:
    """Measure what was asked for and print the table."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    options = _options()
    with ExitStack() as stack:
        home = options.home or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-judge-")))
        home.mkdir(parents=True, exist_ok=True)
        plan = Plan(options.hardware, home.resolve(), options.quick, options.count, options.limit_s)
        results = Results(options.out, plan.hardware, quick=plan.quick)
        judges = stack.enter_context(Judges(plan))
        measures = {
            "aa": lambda: aa.measure(plan, judges, results),
            "planted": lambda: planted.measure(plan, results),
            "cost": lambda: cost.measure(plan, judges, results),
            "protocol": lambda: protocol.measure(plan, results),
        }
        for part in options.only:
            measures[part]()
            sys.stderr.write(f"{part}: {results.data['parts'][part]['wall_s']:.0f} s\n")
    text = table(results.data)
    sys.stdout.write(text + "\n")
    return int("**no**" in text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.judge", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hardware", help="cpu, or a GPU's id such as nvidia-h200; default: the first GPU, else cpu")
    parser.add_argument("--quick", action="store_true", help="fewer runs, fewer problems, 45 s a part")
    parser.add_argument("--only", type=_parts, default=PARTS, metavar="PARTS", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--count", type=int, help="runs or candidates of each part, instead of its own number")
    parser.add_argument("--limit-s", type=float, help="a part starts nothing more after so many seconds")
    parser.add_argument("--home", type=Path, help="keep the judge's caches here; default: a folder that is removed")
    parser.add_argument("--out", type=Path, required=True, help="the results file")
    options = parser.parse_args()
    options.hardware = options.hardware or next((name for name in detect_hardware() if name != "cpu"), "cpu")
    return options


def _parts(text: str) -> tuple[str, ...]:
    wanted = [name.strip() for name in text.split(",")]
    unknown = set(wanted) - set(PARTS)
    if unknown:
        raise argparse.ArgumentTypeError(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return tuple(part for part in PARTS if part in wanted)


if __name__ == "__main__":
    sys.exit(main())
