"""A job that is interrupted by kill -9 again and again, beside the same job in peace: nothing lost, nothing twice.

    python -m benchmarks.endurance --home DIR --out endurance.json                 # 200 candidates, 10 kills
    python -m benchmarks.endurance --home DIR --out endurance.json --limit-s 300   # for five minutes; again to go on
    python -m benchmarks.endurance --home DIR --out endurance.json --candidates 20 --kills 2      # does it run?

The real service (`kernelwright up`: Postgres, Valkey, API, workers, judge, supervisor), a language model over real HTTP
(benchmarks/endurance/provider.py), real builds and timings on the CPU. At random moments of the job, one for each kill,
every process of the service gets SIGKILL (each second time only one of them, of a role taken at random), and the
service is started again where nothing of it is left. What was under way is in the home: another call goes on there.

Exit code 0: both jobs are sound and have the same number of evaluations; 1: they are not; 75: the time was up. The
results file holds what has ended so far.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import structlog

from benchmarks.endurance.checks import Facts
from benchmarks.endurance.run import Run, environment

UNFINISHED = 75


def main() -> int:
    """Run both jobs as far as time allows, and write what was found."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    options = _options()
    deadline = time.monotonic() + options.limit_s if options.limit_s else None
    runs = {
        "interrupted": Run(options.home / "interrupted", options.candidates, options.kills, options.seed),
        "calm": Run(options.home / "calm", options.candidates, 0, options.seed),
    }
    results = {}
    for name, run in runs.items():
        found = run.work(deadline)
        if found is None:
            break
        results[name] = found
    if not results:
        return UNFINISHED
    wrong = _wrong(results, options.kills)
    document = {
        "command": sys.argv[1:],
        "environment": environment(),
        "candidates": options.candidates,
        "kills": options.kills,
        **results,
        "wrong": wrong,
    }
    options.out.write_text(json.dumps(document, indent=1, default=str) + "\n")
    sys.stdout.write("".join(f"{line}\n" for line in _table(results, wrong)))
    return int(bool(wrong)) if len(results) == len(runs) else UNFINISHED


def _wrong(results: dict[str, Facts], kills: int) -> list[str]:
    wrong = [f"{name}: {sentence}" for name, found in results.items() for sentence in found["facts"]["wrong"]]
    evaluations = {name: found["facts"]["evaluations"] for name, found in results.items()}
    if len(set(evaluations.values())) > 1:
        wrong.append(f"{evaluations['interrupted']} evaluations, and {evaluations['calm']} in peace")
    if len(results["interrupted"]["kills"]) != kills:
        wrong.append(f"{len(results['interrupted']['kills'])} kills of {kills}")
    return wrong


def _table(results: dict[str, Facts], wrong: list[str]) -> list[str]:
    counts = ("candidates", "evaluations", "calls", "calls_cut_off", "job_usd", "depth")
    lines = ["".join(f"{name:>14}" for name in ("", *results))]
    for row in (*counts, "requeued", "fenced", "dead_work"):
        lines.append("".join(f"{cell:>14}" for cell in (row, *(found["facts"][row] for found in results.values()))))
    lines.append(f"{'wall_s':>14}" + "".join(f"{found['wall_s']:>14.0f}" for found in results.values()))
    return [*lines, *(wrong or ["sound: nothing lost, nothing twice"])]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.endurance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--home", type=Path, required=True, help="a folder for both services; kept, to go on there")
    parser.add_argument("--out", type=Path, required=True, help="the results file")
    parser.add_argument("--candidates", type=int, default=200, help="the budget of each job")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--limit-s", type=float, help="stop in good order after so many seconds, to go on later")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the victims")
    options = parser.parse_args()
    options.home = options.home.resolve()
    return options


if __name__ == "__main__":
    sys.exit(main())
