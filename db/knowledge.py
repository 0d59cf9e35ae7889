"""The shelf of the knowledge base: what fits a question, its texts, and the record of what was shown to whom.

    shelf = Shelf(session)         # with the name of an embedding model, if there is one, its vectors as well
    shelf.narrow(narrowing)        # some hundreds at most; `search.knowledge.recall` ranks them
    store_uses(session, candidate_id, retrieval=True, uses=uses)

What is asked with the same rows gives the same answer. Nothing here commits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from sqlalchemy import bindparam, select, update
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.orm import Session
from sqlalchemy.types import Boolean, Text

from db import meanings
from db.knowledge_models import KnowledgeRetirement, KnowledgeUse
from db.models import Candidate
from db.statements import load_statements
from db.storable import storable_text

SQL: Final = load_statements(Path(__file__).with_name("knowledge.sql"))

MAX_RARE_HOLDERS: Final = 1_000
"""Kernels that the rare words of a question may have together: as many are ranked at most."""

MAX_RARE_TERMS: Final = 8

MAX_HINTS: Final = 3
"""Configurations of other kernels that a tuner is told: each costs a candidate to try."""

_TEXTS: Final = ARRAY(Text())
_HOLDERS: Final = SQL["holders"].bindparams(bindparam("terms", type_=_TEXTS))
_STORED_TEXTS: Final = SQL["texts"].bindparams(bindparam("ids", type_=_TEXTS))
_WINNING_PARAMS: Final = SQL["winning_params"].bindparams(bindparam("names", type_=_TEXTS))
_NARROW_LESSONS: Final = SQL["narrow_lessons"].bindparams(
    bindparam("op_families", type_=_TEXTS), bindparam("any_family", type_=Boolean())
)


class Asked(Protocol):
    """A question, as the search puts it. `op_family` None: not known."""

    @property
    def language(self) -> str: ...
    @property
    def hardware_kin(self) -> str: ...
    @property
    def op_family(self) -> str | None: ...
    @property
    def title(self) -> str: ...
    @property
    def terms(self) -> tuple[str, ...]: ...
    @property
    def error(self) -> str | None: ...
    @property
    def error_message(self) -> str: ...
    @property
    def problem_hash(self) -> str: ...


@dataclass(frozen=True, slots=True)
class StoredItem:
    """A kernel or a lesson that fits, without its text. `worth` is a speedup, or how many jobs support a lesson."""

    id: str
    kind: str
    hardware: str
    language: str
    op_family: str
    bound: str
    exact: bool
    """It solves this very problem, or is about this very error."""
    worth: float
    terms: str
    trigram_score: float
    embedder: str | None
    embedding: bytes | None


@dataclass(frozen=True, slots=True)
class NewUse:
    """An item that came up for a candidate."""

    item_id: str
    kind: str
    rank: int
    score: float
    shown: bool
    title: str
    text: str
    parts: Mapping[str, int] = field(default_factory=dict)


class Shelf:
    """Kernels and lessons, as one session sees them. `embedder`: the model whose vectors it hands out, if any."""

    def __init__(self, session: Session, embedder: str | None = None) -> None:
        self._session = session
        self._embedder = embedder

    def narrow(self, asked: Asked) -> list[StoredItem]:
        """What fits the question by its facets, its rarest words or its name: some hundreds at most."""
        rows = [*self._kernels(asked), *self._lessons(asked)]
        return [StoredItem(**{**row, "embedding": _bytes(row["embedding"])}) for row in rows]

    def holders(self, terms: Sequence[str]) -> Mapping[str, int]:
        """How many kernels have each word; words that none has are left out."""
        rows = self._session.execute(_HOLDERS, {"terms": list(terms)})
        return {term: holders for term, holders in rows}

    def texts(self, ids: Sequence[str]) -> Mapping[str, tuple[str, str]]:
        """Title and text of kernels and lessons."""
        if not ids:
            return {}
        rows = self._session.execute(_STORED_TEXTS, {"ids": list(ids)})
        return {row.id: (row.title, row.text) for row in rows}

    def meanings(self, ids: Sequence[str]) -> Mapping[str, bytes]:
        """The embedder's vectors of those among the items and problems that have one; nothing without an embedder."""
        return {} if self._embedder is None else meanings.vectors_of(self._session, self._embedder, ids)

    def retired(self) -> frozenset[str]:
        """The ids of items that are shown to nobody."""
        return frozenset(self._session.scalars(select(KnowledgeRetirement.item_id)))

    def winning_params(
        self, language: str, hardware_kin: str, op_family: str, names: Sequence[str] = ()
    ) -> Sequence[tuple[str, str, Mapping[str, Any]]]:
        """Id, title and values of kernels of the family that declare tunables of these names, the fastest first;
        without names, of any that declare tunables."""
        place = {"language": language, "hardware_kin": hardware_kin, "op_family": op_family}
        parameters = {**place, "names": list(names), "count": len(names), "most": MAX_HINTS}
        return [(row.id, row.title, row.params) for row in self._session.execute(_WINNING_PARAMS, parameters)]

    def _kernels(self, asked: Asked) -> Sequence[Mapping[Any, Any]]:
        holders = self.holders(asked.terms)
        parameters = _parameters(asked) | {
            "problem_hash": asked.problem_hash,
            # No kernel that was learned from has an empty family, so an unknown one finds none.
            "op_family": asked.op_family or "unknown",
            "rare": " | ".join(_rare(holders)),
            "every": " | ".join(sorted(holders)),
        }
        return self._session.execute(SQL["narrow_kernels"], parameters).mappings().all()

    def _lessons(self, asked: Asked) -> Sequence[Mapping[Any, Any]]:
        parameters = _parameters(asked) | {
            # Without a family its words must tell which lessons are about the question: all are ranked by them.
            "any_family": asked.op_family is None,
            "op_families": ["", asked.op_family or ""],
            "error": asked.error or "",
            "error_message": asked.error_message,
        }
        return self._session.execute(_NARROW_LESSONS, parameters).mappings().all()


