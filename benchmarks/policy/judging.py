"""The real judge, as cheap as it honestly gets: one thread, one small workload, eager as the only baseline, few rounds.

One thread, so that programs and eager take one core each way and what else the machine does disturbs both alike. The
own-kernel policy is only reported: these programs are our own and call no library.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from worker.judge.referee import Referee
from worker.judge.report import Evaluation, EvaluationRequest
from worker.judge.runners.processes import RefereeOptions
from worker.judge.timing.pace import Pace

PACE = Pace(budget_s=0.12, patience_s=0.25, max_rounds=13)

WIDE = 1.7
"""Upper over lower end of an interval that is the busy machine's and not the program's: it is judged once more."""

WARM_UPS = 3


class CheapJudge:
    """One referee for all that a benchmark judges."""

    def __init__(self, home: Path, core: int | None = None) -> None:
        """`core`: stay on it with all processes. On a busy machine a call of 0.3 ms that wakes up on another core waits
        for it, in half of the rounds and for 5 to 20 times its length (measured at a load of 4 on two cores)."""
        if core is not None:
            os.sched_setaffinity(0, {core})
        torch.set_num_threads(1)  # of the runners too
        self._referee = Referee(RefereeOptions(home, "cpu", eager_only=True), PACE)

    def warm_up(self, name: str, problem: str, source: str) -> None:
        """Judge a program until its interval is narrow: the first timings of a fresh baseline are up to ten times too
        slow (measured: 4268 us in place of 310)."""
        for _try in range(WARM_UPS):
            if width(self._judge(f"{name}-warm-up", name, problem, source)) <= WIDE:
                break

    def evaluate(self, candidate: str, name: str, problem: str, source: str, best: float | None = None) -> Evaluation:
        """The judgement. Of an accepted program whose interval is too wide, the narrower of two; of one that is faster
        than `best`, the slower of two, so that no champion is made by a disturbed baseline."""
        report = self._judge(candidate, name, problem, source)
        record = best is not None and (report.speedup or 0.0) > best
        if not record and width(report) <= WIDE:
            return report
        other = self._judge(candidate, name, problem, source)
        if other.speedup is None or report.speedup is None:
            return report
        return min(report, other, key=lambda each: each.speedup or 0.0) if record else min(report, other, key=width)

    def close(self) -> None:
        """End all processes."""
        self._referee.close()

    def _judge(self, candidate: str, name: str, problem: str, source: str) -> Evaluation:
        return self._referee.evaluate(
            EvaluationRequest(candidate, source, name, problem, "cpu", "cpp", own_kernel_share=0.0)
        )


def width(report: Evaluation) -> float:
    """Upper over lower end of the speedup's interval; 1 for what was not timed."""
    return report.ci95[1] / max(report.ci95[0], 1e-6) if report.ci95 is not None else 1.0
