"""Put the certificate together from the evaluation, the system checks and the fresh re-measure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from worker.judge.certificate import words
from worker.judge.certificate.document import (
    Certificate,
    Layer,
    Outcome,
    OwnShare,
    ProblemPart,
    Roofline,
    Subject,
    TimingPart,
    WorkloadTime,
)
from worker.judge.certificate.layers import grouped
from worker.judge.certificate.parts import RefereeParts
from worker.judge.certificate.system import control
from worker.judge.exhibits import Exhibits
from worker.judge.report import Evaluation, EvaluationRequest
from worker.judge.verdict import Check, Verdict
from worker.judge.version import judge_hash

_PROVENANCE = {
    "checks": "computed by the judge from raw bytes that it read in the shared arena, against its own fp64 truth",
    "system checks": "outputs read from the arena and memory from /proc or the driver, by the judge; a sanitizer's"
    " report passes through the sandboxed process, so a finding counts and silence is evidence about honest code only",
    "timing": "the judge's clock outside the sandbox, in rounds with the baselines; no number comes from the candidate",
    "roofline": "copy and matrix product measured by the judge on this device; bytes and operations counted from the"
    " reference",
    "own kernels": "the judge's record of which kernels ran; see the check itself for how",
    "environment": "read by the judge from the operating system, torch and the driver",
    "training dynamics": "trained by the judge, with the candidate's kernel in its own runner",
}


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that a certificate is made of."""

    parts: RefereeParts
    problem: ProblemPart
    request: EvaluationRequest
    evaluation: Evaluation
    system: list[Check]
    system_verdict: Verdict
    system_reason: str
    again: Evaluation | None
    roofline: Roofline | None


def compose(evidence: Evidence, *, issued_at: str, certify_s: float, held_s: float) -> Certificate:
    """The certificate; `certify_s` is what the system checks took, `held_s` for how long they held the device."""
    request, evaluation = evidence.request, evidence.evaluation
    verdict, reason = _verdict(evidence)
    layers = grouped(evaluation.checks, evidence.system)
    reservations = _reservations(layers)
    timing = _timing(evidence)
    own = _own_share(request, evaluation)
    summary = words.paragraph(
        name=request.problem_name,
        hardware=request.hardware,
        language=request.language,
        reason=reason,
        layers=layers,
        timing=timing,
        roofline=evidence.roofline,
        own=own,
        reservations=reservations,
    )
    dynamics = evidence.parts.training.report if evidence.parts.training else None
    return Certificate(
        issued_at=issued_at,
        certified=not reason,
        verdict=str(verdict),
        reason=reason,
        summary=summary,
        reservations=reservations,
        candidate=_subject(request),
        problem=evidence.problem,
        hardware=request.hardware,
        layers=layers,
        timing=timing,
        roofline=evidence.roofline,
        own_kernels=own,
        dynamics=dynamics,
        environment=evaluation.environment,
        judge={
            "code_sha256": judge_hash(),
            "judged_s": round(evaluation.wall_s, 2),
            "device_held_s": round(evaluation.gpu_s + held_s, 2),
            "certified_s": round(certify_s, 2),
        },
        provenance=_PROVENANCE if dynamics else _without(_PROVENANCE, "training dynamics"),
    )


def _verdict(evidence: Evidence) -> tuple[Verdict, str]:
    """The verdict, and why there is no certificate (empty when there is one)."""
    evaluation = evidence.evaluation
    if evaluation.verdict is not Verdict.OK:
        return evaluation.verdict, evaluation.reason or str(evaluation.verdict)
    if not evaluation.timed:
        return Verdict.OK, f"it was not timed: {evaluation.reason or 'this machine cannot time it'}"
    if evidence.system_verdict is not Verdict.OK:
        return evidence.system_verdict, evidence.system_reason
    failed = next((check for check in evaluation.checks if not check.passed and "outcome" not in check.figures), None)
    return Verdict.OK, f"{failed.name}: {failed.detail}" if failed else ""


def _reservations(layers: tuple[Layer, ...]) -> tuple[str, ...]:
    return tuple(
        f"{row.name.removeprefix('system: ')}: {row.detail}"
        for layer in layers
        for row in layer.rows
        if row.outcome is Outcome.RESERVATION
    )


def _timing(evidence: Evidence) -> TimingPart | None:
    """Both measurements; the certified speedup and interval are those of the slower one."""
    first, second = evidence.evaluation, evidence.again
    if not first.timed or first.speedup is None or first.ci95 is None:
        return None
    again: dict[str, float | str] = {}
    slower = first
    if second is not None and second.timed and second.speedup is not None and second.ci95 is not None:
        again = {"speedup": second.speedup, "ci95_low": second.ci95[0], "ci95_high": second.ci95[1]}
        slower = min(first, second, key=lambda one: one.speedup or 0.0)
    assert slower.speedup is not None and slower.ci95 is not None
    rows = tuple(
        WorkloadTime(
            row.name,
            row.latency_us,
            row.baselines_us,
            row.baseline,
            row.speedup,
            row.ci95,
            {name: tuple(samples) for name, samples in row.samples_us.items()},
        )
        for row in first.workloads
    )
    return TimingPart(slower.speedup, slower.ci95, first.speedups, rows, _control(evidence), again)


def _control(evidence: Evidence) -> dict[str, float | str]:
    """Figures of the A/A control; none where there was none."""
    found = next((row for row in evidence.system if row.name.endswith(control.NAME)), None)
    return {} if found is None else {key: value for key, value in found.figures.items() if key != "outcome"}


def _own_share(request: EvaluationRequest, evaluation: Evaluation) -> OwnShare:
    required = float(getattr(request, "own_kernel_share", 0.9))
    check = next(
        (check for check in evaluation.checks if "own_share" in check.figures or "share" in check.figures), None
    )
    if check is None:
        return OwnShare(None, required, "this judgement did not measure which kernels ran")
    share = check.figures.get("own_share", check.figures.get("share"))
    return OwnShare(float(share) if isinstance(share, int | float) else None, required, check.detail, check.figures)


def _subject(request: EvaluationRequest) -> Subject:
    source = request.candidate_source
    digest = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()
    return Subject(request.candidate_id, request.language, digest, source)


def problem_of(exhibits: Exhibits) -> ProblemPart:
    """What a certificate says of the problem, while its exhibits last."""
    outline = exhibits.problem.outline
    workloads = tuple(
        {
            "name": exhibit.name,
            "params": dict(exhibit.instance.workload.params),
            "inputs": [_shape(value) for value in exhibit.instance.like],
        }
        for exhibit in exhibits.workloads
    )
    return ProblemPart(outline.name, outline.source_hash, workloads)


def _shape(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {' x '.join(str(size) for size in value.shape) or 'scalar'}"


def _without(items: Mapping[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in items.items() if key != name}