def store_uses(session: Session, candidate_id: str, *, retrieval: bool, uses: Sequence[NewUse]) -> None:
    """Write down what came up for a candidate, once: a second attempt at its proposal is told the same."""
    session.execute(
        update(Candidate).where(Candidate.id == candidate_id).values(retrieval=retrieval),
        execution_options={"synchronize_session": "fetch"},
    )
    rows = [
        {
            "candidate_id": candidate_id,
            "item_id": use.item_id,
            "kind": use.kind,
            "place": place,
            "rank": use.rank,
            "score": use.score,
            "parts": dict(use.parts),
            "shown": use.shown,
            "title": storable_text(use.title),
            "text": storable_text(use.text),
        }
        for place, use in enumerate(uses, start=1)
    ]
    if rows:
        session.execute(insert(KnowledgeUse).values(rows).on_conflict_do_nothing())


def uses_of(session: Session, candidate_id: str) -> Sequence[KnowledgeUse]:
    """What came up for a candidate, in the order in which prompts take it."""
    query = select(KnowledgeUse).where(KnowledgeUse.candidate_id == candidate_id).order_by(KnowledgeUse.place)
    return session.scalars(query).all()


def _parameters(asked: Asked) -> dict[str, Any]:
    return {"language": asked.language, "hardware_kin": asked.hardware_kin, "title": asked.title}


def _rare(holders: Mapping[str, int]) -> list[str]:
    """The rarest words, as many as together have few kernels; the rarest in any case."""
    rare: list[str] = []
    total = 0
    for term, count in sorted(holders.items(), key=lambda pair: (pair[1], pair[0]))[:MAX_RARE_TERMS]:
        total += count
        if rare and total > MAX_RARE_HOLDERS:
            break
        rare.append(term)
    return rare


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
