"""The workers table: alive, draining, gone and back."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from db import ledger, workers
from db.vocabulary import WorkerState
from db.workers import WorkerFacts
from tests.support.ledger import make_candidates, make_job

Sessions = sessionmaker[Session]


def join(sessions: Sessions, worker_id: str = "worker_1", **fields: Any) -> None:
    facts: dict[str, Any] = {"hostname": "box", "pid": 7, "queues": ("cpu",), "hardware": "cpu", "device": {"cores": 2}}
    with sessions.begin() as session:
        workers.register(session, WorkerFacts(worker_id, **facts | fields))


def silence(sessions: Sessions, worker_id: str, seconds: int) -> None:
    with sessions.begin() as session:
        session.execute(
            text("UPDATE workers SET heartbeat_at = now() - make_interval(secs => :s) WHERE id = :id"),
            {"s": seconds, "id": worker_id},
        )


def live(sessions: Sessions, queue: str = "cpu") -> int:
    with sessions.begin() as session:
        return workers.live_workers(session, queue)


def test_a_worker_counts_for_the_queues_that_it_serves(sessions: Sessions) -> None:
    join(sessions)
    join(sessions, "worker_2", queues=("llm", "gpu.nvidia-h100"), hardware="nvidia-h100")
    assert (live(sessions), live(sessions, "llm"), live(sessions, "control")) == (1, 1, 0)
    with sessions.begin() as session:
        assert workers.served_queues(session) == {"cpu", "llm", "gpu.nvidia-h100"}


def test_a_silent_worker_is_gone_before_anybody_marks_it_and_back_at_the_next_beat(sessions: Sessions) -> None:
    join(sessions)
    silence(sessions, "worker_1", 61)
    assert live(sessions) == 0
    with sessions.begin() as session:
        assert workers.list_workers(session) == []
        assert workers.mark_gone(session) == ["worker_1"]
    with sessions.begin() as session:
        assert workers.mark_gone(session) == []
        assert workers.list_workers(session, include_gone=True)[0].state == "gone"
        assert workers.beat(session, "worker_1") is WorkerState.ACTIVE
    assert live(sessions) == 1


def test_a_beat_without_a_row_says_so(sessions: Sessions) -> None:
    with sessions.begin() as session:
        assert workers.beat(session, "worker_1") is None


def test_a_draining_worker_gets_no_work_and_stays_draining(sessions: Sessions) -> None:
    make_candidates(sessions, make_job(sessions))
    join(sessions)
    with sessions.begin() as session:
        assert workers.set_state(session, "worker_1", WorkerState.DRAINING)
        assert not workers.set_state(session, "worker_9", WorkerState.DRAINING)
    with sessions.begin() as session:
        assert workers.beat(session, "worker_1") is WorkerState.DRAINING
        assert ledger.claim_next(session, ["cpu"], "worker_1") is None
    assert live(sessions) == 0
    with sessions.begin() as session:
        assert ledger.claim_next(session, ["cpu"], "worker_2") is not None


def test_device_facts_are_those_of_the_worker_heard_last(sessions: Sessions) -> None:
    join(sessions, "worker_1", device={"cores": 2})
    join(sessions, "worker_2", device={"cores": 64})
    join(sessions, "worker_3", device={})
    silence(sessions, "worker_1", 30)
    with sessions.begin() as session:
        assert workers.device_facts(session, "cpu") == {"cores": 64}
        assert workers.device_facts(session, "nvidia-h100") == {}


def test_current_work_is_shown_and_cleared_when_the_worker_leaves(sessions: Sessions) -> None:
    join(sessions)
    with sessions.begin() as session:
        workers.set_current(session, "worker_1", "work_1")
    with sessions.begin() as session:
        assert workers.list_workers(session)[0].current_work == "work_1"
        workers.set_state(session, "worker_1", WorkerState.GONE)
    with sessions.begin() as session:
        assert workers.list_workers(session, include_gone=True)[0].current_work is None
