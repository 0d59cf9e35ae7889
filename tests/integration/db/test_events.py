"""The event log: in the order of the commits, gapless for a reader that pages, and heard by listeners."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
from sqlalchemy.orm import Session, sessionmaker

from db import events
from db.vocabulary import EventType
from tests.support.ledger import fresh, make_job

Sessions = sessionmaker[Session]


def test_pages_begin_after_the_last_seen(sessions: Sessions) -> None:
    job, other = make_job(sessions), make_job(sessions)
    with sessions.begin() as session:
        for number in range(3):
            events.append(session, job.id, EventType.WORK_RETURNED, {"number": number})
            events.append(session, other.id, EventType.WORK_RETURNED)
    with sessions.begin() as session:
        first = events.page(session, job.id, limit=2)
        rest = events.page(session, job.id, after=first[-1].seq)
    assert [event.type for event in first] == ["job.created", "work.returned"]
    assert [event.data["number"] for event in rest] == [1, 2]


def test_a_reader_that_pages_while_many_write_misses_nothing(sessions: Sessions) -> None:
    job = make_job(sessions)

    def write(number: int) -> None:
        for _ in range(20):
            with sessions.begin() as session:
                events.append(session, job.id, EventType.WORK_RETURNED, {"writer": number})

    seen: list[int] = []
    with ThreadPoolExecutor(6) as pool:
        writers = [pool.submit(write, number) for number in range(6)]
        while True:
            finished = all(writer.done() for writer in writers)
            with sessions.begin() as session:
                seen += [event.seq for event in events.page(session, job.id, after=seen[-1] if seen else 0, limit=7)]
            if finished and len(seen) >= 121:
                break
    assert len(seen) == len(set(seen)) == 121
    assert fresh(sessions, job).version == 1 + 121


def test_a_listener_hears_of_the_commit(sessions: Sessions, database_url: str) -> None:
    job = make_job(sessions)
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as listener:
        listener.execute(f"LISTEN {events.CHANNEL}")
        with sessions.begin() as session:
            events.append(session, job.id, EventType.WORK_RETURNED)
            events.append(session, job.id, EventType.WORK_RETURNED)
        heard = [notice.payload for notice in listener.notifies(timeout=10, stop_after=1)]
        heard += [notice.payload for notice in listener.notifies(timeout=0.2)]
    assert heard == [job.id]


def test_an_event_rolls_back_with_its_change(sessions: Sessions) -> None:
    job = make_job(sessions)
    before = fresh(sessions, job).version
    with sessions() as session:
        events.append(session, job.id, EventType.WORK_RETURNED)
        session.rollback()
    with sessions.begin() as session:
        assert len(events.page(session, job.id)) == 1
    assert fresh(sessions, job).version == before
