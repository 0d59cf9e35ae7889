"""How busy a device is, and how many candidates are judged in an hour, while every proposal takes half a minute.

    python -m benchmarks.economy --out economy.json                              # five minutes on all visible GPUs
    python -m benchmarks.economy --out economy.json --seconds 120 --think-s 30 --evaluators 3 --jobs 4
    CUDA_VISIBLE_DEVICES=0 python -m benchmarks.economy --out one.json           # beside it, one of them

A service of its own (`kernelwright up`), several jobs at once, each with an agent (`ask/tell`) that takes up to six
questions and answers each after `--think-s`. Answers are configurations of the kernels in
`benchmarks/record/proposals/`, and of every five two with a fault in them, so that verdicts are mixed. `--warm-s` is
for baselines and first contexts.

*Busy* is the share of moments, every 20 ms, in which somebody holds the device's lock: to verify or to time. It is
asked for from outside, by trying to take the lock. *Utilisation* is the share of the time in which the driver saw a
kernel run: less than busy, since a check also reads, compares and compiles while it shares the device.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.economy.agents import Agent
from benchmarks.economy.busy import Watch
from benchmarks.economy.utilisation import Utilisation
from benchmarks.economy.variants import variants
from benchmarks.record.plan import plan
from benchmarks.service import home_of, serving
from cli.client import Client
from worker.profile.gpus import detect_hardware

PROBLEMS = "softmax,layernorm,rmsnorm_residual"


def main() -> int:
    """Load the service, watch its devices, count what was judged."""
    options = _options()
    hardware = options.hardware or next((name for name in detect_hardware() if name != "cpu"), "cpu")
    entries = [entry for entry in plan(hardware, options.problems.split(",")) if entry.proposals]
    home = home_of(options.home)
    # Tuning would keep a device busy by itself: what is measured is how proposals keep up.
    with serving(home, hardware, options.evaluators, KERNELWRIGHT_TUNE_CONFIGURATIONS="0") as url, ExitStack() as stack:
        stop = threading.Event()
        stack.callback(stop.set)
        agents = [
            Agent(url, _body(entry.problem, entry.language, hardware), variants(entry, number), options.think_s, stop)
            for number, entry in enumerate(entries[index % len(entries)] for index in range(options.jobs))
        ]
        for agent in agents:
            agent.start()
        time.sleep(options.warm_s)
        found = _measure(url, home, options.seconds)
    figures = found | {"hardware": hardware, "jobs": options.jobs, "think_s": options.think_s,
                       "evaluators_per_gpu": options.evaluators}  # fmt: skip
    options.out.write_text(json.dumps(figures, indent=1) + "\n")
    sys.stdout.write(json.dumps({name: value for name, value in figures.items() if name != "intervals"}) + "\n")
    return 0


def _measure(url: str, home: Path, seconds: float) -> dict[str, Any]:
    with Client(url) as client, Watch(home / "run") as watch, Utilisation() as utilisation:
        before, began = _judged(client), time.monotonic()
        time.sleep(seconds)
        after, wall_s = _judged(client), time.monotonic() - began
        devices = watch.shares()
    verdicts = after - before
    return {
        "wall_s": round(wall_s, 1),
        "devices": len(devices),
        "busy": {name: round(share, 3) for name, share in devices.items()},
        "utilisation": {name: round(share, 3) for name, share in utilisation.shares().items()},
        "verdicts": dict(verdicts),
        "evaluations_per_hour": round(3600 * verdicts.total() / wall_s),
    }


def _judged(client: Client) -> Counter[str]:
    found: Counter[str] = Counter()
    for job in client.jobs(limit=100)["data"]:
        found.update(job["progress"]["verdicts"])
    return found


def _body(problem: str, language: str, hardware: str) -> dict[str, Any]:
    return {
        "problem": problem,
        "target": {"hardware": hardware, "language": language},
        "budget": {"candidates": 1000, "wall_s": 3600},
        "models": ["ask/tell"],
        "policy": {"search": "best_of_n"},
        "certify": False,
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.economy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--warm-s", type=float, default=120.0)
    parser.add_argument("--think-s", type=float, default=30.0)
    parser.add_argument("--jobs", type=int, default=4, help="at once, each with up to six open questions")
    parser.add_argument("--evaluators", type=int, default=3, help="that share each GPU")
    parser.add_argument("--problems", default=PROBLEMS)
    parser.add_argument("--hardware")
    parser.add_argument("--home", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
