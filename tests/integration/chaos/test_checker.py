"""The checker of the chaos harness can fail: each violation is planted in sound rows or in a journal, and is found."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.chaos.checker.rows import RULES, check_rows
from tests.chaos.checker.summary import check_summary
from tests.chaos.checker.told import check_told
from tests.chaos.checker.traces import check_environments, check_left, check_processes, check_secrets, shared_memory
from tests.chaos.checker.violations import Violation
from tests.chaos.signals import command, tree
from tests.integration.chaos.conftest import World

Plant = Callable[[World], None]


def sql(*statements: str) -> Plant:
    """Rows that the service would not write."""

    def plant(world: World) -> None:
        for statement in statements:
            world.run(statement)

    return plant


_SECOND_EVALUATION = (
    "ALTER TABLE evaluations DROP CONSTRAINT uq_evaluations_candidate_id",
    """INSERT INTO evaluations (id, candidate_id, job_id, verdict)
       SELECT 'eval_2', candidate_id, job_id, verdict FROM evaluations WHERE candidate_id = :candidate""",
)
_SECOND_CALL = (
    "DROP INDEX uq_llm_calls_finished",
    """INSERT INTO llm_calls (id, job_id, candidate_id, key, model, state, answer, cost_usd)
       SELECT 'call_2', job_id, candidate_id, key, model, 'finished', answer, cost_usd FROM llm_calls
       WHERE candidate_id = :candidate""",
)
_EVENT = "INSERT INTO events (job_id, type, data) VALUES (:job, "
_LEASED = """UPDATE work SET state = 'running', lease_owner = 'worker_1', lease_token = gen_random_uuid(),
             lease_expires_at = now() WHERE candidate_id = :candidate AND kind = 'evaluate'"""

# What is planted, and a part of the sentences that must come of it.
ROWS: tuple[tuple[Plant, tuple[str, ...]], ...] = (
    (sql("UPDATE jobs SET state = 'running', finished_at = NULL"), ("did not end in a terminal state",)),
    (sql("UPDATE jobs SET stop_reason = 'error'"), ("did not end in a terminal state", "its end says other")),
    (sql("UPDATE jobs SET state = 'failed'"), ("its end says other",)),
    (sql(_EVENT + "'job.finished', '{}')"), ("not exactly one end", "its version", "a job's version")),
    (sql("UPDATE work SET state = 'queued' WHERE kind = 'propose'"), ("a unit of work never ended",)),
    (sql(_LEASED), ("a lease is still there", "never ended", "done work has no evaluation")),
    (sql("UPDATE candidates SET state = 'evaluating' WHERE id = :candidate"), ("never settled", "one evaluation")),
    (sql(*_SECOND_EVALUATION), ("more than one evaluation", "told other than once", "device time")),
    (sql("DELETE FROM evaluations WHERE candidate_id = :candidate"), ("one too few", "done work has no evaluation")),
    (
        sql(_EVENT + "'candidate.evaluated', jsonb_build_object('candidate_id', CAST(:candidate AS text)))"),
        ("an evaluation was told", "evaluation was told other than once", "after the job's end"),
    ),
    (
        sql("UPDATE work SET state = 'cancelled' WHERE candidate_id = :candidate AND kind = 'evaluate'"),
        ("an evaluation's work is not done",),
    ),
    (
        sql(*_SECOND_CALL),
        ("booked more than once", "two finished calls", "paid for twice", "not the sum of its calls", "rows of its"),
    ),
    (sql("UPDATE jobs SET cost_usd = cost_usd + 0.2"), ("not the sum of its calls",)),
    (sql("UPDATE candidates SET cost_usd = 0 WHERE id = :candidate"), ("not that of its candidates",)),
    (sql("UPDATE jobs SET llm_calls = 9"), ("a job's calls are not",)),
    (sql("UPDATE jobs SET gpu_s = 99"), ("a job's device time",)),
    (sql("UPDATE jobs SET budget_candidates = 1"), ("more candidates than its budget",)),
    (sql("UPDATE jobs SET budget_calls = 1"), ("more calls than its cap",)),
    (sql("UPDATE jobs SET budget_usd = 0.1, cost_usd = 1.9"), ("what was under way",)),
    (sql("UPDATE candidates SET ordinal = 7 WHERE ordinal = 2"), ("ordinals have gaps",)),
    (sql("UPDATE candidates SET parents = '{cand_none}' WHERE id = :candidate"), ("parent is missing",)),
    (sql("DELETE FROM events WHERE type = 'job.started'"), ("something changed untold",)),
    (sql("DELETE FROM events WHERE type = 'candidate.created'"), ("making was told other than once",)),
    (sql("DELETE FROM events WHERE type = 'job.created'"), ("an event is out of order",)),
)


def sentences(found: list[Violation]) -> str:
    return "\n".join(violation.sentence for violation in found)


def test_what_is_sound_is_found_sound(world: World) -> None:
    assert check_rows(world.connection, 0.2) == []
    assert check_told(world.connection, world.journal) == []


@pytest.mark.parametrize(("plant", "expected"), ROWS, ids=[expected[0] for _, expected in ROWS])
def test_what_is_planted_in_the_rows_is_found(world: World, plant: Plant, expected: tuple[str, ...]) -> None:
    plant(world)
    found = sentences(check_rows(world.connection, 0.2))
    assert any(part in found for part in expected), found
    assert all(violation.rows for violation in check_rows(world.connection, 0.2))


def test_each_rule_was_broken_by_something_planted(world: World) -> None:
    broken = set()
    for plant, _ in ROWS:
        with world.connection.begin_nested() as planted:
            plant(world)
            broken |= {violation.sentence.partition(" x ")[2] for violation in check_rows(world.connection, 0.2)}
            planted.rollback()
    assert {rule.sentence for rule in RULES} - broken == set()


def told(**changed: Any) -> Plant:
    """A line more in the journal."""
    return lambda world: world.journal.write(**{"job_id": world.job_id, **changed})


JOURNAL: tuple[tuple[Plant, str], ...] = (
    (told(what="accepted", key="key-1", job_id="job_2"), "a job that is not there"),
    (told(what="accepted", key="key-1", job_id="job_2"), "answered with two jobs"),
    (told(what="accepted", key="key-2"), "a key stands for another job"),
    (sql("DELETE FROM idempotency_keys"), "a job is there that no key stands for"),
    (sql("INSERT INTO idempotency_keys (key, request_hash, job_id) VALUES ('x', '', :job)"), "no client sent"),
    (told(what="refused", key="key-3", status=422, text="no"), "was refused what is right"),
    (told(what="missing"), "was refused what is right"),
    (told(what="ended", state="failed", stop_reason="stagnated"), "ended other than its client was told"),
    (told(what="cancelled", status=202, changed=True), "a job whose cancel was accepted ended otherwise"),
    (told(what="event", seq=1, type="job.created", data={}), "twice or out of order"),
    (told(what="event", seq=10_000, type="job.improved", data={}), "of one that is not there"),
    (sql(_EVENT + "'job.improved', '{}')"), ""),
    (sql("UPDATE events SET type = 'job.improved' WHERE type = 'job.started'"), "was not told of an event"),
    (sql("UPDATE events SET data = '{\"other\": 1}' WHERE type = 'job.started'"), "was not told of an event"),
    (sql("DELETE FROM events WHERE type = 'job.started'"), "of one that is not there"),
)


@pytest.mark.parametrize(("plant", "expected"), JOURNAL, ids=[f"{n} {part}" for n, (_, part) in enumerate(JOURNAL)])
def test_what_a_client_was_told_is_held_against_the_rows(world: World, plant: Plant, expected: str) -> None:
    plant(world)
    found = check_told(world.connection, world.journal)
    # An event after the last that a client saw is no gap: it may not have been told yet.
    assert (expected in sentences(found)) if expected else found == []


def test_a_skipped_event_is_a_gap(world: World) -> None:
    lines = world.journal.path.read_text().splitlines()
    world.journal.path.write_text("\n".join(line for line in lines if "job.started" not in line) + "\n")
    assert "was not told of an event" in sentences(check_told(world.connection, world.journal))


SUMMARY: dict[str, Any] = {
    "jobs": {"live": {"running": 0}, "ended_24h": {"succeeded": 1, "failed": 0}},
    "queues": [{"name": "cpu", "ready": 0, "delayed": 0, "running": 0}],
    "today": {"usd": "0.400000", "gpu_s": 0.5},
}


@pytest.mark.parametrize(
    "changed",
    [
        {"jobs": {"live": {"running": 1}, "ended_24h": {"succeeded": 1}}},
        {"jobs": {"live": {}, "ended_24h": {"succeeded": 2}}},
        {"queues": [{"name": "cpu", "ready": 1, "delayed": 0, "running": 0}]},
        {"queues": [{"name": "cpu", "ready": 0, "delayed": 0, "running": 1}]},
        {"today": {"usd": "0.2", "gpu_s": 0.5}},
        {"today": {"usd": "0.4", "gpu_s": 0.75}},
    ],
)
def test_the_summary_is_counted_again(world: World, changed: dict[str, Any]) -> None:
    assert check_summary(world.connection, SUMMARY) == []
    assert "/v1/summary" in sentences(check_summary(world.connection, SUMMARY | changed))


def test_a_secret_is_found_in_any_row_file_or_text(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()

    def found() -> str:
        texts = {"the prompts": "sk-canary-3 and more"}
        secrets = {"one": "sk-canary-1", "two": "sk-canary-2", "three": "sk-canary-3", "four": "sk-canary-4"}
        return "\n".join(str(each) for each in check_secrets(secrets, world.connection, [folder], texts))

    assert "three in the prompts" in found() and "one" not in found()
    world.run("UPDATE candidates SET failure_detail = 'refused sk-canary-1' WHERE id = :candidate")
    (folder / "a.log").write_text("sk-canary-2")
    assert "one in the table candidates (1 rows)" in found()
    assert f"two in {folder / 'a.log'}" in found()
    assert "four" not in found()


def test_a_file_and_a_shared_memory_segment_that_were_left_are_found(tmp_path: Path) -> None:
    before = shared_memory()
    (tmp_path / "counts").mkdir()
    (tmp_path / "counts" / "kept.db").write_text("")
    assert check_left(tmp_path, before) == []
    (tmp_path / "candidate-17").write_text("")
    assert "a temporary file" in sentences(check_left(tmp_path, before))
    segment = SharedMemory(create=True, size=16)
    try:
        (left,) = [each for each in check_left(tmp_path, before) if "shared memory" in each.sentence]
        assert f"posix {segment.name}" in str(left)
    finally:
        segment.close()
        segment.unlink()


def test_a_process_that_belongs_to_nobody_is_found() -> None:
    # What the fixtures started before belongs to somebody; of it nothing is asked here.
    others = tree(os.getpid())[1:]
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    environment = {"PLANTED": "sk-canary-5"}
    with subprocess.Popen(sleeper, env=environment) as process:
        try:
            while not command(process.pid):  # it has been started, and is not there yet
                time.sleep(0.01)
            (orphan,) = check_processes(others)
            assert f"pid {process.pid}" in orphan.rows[0]
            assert check_processes([*others, process.pid]) == []
            assert check_environments("sk-canary-5", [], [process.pid]) != []
            assert check_environments("sk-canary-5", [process.pid], [process.pid]) == []
        finally:
            process.kill()


def test_the_planted_rows_are_rolled_back(world: World) -> None:
    """The tests above share a database: what one plants must not be there for the next."""
    assert world.connection.execute(text("SELECT count(*) FROM jobs")).scalar_one() == 1
