"""A certificate read as a report: one verdict, and the checks behind it."""

from __future__ import annotations

from typing import Any

from worker.judge.certificate.document import Outcome

NOT_CERTIFIED = "not certified"
"""The verdict of a candidate that was judged right and got no certificate for another reason, which is given."""


def as_report(document: dict[str, Any]) -> dict[str, Any]:
    """What `Judge.evaluate` would have answered, had it seen what the certificate saw.

    Only a failed row rejects; a reservation does not. What is no certificate (`infra_error`) is a report already.
    """
    if "schema" not in document:
        return document
    verdict = document["verdict"] if document["certified"] or document["verdict"] != "ok" else NOT_CERTIFIED
    timing = document["timing"] or {}
    return {
        "verdict": verdict,
        "reason": document["reason"],
        "certified": document["certified"],
        "reservations": document["reservations"],
        "checks": [_check(row) for layer in document["layers"] for row in layer["rows"]],
        "speedup": timing.get("speedup"),
        "ci95": timing.get("ci95"),
        "wall_s": document["judge"]["judged_s"] + document["judge"]["certified_s"],
        "gpu_s": document["judge"]["device_held_s"],
        "environment": document["environment"],
    }


def _check(row: dict[str, Any]) -> dict[str, Any]:
    kept = {key: row[key] for key in ("name", "detail", "figures")}
    return kept | {"passed": row["outcome"] != Outcome.FAILED}
