"""Proposals: how each candidate came to its source, be it by a model, an outside agent or the built-in proposer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Select, and_, select
from sqlalchemy.orm import Session

from db.models import Candidate, LlmCall
from db.paging import Page, decode_cursor, encode_cursor, number_in
from db.recording_models import Ask
from db.vocabulary import LlmCallState

CALL_KEY: Final = "propose"
"""What a proposal's paid call is for, whatever the attempt."""


@dataclass(frozen=True, slots=True)
class ProposalRow:
    """A candidate with the call or the question that made it; the built-in proposer's have neither."""

    candidate: Candidate
    call: LlmCall | None
    ask: Ask | None

    @property
    def recorded(self) -> LlmCall | Ask | None:
        """Whichever there is of call and question."""
        return self.call or self.ask

    @property
    def request(self) -> Mapping[str, Any] | None:
        """What the prompt was made from, where that is on record."""
        return self.recorded.request if self.recorded else None

    @property
    def messages(self) -> Sequence[Mapping[str, str]] | None:
        """The prompt."""
        prompt = self.recorded.prompt if self.recorded else None
        messages: Sequence[Mapping[str, str]] | None = json.loads(prompt) if prompt else None
        return messages


def get_proposal(session: Session, candidate_id: str) -> ProposalRow | None:
    """How one candidate was made."""
    row = session.execute(_proposals().where(Candidate.id == candidate_id)).one_or_none()
    return None if row is None else ProposalRow(*row)


def list_proposals(session: Session, job_id: str, *, limit: int, cursor: str | None = None) -> Page[ProposalRow]:
    """A page of a job's proposals by ordinal. Raises InvalidCursor."""
    query = _proposals().where(Candidate.job_id == job_id).order_by(Candidate.ordinal).limit(limit + 1)
    if cursor is not None:
        query = query.where(Candidate.ordinal > number_in(decode_cursor(cursor, 1)[0]))
    rows = [ProposalRow(*row) for row in session.execute(query)]
    following = encode_cursor(rows[limit - 1].candidate.ordinal) if len(rows) > limit else None
    return Page(tuple(rows[:limit]), following)


def _proposals() -> Select[Candidate, LlmCall, Ask]:
    finished = and_(
        LlmCall.candidate_id == Candidate.id,
        LlmCall.key == CALL_KEY,
        LlmCall.state == LlmCallState.FINISHED.value,
    )
    return select(Candidate, LlmCall, Ask).outerjoin(LlmCall, finished).outerjoin(Ask, Ask.candidate_id == Candidate.id)
