"""Live searches: the built-in proposer, real tuning by Optuna, the real judge; policies compared at equal budgets.

    python -m benchmarks.policy.live --file live.jsonl --limit-s 240        # go on where the last call stopped

Everything that was proposed from the menu or judged is appended to the file and read again by the next call, so that a
search that was cut off is retraced in a second and goes on. Policies share the judgements: the same source is judged
once a problem. What differs between policies is only which space they tune and when they ask for another seed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from benchmarks.policy.judging import CheapJudge
from benchmarks.policy.pool import DATA
from benchmarks.policy.problem import source_of
from benchmarks.policy.programs import SPACES
from benchmarks.policy.world import planned
from search.advance import advance
from search.novelty import source_hash
from search.policies import POLICIES
from search.policy import BuiltinPolicy, Policy
from search.proposing import Parent, Proposal, ProposalRequest, Trial
from search.tunables import read_space
from search.tuning import propose_tuning
from search.types import Budget, Failure, JobView, Node, Operator, State, Target
from worker.builtin.__main__ import offers
from worker.builtin.menu import menu

log = structlog.get_logger()

PROBLEMS = ("softmax", "rmsnorm_residual", "cumsum", "layernorm")
SEEDS, QUICK_SEEDS = 20, 5
FIRST_SEED = 20
"""The policies were made while looking at searches with the seeds 0 to 19; these they have not seen."""
BUDGET = 30
SLOTS = 2
FILE = DATA / "live.jsonl"
BUILTIN = "builtin"
"""`search.policy.BuiltinPolicy`: the default of a job without models."""


def contenders() -> dict[str, Policy]:
    """Every policy by its name."""
    return {**{str(name): policy for name, policy in POLICIES.items()}, BUILTIN: BuiltinPolicy()}


class OutOfTime(Exception):
    """The call's time is over. Call again to go on."""


@dataclass(frozen=True, slots=True)
class Found:
    """A judgement."""

    verdict: str
    speedup: float | None
    sol_fraction: float | None
    device_s: float


