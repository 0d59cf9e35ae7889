"""The fresh re-measure: the whole judgement again, in new processes, with new secret seeds, values and shapes.

It answers two questions: was the first judgement luck (values, shapes), and does the speedup repeat. The certificate
states the smaller of the two speedups.
"""

from __future__ import annotations

import math

from worker.judge.certificate.document import Outcome
from worker.judge.report import Evaluation
from worker.judge.verdict import Check, Verdict

VALUES, SPEED = "fresh process, new secret seeds and shapes", "fresh process, speedup repeats"
_BETWEEN_PROCESSES = 0.03
"""Two processes place their memory differently, and no interval of either one sees that: 3 % on top of both."""


def compare(first: Evaluation, second: Evaluation) -> tuple[Check, ...]:
    """Rows on values and on speed."""
    shapes = sum(1 for check in second.checks if check.name.startswith("generality/"))
    figures: dict[str, float | str] = {"checks": len(second.checks), "other_shapes": shapes}
    if second.verdict is Verdict.INFRA_ERROR:
        reason = f"the machine failed: {second.reason}"
        return (Check(VALUES, False, reason, figures | {"outcome": str(Outcome.RESERVATION)}),)
    if second.verdict is not Verdict.OK:
        return (Check(VALUES, False, f"{second.verdict}: {second.reason}", figures),)
    detail = f"{len(second.checks)} checks on values drawn anew, {shapes} of them on other shapes, all passed"
    return Check(VALUES, True, detail, figures), _speed(first, second)


def disagreement(first: Evaluation, second: Evaluation) -> tuple[float, float]:
    """(|ln of the two speedups' ratio|, what is allowed): half widths of both intervals in quadrature, and 3 %."""
    assert first.speedup and second.speedup
    widths = [math.log(high / low) / 2 for low, high in (first.ci95 or (1.0, 1.0), second.ci95 or (1.0, 1.0))]
    return abs(math.log(second.speedup / first.speedup)), math.hypot(*widths) + _BETWEEN_PROCESSES


def _speed(first: Evaluation, second: Evaluation) -> Check:
    if not first.speedup or not second.speedup:
        return Check(SPEED, True, "not timed", {"outcome": str(Outcome.NOT_APPLICABLE)})
    apart, allowed = disagreement(first, second)
    figures: dict[str, float | str] = {
        "statistic": round(apart, 5),
        "threshold": round(allowed, 5),
        "unit": "|ln ratio|",
        "first_speedup": first.speedup,
        "fresh_speedup": second.speedup,
    }
    detail = f"{first.speedup:.3f}x and then {second.speedup:.3f}x"
    if apart <= allowed:
        return Check(SPEED, True, detail, figures)
    detail += ": further apart than their intervals explain; the smaller one is certified"
    return Check(SPEED, False, detail, figures | {"outcome": str(Outcome.RESERVATION)})
