"""The examples of /v1/webhooks; a test reads each with its model, so that none can lie about the shape."""

from __future__ import annotations

from typing import Any

from api.examples import JOB_ID
from api.webhook_schemas import EXAMPLE_BODY

WEBHOOK_ID = "webhook_019aa5e0c1d27c4f8f3a5b6c7d8e9f11"
DELIVERY_ID = "delivery_019aa5e0c1d27c4f8f3a5b6c7d8e9f12"
_OWN = f"/v1/webhooks/{WEBHOOK_ID}"

WEBHOOK: dict[str, Any] = {
    "id": WEBHOOK_ID,
    "url": EXAMPLE_BODY["url"],
    "types": EXAMPLE_BODY["types"],
    "jobs": "own",
    "labels": EXAMPLE_BODY["labels"],
    "description": EXAMPLE_BODY["description"],
    "enabled": True,
    "disabled_why": None,
    "failures": 0,
    "failing_since": None,
    "previous_until": None,
    "key_id": "key_019aa5e0c1d27c4f8f3a5b6c7d8e9f01",
    "created_at": "2026-11-21T13:04:27.510000Z",
    "links": {
        "self": _OWN,
        "deliveries": f"{_OWN}/deliveries",
        "test": f"{_OWN}/test",
        "rotate": f"{_OWN}/rotate",
    },
}
SECRET = "whsec_C2FVsBQIhrscChlQIMV..."
WEBHOOK_PAGE: dict[str, Any] = {"data": [WEBHOOK], "next_cursor": None, "has_more": False}
MADE: dict[str, Any] = {"webhook": WEBHOOK, "secret": SECRET}
ROTATED: dict[str, Any] = {"webhook": WEBHOOK | {"previous_until": "2026-11-23T09:12:00Z"}, "secret": SECRET}
DELETED: dict[str, Any] = {"deleted": True, "webhook": WEBHOOK}
DELIVERY: dict[str, Any] = {
    "id": DELIVERY_ID,
    "webhook_id": WEBHOOK_ID,
    "job_id": JOB_ID,
    "type": "job.finished",
    "state": "waiting",
    "attempts": 1,
    "status": 503,
    "wall_s": 0.182,
    "answer": "upstream is away",
    "error": None,
    "created_at": "2026-11-21T13:09:27.510000Z",
    "attempted_at": "2026-11-21T13:09:28.104000Z",
    "next_attempt_at": "2026-11-21T13:09:33.204000Z",
    "finished_at": None,
}
QUEUED: dict[str, Any] = DELIVERY | {
    "attempts": 0,
    "status": None,
    "wall_s": None,
    "answer": None,
    "attempted_at": None,
    "next_attempt_at": "2026-11-21T13:09:27.510000Z",
}
DELIVERY_PAGE: dict[str, Any] = {"data": [DELIVERY], "next_cursor": None, "has_more": False}
DELIVERY_DETAIL: dict[str, Any] = DELIVERY | {
    "data": {
        "seq": 412,
        "job": {
            "id": JOB_ID,
            "state": "succeeded",
            "stop_reason": "budget_candidates",
            "problem": {"name": "softmax", "hash": "5d41402abc4b2a76"},
            "target": {"hardware": "cpu", "language": "cpp"},
            "labels": {"team": "ranking"},
            "best": {"candidate_id": "cand_019aa5e0c8117b2e8d4c5b6a79880f1e", "speedup": 1.83},
            "version": 57,
            "created_at": "2026-11-21T13:04:27.510000Z",
            "finished_at": "2026-11-21T13:09:27.510000Z",
            "links": {
                "self": f"/v1/jobs/{JOB_ID}",
                "events": f"/v1/jobs/{JOB_ID}/events",
                "candidates": f"/v1/jobs/{JOB_ID}/candidates",
                "best": f"/v1/jobs/{JOB_ID}/best",
                "certificate": f"/v1/jobs/{JOB_ID}/certificate",
            },
        },
    }
}
