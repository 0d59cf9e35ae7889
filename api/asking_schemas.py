"""Ask and tell on the wire: what an outside agent sends, and the question that it gets."""

from __future__ import annotations

from typing import Annotated, Literal, Self
from uuid import UUID

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from api.recording_examples import TELL_BODY
from api.schemas import Body, Resource, Text, UtcTime
from db.vocabulary import Failure, Operator

SHORTEST_LEASE_S = 10.0
LONGEST_LEASE_S = 86_400.0
USUAL_LEASE_S = 900.0
"""A quarter of an hour: an agent that tries its kernel before it tells needs some minutes."""
MOST_AT_ONCE = 64

Agent = Annotated[Text, Field(max_length=200, description="who asks, for those who read the job's events")]
LeaseS = Annotated[
    float,
    Field(
        ge=SHORTEST_LEASE_S,
        le=LONGEST_LEASE_S,
        allow_inf_nan=False,
        description="how long the question is yours; after that it is open to others again",
    ),
]
CandidateId = Annotated[Text, Field(max_length=100)]


class AskBody(Body):
    """Who asks, for how long, and for how many questions."""

    agent: Agent | None = None
    lease_s: LeaseS = USUAL_LEASE_S
    limit: Annotated[int, Field(ge=1, le=MOST_AT_ONCE, description="at most so many questions")] = 1


class TellBody(Body):
    """The answer to a question: as text, read like a language model's answer, as the source outright, or that there is
    nothing more to propose."""

    model_config = {"json_schema_extra": {"examples": [TELL_BODY]}}

    candidate_id: CandidateId
    token: UUID
    answer: Annotated[Text | None, Field(description="plan and code, in the form that the prompt asks for")] = None
    source: Annotated[Text | None, Field(description="the whole file, in place of `answer`")] = None
    exhausted: Annotated[
        bool, Field(description="in place of both: nothing more to propose, here or later in this job")
    ] = False
    plan: Annotated[Text | None, Field(max_length=4000, description="the idea in words, beside `source`")] = None
    agent: Agent | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.answer is not None) + (self.source is not None) + self.exhausted != 1:
            raise PydanticCustomError("one_of", "give one of `answer`, `source` and `exhausted`")
        if self.plan is not None and self.source is None:
            raise PydanticCustomError("one_of", "`plan` goes with `source`; an `answer` begins with its plan")
        return self


class RenewBody(Body):
    """More time for a question, from now on."""

    candidate_id: CandidateId
    token: UUID
    lease_s: LeaseS = USUAL_LEASE_S


class Message(Resource):
    """One message of a prompt for a chat model."""

    role: str
    content: str


class Question(Resource):
    """A candidate to be made: the prompt that a language model would get, and the token that proves who has it.

    `answer_format` `edits`: SEARCH/REPLACE blocks that change the first parent, or else a whole file; `file`: one whole
    file in a fenced block. The system message describes both.
    """

    job_id: str
    candidate_id: str
    token: UUID
    lease_expires_at: UtcTime
    operator: Operator
    parents: list[str]
    answer_format: Literal["edits", "file"]
    prompt_version: str
    messages: list[Message]
    links: dict[str, str]


class Questions(Resource):
    """The questions that are now yours, oldest first."""

    data: list[Question]


class Told(Resource):
    """What became of an answer. Not accepted: `failure` says why in a word, `failure_detail` in a sentence.

    An accepted one is judged next; the candidate's `verdict` tells what was found.
    """

    job_id: str
    candidate_id: str
    accepted: bool
    failure: Failure | None
    failure_detail: str | None
    duplicate_of: str | None
    links: dict[str, str]


class Renewed(Resource):
    """The lease as it is now."""

    candidate_id: str
    lease_expires_at: UtcTime
