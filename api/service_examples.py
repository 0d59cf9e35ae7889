"""The OpenAPI examples of the summary, the queues, leaderboards and comparisons; a test reads each with its model."""

from __future__ import annotations

from typing import Any

from api import examples

QUEUE: dict[str, Any] = {
    "name": "gpu.nvidia-h100",
    "ready": 12,
    "delayed": 0,
    "running": 4,
    "oldest_age_s": 31.25,
    "workers": 4,
    "wait": {"claims": 214, "p50_s": 6.2, "p95_s": 38.0},
}

SUMMARY: dict[str, Any] = {
    "jobs": {
        "live": {"queued": 2, "running": 3, "cancelling": 0},
        "ended_24h": {"succeeded": 41, "failed": 1, "cancelled": 2},
    },
    "queues": [QUEUE],
    "workers": {
        "states": {"active": 4, "draining": 0},
        "data": [
            {
                "id": examples.WORKER["id"],
                "hostname": "node7",
                "hardware": "nvidia-h100",
                "state": "active",
                "current": {
                    "work_id": "work_019aa5e0d4057c4f8f3a5b6c7d8e9f02",
                    "kind": "evaluate",
                    "job_id": examples.JOB_ID,
                    "candidate_id": examples.CANDIDATE_ID,
                },
                "heartbeat_at": "2026-11-21T13:04:40Z",
            }
        ],
    },
    "today": {"since": "2026-11-21T00:00:00Z", "usd": "12.40", "gpu_s": 5121.4},
    "wait": {"claims": 1000, "p50_s": 0.012, "p95_s": 21.5},
}

_LINKS = {
    "candidate": f"/v1/candidates/{examples.CANDIDATE_ID}",
    "source": f"/v1/candidates/{examples.CANDIDATE_ID}/source",
    "job": f"/v1/jobs/{examples.JOB_ID}",
}

LEADERBOARD: dict[str, Any] = {
    "problem": "softmax",
    "boards": [
        {
            "hash": examples.PROBLEM["hash"],
            "bundled": True,
            "target": {"hardware": "cpu", "language": "cpp"},
            "entries": [
                {
                    "rank": 1,
                    "candidate_id": examples.CANDIDATE_ID,
                    "job_id": examples.JOB_ID,
                    "certified": True,
                    "speedup": 2.31,
                    "ci95": [2.25, 2.36],
                    "latency_us": 41.7,
                    "baseline": "compile",
                    "operator": "tune",
                    "proposer": "builtin",
                    "model": None,
                    "own_kernel_share": 0.9,
                    "found_at": "2026-11-21T13:06:14.100000Z",
                    "links": _LINKS | {"certificate": f"/v1/jobs/{examples.JOB_ID}/certificate"},
                }
            ],
            "left_out": [
                {
                    "candidate_id": "cand_019aa5e0e6a07c1d9b2d3e4f5a6b7c8e",
                    "job_id": examples.JOB_ID,
                    "speedup": 11.8,
                    "verdict": "suspicious",
                    "why": "faster than memory allows: 2.1 times the speed of light",
                    "links": _LINKS,
                }
            ],
        }
    ],
}

_OTHER = "cand_019aa5e0c8117b2e8d4c5b6a79880f1e"
_TIMING: dict[str, Any] = {
    "latency_us": 41.7,
    "speedup": 2.31,
    "ci95": [2.25, 2.36],
    "baseline": "compile",
    "sol_fraction": 0.62,
}
_SLOWER: dict[str, Any] = {
    "latency_us": 63.2,
    "speedup": 1.53,
    "ci95": [1.48, 1.57],
    "baseline": "compile",
    "sol_fraction": 0.41,
}
_RATIO: dict[str, Any] = {"value": 1.51, "low": 1.433, "high": 1.595, "clear": True}

COMPARISON: dict[str, Any] = {
    "first": examples.CANDIDATE
    | {
        "id": _OTHER,
        "ordinal": 1,
        "operator": "seed",
        "parents": [],
        "params": {"UNROLL": 4, "THREADS": 2},
        "latency_us": 63.2,
        "speedup": 1.53,
        "ci95": [1.48, 1.57],
        "links": {
            "self": f"/v1/candidates/{_OTHER}",
            "source": f"/v1/candidates/{_OTHER}/source",
            "log": f"/v1/candidates/{_OTHER}/log",
            "job": f"/v1/jobs/{examples.JOB_ID}",
        },
    },
    "second": examples.CANDIDATE,
    "ratio": _RATIO,
    "workloads": [{"name": "small", "first": _SLOWER, "second": _TIMING, "ratio": _RATIO}],
    "environment": {},
    "notes": [],
    "diff": f"--- {_OTHER}\n+++ {examples.CANDIDATE_ID}\n@@ -1 +1 @@\n-UNROLL = 4\n+UNROLL = 8\n",
}
