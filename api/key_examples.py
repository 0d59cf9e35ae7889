"""The examples of /v1/keys and /v1/audit; a test reads each with its model, so that none can lie about the shape."""

from __future__ import annotations

from typing import Any

from api.examples import JOB_ID

_NO_CAPS: dict[str, Any] = dict.fromkeys(
    ("usd", "tokens", "calls", "gpu_s", "wall_s", "candidates", "jobs", "jobs_per_day")
)

KEY: dict[str, Any] = {
    "id": "key_019aa5e0c1d27c4f8f3a5b6c7d8e9f01",
    "name": "ranking",
    "prefix": "kw_live_Qm3x",
    "scopes": ["submit", "read"],
    "state": "active",
    "caps": _NO_CAPS | {"usd": "50.00", "jobs": 20},
    "used": {
        "usd": "3.20",
        "tokens": 181_204,
        "calls": 41,
        "gpu_s": 310.5,
        "wall_s": 1204.0,
        "candidates": 60,
        "jobs": 2,
        "jobs_per_day": 3,
    },
    "created_at": "2026-11-21T13:04:27.510000Z",
    "expires_at": "2027-01-31T00:00:00Z",
    "last_used_at": "2026-11-22T09:12:00.104000Z",
    "revoked_at": None,
    "previous_until": None,
}
KEY_LIST: dict[str, Any] = {"data": [KEY]}
TOKEN = "kw_live_Qm3x..."
MADE: dict[str, Any] = {"key": KEY | {"last_used_at": None, "used": _NO_CAPS | {"usd": "0.00"}}, "token": TOKEN}
ROTATED: dict[str, Any] = {"key": KEY | {"previous_until": "2026-11-23T09:12:00Z"}, "token": TOKEN}
REVOKED: dict[str, Any] = {
    "changed": True,
    "key": KEY | {"state": "revoked", "revoked_at": "2026-11-22T10:00:00Z"},
}
AUDIT_PAGE: dict[str, Any] = {
    "data": [
        {
            "seq": 12,
            "at": "2026-11-22T09:12:00.104000Z",
            "action": "job.submit",
            "subject": JOB_ID,
            "key": "ranking",
            "address": "10.2.0.17",
            "request_id": "req_0197f0c2a4b87d6e",
            "data": {"problem": "softmax", "hardware": "cpu", "language": "cpp"},
        }
    ],
    "next_cursor": None,
    "has_more": False,
}
