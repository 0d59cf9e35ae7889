"""Which layer a report says rejected a candidate: from the first check that failed, else from the verdict's reason."""

from __future__ import annotations

import re
from typing import Any

from worker.judge.timing.races import WRONG_WHEN_TIMED

_BY_CHECK = (
    (r"system", "system"),
    (r"generality", "shapes"),
    (r"sensitivity to|.*/sensitivity/", "semantics"),
    (r".*/special/", "semantics"),
    (r".*/(inputs|guard zones)$", "memory"),
    (r".*/repeats$", "determinism"),
    (r".*/two results$", "contract"),
    (r"(contract|alias|global state|buffers)", "contract"),
    (r"timed outputs", "timed_outputs"),
    (r"(late results|clock|chain|single shot|idle|cross)", "clock"),
    (r"physics", "physics"),
    (r"(provenance|own kernel|kernel share)", "provenance"),
    (r"build|ahead-of-time", "build"),
)
"""Patterns for a check's name, and its layer. A name like "even/normal/output0" is one of the values."""
_POISON = re.compile(r"NaN at \d+ places where it is wrong \([1-9]\d* too many")
_BY_REASON = (
    (WRONG_WHEN_TIMED, "timed_outputs"),
    ("the runner did not do as told", "clock"),
    ("did not evict", "clock"),
    ("by whom it is answered", "clock"),
    ("ContractError", "contract"),
    ("is not Python", "intake"),
    ("defines no class ModelNew", "intake"),
    ("the source is over", "intake"),
    ("protocol", "boundary"),
    ("does not load", "build"),
    ("killed", "boundary"),
    ("faster than", "physics"),
)
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


def layer_of(report: dict[str, Any], meant: str = "") -> str:
    """The layer that rejected the candidate; "" for an accepted one.

    An attack on the boundary (`meant`) that changed nothing is stopped by the boundary, although what the report names
    is the wrong output that the attack should have hidden.
    """
    if report["verdict"] in ("ok", "infra_error"):
        return ""
    if meant == "boundary":
        return "boundary"
    name = failed_check(report)
    found = next((layer for pattern, layer in _BY_CHECK if re.match(pattern, name)), None) if name else None
    if found:
        return found
    if _POISON.search(report["reason"]):
        return "memory"
    if name:
        return "values"
    by_reason = next((layer for text, layer in _BY_REASON if text in report["reason"]), None)
    return by_reason or _BY_VERDICT.get(report["verdict"], "values")
