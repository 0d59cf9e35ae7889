"""The row in `workers`: written, kept alive, written again, taken out."""

from __future__ import annotations

import subprocess
import time

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from db import workers
from db.models import Worker
from db.session import make_engine, make_sessions
from db.settings import Settings
from db.vocabulary import WorkKind
from db.workers import WorkerFacts
from tests.support.ledger import OWNER, claim_kind, make_job, states
from worker import registry, runtime
from worker.judge.timing.device_state import DeviceState
from worker.judge.version import judge_hash
from worker.registry import Membership

Sessions = sessionmaker[Session]


def rows(sessions: Sessions) -> list[Worker]:
    with sessions.begin() as session:
        return list(workers.list_workers(session, include_gone=True))


def wait_for(condition: object, seconds: float = 20) -> bool:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_membership_beats_and_comes_back_after_its_row_was_lost(sessions: Sessions) -> None:
    membership = Membership(sessions, WorkerFacts("worker_1", "box", 1, ("cpu",), "cpu", {"cores": 2}), beat_s=0.05)
    membership.join()
    (first,) = rows(sessions)
    assert wait_for(lambda: rows(sessions)[0].heartbeat_at > first.heartbeat_at)
    with sessions.begin() as session:
        session.execute(text("DELETE FROM workers"))
    assert wait_for(lambda: bool(rows(sessions)))
    membership.leave()
    (row,) = rows(sessions)
    assert (row.id, row.state, row.device) == ("worker_1", "gone", {"cores": 2})


def test_what_a_stopping_worker_has_in_hand_is_given_back_after_a_while(
    configured: Settings, sessions: Sessions
) -> None:
    make_job(sessions)
    membership = Membership(sessions, WorkerFacts(OWNER, "box", 1, ("cpu",), "cpu"), beat_s=60)
    membership.join()
    claim_kind(sessions, WorkKind.ADVANCE)
    release = membership.release_after(5)
    assert states(sessions, WorkKind.ADVANCE) == ["running"]
    release.join()  # it logs last: a thread that prints while pytest takes sys.stdout away can crash the interpreter
    assert states(sessions, WorkKind.ADVANCE) == ["queued"]
    membership.leave()


def test_a_stopping_worker_claims_nothing_more(configured: Settings, sessions: Sessions) -> None:
    membership = Membership(sessions, WorkerFacts(OWNER, "box", 1, ("cpu",), "cpu"), beat_s=60)
    membership.join()
    membership.drain().join()
    assert rows(sessions)[0].state == "draining"
    membership.leave()
    assert rows(sessions)[0].state == "gone"


def test_a_worker_that_stops_while_the_database_is_away_leaves_it_to_its_lease(
    capfd: pytest.CaptureFixture[str],
) -> None:
    away = make_sessions(make_engine("postgresql+psycopg://nobody@127.0.0.1:9/none", "test"))
    Membership(away, WorkerFacts(OWNER, "box", 1, ("cpu",), "cpu")).release_after(0.0).join()
    assert "worker.release_failed" in capfd.readouterr().out


def test_a_beat_says_how_the_device_is(sessions: Sessions) -> None:
    readings = iter([DeviceState(1755, 2619, 412.5, 61, ("power cap",))] * 40)
    facts = WorkerFacts("worker_1", "box", 1, ("gpu.nvidia-h100",), "nvidia-h100")
    membership = Membership(sessions, facts, beat_s=0.05, read=lambda: next(readings, None))
    membership.join()
    known = {
        "sm_mhz": 1755,
        "memory_mhz": 2619,
        "power_w": 412.5,
        "temperature_c": 61,
        "throttled": ["power cap"],
    }
    seen = []
    assert wait_for(lambda: seen.append(rows(sessions)[0].device_state) or seen[-1] == known)
    assert wait_for(lambda: rows(sessions)[0].device_state is None)  # what nothing tells any more is not believed
    membership.leave()


def test_joining_describes_the_device_and_names_the_runtime(configured: Settings, sessions: Sessions) -> None:
    registry.join(("cpu", "llm"))
    (row,) = rows(sessions)
    assert (row.hardware, row.queues, row.state) == ("cpu", ["cpu", "llm"], "active")
    assert row.device["hardware"] == "cpu" and row.device["cores"] >= 1
    assert row.device["judge"] == judge_hash()
    here = runtime.current()
    assert (here.owner, here.queues) == (row.id, ("cpu", "llm"))
    assert runtime.current() is here
    runtime.close()
    registry.leave()
    registry.leave()
    assert rows(sessions)[0].state == "gone"


def test_what_describes_the_device_is_given_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWRIGHT_DATABASE_URL", "postgresql://u:planted@h/db")
    monkeypatch.setenv("OPENAI_API_KEY", "planted")
    given: list[dict[str, str]] = []

    def run(command: list[str], *, env: dict[str, str], **options: object) -> subprocess.CompletedProcess[str]:
        given.append(env)
        return subprocess.CompletedProcess(command, 0, "{}", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert registry.describe("cpu") == {}
    assert "PATH" in given[0] and "planted" not in str(given)


def test_a_worker_without_hardware_describes_nothing(configured: Settings, sessions: Sessions) -> None:
    registry.join(("control",))
    (row,) = rows(sessions)
    assert (row.hardware, row.device) == (None, {})
    registry.leave()


def test_a_device_that_is_not_there_is_said_to_be_unknown() -> None:
    facts = registry.describe("nvidia-h9000")
    assert list(facts) == ["error"]
    assert "no nvidia-h9000 here" in facts["error"]


def test_a_device_that_takes_too_long_is_said_to_be_unknown() -> None:
    assert "timed out" in registry.describe("cpu", timeout_s=0.01)["error"]