class Notes:
    """What is known: menus by problem, and judgements by problem and source. Without a judge, only what is known."""

    def __init__(self, path: Path, judge: CheapJudge | None, until: float = math.inf) -> None:
        self._path, self._judge, self._until = path, judge, until
        self._menus: dict[str, list[dict[str, str]]] = {}
        self._found: dict[tuple[str, str], Found] = {}
        self._warm: str | None = None
        for line in path.read_text().splitlines() if path.exists() else ():
            self._keep(json.loads(line))

    def menu(self, problem: str) -> Sequence[Mapping[str, str]]:
        """The built-in seeds: plan and source."""
        if problem not in self._menus:
            self._time_left()
            made = offers(menu(source_of(SPACES[problem]), problem, "cpu", "cpp"))
            seeds = [
                {"plan": f"{seed['kind']} {seed['name']}: {seed['plan']}", "source": seed["source"]} for seed in made
            ]
            self._append({"problem": problem, "menu": seeds})
        return self._menus[problem]

    def judged(self, problem: str, source: str) -> Found:
        """The judgement of a source. Raises OutOfTime."""
        key = source_hash(source)[:16]
        if (problem, key) not in self._found:
            report = self._evaluate(problem, source)
            light = [row.sol_fraction for row in report.workloads if row.sol_fraction]
            found = {
                "verdict": str(report.verdict),
                "speedup": report.speedup,
                "sol_fraction": light[0] if light else None,
                "device_s": round(report.gpu_s, 3),
            }
            self._append({"problem": problem, "source": key, "found": found})
        return self._found[problem, key]

    def _evaluate(self, problem: str, source: str) -> Any:
        self._time_left()
        assert self._judge is not None
        reference = source_of(SPACES[problem])
        if self._warm != problem:
            self._judge.warm_up(problem, reference, source)
            self._warm = problem
        report = self._judge.evaluate("live", problem, reference, source)
        if report.verdict == "infra_error":
            raise OutOfTime(report.reason)
        return report

    def _time_left(self) -> None:
        if self._judge is None or time.monotonic() > self._until:
            raise OutOfTime

    def _append(self, line: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self._keep(line)

    def _keep(self, line: dict[str, Any]) -> None:
        if "menu" in line:
            self._menus[line["problem"]] = line["menu"]
        else:
            self._found[line["problem"], line["source"]] = Found(**line["found"])


class LiveSearch:
    """One search of one problem with one policy."""

    def __init__(self, problem: str, policy: Policy, seed: int, notes: Notes) -> None:
        self._policy, self._notes = policy, notes
        self._problem, self._target = problem, Target("cpu", "cpp")
        self._job = JobView(problem, self._target, Budget(BUDGET), seed=seed, slots=SLOTS)
        self._nodes: list[Node] = []
        self._sources: dict[str, str] = {}

    def run(self) -> list[Node]:
        """Search to the end; all candidates. Raises OutOfTime."""
        while True:
            decision = advance(self._job, self._nodes, self._policy)
            if decision.stop_reason is not None:
                return self._nodes
            start = len(self._nodes)
            self._nodes += [planned(expansion, start + place) for place, expansion in enumerate(decision.expansions)]
            first = next(place for place, node in enumerate(self._nodes) if node.in_flight)
            self._nodes[first] = self._ended(self._nodes[first])
            self._job = replace(self._job, gpu_s=self._job.gpu_s + self._nodes[first].gpu_s)

    def _ended(self, node: Node) -> Node:
        proposal = self._proposal(node)
        source = proposal.source
        if source is None:
            return replace(node, state=State.REJECTED, failure=proposal.failure)
        described = replace(
            node,
            plan=proposal.plan,
            params=proposal.params,
            tunable=read_space(source) is not None,
            source_hash=source_hash(source),
        )
        if any(other.source_hash == described.source_hash for other in self._nodes):
            return replace(described, state=State.REJECTED, failure=Failure.DUPLICATE)
        self._sources[node.id] = source
        found = self._notes.judged(self._problem, source)
        return replace(
            described,
            state=State.EVALUATED,
            verdict=found.verdict,
            speedup=found.speedup,
            sol_fraction=found.sol_fraction,
            gpu_s=found.device_s,
        )

    def _proposal(self, node: Node) -> Proposal:
        if node.operator != Operator.TUNE:
            seeds = self._notes.menu(self._problem)
            index = sum(other.operator == Operator.SEED for other in self._nodes[: node.ordinal])
            return (
                Proposal(seeds[index]["source"], seeds[index]["plan"])
                if index < len(seeds)
                else Proposal(failure=Failure.EXHAUSTED)
            )
        (parent,) = node.parents
        arm = next(other for other in self._nodes if other.id == parent)
        siblings = [n for n in self._nodes if n.operator == Operator.TUNE and n.parents == node.parents and n.params]
        return propose_tuning(
            ProposalRequest(
                problem_name=self._problem,
                problem_source="",
                target=self._target,
                operator=Operator.TUNE,
                parents=(Parent(self._sources[parent], arm.verdict, speedup=arm.speedup, id=parent),),
                trials=tuple(Trial(sibling.params or {}, sibling.speedup) for sibling in siblings),
                seed=self._job.seed * 1000 + node.ordinal,
                ordinal=node.ordinal,
            )
        )


def curve_of(nodes: Sequence[Node]) -> list[float]:
    """Best log-speedup so far after each place of the budget; the first accepted one counts from the start."""
    best: float | None = None
    curve: list[float | None] = []
    for node in nodes:
        if not node.free:
            if node.ok and node.speedup is not None:
                best = max(best if best is not None else -math.inf, math.log(node.speedup))
            curve.append(best)
    first = next((value for value in curve if value is not None), 0.0)
    filled = [first if value is None else value for value in curve] or [0.0]
    return filled + [filled[-1]] * (BUDGET - len(filled))


def searches(
    notes: Notes, seeds: int = SEEDS, problems: Sequence[str] = PROBLEMS
) -> dict[str, dict[str, list[list[float]]]]:
    """The curves of all searches that end in time, by policy and problem; seed by seed: all come equally far."""
    curves: dict[str, dict[str, list[list[float]]]] = {
        name: {problem: [] for problem in problems} for name in contenders()
    }
    for problem in problems:
        for seed in range(FIRST_SEED, FIRST_SEED + seeds):
            try:
                found = {
                    name: curve_of(LiveSearch(problem, policy, seed, notes).run())
                    for name, policy in contenders().items()
                }
            except OutOfTime:
                break
            for name, curve in found.items():
                curves[name][problem].append(curve)
    return curves


def main() -> int:
    """Search until the time is over; say how far it came."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.policy.live",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--limit-s", type=float, default=240.0)
    parser.add_argument("--home", type=Path, help="the judge's caches; default: a folder that is removed")
    parser.add_argument("--core", type=int, help="stay on this core")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-policy-") as scratch:
        judge = CheapJudge(options.home or Path(scratch), options.core)
        try:
            curves = searches(Notes(options.file, judge, time.monotonic() + options.limit_s))
        finally:
            judge.close()
    counts = {problem: len(next(iter(curves.values()))[problem]) for problem in PROBLEMS}
    log.info("live.searched", seeds_done=counts, wanted=SEEDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
