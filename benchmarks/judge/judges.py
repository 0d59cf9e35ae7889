"""One live judge per problem, warmed before anything is measured, as in a worker that serves these problems."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

from benchmarks.judge.plan import Plan
from worker.judge.client import Judge, JudgeOptions
from worker.judge.report import EvaluationRequest
from worker.judge.verdict import ReferenceFailed

_CORES_PER_WARM_UP = 4
"""torch.compile of a problem's baselines keeps a few cores busy: on two cores one problem after another."""
_ATTEMPTS = 3
ITSELF = "\nModelNew = Model\n"
"""Appended to a problem, this makes the reference a candidate."""


class Judges:
    """Real judges (`worker.judge.client`), kept alive over all parts of the benchmark."""

    def __init__(self, plan: Plan) -> None:
        # A profile is advice that comes after the verdict, and ncu's takes as long again: not part of judging.
        self._options = JudgeOptions(home=plan.home, hardware=plan.hardware, profile=False)
        self._hardware = plan.hardware
        self._judges: dict[str, Judge] = {}
        self._warm: set[str] = set()
        # Kept to the end: a judge process dies with the thread that started it (its parent-death signal).
        self._pool = ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // _CORES_PER_WARM_UP))

    def __enter__(self) -> Judges:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        self._pool.shutdown()

    def end(self) -> None:
        """End all judges, and with them what they hold of a GPU's memory."""
        for judge in self._judges.values():
            judge.close()
        self._judges.clear()
        self._warm.clear()

    def warm(self, problems: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
        """Judge each reference against itself until it was timed, several at a time: truths, compiled baselines and
        their record are there afterwards. Returns what came of each attempt, by problem; one that fails to the last
        is left to show in the runs themselves.

        `problems`: source by name.
        """
        cold = {name: source for name, source in problems.items() if source not in self._warm}
        if not cold:
            return {}
        for source in cold.values():
            self._judge_of(source)
        took = list(self._pool.map(lambda item: self._warm_up(*item), cold.items()))
        self._warm |= set(cold.values())
        return dict(zip(cold, took, strict=True))

    def evaluate(
        self, candidate_id: str, source: str, problem: str, problem_source: str, language: str, own_share: float = 0.9
    ) -> tuple[dict[str, Any], float]:
        """The report of one judgement, and its seconds as its caller sees them."""
        request = EvaluationRequest(
            candidate_id, source, problem, problem_source, self._hardware, language, own_kernel_share=own_share
        )
        started = time.monotonic()
        try:
            report = self._judge_of(problem_source).evaluate(request)
        except ReferenceFailed as failed:
            report = {"verdict": "infra_error", "reason": f"the problem: {failed}"}
        return report, time.monotonic() - started

    def evaluate_itself(self, problem: str, source: str) -> tuple[dict[str, Any], float]:
        """The reference as the candidate of its own problem."""
        language = "cpp" if self._hardware == "cpu" else "cuda"
        return self.evaluate(f"{problem}-itself", source + ITSELF, problem, source, language, own_share=0.0)

    def _warm_up(self, problem: str, source: str) -> list[dict[str, Any]]:
        attempts: list[dict[str, Any]] = []
        while len(attempts) < _ATTEMPTS and (not attempts or attempts[-1]["verdict"] != "ok"):
            report, wall_s = self.evaluate_itself(problem, source)
            attempts.append({"verdict": report["verdict"], "reason": report["reason"], "wall_s": wall_s})
        return attempts

    def _judge_of(self, problem_source: str) -> Judge:
        if problem_source not in self._judges:
            self._judges[problem_source] = Judge(self._options)
        return self._judges[problem_source]
