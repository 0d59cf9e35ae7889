"""Backup, upgrade and downgrade of a database in the middle of its work: no row is lost, and the work goes on."""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session, sessionmaker

from cli.embedded.postgres import EmbeddedPostgres, find_binaries
from db import events, ledger
from db.ledger import Claim, Fenced
from db.session import make_engine, make_sessions
from db.vocabulary import WorkKind
from tests.support.busy import Fleet, assert_sound, make_busy, serve
from tests.support.schema import alembic_config, migrate

Sessions = sessionmaker[Session]
Rows = dict[str, list[dict[str, Any]]]
_numbers = itertools.count(1)


@pytest.fixture
def new_database(postgres: EmbeddedPostgres, admin: Engine) -> Iterator[Callable[[], str]]:
    """Makes empty databases; their URLs."""
    made = []

    def make() -> str:
        made.append(f"busy_{next(_numbers)}")
        with admin.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {made[-1]}"))
        return postgres.url_for(made[-1])

    yield make
    with admin.connect() as connection:
        for name in made:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
def connect() -> Iterator[Callable[[str], Sessions]]:
    engines = []

    def open_sessions(url: str) -> Sessions:
        engines.append(make_engine(url, "tests"))
        return make_sessions(engines[-1])

    yield open_sessions
    for engine in engines:
        engine.dispose()


@pytest.fixture
def busy(new_database: Callable[[], str], connect: Callable[[str], Sessions]) -> tuple[str, Sessions, list[Claim]]:
    url = new_database()
    migrate(url)
    sessions = connect(url)
    return url, sessions, make_busy(sessions)


def rows(sessions: Sessions) -> Rows:
    """Every row of every table."""
    with sessions.begin() as session:
        tables = session.scalars(
            text("SELECT relname FROM pg_stat_user_tables WHERE relname <> 'alembic_version' ORDER BY 1")
        ).all()
        return {
            table: sorted(
                session.scalars(text(f"SELECT to_jsonb({table}) FROM {table}")), key=lambda row: json.dumps(row)
            )
            for table in tables
        }


def assert_kept(before: Rows, after: Rows) -> None:
    """Each row of a table that both have, in the columns that both have."""
    for table in before.keys() & after.keys():
        columns = {name for row in after[table][:1] for name in row}
        shared = [{name: value for name, value in row.items() if name in columns} for row in before[table]]
        left = [{name: row[name] for name in row if name in set(before[table][0])} for row in after[table]]
        assert sorted(map(json.dumps, left)) == sorted(map(json.dumps, shared)), table


def previous_revision() -> str:
    script = ScriptDirectory.from_config(alembic_config(""))
    head = script.get_revision("head")
    assert head is not None and isinstance(head.down_revision, str)
    return head.down_revision


def lapse(sessions: Sessions) -> None:
    """The fleet that held the leases is dead, and its time is over."""
    with sessions.begin() as session:
        session.execute(text("UPDATE work SET lease_expires_at = now() - interval '1 s' WHERE state = 'running'"))
        session.execute(text("UPDATE work SET not_before = now() WHERE state = 'queued'"))


