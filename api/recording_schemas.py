"""What is on record of a search, on the wire: its decisions, its proposals, its tree, and what its judge was asked."""

from __future__ import annotations

from typing import Any

from api.asking_schemas import Message
from api.job_parts import Target
from api.schemas import Resource, UtcTime
from db.vocabulary import CandidateState, Failure, Operator, Proposer


class Decision(Resource):
    """What one advance saw of the job (`view`) and what it decided; the tree that it saw are the events up to `seq`."""

    seq: int
    at: UtcTime
    view: dict[str, Any]
    decision: dict[str, Any]


class DecisionPage(Resource):
    """Decisions, in the order in which they were made."""

    data: list[Decision]
    next_cursor: str | None
    has_more: bool


class Proposal(Resource):
    """How a candidate came to its source. What the built-in proposer made has no prompt and no answer.

    `request` is what the prompt was made from, without the problem's source and the parents'. `told_source`: an outside
    agent told the source outright.
    """

    job_id: str
    candidate_id: str
    ordinal: int
    operator: Operator
    proposer: Proposer
    model: str | None
    agent: str | None
    parents: list[str]
    state: CandidateState
    request: dict[str, Any] | None
    prompt_version: str | None
    messages: list[Message] | None
    answer: str | None
    finish_reason: str | None
    error: str | None
    told_source: bool
    source: str | None
    plan: str | None
    failure: Failure | None
    failure_detail: str | None


class ProposalPage(Resource):
    """Proposals by ordinal."""

    data: list[Proposal]
    next_cursor: str | None
    has_more: bool


class SearchTree(Resource):
    """The tree as the search sees it now: each candidate's node, by ordinal, without its source."""

    nodes: list[dict[str, Any]]


class JudgedProblem(Resource):
    """The problem with its source; `hash` is the SHA-256 of it."""

    name: str
    hash: str
    source: str


class Judging(Resource):
    """What the judge is asked about each candidate of the job, beside the candidate. `seed` is null while it runs:
    whoever proposes must not know the judge's inputs."""

    job_id: str
    problem: JudgedProblem
    target: Target
    own_kernel_share: float
    seed: int | None
