"""Prepare questions to outside agents: the very brief and prompt that a language model would get, made beforehand.

Here and not when somebody asks, because only workers read briefs; so the question is part of the record from the
transaction on that adds its candidate, and an answer that comes next week answers what was asked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy.orm import Session

from db.asks import NewAsk, add_ask
from search.prompts import build_prompt
from search.recording import request_record
from search.types import Expansion, ProposerKind
from worker.briefing import brief_of


def prepare_asks(
    session: Session, ids: Sequence[str], expansions: Sequence[Expansion], embedder: str | None = None
) -> int:
    """Store the questions of those among the new candidates that are for outside agents; returns how many."""
    asked = [
        candidate_id
        for candidate_id, expansion in zip(ids, expansions, strict=True)
        if expansion.proposer == ProposerKind.ASK_TELL
    ]
    for candidate_id in asked:
        request = brief_of(session, candidate_id, embedder).request
        prompt = build_prompt(request)
        new = NewAsk(
            request=request_record(request),
            prompt=json.dumps([dict(message) for message in prompt.messages]),
            prompt_version=prompt.version,
            edits=prompt.edits,
        )
        add_ask(session, candidate_id, new)
    return len(asked)
