"""What a proposal is told beyond its task: looked up once, written down, and told again to whoever repeats it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from sqlalchemy.orm import Session

from db.knowledge import NewUse, Shelf, store_uses, uses_of
from db.knowledge_models import KnowledgeUse
from db.models import Candidate, Job
from db.vocabulary import ItemKind
from search.hardware import kin
from search.knowledge.asking import question_of
from search.knowledge.holdout import retrieval_on
from search.knowledge.recall import Recalled, recall
from search.proposing import Knowledge, ProposalRequest
from search.tunables import read_space
from search.types import Params

log = structlog.get_logger(__name__)


def knowledge_for(
    session: Session,
    job: Job,
    candidate: Candidate,
    request: ProposalRequest,
    bound: str = "",
    embedder: str | None = None,
) -> tuple[Knowledge, ...]:
    """What the candidate's prompt is to say is known; empty where the dice keep it without.

    The first attempt decides. A second one reads what the first wrote, so that the prompt of a call that was paid for
    can be made again though the knowledge base has changed since. Vectors of the `embedder` count where they are stored
    already: none is asked for here.
    """
    if _undecided(session, candidate):
        question = question_of(
            request, problem_hash=job.problem_hash, key=f"{job.problem_hash} {job.seed}", bound=bound
        )
        found = recall(question, Shelf(session, embedder))
        store_uses(session, candidate.id, retrieval=found.retrieval, uses=_rows(found))
        log.info("knowledge.recalled", retrieval=found.retrieval, items=len(found.uses), shown=len(found.knowledge))
    return shown(uses_of(session, candidate.id))


def hints_for(session: Session, job: Job, candidate: Candidate, request: ProposalRequest) -> tuple[Params, ...]:
    """Configurations with which kernels of the same family won, for the tuner; none where the dice keep it without."""
    space = read_space(request.parents[0].source) if request.parents else None
    return () if space is None else _winners(session, job, candidate, request, sorted(space.values))


def winners_for(session: Session, job: Job, first_seed: Candidate, request: ProposalRequest) -> tuple[Params, ...]:
    """The same for the built-in menu, whatever the tunables: all built-in seeds of a job are told what its first was,
    so that seed number k stays the same."""
    return _winners(session, job, first_seed, request, ())


def _winners(
    session: Session, job: Job, candidate: Candidate, request: ProposalRequest, names: Sequence[str]
) -> tuple[Params, ...]:
    if request.op_family in (None, "other"):
        return ()
    place = (job.language, kin(job.hardware), str(request.op_family))
    found = Shelf(session).winning_params(*place, names)
    if found and _undecided(session, candidate):
        on = retrieval_on(f"{job.problem_hash} {job.seed}", candidate.ordinal)
        uses = [_hint(rank, item_id, title, params, on) for rank, (item_id, title, params) in enumerate(found, start=1)]
        store_uses(session, candidate.id, retrieval=on, uses=uses)
    used = [use for use in uses_of(session, candidate.id) if use.shown]
    return tuple(json.loads(use.text) for use in used)


def _undecided(session: Session, candidate: Candidate) -> bool:
    """Whether nobody has looked anything up for it yet. Of two attempts at once, one waits for the other's answer."""
    session.refresh(candidate, ["retrieval"], with_for_update=True)
    return candidate.retrieval is None


def _hint(rank: int, item_id: str, title: str, params: Mapping[str, Any], on: bool) -> NewUse:
    return NewUse(item_id, ItemKind.KERNEL, rank, 0.0, on, title, json.dumps(dict(params)), {"structured": rank})


def shown(uses: Sequence[KnowledgeUse]) -> tuple[Knowledge, ...]:
    """The items that were shown, as a prompt takes them: facts are ours, all else is data from outside."""
    return tuple(
        Knowledge(id=use.item_id, title=use.title, text=use.text, ours=use.kind == ItemKind.FACT)
        for use in uses
        if use.shown
    )


def _rows(found: Recalled) -> list[NewUse]:
    return [
        NewUse(
            item_id=use.item_id,
            kind=use.kind,
            rank=use.rank,
            score=use.score,
            shown=use.shown,
            title=use.known.title,
            text=use.known.text,
            parts=use.parts,
        )
        for use in found.uses
    ]
