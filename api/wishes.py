"""From plain words to a stored request, and from a stored request to a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from sqlalchemy.orm import Session

from api import submission
from api.errors import BudgetUsed, NotProposed, UnknownRequest, invalid
from api.handlers import field_errors
from api.job_schemas import DryRun, Job, JobBody, JobFields, TargetBody
from api.job_views import job_view
from api.problem_schemas import outlined
from api.request_schemas import Alternative, PlainRequest, ProposedJob, RequestBody, WritingCost
from db import jobs, requests
from db.account_models import PlainRequest as Row
from db.audit import Actor
from db.budgets import BudgetSpent
from db.requests import NewRequest
from db.vocabulary import RequestState, queue_hardware
from db.workers import served_queues
from problems.catalog import ProblemError, bundled, outline
from search.requests import Match, Wish, rank, understand
from search.requests.proposing import by_matcher
from search.requests.targets import choose
from search.types import Target


def create(session: Session, body: RequestBody, own_writer: str | None, key_id: str | None) -> PlainRequest:
    """Store the request with the nearest bundled problem as its proposal; a model writes where one is named, or where
    the server has one and the nearest problem is not the thing itself.

    Raises:
        Invalid: nothing is like it and no model writes; or the target is none.
        BudgetUsed: a cap of the API key is used up.
    """
    wish = understand(body.request)
    chosen = choose(wish, body.target.hardware, body.target.language, _served(session))
    rest = body.model_dump(mode="json", include=set(JobFields.model_fields))
    matches = rank(wish, bundled().values())
    writer = body.writer or (own_writer if not (matches and matches[0].sure) else None)
    proposal = _matched(wish, matches, chosen.target, rest, chosen.notes)
    if proposal is None and writer is None:
        known = ", ".join(bundled())
        raise invalid("#/request", f'no bundled problem is like it (there are {known}); name a model in "writer"')
    target = _checked(chosen.target)
    stored = {"job": rest, "target": target, "notes": list(chosen.notes)}
    try:
        row = requests.create_request(session, NewRequest(body.request, proposal, stored, writer, key_id))
    except BudgetSpent as error:
        raise BudgetUsed(str(error)) from error
    return view(row)


def load(session: Session, request_id: str) -> PlainRequest:
    """The request. Raises UnknownRequest."""
    row = requests.get_request(session, request_id)
    if row is None:
        raise UnknownRequest
    return view(row)


def preview(session: Session, request_id: str) -> DryRun:
    """What confirming would make, with its estimate. Raises UnknownRequest, NotProposed, Refused."""
    row = _proposed(session, request_id, lock=False)
    body = JobBody.model_validate(_proposal(row)["job"])
    return submission.dry_run(session, body, submission.resolve(body.problem, body.target.hardware))


def confirm(session: Session, request_id: str, actor: Actor) -> tuple[Job, bool]:
    """Submit the proposed job; also whether that was done before: then it is that job.

    Raises:
        UnknownRequest: there is none with this id.
        NotProposed: it has nothing to confirm now.
        Refused: the judge has refused the problem on this hardware.
        BudgetUsed: a cap of the API key is used up.
        QuotaUsed: it has too many jobs.
    """
    row = _proposed(session, request_id)
    if row.job_id is not None:
        return job_view(session, jobs.fetch_job(session, row.job_id)), True
    body = JobBody.model_validate(_proposal(row)["job"])
    problem = submission.resolve(body.problem, body.target.hardware)
    job, _ = submission.submit(session, body, problem, None, actor, actor.key_id or row.key_id)
    requests.confirm(session, row, job.id)
    return job, False


def view(row: Row) -> PlainRequest:
    """The resource of a request."""
    own = f"/v1/requests/{row.id}"
    return PlainRequest(
        id=row.id,
        state=RequestState(row.state),
        request=row.words,
        proposal=None if row.proposal is None else _shown(row.proposal),
        error=row.error,
        model=row.model,
        cost=WritingCost(calls=row.calls, tokens_in=row.tokens_in, tokens_out=row.tokens_out, usd=row.cost_usd),
        job_id=row.job_id,
        created_at=row.created_at,
        links={"self": own, "confirm": f"{own}/confirm"} | ({"job": f"/v1/jobs/{row.job_id}"} if row.job_id else {}),
    )


def _matched(
    wish: Wish, matches: Sequence[Match], target: Target, rest: Mapping[str, Any], notes: Sequence[str]
) -> dict[str, Any] | None:
    for place in range(len(matches)):
        try:
            return by_matcher(wish, matches[place:], target, rest, notes)
        except ProblemError:
            continue  # it has no workload for this hardware: the next one may
    return None


def _served(session: Session) -> list[str]:
    return [hardware for queue in served_queues(session) if (hardware := queue_hardware(queue)) is not None]


def _checked(target: Target) -> dict[str, str]:
    """The target as a job takes it. Raises Invalid: the language does not run there, or the hardware is none."""
    body = {"hardware": target.hardware, "language": target.language}
    try:
        TargetBody.model_validate(body)
    except ValidationError as error:
        (first, *_) = field_errors([each | {"loc": ("body", "target", *each["loc"])} for each in error.errors()])
        raise invalid(first["pointer"], first["detail"]) from error
    return body


def _proposed(session: Session, request_id: str, *, lock: bool = True) -> Row:
    row = requests.get_request(session, request_id, lock=lock)
    if row is None:
        raise UnknownRequest
    if row.state not in (RequestState.PROPOSED, RequestState.CONFIRMED):
        raise NotProposed(f"its state is {row.state}{f': {row.error}' if row.error else ''}")
    return row


def _proposal(row: Row) -> Mapping[str, Any]:
    assert row.proposal is not None, "what is proposed has a proposal"
    return row.proposal


def _shown(stored: Mapping[str, Any]) -> ProposedJob:
    rest = {name: stored[name] for name in ("by", "job", "source", "score", "covers", "lacks", "adds", "notes")}
    problem = outlined(outline(stored["source"], stored["name"]))
    return ProposedJob(**rest, problem=problem, alternatives=[Alternative(**each) for each in stored["alternatives"]])