def tool(name: str, *arguments: str) -> None:
    done = subprocess.run([str(find_binaries() / name), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_dump_of_a_busy_database_goes_on_elsewhere(
    busy: tuple[str, Sessions, list[Claim]],
    new_database: Callable[[], str],
    connect: Callable[[str], Sessions],
    tmp_path: Path,
) -> None:
    url, sessions, _ = busy
    dump = tmp_path / "kernelwright.dump"
    with Fleet(sessions) as fleet:
        fleet.until_served(2)
        tool("pg_dump", "--format=custom", f"--file={dump}", url.replace("+psycopg", ""))
    elsewhere = new_database()
    arguments = ("--clean", "--if-exists", "--no-owner", f"--dbname={elsewhere.replace('+psycopg', '')}")
    tool("pg_restore", *arguments, str(dump))
    command.check(alembic_config(elsewhere))
    restored = connect(elsewhere)
    with restored.begin() as session:
        held = session.scalar(text("SELECT count(*) FROM work WHERE state = 'running'"))
        submitted = set(session.scalars(text("SELECT id FROM jobs")))
        newest = session.scalar(text("SELECT max(seq) FROM events"))
    with sessions.begin() as session:
        assert set(session.scalars(text("SELECT id FROM jobs"))) == submitted
    assert held >= 3, "the dump has work that somebody held, or this shows nothing"
    lapse(restored)
    with Fleet(restored) as fleet:
        fleet.until_all_have_ended()
    assert_sound(restored)
    with restored.begin() as session:
        after = text("SELECT count(*) FROM events WHERE seq > :seq")
        assert session.scalar(after, {"seq": newest}), "numbers of events go on after those of the dump"
        session.execute(text("DELETE FROM evaluations WHERE id = (SELECT min(id) FROM evaluations)"))
    with pytest.raises(AssertionError, match="without their one evaluation"):
        assert_sound(restored)


def test_the_last_migration_goes_down_and_up_under_a_busy_database(busy: tuple[str, Sessions, list[Claim]]) -> None:
    url, sessions, _ = busy
    before = rows(sessions)
    command.downgrade(alembic_config(url), previous_revision())
    sessions.kw["bind"].dispose()
    below = rows(sessions)
    assert_kept(before, below)
    migrate(url)
    sessions.kw["bind"].dispose()
    assert_kept(below, rows(sessions))
    command.check(alembic_config(url))
    lapse(sessions)
    with Fleet(sessions) as fleet:
        fleet.until_all_have_ended()
    assert_sound(sessions)


class OldWorker(threading.Thread):
    """A worker of the code before: it knows the statements of the ledger, and no column that the upgrade brings."""

    def __init__(self, sessions: Sessions) -> None:
        super().__init__()
        self.sessions = sessions
        self.stop = threading.Event()
        self.claimed = threading.Event()
        self.failures: list[BaseException] = []
        self.finished = 0

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                self._work()
        except BaseException as error:  # noqa: BLE001 - a thread hands it to the test
            self.failures.append(error)

    def _work(self) -> None:
        with self.sessions.begin() as session:
            claim = ledger.claim_next(session, ["llm"], "old")
        if claim is None:
            self.stop.wait(0.01)
            return
        self.claimed.set()
        with self.sessions.begin() as session:
            assert ledger.renew(session, claim).held
        with self.sessions.begin() as session:
            finish_as_before(session, claim)
            self.finished += 1


def finish_as_before(session: Session, claim: Claim) -> None:
    """A proposal that made nothing, in the statements of the ledger alone: they are the same before and after."""
    events.lock_job(session, claim.job_id)
    ledger.settle(session, claim)
    session.execute(
        text("UPDATE candidates SET state = 'rejected', failure = 'no_code' WHERE id = :id"),
        {"id": claim.candidate},
    )
    session.execute(text("UPDATE jobs SET version = version + 1 WHERE id = :id"), {"id": claim.job_id})
    session.execute(text("INSERT INTO events (job_id, type) VALUES (:id, 'candidate.rejected')"), {"id": claim.job_id})
    ledger.enqueue(session, kind=WorkKind.ADVANCE, queue="control", job_id=claim.job_id)


def test_an_upgrade_under_workers_of_the_code_before_loses_nothing(busy: tuple[str, Sessions, list[Claim]]) -> None:
    url, sessions, held = busy
    command.downgrade(alembic_config(url), previous_revision())
    sessions.kw["bind"].dispose()
    before = rows(sessions)
    old = OldWorker(sessions)
    old.start()
    try:
        assert old.claimed.wait(30)
        migrate(url)
    finally:
        old.stop.set()
        old.join()
    assert old.failures == [] and old.finished > 0
    after = rows(sessions)
    for table in ("jobs", "candidates", "work", "events", "evaluations", "llm_calls"):
        key = "seq" if table == "events" else "id"
        assert {row[key] for row in before[table]} <= {row[key] for row in after[table]}, table
    for table in ("evaluations", "llm_calls", "problems", "idempotency_keys", "kernels"):
        assert_kept({table: before[table]}, {table: after[table]})
    # What was claimed before the upgrade is finished after it, by tokens of before; one of them comes too late.
    _, proposal, evaluation = held
    with sessions.begin() as session:
        serve(session, evaluation)
    lapse(sessions)
    with Fleet(sessions) as fleet:
        fleet.until_all_have_ended()
    with pytest.raises(Fenced), sessions.begin() as session:
        serve(session, proposal)
    assert_sound(sessions)
