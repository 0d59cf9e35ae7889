"""Which layer a report says rejected a candidate: from the first check that failed, else from the verdict's reason."""

from __future__ import annotations

from typing import Any

_BY_CHECK = (
    ("timed outputs", "timed_outputs"), ("kept", "timed_outputs"), ("clock", "clock"), ("chain", "clock"),
    ("single shot", "clock"), ("cross", "clock"), ("physics", "physics"), ("provenance", "provenance"),
    ("own kernel", "provenance"), ("contract", "contract"), ("alias", "contract"), ("guard", "memory"),
    ("memory", "memory"), ("poison", "memory"), ("input", "memory"), ("repeat", "determinism"),
    ("determinism", "determinism"), ("sensitivity", "semantics"), ("redraw", "semantics"), ("parameter", "semantics"),
    ("metamorphic", "semantics"), ("special", "semantics"), ("shape", "shapes"), ("stride", "shapes"),
    ("layout", "shapes"), ("bias", "values"), ("build", "build"),
)  # fmt: skip
"""The start of a check's name, and its layer. A name like "even/normal/output0" is one of the values."""
_BY_REASON = (
    ("of a timed call is wrong", "timed_outputs"), ("a second call", "determinism"), ("changed its input", "memory"),
    ("ContractError", "contract"), ("is not Python", "intake"), ("defines no class ModelNew", "intake"),
    ("the source is over", "intake"), ("protocol", "boundary"), ("does not load", "build"), ("killed", "boundary"),
    ("faster than", "physics"),
)  # fmt: skip
_BY_VERDICT = {
    "build_error": "build",
    "launch_error": "contract",
    "illegal_access": "memory",
    "timeout": "boundary",
    "nondeterministic": "determinism",
    "suspicious": "boundary",
}


def failed_check(report: dict[str, Any]) -> str:
    """The name of the first check that failed, or ""."""
    return next((str(check["name"]) for check in report["checks"] if not check["passed"]), "")


def layer_of(report: dict[str, Any]) -> str:
    """The layer that rejected the candidate; "" for an accepted one."""
    if report["verdict"] in ("ok", "infra_error"):
        return ""
    name = failed_check(report).lower()
    for start, layer in _BY_CHECK:
        if name.startswith(start):
            return layer
    if name:
        return "values"
    found = next((layer for text, layer in _BY_REASON if text in report["reason"]), None)
    return found or _BY_VERDICT.get(report["verdict"], "values")
