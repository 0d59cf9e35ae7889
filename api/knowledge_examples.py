"""The examples of /v1/knowledge; a test reads each with its model, so that none can lie about the shape."""

from __future__ import annotations

from typing import Any

from api.examples import CANDIDATE_ID, JOB_ID

LESSON_ID = "lesson_019aa5e1a0b37c11a2b3c4d5e6f70819"
_PARENT_ID = "cand_019aa5e0d2e37f0a8b7c6d5e4f3a2b1c"
_AT = "2026-11-21T13:04:27.510000Z"

_FACT: dict[str, Any] = {
    "id": "fact:softmax-row-resident",
    "kind": "fact",
    "rank": 1,
    "score": 0.151,
    "ranks": {"structured": 1, "text": 2, "trigram": 4},
    "title": "Softmax: keep the row where it was loaded",
    "text": "...",
}
FOUND: dict[str, Any] = {"data": [_FACT]}
RECALLED: dict[str, Any] = {"retrieval": True, "data": [_FACT | {"shown": True}]}

_LESSON: dict[str, Any] = {
    "id": LESSON_ID,
    "kind": "change",
    "state": "confirmed",
    "language": "cpp",
    "hardware": "x86",
    "op_family": "softmax",
    "bound": None,
    "title": "raising CHUNK: x1.31 in speed (softmax cpp on x86)",
    "text": "For softmax cpp on x86: raising CHUNK made kernels faster: x1.31 in speed ...",
    "supporting": 3,
    "opposing": 0,
    "evidence": 5,
    "effect": 1.31,
    "effect_ci95": [1.22, 1.41],
    "retired": None,
    "last_confirmed": _AT,
    "created_at": _AT,
}
LESSON_PAGE: dict[str, Any] = {"data": [_LESSON], "next_cursor": None, "has_more": False}
LESSON_DETAIL: dict[str, Any] = _LESSON | {
    "evidence_rows": [
        {
            "candidate_id": CANDIDATE_ID,
            "parent_id": _PARENT_ID,
            "job_id": JOB_ID,
            "says": "faster",
            "effect": 1.34,
            "effect_ci95": [1.3, 1.38],
            "note": "CHUNK: 16 -> 64",
            "created_at": _AT,
        }
    ]
}

_LIFT: dict[str, Any] = {
    "shown": {"proposals": 96, "correct": 71, "gained": 0.21, "cost_usd": 0.042},
    "withheld": {"proposals": 24, "correct": 14, "gained": 0.12, "cost_usd": 0.031},
    "correctness": {"estimate": 0.156, "ci95": [-0.04, 0.36]},
    "gained": {"estimate": 0.09, "ci95": [0.01, 0.17]},
    "cost_usd": {"estimate": 0.011, "ci95": [0.006, 0.016]},
}
UPLIFT: dict[str, Any] = {
    "overall": _LIFT,
    "items": [_LIFT | {"id": _FACT["id"], "kind": "fact", "title": _FACT["title"], "retired": None}],
}
