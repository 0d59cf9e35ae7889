"""What judgements cost: the realistic mix through the real judge, with the problems' baselines and truths at hand."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.judge.figures import cost_figures
from benchmarks.judge.judges import Judges
from benchmarks.judge.mix import COUNT, QUICK_COUNT, Item, apart, mix, problems_of
from benchmarks.judge.plan import Plan
from benchmarks.judge.results import Results


def measure(plan: Plan, judges: Judges, results: Results) -> None:
    """Run the part and write it."""
    results.begin("cost")
    items = mix(plan.hardware, plan.runs(COUNT, QUICK_COUNT), quick=plan.quick)
    warm_up: dict[str, Any] = {}
    results.data["parts"]["cost"]["warm_up"] = warm_up
    spent_s = 0.0
    for group in apart(items):
        warm_up |= judges.warm(problems_of(group))
        deadline = plan.deadline(spent_s)
        started = time.monotonic()
        for item in group:
            if deadline.passed:
                break
            report, wall_s = judges.evaluate(
                item.id, item.source, item.problem, item.problem_source, item.language, item.own_kernel_share
            )
            results.note_environment(report)
            results.add("cost", run_of(item, report, wall_s))
        spent_s += time.monotonic() - started
        judges.end()
    results.finish("cost", {"wanted": len(items), **cost_figures(results.runs("cost"))})


def run_of(item: Item, report: dict[str, Any], wall_s: float) -> dict[str, Any]:
    """What is kept of one judgement."""
    kept = ("verdict", "reason", "speedup", "ci95", "latency_us", "gpu_s", "build_s", "stages_s")
    checks = [{"name": check["name"], "passed": check["passed"]} for check in report.get("checks") or []]
    who = {"id": item.id, "problem": item.problem, "language": item.language, "bad": item.bad}
    return who | {key: report.get(key) for key in kept} | {"wall_s": wall_s, "checks": checks}
