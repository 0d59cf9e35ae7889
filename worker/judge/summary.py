"""From samples to the report's figures."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

from worker.judge.report import Evaluation, WorkloadTiming
from worker.judge.timing import stats
from worker.judge.timing.races import Timings
from worker.judge.trial import SUBJECT
from worker.judge.verdict import Check, Verdict


def summarise(evaluation: Evaluation, timings: Sequence[Timings], device: str) -> None:
    """Write rows, medians, speedups and their intervals into the report. The verdict becomes `ok`."""
    rng = random.Random(0)  # resampling only; the verdict does not hang on it
    evaluation.workloads = [_row(timed, rng, device) for timed in timings]
    everywhere = [name for name in timings[0].baselines if all(name in timed.baselines for timed in timings)]
    evaluation.verdict, evaluation.timed = Verdict.OK, True
    evaluation.latency_us = stats.geomean([row.latency_us for row in evaluation.workloads])
    evaluation.baselines_us = {
        name: stats.geomean([row.baselines_us[name] for row in evaluation.workloads]) for name in everywhere
    }
    evaluation.baseline = min(everywhere, key=evaluation.baselines_us.__getitem__)
    evaluation.speedup = stats.geomean([row.speedup for row in evaluation.workloads])
    evaluation.speedups = {
        name: stats.geomean([stats.ratio(timed.logs(name, SUBJECT)) for timed in timings]) for name in everywhere
    }
    rivals = [timed.fastest(timed.baselines) for timed in timings]
    best = [timed.logs(rival, SUBJECT) for timed, rival in zip(timings, rivals, strict=True)]
    residues = [timed.residue((rival, SUBJECT)) for timed, rival in zip(timings, rivals, strict=True)]
    evaluation.ci95 = stats.widened(stats.interval(best, rng), device, statistics.fmean(residues))
    evaluation.checks += _what_was_seen(timings)


def _row(timed: Timings, rng: random.Random, device: str) -> WorkloadTiming:
    fastest = timed.fastest(timed.baselines)
    logs = timed.logs(fastest, SUBJECT)
    return WorkloadTiming(
        name=timed.workload,
        latency_us=timed.latency_us(SUBJECT),
        baselines_us=timed.baselines_us,
        baseline=fastest,
        speedup=stats.ratio(logs),
        ci95=stats.widened(stats.interval([logs], rng), device, timed.residue((fastest, SUBJECT))),
        samples_us=timed.samples_us,
        residue_us=timed.residue_us,
        device_state=timed.device_state,
    )


def _what_was_seen(timings: Sequence[Timings]) -> list[Check]:
    checked = sum(timed.checked_outputs for timed in timings)
    rounds = sum(len(timed.samples_us[SUBJECT]) for timed in timings)
    late_us = max(timed.late_us for timed in timings)
    late = f"results were late by {late_us:.1f} us a call, which is counted" if late_us else "results were there"
    return [
        Check("timed outputs", True, f"{checked} of {rounds} timed outputs checked, all right"),
        Check("late results", True, late, {"late_us": late_us}),
    ]
