"""Requests in plain words, on the wire: what is asked, and what is proposed for it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from api.job_schemas import JobFields, ModelName
from api.problem_schemas import ProblemOutline
from api.schemas import Body, Resource, Text, Usd, UtcTime
from db.vocabulary import RequestState

EXAMPLE_REQUEST: dict[str, Any] = {
    "request": "a Triton kernel for RMSNorm with residual in bf16 on H100",
    "budget": {"candidates": 40, "usd": "5.00"},
    "models": ["openai/gpt-5"],
}


Writer = Annotated[ModelName, Field(description="writes the reference; none: the server's own, where it has one")]


class TargetWish(Body):
    """What of the target is said beside the words; it wins over them."""

    hardware: Annotated[Text, Field(max_length=80)] | None = None
    language: Annotated[Text, Field(max_length=80)] | None = None


class RequestBody(JobFields):
    """A search in plain words. All fields of a job but its problem and target may be set; they become the job's."""

    model_config = {"json_schema_extra": {"examples": [EXAMPLE_REQUEST]}}

    request: Annotated[Text, Field(min_length=1, max_length=4000)]
    target: TargetWish = TargetWish()
    writer: Writer | None = None


class Alternative(Resource):
    """A bundled problem that is near too; `lacks` was asked for and is not in it, `adds` is the reverse."""

    name: str
    score: float
    lacks: list[str]
    adds: list[str]


class ProposedJob(Resource):
    """What the request would become. `by` is `matcher` (a bundled problem, fitted) or `model` (which wrote it).

    `job` is a complete body for POST /v1/jobs; POST .../confirm submits it as it is. `score` is the matcher's, from 0
    to 1. Read the source before you confirm: nothing has run it yet.
    """

    by: str
    job: dict[str, Any]
    problem: ProblemOutline
    source: str
    score: float | None
    covers: list[str]
    lacks: list[str]
    adds: list[str]
    notes: list[str]
    alternatives: list[Alternative]


class WritingCost(Resource):
    """What the writing took. `usd` is null where no call was made or nobody knows its price."""

    calls: int
    tokens_in: int | None
    tokens_out: int | None
    usd: Usd | None


class PlainRequest(Resource):
    """A request. While `state` is queued or writing a model writes for it; `proposal` is the matcher's until then."""

    id: str
    state: RequestState
    request: str
    proposal: ProposedJob | None
    error: str | None
    model: str | None
    cost: WritingCost
    job_id: str | None
    created_at: UtcTime
    links: dict[str, str]
