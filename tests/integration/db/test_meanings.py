"""Claims on texts to embed, and what is stored of them, against a real Postgres."""

from __future__ import annotations

from decimal import Decimal

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from db import jobs, meanings
from db.knowledge import Shelf
from db.knowledge_models import Meaning
from db.meanings import CHARACTERS, Lacking
from db.vocabulary import StopReason
from tests.support.ledger import make_job

Sessions = sessionmaker[Session]
MODEL = "openai/embedder"


def claim(sessions: Sessions, most: int = 32, embedder: str = MODEL) -> list[Lacking]:
    with sessions.begin() as session:
        return meanings.claim(session, embedder, most)


def store(sessions: Sessions, items: list[Lacking], vector: bytes, usd: Decimal | None) -> None:
    with sessions.begin() as session:
        meanings.store(session, MODEL, items, [vector] * len(items), usd)


def row(sessions: Sessions, item_id: str) -> Meaning:
    with sessions() as session:
        return session.get_one(Meaning, (item_id, MODEL))


def expire(sessions: Sessions) -> None:
    with sessions.begin() as session:
        session.execute(text("UPDATE meanings SET claimed_until = now() - interval '1 s'"))


def add_lesson(sessions: Sessions, number: int, state: str = "confirmed") -> None:
    new = text(
        "INSERT INTO lessons (id, kind, language, hardware_kin, key, statement, state, title, text)"
        " VALUES (:id, 'change', 'cpp', 'x86', :id, '', :state, 'a title', 'a text')"
    )
    with sessions.begin() as session:
        session.execute(new, {"id": f"lesson_{number}", "state": state})


def test_problems_of_live_jobs_come_first_and_lessons_that_are_told(sessions: Sessions) -> None:
    ended = make_job(sessions, problem_hash="ended")
    with sessions.begin() as session:
        jobs.finish_job(session, ended.id, StopReason.EXHAUSTED)
    make_job(sessions, problem_hash="live", problem_source="x" * 2 * CHARACTERS)
    for number, state in enumerate(("confirmed", "tentative", "quarantined")):
        add_lesson(sessions, number, state)
    (first,) = claim(sessions, most=1)
    assert (first.item_id, len(first.text)) == ("problem:live", CHARACTERS)
    assert first.text.startswith("softmax\n\nxxx")
    (second,) = claim(sessions)
    assert (second.item_id, second.text) == ("lesson_0", "a title\n\na text")
    assert claim(sessions) == []


def test_a_claim_is_one_embedders(sessions: Sessions) -> None:
    add_lesson(sessions, 0)
    assert len(claim(sessions)) == len(claim(sessions, embedder="another")) == 1
    with sessions() as session:
        assert not meanings.lacks(session, MODEL)
        assert meanings.lacks(session, "a third")


def test_a_price_is_shared_by_the_rows_of_its_call(sessions: Sessions) -> None:
    for number in range(3):
        add_lesson(sessions, number)
    items = claim(sessions)
    store(sessions, items, b"v", Decimal("0.0000004"))
    shares = [row(sessions, item.item_id).usd for item in items]
    assert sum(share or 0 for share in shares) == Decimal("0.0000004")
    assert [share and round(share, 9) for share in shares] == [Decimal("0.000000133")] * 3


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [(None, None, None), ("0.5", None, "0.5"), (None, "0.25", "0.25"), ("0.5", "0.25", "0.75")],
)
def test_a_late_writers_price_is_kept_as_well(
    sessions: Sessions, first: str | None, second: str | None, kept: str | None
) -> None:
    add_lesson(sessions, 0)
    late = claim(sessions)
    expire(sessions)
    store(sessions, claim(sessions), b"one", Decimal(first) if first else None)
    store(sessions, late, b"two", Decimal(second) if second else None)
    assert row(sessions, "lesson_0").usd == (Decimal(kept) if kept else None)
    assert claim(sessions) == []


def test_a_late_release_leaves_the_claim_of_another(sessions: Sessions) -> None:
    add_lesson(sessions, 0)
    late = claim(sessions)
    expire(sessions)
    (held,) = claim(sessions)
    with sessions.begin() as session:
        meanings.release(session, MODEL, late, retry_s=0)
    assert row(sessions, "lesson_0").claimed_until == held.claimed_until
    with sessions.begin() as session:
        meanings.release(session, MODEL, [held], retry_s=0)
    assert len(claim(sessions)) == 1


def test_each_item_has_its_vector_or_nothing_is_stored(sessions: Sessions) -> None:
    add_lesson(sessions, 0)
    items = claim(sessions)
    with pytest.raises(ValueError, match="zip"), sessions.begin() as session:
        meanings.store(session, MODEL, items, [], None)
    assert row(sessions, "lesson_0").vector is None


def test_a_shelf_hands_out_the_vectors_of_its_embedder_and_none_without_one(sessions: Sessions) -> None:
    for number in range(2):
        add_lesson(sessions, number)
    store(sessions, claim(sessions, most=1), b"\x01\xff", None)
    claim(sessions)
    ids = ["lesson_0", "lesson_1", "lesson_2"]
    with sessions() as session:
        assert Shelf(session, MODEL).meanings(ids) == {"lesson_0": b"\x01\xff"}
        assert Shelf(session, MODEL).meanings(ids[1:]) == {}
        assert Shelf(session, "another").meanings(ids) == Shelf(session).meanings(ids) == {}
