"""The examples of the OpenAPI document; a test reads each with its model, so that none can lie about the shape."""

from __future__ import annotations

from typing import Any

from api import code_examples

JOB_ID = "job_019aa5e0c1d27c4f8f3a5b6c7d8e9f01"
CANDIDATE_ID = "cand_019aa5e0d3f47a1b9c2d3e4f5a6b7c8d"
_HASH = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_WORKLOAD = {"name": "small", "device": "cpu", "params": {"rows": 128, "cols": 1024, "dtype": "float32"}}

BEST: dict[str, Any] = {
    "candidate_id": CANDIDATE_ID,
    "speedup": 2.31,
    "latency_us": 41.7,
    "ci95": [2.25, 2.36],
    "baseline": "compile",
    "certified": False,
}

ADMISSION: dict[str, Any] = {
    "verdict": "admitted with warnings",
    "reason": None,
    "warnings": ["zeros would pass in 1 of 9 families (equal)"],
    "notes": [],
    "domains": {"x": {"kind": "real", "bound": None, "why": "finite for normal values"}},
    "examined_at": "2026-11-21T13:04:27.510000Z",
}

JOB: dict[str, Any] = {
    "id": JOB_ID,
    "state": "running",
    "stop_reason": None,
    "error": None,
    "problem": {"name": "softmax", "hash": _HASH},
    "target": {"hardware": "cpu", "language": "cpp"},
    "budget": {"candidates": 20, "usd": "5.00", "wall_s": 600.0, "gpu_s": None, "calls": None, "tokens": None},
    "stop": {"target_speedup": 2.5, "stagnation": 12},
    "policy": {"search": "default", "own_kernel_share": 0.9},
    "admit": True,
    "certify": True,
    "models": [],
    "diagnosis_model": None,
    "labels": {"team": "ranking"},
    "priority": 0,
    "seed": 0,
    "parent_id": None,
    "key_id": None,
    "admission": ADMISSION,
    "progress": {
        "candidates": {"proposing": 0, "queued": 1, "evaluating": 1, "evaluated": 6, "rejected": 0, "cancelled": 0},
        "verdicts": {
            "ok": 5,
            "build_error": 1,
            "launch_error": 0,
            "illegal_access": 0,
            "timeout": 0,
            "incorrect": 0,
            "nondeterministic": 0,
            "suspicious": 0,
            "infra_error": 0,
        },
    },
    "queue": {"position": None},
    "best": BEST,
    "cost": {"llm_usd": "0.00", "llm_calls": 0, "unpriced_calls": 0, "tokens_in": 0, "tokens_out": 0, "gpu_s": 0.0},
    "created_at": "2026-11-21T13:04:05.120000Z",
    "started_at": "2026-11-21T13:04:05.310000Z",
    "finished_at": None,
    "version": 23,
    "links": {
        "self": f"/v1/jobs/{JOB_ID}",
        "events": f"/v1/jobs/{JOB_ID}/events",
        "candidates": f"/v1/jobs/{JOB_ID}/candidates",
        "best": f"/v1/jobs/{JOB_ID}/best",
        "certificate": f"/v1/jobs/{JOB_ID}/certificate",
        "cancel": f"/v1/jobs/{JOB_ID}/cancel",
        "rerun": f"/v1/jobs/{JOB_ID}/rerun",
    },
}

JOB_AGAIN: dict[str, Any] = JOB | {"parent_id": "job_019aa4d2b0c17c4f8f3a5b6c7d8e9f00"}

JOB_PAGE: dict[str, Any] = {"data": [JOB], "next_cursor": "WyIyMDI2LTExLTIxIiwiam9iXzAxOWFhIl0", "has_more": True}

PROBLEM: dict[str, Any] = {
    "name": "softmax",
    "hash": _HASH,
    "summary": "softmax over the last dimension",
    "op_family": "softmax",
    "workloads": [_WORKLOAD],
    "backward": False,
}

PROBLEM_SOURCE: dict[str, Any] = PROBLEM | {"source": "from torch import nn\n\n\nclass Model(nn.Module): ...\n"}

ESTIMATE: dict[str, Any] = {
    "llm_calls": {"low": 16.0, "high": 24.0},
    "tokens_in": {"low": 21000.0, "high": 160000.0},
    "tokens_out": {"low": 12800.0, "high": 190000.0},
    "usd": {"low": "0.15", "high": "2.10"},
    "gpu_s": {"low": 40.0, "high": 130.0},
    "prices": [
        {"model": "openai/gpt-5", "usd_per_mtok_in": "1.25", "usd_per_mtok_out": "10.00", "source": "litellm"},
    ],
    "unknown_prices": [],
    "notes": ["sizes of calls are assumed for openai/gpt-5: fewer than 5 were made here"],
}

DRY_RUN: dict[str, Any] = {
    "valid": True,
    "job": {
        "problem": {"name": "softmax", "hash": _HASH},
        "target": {"hardware": "cpu", "language": "cpp"},
        "budget": {"candidates": 20, "usd": None, "wall_s": None, "gpu_s": None, "calls": None, "tokens": None},
        "stop": {"target_speedup": None, "stagnation": None},
        "policy": {"search": "default", "own_kernel_share": 0.9},
        "admit": True,
        "certify": True,
        "models": [],
        "diagnosis_model": None,
        "labels": {},
        "priority": 0,
        "seed": 0,
    },
    "problem": PROBLEM,
    "admission": ADMISSION,
    "estimate": ESTIMATE,
    "warnings": ["no worker serves the queue cpu now: the job would wait for one"],
}

