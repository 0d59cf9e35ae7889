"""Vectors of texts by an embedding model: claimed before they are paid for, stored with their price.

    items = claim(session, embedder)                     # commit; then ask the model
    store(session, embedder, items, vectors, usd)        # or, when that failed: release(session, embedder, items, 60)
    vectors_of(session, embedder, ids)                   # for the shelf

A claim is a lease, as in the ledger: when it has run out, the texts lack a vector again. It needs no fencing: a late
writer's vectors are as good as another's, and its price is added, since the money is spent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_DOWN, Decimal
from pathlib import Path
from typing import Any, Final

from sqlalchemy import func, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from db.knowledge_models import Meaning
from db.statements import load_statements

SQL: Final = load_statements(Path(__file__).with_name("meanings.sql"))

BATCH: Final = 32
"""Texts in one call: most providers take more, but what is lost with a failed call shall be little."""

CHARACTERS: Final = 6_000
"""Of each text: with code at three characters a token it fits the 8,000 tokens that common models read, and 32 of them
what a provider takes in one call."""

_KEY: Final = ("item_id", "embedder")
_SMALLEST_SHARE: Final = Decimal("1e-12")

LEASE_S: Final = 300.0
"""Longer than a call, and than the halves into which a refused one is split."""


@dataclass(frozen=True, slots=True)
class Lacking:
    """A text that is claimed for embedding. `claimed_until` marks this claim among later ones."""

    item_id: str
    text: str
    text_hash: str
    claimed_until: datetime


def claim(session: Session, embedder: str, most: int = BATCH) -> list[Lacking]:
    """Take up to `most` texts that lack a vector of this embedder, for `LEASE_S` seconds; commit before paying."""
    session.execute(SQL["lock"])
    found = _lacking(session, embedder, most)
    if not found:
        return []
    until = session.scalars(select(func.now() + _seconds(LEASE_S))).one()
    new = insert(Meaning).values(
        [{"item_id": row.item_id, "embedder": embedder, "claimed_until": until} for row in found]
    )
    # An older vector stays beside the claim: it is better than none meanwhile.
    session.execute(
        new.on_conflict_do_update(index_elements=_KEY, set_={"claimed_until": new.excluded.claimed_until}),
        execution_options={"synchronize_session": False},
    )
    return [Lacking(row.item_id, row.text, row.text_hash, until) for row in found]


def lacks(session: Session, embedder: str) -> bool:
    """Whether any text could be claimed now."""
    return bool(_lacking(session, embedder, 1))


def store(
    session: Session, embedder: str, items: Sequence[Lacking], vectors: Sequence[bytes], usd: Decimal | None
) -> None:
    """Store packed vectors, and the price of the call that brought them, split over its rows: their sum is what was
    paid, to the last digit. None is unknown, never zero. Raises ValueError unless each item has its vector."""
    rows = [
        {"item_id": item.item_id, "embedder": embedder, "vector": vector, "text_hash": item.text_hash, "usd": share}
        for item, vector, share in zip(items, vectors, _shares(usd, len(items)), strict=True)
    ]
    new = insert(Meaning).values(sorted(rows, key=lambda row: str(row["item_id"])))
    session.execute(
        new.on_conflict_do_update(
            index_elements=_KEY,
            set_={
                "vector": new.excluded.vector,
                "text_hash": new.excluded.text_hash,
                "usd": func.coalesce(Meaning.usd + new.excluded.usd, Meaning.usd, new.excluded.usd),
                "claimed_until": None,
            },
        ),
        execution_options={"synchronize_session": False},
    )


def release(session: Session, embedder: str, items: Sequence[Lacking], retry_s: float) -> None:
    """Give claims back after a failure, to be taken again in `retry_s`. Claims that others hold by now stay theirs."""
    held = [(item.item_id, item.claimed_until) for item in items]
    session.execute(
        update(Meaning)
        .where(Meaning.embedder == embedder, tuple_(Meaning.item_id, Meaning.claimed_until).in_(held))
        .values(claimed_until=func.now() + _seconds(retry_s)),
        execution_options={"synchronize_session": False},
    )


def vectors_of(session: Session, embedder: str, ids: Sequence[str]) -> Mapping[str, bytes]:
    """The packed vectors of those among the items that have one of this embedder."""
    query = select(Meaning.item_id, Meaning.vector).where(Meaning.embedder == embedder, Meaning.item_id.in_(ids))
    return {item_id: bytes(vector) for item_id, vector in session.execute(query) if vector is not None}


def _lacking(session: Session, embedder: str, most: int) -> Sequence[Any]:
    parameters = {"embedder": embedder, "most": most, "characters": CHARACTERS}
    return session.execute(SQL["lacking"], parameters).all()


def _shares(usd: Decimal | None, count: int) -> Sequence[Decimal | None]:
    """Equal ones, and what does not divide goes with the first."""
    if usd is None:
        return [None] * count
    share = (usd / count).quantize(_SMALLEST_SHARE, ROUND_DOWN)
    return [usd - share * (count - 1)] + [share] * (count - 1)


def _seconds(seconds: float) -> Any:
    return func.make_interval(0, 0, 0, 0, 0, 0, seconds)
