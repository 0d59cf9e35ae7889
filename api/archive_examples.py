"""The OpenAPI example of the archive of candidates; a test reads it with its model."""

from __future__ import annotations

from typing import Any

from api.examples import CANDIDATE, JOB, SOURCE

ARCHIVED: dict[str, Any] = CANDIDATE | {
    "problem": JOB["problem"],
    "target": JOB["target"],
    "labels": {"team": "ranking"},
    "retrieval": None,
    "prompt_version": None,
    "tokens_in": None,
    "tokens_out": None,
    "source_hash": "7f83b1657ff1fc53b92dc18148a1d65dfc2d4b1fa3d677284addd200126d9069",
    "source_bytes": len(SOURCE),
    "source": SOURCE,
    "baselines_us": {"eager": 118.2, "compile": 96.4},
    "speedups": {"eager": 2.83, "compile": 2.31},
    "max_relative_error": 1.2e-06,
    "log": "",
    "gpu_s": 6.2,
    "wall_s": 9.1,
    "environment": {"cpu": "AMD EPYC 9554", "torch": "2.13.0+cpu"},
    "certificate": {"id": "cert_019aa5e0e1027a1b9c2d3e4f5a6b7c8d", "certified": True},
    "workloads": None,
    "profile": None,
}

ARCHIVE_PAGE: dict[str, Any] = {"data": [ARCHIVED], "next_cursor": "WyJjYW5kXzAxOWFhNWUwIl0", "has_more": True}
