"""A job whose models are outside agents, moved along through the functions that workers use, against a real API."""

from __future__ import annotations

from typing import Any

import httpx2
from sqlalchemy.orm import Session, sessionmaker

from db import recovery
from db.settings import Settings
from db.vocabulary import WorkKind
from tests.support.ledger import claim_kind
from worker.advancing import advance
from worker.runtime import Runtime

BODY: dict[str, Any] = {
    "problem": "softmax",
    "target": {"hardware": "cpu", "language": "cpp"},
    "budget": {"candidates": 8},
    "models": ["ask/tell"],
}

CANDIDATE = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    NAME = {name!r}\n"
"""A whole file, as far as anybody reads it who does not run it."""


def file_answer(name: str, plan: str = "one pass per row") -> str:
    """An answer with a whole file in it."""
    return f"{plan}\n\n```python\n{CANDIDATE.format(name=name)}```\n"


def edit_answer(old: str, new: str) -> str:
    """An answer that changes the name in its first parent."""
    lines = ["<<<<<<< SEARCH", f"    NAME = {old!r}", "=======", f"    NAME = {new!r}", ">>>>>>> REPLACE"]
    return "wider loads\n\n" + "\n".join(lines) + "\n"


class Outside:
    """The agent's side, over HTTP, and the clock of the workers'."""

    def __init__(self, http: httpx2.Client, settings: Settings, sessions: sessionmaker[Session]) -> None:
        self.http, self.sessions = http, sessions
        self.here = Runtime(settings, "worker_1", ("control", "llm", "cpu"))

    def submit(self, **body: Any) -> str:
        """A submitted job that has been looked at once; its id."""
        job_id = str(self.http.post("/v1/jobs", json=BODY | body).json()["id"])
        self.advance()
        return job_id

    def advance(self) -> None:
        """Do the advance that is due."""
        advance(self.here, claim_kind(self.sessions, WorkKind.ADVANCE))

    def reap(self) -> None:
        """One round of the reaper."""
        with self.sessions.begin() as session:
            recovery.reap(session)

    def ask(self, job_id: str, **body: Any) -> list[dict[str, Any]]:
        """The questions; none for a 204."""
        response = self.http.post(f"/v1/jobs/{job_id}/ask", json=body)
        return [] if response.status_code == 204 else list(response.raise_for_status().json()["data"])

    def tell(self, question: dict[str, Any], **said: Any) -> httpx2.Response:
        """Answer a question."""
        body = {name: question[name] for name in ("candidate_id", "token")} | said
        return self.http.post(f"/v1/jobs/{question['job_id']}/tell", json=body)
