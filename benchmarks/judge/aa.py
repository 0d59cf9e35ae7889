"""A/A: the reference as a candidate of its own problem, judged in full, and compared with eager.

Both are the same code in two processes: whatever is not 1 is the judge's error. The candidate is judged as any other,
so the fresh process of every run and the placement of its memory are part of what is measured.
"""

from __future__ import annotations

from typing import Any

from benchmarks.judge.figures import aa_figures, compared
from benchmarks.judge.judges import Judges
from benchmarks.judge.plan import Plan
from benchmarks.judge.results import Results
from tests.redteam.problems import make, source_of
from worker.judge.trial import SUBJECT

RUNS, QUICK_RUNS = 50, 8
_EAGER = "eager"


def measure(plan: Plan, judges: Judges, results: Results) -> None:
    """Run the part, problem by problem in turn, and write it."""
    results.begin("aa")
    problems = list(_problems(plan).items())
    count = plan.runs(RUNS, QUICK_RUNS)
    problems = problems[: min(count, 2)] if plan.quick or plan.count else problems
    results.data["parts"]["aa"]["warm_up"] = judges.warm(dict(problems))
    deadline = plan.deadline()
    for number in range(count):
        if deadline.passed:
            break
        problem, source = problems[number % len(problems)]
        report, wall_s = judges.evaluate_itself(problem, source)
        results.note_environment(report)
        results.add("aa", {"problem": problem, "number": number, "wall_s": wall_s, **run_of(report, plan.device)})
    results.finish("aa", {"wanted": count, **aa_figures(results.runs("aa"))})


def run_of(report: dict[str, Any], device: str) -> dict[str, Any]:
    """What is kept of one report; with ratios of eager over candidate when it was timed."""
    run: dict[str, Any] = {key: report.get(key) for key in ("verdict", "reason", "gpu_s", "speedup")}
    rows = report.get("workloads") or []
    pairs = [(row["samples_us"][_EAGER], row["samples_us"][SUBJECT]) for row in rows]
    if not pairs:
        return run
    residues_us = [row["residue_us"] for row in rows]
    run |= compared(pairs, device, residues_us).to_json()
    run["workloads"] = {
        row["name"]: {
            **compared([pair], device, [row["residue_us"]]).to_json(),
            "samples_us": {name: row["samples_us"][name] for name in (_EAGER, SUBJECT)},
        }
        for row, pair in zip(rows, pairs, strict=True)
    }
    return run


def _problems(plan: Plan) -> dict[str, str]:
    """On a GPU one launch-bound, one memory-bound and one compute-bound problem."""
    if not plan.on_gpu:
        return {name: source_of(name) for name in ("softmax", "row_sum", "rmsnorm")}
    return {
        "row_sum": source_of("row_sum"),
        "softmax_134mb": make(
            "Softmax over the last dimension", "softmax", "return torch.softmax(x, -1)",
            even={"rows": 8192, "cols": 4096}, odd={"rows": 4093, "cols": 2051},
        ),
        "linear_2048": make(
            "Linear layer", "matmul", "return self.layer(x)", even={"rows": 2048, "cols": 2048},
            odd={"rows": 1021, "cols": 1533}, init="self.layer = nn.Linear(cols, 2048)", init_values="cols",
        ),
    }  # fmt: skip
