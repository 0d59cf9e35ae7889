"""Deliveries from the event to a real receiver and back: retried, redone after kill -9, never lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_network
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from db import jobs, outbox, webhooks
from db.session import make_engine, make_sessions
from db.vocabulary import StopReason, WebhookType
from db.webhook_models import WebhookDelivery
from db.webhooks import NewWebhook
from tests.support.ledger import make_job
from tests.support.receiver import Receiver, Reply
from worker import delivering
from worker.delivering import Deliverer
from worker.metrics import REGISTRY

Sessions = sessionmaker[Session]
HERE = (ip_network("127.0.0.0/8"),)
KILLED = """
import os, signal, sys, time
from ipaddress import ip_network

from db.session import make_engine, make_sessions
from worker.delivering import Deliverer
from worker.posting import post


def post_and_die(sending, allowed):
    post(sending, allowed)
    os.kill(os.getpid(), signal.SIGKILL)


sessions = make_sessions(make_engine(sys.argv[1], "killed"))
Deliverer(sessions, (ip_network("127.0.0.0/8"),), post=post_and_die, poll_s=0.05, lease_s=2).start()
time.sleep(300)
"""


def make(sessions: Sessions, url: str) -> tuple[str, str]:
    """A webhook for ended jobs; its id and its secret."""
    with sessions.begin() as session:
        row = webhooks.create_webhook(session, NewWebhook(url, [WebhookType.JOB_FINISHED.value], {}), None)
        return row.id, row.secret


def finish_a_job(sessions: Sessions) -> str:
    job = make_job(sessions)
    with sessions.begin() as session:
        jobs.finish_job(session, job.id, StopReason.EXHAUSTED)
    return job.id


def deliveries(sessions: Sessions, webhook_id: str) -> list[WebhookDelivery]:
    with sessions.begin() as session:
        return list(webhooks.list_deliveries(session, webhook_id).items)


def until(condition: Callable[[], Any], within_s: float = 15.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


def ended(sessions: Sessions, webhook_id: str) -> bool:
    return all(row.state != "waiting" for row in deliveries(sessions, webhook_id))


@contextmanager
def delivering_to_the_end(sessions: Sessions, **options: Any) -> Iterator[Deliverer]:
    deliverer = Deliverer(sessions, HERE, poll_s=0.05, **options)
    deliverer.start()
    try:
        yield deliverer
    finally:
        deliverer.stop()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "DELAYS_S", (0.05,) * len(outbox.DELAYS_S))


@pytest.mark.usefixtures("soon")
def test_what_fails_is_sent_again_with_the_same_id_until_it_is_taken(sessions: Sessions) -> None:
    with Receiver(Reply(500, body=b"not yet"), Reply(503), Reply(204)) as receiver:
        webhook_id, secret = make(sessions, receiver.url)
        job_id = finish_a_job(sessions)
        before = counted("retried")
        with delivering_to_the_end(sessions):
            until(lambda: ended(sessions, webhook_id))
        got = receiver.wait(3)
    (row,) = deliveries(sessions, webhook_id)
    assert (row.state, row.attempt, row.status, row.answer) == ("succeeded", 3, 204, "")
    assert {each.headers["webhook-id"] for each in got} == {row.id}
    assert [each.verified(secret)["data"]["job"]["id"] for each in got] == [job_id] * 3
    assert len({each.body for each in got}) == 1
    assert counted("retried") == before + 2


def counted(outcome: str) -> float:
    return REGISTRY.get_sample_value("kernelwright_webhook_deliveries_total", {"outcome": outcome}) or 0.0


def test_a_sender_killed_between_sending_and_settling_is_made_good(sessions: Sessions, database_url: str) -> None:
    with Receiver() as receiver:
        webhook_id, secret = make(sessions, receiver.url)
        job_id = finish_a_job(sessions)
        killed = subprocess.run([sys.executable, "-c", KILLED, database_url], timeout=250, check=False)
        assert killed.returncode == -signal.SIGKILL
        assert len(receiver.got) == 1
        (row,) = deliveries(sessions, webhook_id)
        assert (row.state, row.attempt, row.status) == ("waiting", 1, None)
        with delivering_to_the_end(sessions):
            until(lambda: ended(sessions, webhook_id))
            time.sleep(0.3)
        first, second = receiver.got
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == row.id
    assert first.verified(secret) == second.verified(secret)
    assert second.verified(secret)["data"]["job"]["id"] == job_id
    (row,) = deliveries(sessions, webhook_id)
    assert (row.state, row.attempt) == ("succeeded", 2)


def test_a_slow_endpoint_holds_up_no_other(sessions: Sessions) -> None:
    let_go = threading.Event()
    with Receiver(Reply(before=lambda: let_go.wait(10) and None)) as slow, Receiver() as quick:
        slow_id, _ = make(sessions, slow.url)
        quick_id, _ = make(sessions, quick.url)
        for _ in range(6):
            finish_a_job(sessions)
        with delivering_to_the_end(sessions, threads=4):
            quick.wait(6)
            assert len(slow.got) == 2
            let_go.set()
            until(lambda: ended(sessions, slow_id) and ended(sessions, quick_id))
    assert len(slow.got) == len(quick.got) == 6


def test_one_that_answers_410_is_sent_nothing_more(sessions: Sessions) -> None:
    with Receiver(Reply(410)) as receiver:
        webhook_id, _ = make(sessions, receiver.url)
        finish_a_job(sessions)
        with delivering_to_the_end(sessions):
            until(lambda: ended(sessions, webhook_id))
            finish_a_job(sessions)
            time.sleep(0.3)
        assert len(receiver.got) == 1
    (row,) = deliveries(sessions, webhook_id)
    assert (row.state, row.status) == ("failed", 410)


@pytest.fixture
def apart(database_url: str) -> Iterator[Sessions]:
    """A sender's own connections, which can be cut while the test's stay."""
    engine = make_engine(database_url, "sender")
    yield make_sessions(engine)
    engine.dispose()


def test_a_sender_outlives_its_database_and_a_webhook_that_goes(sessions: Sessions, apart: Sessions) -> None:
    def remove() -> None:
        with sessions.begin() as session:
            session.execute(text("DELETE FROM webhooks"))

    with Receiver() as receiver:
        webhook_id, _ = make(sessions, receiver.url)

        def cut() -> bool:
            with sessions.begin() as session:
                pids = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'sender'"
                return session.execute(text(pids)).all() != []

        with delivering_to_the_end(apart):
            until(cut)
            finish_a_job(sessions)
            until(lambda: len(receiver.got) == 1 and ended(sessions, webhook_id))

    remove()  # or the second job is delivered to the first receiver as well, which is lost too
    with Receiver(Reply(before=remove)) as receiver:
        make(sessions, receiver.url)
        finish_a_job(sessions)
        before = counted("lost")
        with delivering_to_the_end(sessions):
            until(lambda: counted("lost") == before + 1)


def test_who_is_asked_to_stop_settles_what_it_sends(sessions: Sessions) -> None:
    asked = threading.Event()
    with Receiver(Reply(before=lambda: asked.set() or time.sleep(0.5))) as receiver:
        webhook_id, _ = make(sessions, receiver.url)
        finish_a_job(sessions)
        deliverer = Deliverer(sessions, HERE, poll_s=0.05)
        deliverer.start()
        assert asked.wait(10)
        deliverer.stop()
    (row,) = deliveries(sessions, webhook_id)
    assert (row.state, row.status) == ("succeeded", 204)
    assert delivering.STOP_S < 10, "kernelwright up gives a worker ten seconds"
