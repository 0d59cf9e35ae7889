"""The migrations: they make what the models say, they go back, and one migrator runs at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import CheckConstraint, Engine, create_engine, inspect, text

from cli.embedded.postgres import EmbeddedPostgres
from db.tables import Base
from tests.support.schema import alembic_config, migrate


@pytest.fixture
def empty_url(postgres: EmbeddedPostgres, admin: Engine) -> Iterator[str]:
    with admin.connect() as connection:
        connection.execute(text("CREATE DATABASE to_migrate"))
    yield postgres.url_for("to_migrate")
    with admin.connect() as connection:
        connection.execute(text("DROP DATABASE to_migrate WITH (FORCE)"))


def tables(url: str) -> set[str]:
    engine = create_engine(url)
    found = set(inspect(engine).get_table_names())
    engine.dispose()
    return found


def test_there_is_one_head() -> None:
    assert len(ScriptDirectory.from_config(alembic_config("")).get_heads()) == 1


def test_the_models_and_the_migrated_schema_agree(empty_url: str) -> None:
    migrate(empty_url)
    command.check(alembic_config(empty_url))
    assert tables(empty_url) == {*Base.metadata.tables, "alembic_version"}


def test_the_checks_of_the_schema_hold_the_vocabulary_of_the_models(database_url: str) -> None:
    """`alembic check` does not compare CHECK constraints."""
    engine = create_engine(database_url)
    with engine.connect() as connection:
        rows = connection.execute(
            text(
                "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint"
                " WHERE contype = 'c' AND connamespace = 'public'::regnamespace"
            )
        )
        found = {name: set(re.findall(r"'([^']*)'", definition)) for name, definition in rows}
    engine.dispose()
    declared = {
        str(constraint.name): set(re.findall(r"'([^']*)'", str(constraint.sqltext)))
        for table in Base.metadata.tables.values()
        for constraint in table.constraints
        if isinstance(constraint, CheckConstraint)
    }
    assert found == declared


def test_down_and_up_again(empty_url: str) -> None:
    migrate(empty_url)
    command.downgrade(alembic_config(empty_url), "base")
    assert tables(empty_url) == {"alembic_version"}
    migrate(empty_url)
    assert tables(empty_url) >= set(Base.metadata.tables)


_HISTORY = (
    "INSERT INTO problems (hash, name, source) VALUES ('p', 'p', '')",
    "INSERT INTO jobs (id, problem_hash, problem_name, hardware, language, budget_candidates, stop_reason, finished_at)"
    " SELECT 'job_' || reason, 'p', 'p', 'cpu', 'cpp', 1, reason, CASE WHEN reason <> 'stagnated' THEN now() END"
    " FROM unnest(ARRAY['exhausted', 'error', 'stagnated', 'cancelled']) AS reason",
    "INSERT INTO candidates (id, job_id, ordinal, operator, proposer)"
    " SELECT 'cand_' || stop_reason, id, 1, 'seed', 'builtin' FROM jobs WHERE stop_reason <> 'cancelled'",
    "INSERT INTO evaluations (id, candidate_id, job_id, verdict) SELECT 'e' || id, id, job_id, 'ok' FROM candidates",
)


def test_jobs_that_ended_before_there_was_a_knowledge_base_are_queued_to_be_learned_from(empty_url: str) -> None:
    migrate(empty_url, "0003")
    engine = create_engine(empty_url)
    with engine.begin() as connection:
        for statement in _HISTORY:
            connection.execute(text(statement))
    migrate(empty_url)
    with engine.connect() as connection:
        queued = connection.execute(text("SELECT kind, state, job_id, candidate_id FROM work")).all()
    engine.dispose()
    assert [tuple(row) for row in queued] == [("learn", "queued", "job_exhausted", None)]


def test_migrators_that_start_together_take_turns(empty_url: str) -> None:
    """Alembic itself keeps global state, so the second migrator is only its lock, held for a moment."""
    engine = create_engine(empty_url)
    key = "hashtextextended('kernelwright migrations', 0)"
    with engine.connect() as other, ThreadPoolExecutor(1) as pool:
        other.execute(text(f"SELECT pg_advisory_lock({key})"))
        migration = pool.submit(migrate, empty_url)
        with pytest.raises(TimeoutError):
            migration.result(timeout=1)
        assert tables(empty_url) == set()
        other.execute(text(f"SELECT pg_advisory_unlock({key})"))
        migration.result(timeout=30)
    engine.dispose()
    assert tables(empty_url) >= set(Base.metadata.tables)
