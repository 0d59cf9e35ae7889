"""What workers count for Prometheus, in files that `worker.exporter` reads: one port for all the workers of a node.

Where PROMETHEUS_MULTIPROC_DIR is not set, the counts stay in this process and nobody reads them. Each process of a pool
has a place of its own (the worker's name and the number of its slot), not a pid: a child that follows another goes on
counting where that one ended, and the files do not become more.
"""

from __future__ import annotations

import os
import re
from typing import Any, Final

from billiard.process import current_process
from prometheus_client import CollectorRegistry, Counter, Histogram, values

DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"
REGISTRY: Final = CollectorRegistry()
OTHER: Final = "other"
MOST_MODELS: Final = 100
"""Users name models as they like; from so many on, a process counts further ones as `other`."""

_name = ""


def identify(name: str) -> None:
    """Say which worker this is, before it forks and before it counts: `cpu.4711@node`."""
    global _name
    _name = re.sub(r"[^A-Za-z0-9.@-]", "-", name)


def _place() -> str:
    slot = getattr(current_process(), "index", None)
    return f"{_name or os.getpid()}-{'main' if slot is None else slot}"


if os.environ.get(DIRECTORY):
    values.ValueClass = values.MultiProcessValue(process_identifier=_place)  # type: ignore[no-untyped-call]  # the library gives it no types

_LONG_S: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"kernelwright_{name}", text, labels, registry=REGISTRY)


def _histogram(name: str, text: str, *labels: str) -> Histogram:
    return Histogram(f"kernelwright_{name}", text, labels, buckets=_LONG_S, registry=REGISTRY)


# Every metric has labels: one without would open its file when this is imported, before the worker has its name.
_CLAIMED = _counter("work_claimed", "Work taken up.", "queue", "kind")
_ENDED = _counter("work_ended", "Work let go of; fenced: after somebody else had it.", "queue", "kind", "outcome")
_WORK_S = _histogram("work_seconds", "From the claim of work to its end.", "queue", "kind")
_EVALUATED = _counter("candidates_evaluated", "Candidates judged.", "hardware", "language", "verdict")
_EVALUATION_S = _histogram("evaluation_seconds", "Judging one candidate.", "hardware", "language")
_BUILD_S = _histogram("build_seconds", "Compiling one candidate.", "hardware", "language")
_DEVICE_S = _counter("device_held_seconds", "For how long candidates held their device.", "hardware")
_PROPOSED = _counter("candidates_proposed", "Proposals, by what became of them.", "operator", "proposer", "outcome")
_CALLS = _counter("llm_calls", "Calls to models.", "model", "outcome")
_CALL_S = _histogram("llm_call_seconds", "One call to a model, with its retries.", "model")
_TOKENS = _counter("llm_tokens", "Tokens as the provider counted them.", "model", "direction")
_USD = _counter("llm_usd", "Paid to providers, where the price is known.", "model")
_REAPED = _counter("work_reaped", "Work taken back from workers that went silent.", "outcome")
_WEBHOOKS = _counter("webhook_deliveries", "Attempts to send a webhook, and deliveries given up unsent.", "outcome")
_WEBHOOK_S = _histogram("webhook_seconds", "One attempt to send a webhook.", "outcome")

_models: set[str] = set()


def claimed(queue: str, kind: str) -> None:
    """Work was taken up."""
    _CLAIMED.labels(queue, kind).inc()


def ended(queue: str, kind: str, outcome: str, wall_s: float) -> None:
    """Work was let go of: `done`, `fenced`, `cancelled` or `failed`."""
    _ENDED.labels(queue, kind, outcome).inc()
    _WORK_S.labels(queue, kind).observe(wall_s)


def evaluated(hardware: str, language: str, report: dict[str, Any]) -> None:
    """The judge reported, be it an infra_error that gives the work back."""
    _EVALUATED.labels(hardware, language, str(report["verdict"])).inc()
    _EVALUATION_S.labels(hardware, language).observe(float(report.get("wall_s") or 0))
    _DEVICE_S.labels(hardware).inc(max(0.0, float(report.get("gpu_s") or 0)))
    if report.get("build_s"):
        _BUILD_S.labels(hardware, language).observe(float(report["build_s"]))


def judge_failed(hardware: str, language: str) -> None:
    """The judge's process failed before it could report: a fault of the machine too."""
    _EVALUATED.labels(hardware, language, "infra_error").inc()


def proposed(operator: str, proposer: str, outcome: str) -> None:
    """A proposal ended: as the state of its candidate, or as the failure that rejected it."""
    _PROPOSED.labels(operator, proposer, outcome).inc()


def called(
    model: str,
    *,
    error: str | None,
    latency_s: float | None = None,
    tokens_in: int | None = None,
    tokens_out: int | None = None,
    cost_usd: Any = None,
) -> None:
    """A model was called. What is None was not told, and is not counted."""
    label = _known(model)
    _CALLS.labels(label, "ok" if error is None else "error").inc()
    if latency_s is not None:
        _CALL_S.labels(label).observe(latency_s)
    for direction, tokens in (("in", tokens_in), ("out", tokens_out)):
        if tokens:
            _TOKENS.labels(label, direction).inc(tokens)
    if cost_usd:
        _USD.labels(label).inc(float(cost_usd))


def reaped(requeued: int, dead: int) -> None:
    """The reaper took work back."""
    _REAPED.labels("requeued").inc(requeued)
    _REAPED.labels("dead").inc(dead)


def webhook_sent(outcome: str, wall_s: float) -> None:
    """An attempt ended: `succeeded`, `retried` later, `failed` for good, or `lost` to another sender."""
    _WEBHOOKS.labels(outcome).inc()
    _WEBHOOK_S.labels(outcome).observe(wall_s)


def webhooks_given_up(count: int) -> None:
    """Deliveries ended without being sent: their webhook is disabled, or its key over."""
    _WEBHOOKS.labels("given_up").inc(count)


def _known(model: str) -> str:
    if model not in _models and len(_models) >= MOST_MODELS:
        return OTHER
    _models.add(model)
    return model
