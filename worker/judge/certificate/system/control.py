"""The A/A control: the reference, timed as a candidate of its own problem is, must not differ from eager.

If its interval does not hold 1, this device's times were not to be trusted just now: a reservation, since it says
nothing about the candidate.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import replace

from worker.judge.certificate.document import Outcome
from worker.judge.report import Evaluation, EvaluationRequest
from worker.judge.timing import stats
from worker.judge.trial import SUBJECT
from worker.judge.verdict import Check

NAME = "A/A control"
_EAGER = "eager"
_ITSELF = "\nModelNew = Model\n"


def itself(request: EvaluationRequest) -> EvaluationRequest:
    """The reference as a candidate: all of it is torch's, which is no policy's business here."""
    language = "cpp" if request.hardware == "cpu" else "cuda"
    return replace(
        request,
        candidate_id=f"{request.candidate_id}-control",
        candidate_source=request.problem_source + _ITSELF,
        language=language,
        own_kernel_share=0.0,
    )


def check(evaluation: Evaluation, device: str) -> Check:
    """Eager over the reference itself, geometric mean over workloads, with its 95 % interval."""
    if not evaluation.timed:
        detail = f"the reference could not be timed against itself: {evaluation.reason or evaluation.verdict}"
        return Check(NAME, False, detail, {"outcome": str(Outcome.RESERVATION)})
    pairs = [(row.samples_us[_EAGER], row.samples_us[SUBJECT]) for row in evaluation.workloads]
    series = [stats.log_ratios(eager, mine) for eager, mine in pairs]
    shortest = [min(statistics.median(eager), statistics.median(mine)) for eager, mine in pairs]
    residues = [row.residue_us / us for row, us in zip(evaluation.workloads, shortest, strict=True)]
    interval = stats.interval(series, random.Random(0))  # resampling only
    low, high = stats.widened(interval, device, statistics.fmean(residues))
    ratio = stats.geomean([stats.ratio(logs) for logs in series])
    figures: dict[str, float | str] = {"ratio": ratio, "ci95_low": low, "ci95_high": high}
    if low <= 1.0 <= high:
        return Check(NAME, True, f"{ratio:.3f} [{low:.3f}, {high:.3f}]: the interval holds 1", figures)
    detail = f"{ratio:.3f} [{low:.3f}, {high:.3f}]: the interval does not hold 1, times of this device were off"
    return Check(NAME, False, detail, figures | {"outcome": str(Outcome.RESERVATION)})