REQUEST: dict[str, Any] = {
    "id": "request_019aa5e0b1d27c4f8f3a5b6c7d8e9f00",
    "state": "proposed",
    "request": "softmax over rows in C++ on my CPU",
    "proposal": {
        "by": "matcher",
        "job": {"problem": "softmax", "target": {"hardware": "cpu", "language": "cpp"}},
        "problem": PROBLEM,
        "source": PROBLEM_SOURCE["source"],
        "score": 1.0,
        "covers": ["softmax"],
        "lacks": [],
        "adds": [],
        "notes": [],
        "alternatives": [{"name": "attention_causal", "score": 0.248, "lacks": [], "adds": ["attention", "causal"]}],
    },
    "error": None,
    "model": None,
    "cost": {"calls": 0, "tokens_in": None, "tokens_out": None, "usd": None},
    "job_id": None,
    "created_at": "2026-11-21T13:04:01.120000Z",
    "links": {
        "self": "/v1/requests/request_019aa5e0b1d27c4f8f3a5b6c7d8e9f00",
        "confirm": "/v1/requests/request_019aa5e0b1d27c4f8f3a5b6c7d8e9f00/confirm",
    },
}

CANCELLED: dict[str, Any] = {"changed": True, "job": JOB | {"state": "cancelling"}}

CANDIDATE: dict[str, Any] = {
    "id": CANDIDATE_ID,
    "job_id": JOB_ID,
    "ordinal": 3,
    "operator": "tune",
    "proposer": "builtin",
    "model": None,
    "parents": ["cand_019aa5e0c8117b2e8d4c5b6a79880f1e"],
    "plan": "one pass per row with an online maximum; UNROLL from 4 to 8",
    "params": {"UNROLL": 8, "THREADS": 2},
    "state": "evaluated",
    "failure": None,
    "failure_detail": None,
    "duplicate_of": None,
    "cost_usd": "0.00",
    "created_at": "2026-11-21T13:04:31.450000Z",
    "verdict": "ok",
    "reason": None,
    "timed": True,
    "latency_us": 41.7,
    "speedup": 2.31,
    "ci95": [2.25, 2.36],
    "baseline": "compile",
    "evaluated_at": "2026-11-21T13:04:39.020000Z",
    "links": {
        "self": f"/v1/candidates/{CANDIDATE_ID}",
        "source": f"/v1/candidates/{CANDIDATE_ID}/source",
        "log": f"/v1/candidates/{CANDIDATE_ID}/log",
        "job": f"/v1/jobs/{JOB_ID}",
    },
}

CANDIDATE_PAGE: dict[str, Any] = {"data": [CANDIDATE], "next_cursor": None, "has_more": False}

SOURCE = "import torch\nfrom torch import nn\nfrom kernelwright import load_cpp\n\n\nclass ModelNew(nn.Module): ...\n"

CANDIDATE_DETAIL: dict[str, Any] = CANDIDATE | {
    "source": SOURCE,
    "report": {
        "verdict": "ok",
        "checks": [{"name": "correct", "passed": True, "detail": "5 seeds, 4 distributions"}],
        "baselines_us": {"eager": 118.2, "compile": 96.4},
        "speedups": {"eager": 2.83, "compile": 2.31},
    },
    "duplicate": None,
    "tuning": None,
    "code": code_examples.LISTED,
    "links": {**CANDIDATE["links"], "assembly": f"/v1/candidates/{CANDIDATE_ID}/assembly"},
}

CERTIFICATE: dict[str, Any] = {
    "schema": "kernelwright.certificate/1",
    "certified": True,
    "verdict": "ok",
    "reason": "",
    "summary": "softmax on cpu, cpp: certified, 2.31x over each workload's fastest baseline.",
    "reservations": [],
    "issued_at": "2026-11-21T13:06:12+00:00",
    "sha256": _HASH,
}

PACKAGE = "(the bytes of softmax_kernel-2026.11.21.130612+0d5e3f6a.tar.gz)"

EVENT: dict[str, Any] = {
    "seq": 1042,
    "job_id": JOB_ID,
    "type": "candidate.evaluated",
    "at": "2026-11-21T13:04:39.020000Z",
    "data": {"candidate_id": CANDIDATE_ID, "ordinal": 3, "verdict": "ok", "speedup": 2.31},
}

EVENT_PAGE: dict[str, Any] = {"data": [EVENT], "next_after": 1042, "has_more": False}

_STARTED = f'{{"seq": 1031, "job_id": "{JOB_ID}", "type": "job.started", "at": "...", "data": {{}}}}'
EVENT_STREAM = f"event: job.started\ndata: {_STARTED}\nid: 1031\n\n: ping\n\n"

LOG = "g++ -O3 -march=native -fopenmp ...\nkernel.cpp:12:5: warning: unused variable 'tail'\n"

WORKER: dict[str, Any] = {
    "id": "worker_019aa5df0a1b7c2d8e3f4a5b6c7d8e9f",
    "hostname": "node7",
    "pid": 4211,
    "queues": ["cpu"],
    "hardware": "cpu",
    "device": {"name": "AMD EPYC 9554", "cores": 16, "copy_gbps": 41.0, "judge": _HASH},
    "state": "active",
    "current_work": None,
    "state_reason": None,
    "device_state": None,
    "started_at": "2026-11-21T12:58:00Z",
    "heartbeat_at": "2026-11-21T13:04:40Z",
}

METRICS = """# HELP kernelwright_queue_ready_work Work that waits and is due.
# TYPE kernelwright_queue_ready_work gauge
kernelwright_queue_ready_work{queue="cpu"} 3.0
"""
READY: dict[str, Any] = {"ready": True, "migration": "0010"}
HEALTH: dict[str, Any] = {"status": "ok", "version": "0.1.0"}
