"""Ask and tell as typed Python calls, for `kernelwright ask` and `tell` and for agents of your own.

with Client("http://127.0.0.1:8080") as client:
    for question in ask(client, job_id, limit=4):
        tell(client, job_id, question["candidate_id"], question["token"], answer=model(question["messages"]))
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Literal, TypedDict, cast
from urllib.parse import quote

from cli.client import Client


class Message(TypedDict):
    role: str
    content: str


class Question(TypedDict):
    """A candidate to be made, with its prompt; `token` proves who has it until `lease_expires_at`."""

    job_id: str
    candidate_id: str
    token: str
    lease_expires_at: str
    operator: str
    parents: list[str]
    answer_format: Literal["edits", "file"]
    prompt_version: str
    messages: list[Message]
    links: dict[str, str]


class Told(TypedDict):
    """What became of an answer."""

    job_id: str
    candidate_id: str
    accepted: bool
    failure: str | None
    failure_detail: str | None
    duplicate_of: str | None
    links: dict[str, str]


def ask(
    client: Client, job_id: str, *, limit: int = 1, lease_s: float | None = None, agent: str | None = None
) -> list[Question]:
    """Up to `limit` open questions of the job; none when nothing is open now. ApiError 409 for a job that has ended."""
    body = {"limit": limit} | _given(lease_s=lease_s, agent=agent)
    response = client.send("POST", _path(job_id, "ask"), json=body)
    if response.status_code == HTTPStatus.NO_CONTENT:
        return []
    return cast(list[Question], response.json()["data"])


def tell(client: Client, job_id: str, candidate_id: str, token: str, **said: str | None) -> Told:
    """Answer a question with `answer`, or with `source` (and `plan`); `agent` says who. ApiError 409: too late."""
    body = {"candidate_id": candidate_id, "token": token} | _given(**said)
    return cast(Told, client.send("POST", _path(job_id, "tell"), json=body).json())


def _path(job_id: str, what: str) -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}/{what}"


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
