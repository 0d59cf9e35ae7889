"""The OpenAPI examples of ask/tell and of a search's record; a test reads each with its model."""

from __future__ import annotations

from typing import Any

from api.examples import CANDIDATE_ID, JOB_ID, SOURCE

_HASH = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_PARENT = "cand_019aa5e0c8117b2e8d4c5b6a79880f1e"
_TOKEN = "0b6f2f1e-6c0e-4e55-9d0e-3f4a6c1c5d11"
_VERSION = "2026-11-2"
_MESSAGES = [
    {"role": "system", "content": "You write C++ kernels that are correct first ...\n"},
    {"role": "user", "content": "# Target\n\nHardware: cpu. Language: C++.\n..."},
]

QUESTION: dict[str, Any] = {
    "job_id": JOB_ID,
    "candidate_id": CANDIDATE_ID,
    "token": _TOKEN,
    "lease_expires_at": "2026-11-21T13:19:31.450000Z",
    "operator": "refine",
    "parents": [_PARENT],
    "answer_format": "edits",
    "prompt_version": _VERSION,
    "messages": _MESSAGES,
    "links": {
        "tell": f"/v1/jobs/{JOB_ID}/tell",
        "renew": f"/v1/jobs/{JOB_ID}/renew",
        "candidate": f"/v1/candidates/{CANDIDATE_ID}",
    },
}

QUESTIONS: dict[str, Any] = {"data": [QUESTION]}

TELL_BODY: dict[str, Any] = {
    "candidate_id": CANDIDATE_ID,
    "token": _TOKEN,
    "answer": f"Keep each row in registers.\n\n```python\n{SOURCE}```\n",
}

TOLD: dict[str, Any] = {
    "job_id": JOB_ID,
    "candidate_id": CANDIDATE_ID,
    "accepted": True,
    "failure": None,
    "failure_detail": None,
    "duplicate_of": None,
    "links": {"candidate": f"/v1/candidates/{CANDIDATE_ID}", "job": f"/v1/jobs/{JOB_ID}"},
}

RENEWED: dict[str, Any] = {"candidate_id": CANDIDATE_ID, "lease_expires_at": "2026-11-21T13:34:31.450000Z"}

DECISION_PAGE: dict[str, Any] = {
    "data": [
        {
            "seq": 1031,
            "at": "2026-11-21T13:04:05.330000Z",
            "view": {"id": JOB_ID, "slots": 2, "elapsed_s": 0.02, "cost_usd": "0", "policy": "default"},
            "decision": {
                "expansions": [
                    {"operator": "seed", "proposer": "builtin", "model": None, "parents": [], "delay_s": 0.0}
                ],
                "stop_reason": None,
            },
        }
    ],
    "next_cursor": None,
    "has_more": False,
}

PROPOSAL: dict[str, Any] = {
    "job_id": JOB_ID,
    "candidate_id": CANDIDATE_ID,
    "ordinal": 3,
    "operator": "refine",
    "proposer": "llm",
    "model": "openai/gpt-5",
    "agent": None,
    "parents": [_PARENT],
    "state": "evaluated",
    "request": {"problem_name": "softmax", "operator": "refine", "device": {"cores": 16}, "seed": 3, "ordinal": 3},
    "prompt_version": _VERSION,
    "messages": _MESSAGES,
    "answer": TELL_BODY["answer"],
    "finish_reason": "stop",
    "error": None,
    "told_source": False,
    "source": SOURCE,
    "plan": "Keep each row in registers.",
    "failure": None,
    "failure_detail": None,
}

PROPOSAL_PAGE: dict[str, Any] = {"data": [PROPOSAL], "next_cursor": None, "has_more": False}

SEARCH_TREE: dict[str, Any] = {
    "nodes": [
        {
            "id": CANDIDATE_ID,
            "ordinal": 3,
            "operator": "refine",
            "proposer": "llm",
            "model": "openai/gpt-5",
            "parents": [_PARENT],
            "state": "evaluated",
            "verdict": "ok",
            "speedup": 2.31,
        }
    ]
}

JUDGING: dict[str, Any] = {
    "job_id": JOB_ID,
    "problem": {"name": "softmax", "hash": _HASH, "source": "from torch import nn\n\n\nclass Model(nn.Module): ...\n"},
    "target": {"hardware": "cpu", "language": "cpp"},
    "own_kernel_share": 0.9,
    "seed": 58_173_201_455_021,
}
