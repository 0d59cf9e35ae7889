"""How busy a device is, and how many candidates are judged in an hour, while every proposal takes half a minute.

    python -m benchmarks.economy --out economy.json                              # four minutes on all visible GPUs
    python -m benchmarks.economy --out economy.json --seconds 120 --think-s 30 --evaluators 3 --jobs 4
    CUDA_VISIBLE_DEVICES=0 python -m benchmarks.economy --out one.json --controls-only  # one of them, then all:
    python -m benchmarks.economy --out four.json --controls-only --jobs 16 --against one.json
    python -m benchmarks.economy --out turns.json --controls-only --jobs 16 --turns 4  # one of them and all in turn
    python -m benchmarks.economy --out quick.json --workloads 1 --no-profile     # many short evaluations instead

A service of its own (`kernelwright up`), several jobs at once, each with an agent (`ask/tell`) that takes up to six
questions and answers each after `--think-s`. Answers are configurations of the kernels in
`benchmarks/record/proposals/`, of every five two with a fault in them, so that verdicts are mixed, and one the
control, always the same kernel (with `--controls-only` all are). What is measured begins when the first answer of each
agent has been judged: baselines are compiled and contexts made by then. Evaluations are of answers, since built-in
seeds that are refused take less; of all workloads, or of the first `--workloads`: those take seconds, so that minutes
have many.

*Busy* is the share of moments, every 20 ms, in which somebody holds the device's lock: to verify or to time. It is
asked for from outside, by trying to take the lock. *Utilisation* is the share of the time in which the driver saw a
kernel run: less than busy, since a check also reads, compares and compiles while it shares the device.

`--against` has the figures of another run: how many times its evaluations an hour, and of all pairs of a control there
and one that a worker judged here the share whose 95 % intervals overlap, beside the ratio of their median speedups.
`--turns` measures both in one service: windows of `--seconds` in which one worker takes work, each in its turn, while
the others are drained, and windows with all of them. What drifts (clocks, neighbours) is in both then, and a judge's
timings are held against those of the same process.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence, Set
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.economy.agents import Agent
from benchmarks.economy.busy import Watch
from benchmarks.economy.comparison import compared, per_hour
from benchmarks.economy.utilisation import Utilisation
from benchmarks.economy.variants import variants
from benchmarks.record.plan import plan
from benchmarks.service import home_of, serving
from cli.client import TERMINAL_STATES, Client
from problems._derive import with_workloads
from problems.catalog import bundled
from worker.profile.gpus import detect_hardware

PROBLEMS = "gemm_w4a16:triton,lora_batched:triton,moe_topk_router:triton"
"""Of 8 to 12 GB each: three evaluators find room on any device, where elementwise problems of 512 MB waited for it for
50 s each on an H200. And nothing takes the compiler of CUDA."""
_PAGE = 200
_LOOK_S = 1.0


def main() -> int:
    """Load the service, watch its devices, count what was judged."""
    options = _options()
    other = json.loads(options.against.read_text()) if options.against else None
    hardware = options.hardware or next((name for name in detect_hardware() if name != "cpu"), "cpu")
    entries = [entry for entry in plan(hardware, options.problems.split(",")) if entry.proposals]
    home = home_of(options.home)
    # Tuning would keep a device busy by itself: what is measured is how proposals keep up.
    profile = str(not options.no_profile)
    variables = {"KERNELWRIGHT_TUNE_CONFIGURATIONS": "0", "KERNELWRIGHT_PROFILE_CANDIDATES": profile}
    with serving(home, hardware, options.evaluators, **variables) as url, ExitStack() as stack:
        stop = threading.Event()
        stack.callback(stop.set)
        agents = [
            Agent(
                url,
                _body(_problem(entry.problem, hardware, options.workloads), entry.language, hardware),
                variants(entry, number, controls_only=options.controls_only),
                options.think_s,
                stop,
            )
            for number, entry in enumerate(entries[index % len(entries)] for index in range(options.jobs))
        ]
        for agent in agents:
            agent.start()
        _warm(url, agents, options.warm_s)
        if options.turns:
            found: dict[str, Any] = _in_turn(url, home, options.seconds, agents, options.turns, options.warm_s)
        else:
            found = _measure(url, home, options.seconds, agents)
        stop.set()
        _end(url)
    figures = found | {"hardware": hardware, "jobs": options.jobs, "think_s": options.think_s,
                       "evaluators_per_gpu": options.evaluators, "problems": options.problems,
                       "workloads": options.workloads or "all", "profile": not options.no_profile}  # fmt: skip
    options.out.write_text(json.dumps(figures, indent=1) + "\n")
    if options.turns:
        figures["together_to_alone"] = compared(figures["alone"], figures["together"], same=True)
    elif other is not None:
        figures["against"] = compared([other], [figures])
    options.out.write_text(json.dumps(figures, indent=1) + "\n")
    told = {name: value for name, value in figures.items() if name not in ("controls", "alone", "together")}
    sys.stdout.write(json.dumps(told) + "\n")
    return 0


def _warm(url: str, agents: Sequence[Agent], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    with Client(url) as client:
        waiting = list(agents)
        while waiting:
            if time.monotonic() > deadline:
                raise SystemExit(f"not each agent had an answer judged in {limit_s:.0f} s: raise --warm-s")
            time.sleep(1)
            judged = {each["id"] for _problem, each in _judged(client)}
            waiting = [agent for agent in waiting if judged.isdisjoint(agent.answered)]


def _in_turn(
    url: str, home: Path, seconds: float, agents: Sequence[Agent], turns: int, limit_s: float
) -> dict[str, list[dict[str, Any]]]:
    """So many windows of one worker alone, each followed by one of all of them."""
    alone: list[dict[str, Any]] = []
    together: list[dict[str, Any]] = []
    with Client(url) as client:
        workers = sorted(each["id"] for each in client.workers() if each["hardware"] is not None)
        for turn in range(turns):
            for windows, at_work in ((alone, {workers[turn % len(workers)]}), (together, set(workers))):
                _put_to_work(client, home, workers, at_work, limit_s)
                windows.append(_measure(url, home, seconds, agents))
    return {"alone": alone, "together": together}


def _put_to_work(client: Client, home: Path, workers: Sequence[str], at_work: Set[str], limit_s: float) -> None:
    """Drain all others, and wait until they have ended what they had and each of these has judged one: a judge that
    rested may have to prepare its problem anew. Raises SystemExit after so long."""
    deadline = time.monotonic() + limit_s
    for worker in workers:
        client.set_worker(worker, "active" if worker in at_work else "draining")
    rested: datetime | None = None
    while rested is None or not at_work <= _at_work_since(client, home, rested):
        if time.monotonic() > deadline:
            raise SystemExit(f"not each of {len(at_work)} workers has judged one in {limit_s:.0f} s: raise --warm-s")
        time.sleep(_LOOK_S)
        at_it = {each["id"] for each in client.workers() if each["id"] in workers and each["current_work"]}
        if rested is None and at_it <= at_work:
            rested = datetime.now(UTC)


def _at_work_since(client: Client, home: Path, began: datetime) -> set[str]:
    """The workers that have judged something since then."""
    judged_by = _workers(home)
    names = {judged_by[each["id"]] for _problem, each in _judged(client)
             if _judged_at(each) >= began and each["id"] in judged_by}  # fmt: skip
    return {worker for worker, name in _names(home).items() if name in names}


def _measure(url: str, home: Path, seconds: float, agents: Sequence[Agent]) -> dict[str, Any]:
    with Client(url) as client, Watch(home / "run") as watch, Utilisation() as utilisation:
        began = datetime.now(UTC)
        time.sleep(seconds)
        ended = datetime.now(UTC)
        used = utilisation.shares()
        busy = {name: round(share, 3) for name, share in watch.shares().items() if name.startswith(("gpu", "cpu"))}
        judged = _judged(client)
    controls = set().union(*(agent.controls for agent in agents))
    answered = set().union(*(agent.answered for agent in agents))
    found = [
        (problem, each) for problem, each in judged if each["id"] in answered and began <= _judged_at(each) < ended
    ]
    ended_s = {each["id"]: (_judged_at(each) - began).total_seconds() for _problem, each in found}
    workers = {candidate: worker for candidate, worker in _workers(home).items() if candidate in ended_s}
    by_worker = {
        worker: sorted(round(ended_s[each], 1) for each in workers if workers[each] == worker)
        for worker in sorted(set(workers.values()))
    }
    return {
        "wall_s": round((ended - began).total_seconds(), 1),
        "devices": len(busy),
        "busy": busy,
        "utilisation": {name: round(share, 3) for name, share in used.items()},
        "verdicts": dict(Counter(each["verdict"] for _problem, each in found)),
        "evaluations": len(found),
        "evaluations_per_hour": round(per_hour(by_worker)),
        "ended_s": by_worker,
        "controls": [
            {"problem": problem, "worker": workers[each["id"]]}
            | {name: each[name] for name in ("verdict", "speedup", "ci95", "latency_us", "baseline")}
            for problem, each in found
            if each["id"] in controls & workers.keys()
        ],
    }


def _judged(client: Client) -> list[tuple[str, Any]]:
    """The problem and the candidate of each evaluation that has ended."""
    return [
        (job["problem"]["name"], each)
        for job in client.jobs(limit=100)["data"]
        for each in client.candidates(job["id"], sort="-ordinal", limit=_PAGE)["data"]
        if each["evaluated_at"]
    ]


def _workers(home: Path) -> dict[str, str]:
    """The worker that judged each candidate: the one whose log says so."""
    return _named(home, "candidate.evaluated", "candidate_id")


def _names(home: Path) -> dict[str, str]:
    """The name of each worker's log, by the worker's id."""
    return _named(home, "worker.joined", "worker_id")


def _named(home: Path, event: str, what: str) -> dict[str, str]:
    """In which log an event of each of these stands."""
    logs = sorted((home / "log").glob("worker-*.log"))
    lines = [(log, line) for log in logs for line in log.read_text().splitlines() if f'"{event}"' in line]
    return {json.loads(line)[what]: log.stem.removeprefix("worker-") for log, line in lines}


def _judged_at(candidate: Any) -> datetime:
    return datetime.fromisoformat(candidate["evaluated_at"])


def _end(url: str) -> None:
    """Cancel what goes on: another run in the same home, which has its baselines compiled, would judge it."""
    with Client(url) as client:
        for job in client.jobs(limit=100)["data"]:
            if job["state"] not in TERMINAL_STATES:
                client.cancel(job["id"], reason="measured")


def _problem(name: str, hardware: str, workloads: int | None) -> str | dict[str, str]:
    """The name of a bundled problem, or it with its first so many workloads only."""
    if workloads is None:
        return name
    outline = bundled()[name]
    wanted = outline.spec.workloads_for(hardware)[:workloads]
    shorter = with_workloads(outline, f"{name}_{len(wanted)}", wanted)
    return {"name": shorter.name, "source": shorter.source}


def _body(problem: str | dict[str, str], language: str, hardware: str) -> dict[str, Any]:
    return {
        "problem": problem,
        "target": {"hardware": hardware, "language": language},
        "budget": {"candidates": 1000, "wall_s": 6 * 3600},
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
    parser.add_argument(
        "--warm-s", type=float, default=600.0, help="at most, until each agent's first answer is judged"
    )
    parser.add_argument("--think-s", type=float, default=30.0)
    parser.add_argument("--jobs", type=int, default=4, help="at once, each with up to six open questions")
    parser.add_argument("--evaluators", type=int, default=3, help="that share each GPU")
    parser.add_argument("--problems", default=PROBLEMS)
    parser.add_argument("--controls-only", action="store_true", help="the same kernel each time, without faults")
    parser.add_argument("--workloads", type=int, help="only the first so many of each problem")
    parser.add_argument("--no-profile", action="store_true", help="look for no bottlenecks")
    parser.add_argument("--against", type=Path, help="figures of another run, to compare with")
    parser.add_argument("--turns", type=int, default=0, help="so many windows of one worker, and of all, in turn")
    parser.add_argument("--hardware")
    parser.add_argument("--home", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
