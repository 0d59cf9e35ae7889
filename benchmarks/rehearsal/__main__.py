"""A rehearsal: how much judges that share one GPU get done, with the real locks and with work that is slept.

    python -m benchmarks.rehearsal --judges 8 --seconds 500 --seeds 3               # 25 minutes
    python -m benchmarks.rehearsal --judges 5 --seconds 600 --seeds 3 --scale 0.2   # a fifth of the time

For changes of `worker.judge.lease`, `phases`, `room` and the order of a judgement's steps, without a GPU. What is real:
the locks, queues, phases and rooms, in files of a temporary folder; one process for each judge; its threads. What is
slept: whatever a judge, its runners and its compilers do (`stages`). A runner's work goes on only while it is not
stopped. `--scale` shortens work, rhythm and polls alike; below 0.15 two cores cannot keep up with the polls.

What it does not model: processors that are too few, sharers that slow each other down, what a stopped process has
queued (it is waited for, and uses nothing), failures, profiles, tuning, and the service: from a verdict to the next
question it takes 0.3 to 1.5 s here, which was never measured.

Calibration. With the code and the stages of 25 November, eight judges and 500 s it waited as slices on an H200 did
(docs/results/sharing-a-gpu.md), within a factor of 1.6: 975 to 1,068 judge-seconds for baselines being compiled (seen:
937), 1,139 to 1,382 for room (904), 539 to 743 to share (810, before there were phases), 337 to 408 in system checks
(435); and it certified none to one (two). The stages are those of H100s of 26 November since, and were not held against
a slice again. Only differences between two runs of it say anything.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Sequence

from benchmarks.rehearsal.run import Plan, rehearse
from benchmarks.rehearsal.stages import STAGES, operators
from benchmarks.rehearsal.summary import Summary, summarise


def main() -> int:
    """Run it with each seed, and print the means with the extremes behind."""
    options = _options()
    found: list[Summary] = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        plan = Plan(options.judges, options.seconds, seed, options.scale, options.memory_gib)
        found.append(summarise(rehearse(plan), options.seconds))
        _say(f"seed {seed}: certified after {', '.join(f'{moment:.0f}' for moment in found[-1].certified_at)} s")
    for line in _table(found):
        _say(line)
    suite = operators(random.Random(0), 100)
    alone_s, path_s = (statistics.fmean(map(each, suite)) for each in (STAGES.alone_s, STAGES.path_s))
    _say(f"bounds: an operator needs the device alone for {alone_s:.0f} s, and {path_s:.0f} s where nobody else is")
    return 0


def _table(found: Sequence[Summary]) -> list[str]:
    rows = {"operators certified in an hour": [3600 * len(each.certified_at) / each.seconds for each in found]}
    for name in found[0].shares:
        rows[f"time, %: {name}"] = [100 * each.shares[name] for each in found]
    rows["at work at a time while it is shared"] = [each.beside for each in found]
    rows["changes between shared and alone"] = [float(each.changes) for each in found]
    rows["s nobody worked at each"] = [each.change_s for each in found]
    for kind in sorted({kind for each in found for kind in each.judge_s}):
        rows[f"judge-seconds: {kind}"] = [each.judge_s.get(kind, 0.0) for each in found]
    return [f"{name:60} {statistics.fmean(row):8.1f}   [{min(row):.1f}, {max(row):.1f}]" for name, row in rows.items()]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rehearsal", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--judges", type=int, default=8, help="that share the device")
    parser.add_argument("--seconds", type=float, default=500.0, help="of a run, before --scale")
    parser.add_argument("--seeds", type=int, default=3, help="runs, each with other operators and durations")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="seconds of the wall for each of the rehearsal")
    parser.add_argument("--memory-gib", type=float, default=140.0, help="of the device")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
