"""Keys take turns at the workers: nobody waits for another key's thousand jobs, and a claim looks at few rows."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.types import Text

from db import jobs, ledger
from db.account_models import ApiKey
from db.ledger import Claim
from tests.support.ledger import OWNER, make_candidates, make_job, propose

Sessions = sessionmaker[Session]


@pytest.fixture
def team(sessions: Sessions) -> dict[str, str]:
    """Jobs of three keys and of none, by who submitted them."""
    with sessions.begin() as session:
        for name in ("a", "b", "c"):
            session.add(ApiKey(id=f"key_{name}", name=name, token_hash=name))
    return {name: make_job(sessions, key_id=f"key_{name}").id for name in ("a", "b", "c")} | {"": make_job(sessions).id}


def fill(sessions: Sessions, job_id: str, rows: int, **columns: Any) -> None:
    """Queued work of a job: rows alone, as only the ledger looks at them."""
    values = {"priority": 0, "queue": "cpu"} | columns
    with sessions.begin() as session:
        session.execute(
            text(
                "INSERT INTO candidates (id, job_id, ordinal, operator, proposer)"
                " SELECT 'cand_' || :job || n, :job, n, 'seed', 'builtin' FROM generate_series(1, :rows) AS n"
            ),
            {"job": job_id, "rows": rows},
        )
        session.execute(
            text(
                "INSERT INTO work (id, kind, queue, job_id, candidate_id, share_of, priority)"
                " SELECT 'work_' || :job || lpad(n::text, 9, '0'), 'propose', :queue, :job, 'cand_' || :job || n,"
                " coalesce((SELECT key_id FROM jobs WHERE id = :job), ''), :priority"
                " FROM generate_series(1, :rows) AS n"
            ),
            {"job": job_id, "rows": rows, **values},
        )


def claim(sessions: Sessions, queues: tuple[str, ...] = ("cpu",)) -> Claim:
    with sessions.begin() as session:
        claimed = ledger.claim_next(session, queues, OWNER)
    assert claimed is not None
    return claimed


def finish(sessions: Sessions, claimed: Claim) -> None:
    with sessions.begin() as session:
        assert ledger.finish(session, claimed)


def test_a_keys_first_work_does_not_wait_for_another_keys_three_hundred(
    sessions: Sessions, team: dict[str, str]
) -> None:
    fill(sessions, team["a"], 300)
    for _ in range(3):
        finish(sessions, claim(sessions))
    make_candidates(sessions, _job(sessions, team["b"]))
    assert team["b"] in [claim(sessions).job_id for _ in range(2)]


def test_one_worker_serves_the_keys_in_turns_and_each_keys_work_in_its_order(
    sessions: Sessions, team: dict[str, str]
) -> None:
    for name, rows in (("a", 9), ("b", 3), ("c", 3), ("", 3)):
        fill(sessions, team[name], rows)
    claimed = []
    for _ in range(18):
        claimed.append(claim(sessions))
        finish(sessions, claimed[-1])
    served = [each.job_id for each in claimed]
    assert Counter(served[:12]) == dict.fromkeys(team.values(), 3)
    assert all(len(set(served[turn : turn + 4])) == 4 for turn in range(0, 12, 4))
    of_a = [each.id for each in claimed if each.job_id == team["a"]]
    assert of_a == sorted(of_a) and len(of_a) == 9


def test_many_workers_are_shared_evenly_also_when_one_keys_work_takes_long(
    sessions: Sessions, team: dict[str, str]
) -> None:
    fill(sessions, team["a"], 8)
    slow = [claim(sessions) for _ in range(4)]
    fill(sessions, team["b"], 8)
    assert [claim(sessions).job_id for _ in range(4)] == [team["b"]] * 4
    assert {claim(sessions).job_id for _ in range(2)} == {team["a"], team["b"]}
    assert {each.job_id for each in slow} == {team["a"]}


def test_priority_goes_before_turns_and_each_queue_has_its_own(sessions: Sessions, team: dict[str, str]) -> None:
    fill(sessions, team["a"], 3, priority=5)
    fill(sessions, team["b"], 3)
    fill(sessions, team["c"], 2, queue="gpu.nvidia-h100", priority=9)
    assert [claim(sessions).job_id for _ in range(3)] == [team["a"]] * 3
    assert claim(sessions, ("cpu", "gpu.nvidia-h100")).job_id == team["c"]
    assert claim(sessions).job_id == team["b"]


def test_a_key_whose_work_is_not_due_or_cancelled_is_passed_over(sessions: Sessions, team: dict[str, str]) -> None:
    fill(sessions, team["a"], 2, priority=5)
    fill(sessions, team["b"], 2, priority=5)
    fill(sessions, team["c"], 1)
    with sessions.begin() as session:
        session.execute(text("UPDATE work SET not_before = now() + interval '1 h' WHERE share_of = 'key_a'"))
        session.execute(text("UPDATE jobs SET cancel_requested = true WHERE id = :id"), {"id": team["b"]})
    assert claim(sessions).job_id == team["c"]


@pytest.mark.parametrize("ending", [False, True])
@pytest.mark.parametrize("held", [0, 1, 3])
def test_a_jobs_place_is_the_order_in_which_claims_come_to_it(
    sessions: Sessions, team: dict[str, str], held: int, ending: bool
) -> None:
    """`held`: work of the first key that runs already. `ending`: each claimed work ends before the next is claimed."""
    control = ("control",)
    for _ in team:  # the jobs that made the team start, and leave a time at which each key was served
        finish(sessions, claim(sessions, control))
    for _ in range(held):
        make_job(sessions, key_id="key_a")
        claim(sessions, control)
    waiting = [make_job(sessions, key_id=f"key_{name}").id for name in "aaaabbcaab"]
    waiting.append(make_job(sessions).id)
    with sessions.begin() as session:
        places = ledger.places(session)
    assert sorted(places.values()) == list(range(1, 12))
    claimed = []
    for _ in waiting:
        claimed.append(claim(sessions, control))
        if ending:
            finish(sessions, claimed[-1])
    if held == 0 or not ending:
        assert [each.job_id for each in claimed] == sorted(waiting, key=places.__getitem__)
    assert claimed[0].job_id == min(waiting, key=places.__getitem__)


def test_an_urgent_job_is_next_whoever_has_more(sessions: Sessions, team: dict[str, str]) -> None:
    urgent = make_job(sessions, key_id="key_a", priority=3).id
    with sessions.begin() as session:
        places = ledger.places(session)
    assert places[urgent] == 1 and sorted(places.values()) == [1, 2, 3, 4, 5]


def test_a_job_that_is_started_or_not_due_is_not_before_others(sessions: Sessions) -> None:
    first, later, last = (make_job(sessions).id for _ in range(3))
    started = claim(sessions, ("control",))
    with sessions.begin() as session:
        session.execute(text("UPDATE work SET not_before = now() + interval '1 h' WHERE job_id = :id"), {"id": later})
    assert started.job_id == first
    with sessions.begin() as session:
        assert ledger.places(session) == {last: 1, later: 2}


def test_places_read_the_rows_that_wait_and_no_others(sessions: Sessions, team: dict[str, str]) -> None:
    with sessions.begin() as session:
        session.execute(
            text(
                "INSERT INTO jobs (id, problem_hash, problem_name, hardware, language, budget_candidates, state,"
                " finished_at) SELECT 'job_old' || n, problem_hash, problem_name, hardware, language, 1, 'succeeded',"
                " now() FROM jobs, generate_series(1, 5000) AS n WHERE jobs.id = :id"
            ),
            {"id": team["a"]},
        )
        session.execute(
            text(
                "INSERT INTO work (id, kind, queue, job_id, state, share_of, claimed_at, finished_at)"
                " SELECT 'work_old' || n, 'advance', 'control', 'job_old' || n, 'done', 'key_a', now(), now()"
                " FROM generate_series(1, 5000) AS n"
            )
        )
        session.execute(text("ANALYZE work, jobs"))
    with sessions.begin() as session:
        statement = text(f"EXPLAIN (ANALYZE, FORMAT JSON) {ledger.SQL['places'].text}")
        plan = session.execute(statement).scalar_one()[0]["Plan"]
    scanned = list(scans(plan))
    read = sum(each["Actual Rows"] * each["Actual Loops"] for each in scanned)
    removed = sum(each.get("Rows Removed by Filter", 0) * each["Actual Loops"] for each in scanned)
    assert read < 50 and removed < 50, json.dumps(plan, indent=1)


@pytest.mark.parametrize("rows", [20_000, pytest.param(100_000, marks=pytest.mark.exhaustive)])
def test_a_claim_reads_few_rows_of_many(sessions: Sessions, team: dict[str, str], rows: int) -> None:
    fill(sessions, team["a"], rows)
    fill(sessions, team["b"], 1_000, priority=-3)
    with sessions.begin() as session:
        # What was served before is on record too, and takes no longer.
        session.execute(
            text(
                "UPDATE work SET state = 'done', claimed_at = now() - interval '1 h' WHERE share_of = 'key_a'"
                " AND id IN (SELECT id FROM work WHERE share_of = 'key_a' AND kind = 'propose' ORDER BY id LIMIT 5000)"
            )
        )
    with sessions.begin() as session:
        session.execute(text("ANALYZE work"))
        plan = explained(session, "claim_next", kept_s=3.0)
    scanned = list(scans(plan))
    assert {each["Node Type"] for each in scanned if each["Relation Name"] == "work"} <= {
        "Index Scan",
        "Index Only Scan",
    }, json.dumps(plan, indent=1)
    assert all(each["Index Name"] == "ix_work_ready" for each in scanned if each["Alias"] == "ready")
    read = sum(each["Actual Rows"] * each["Actual Loops"] for each in scanned)
    removed = sum(each.get("Rows Removed by Filter", 0) * each["Actual Loops"] for each in scanned)
    assert read < 50 and removed < 50, json.dumps(plan, indent=1)
    with sessions.begin() as session:
        session.execute(text("TRUNCATE work, candidates CASCADE"))  # deleting so many rows one by one takes long


def test_to_stay_with_a_job_reads_few_rows_of_many(sessions: Sessions, team: dict[str, str]) -> None:
    fill(sessions, team["a"], 20_000)
    fill(sessions, team["b"], 1_000, priority=-3)
    mine, _ids = evaluations(sessions, 5, key_id="key_a")
    with sessions.begin() as session:
        session.execute(text("UPDATE work SET state = 'done' WHERE queue <> 'cpu'"))
        session.execute(text("ANALYZE work, jobs"))
        plan = explained(session, "claim_near", job_id=mine)
    scanned = list(scans(plan))
    read = sum(each["Actual Rows"] * each["Actual Loops"] for each in scanned)
    removed = sum(each.get("Rows Removed by Filter", 0) * each["Actual Loops"] for each in scanned)
    assert 0 < read < 50 and removed < 50, json.dumps(plan, indent=1)
    with sessions.begin() as session:
        session.execute(text("TRUNCATE work, candidates CASCADE"))


def explained(session: Session, name: str, **parameters: Any) -> dict[str, Any]:
    statement = text(f"EXPLAIN (ANALYZE, FORMAT JSON) {ledger.SQL[name].text}")
    found = session.execute(
        statement.bindparams(bindparam("queues", type_=ARRAY(Text()))),
        {"queues": ["cpu", "llm"], "owner": OWNER, "lease_s": 45.0} | parameters,
    )
    plan: dict[str, Any] = found.scalar_one()[0]["Plan"]
    return plan


def scans(node: dict[str, Any]) -> Any:
    if "Relation Name" in node and "Scan" in node["Node Type"]:
        yield node
    for below in node.get("Plans", ()):
        yield from scans(below)


def _job(sessions: Sessions, job_id: str) -> Any:
    with sessions.begin() as session:
        return jobs.fetch_job(session, job_id)


def evaluations(sessions: Sessions, count: int, **overrides: Any) -> tuple[str, list[str]]:
    """A job with candidates to be evaluated."""
    job = make_job(sessions, **overrides)
    ids = make_candidates(sessions, job, count)
    for number, candidate_id in enumerate(ids):
        propose(sessions, candidate_id, f"NUMBER = {number}")
    with sessions.begin() as session:
        session.execute(text("DELETE FROM work WHERE kind = 'advance'"))
    return job.id, ids


def near(sessions: Sessions, job_id: str, owner: str = OWNER) -> str | None:
    with sessions.begin() as session:
        claimed = ledger.claim_near(session, job_id, ["cpu", "llm"], owner)
    return claimed.candidate if claimed is not None else None


def test_a_worker_stays_with_the_job_that_it_has_evaluated(sessions: Sessions) -> None:
    """Its judge has the problem prepared."""
    evaluations(sessions, 2)
    mine, ids = evaluations(sessions, 3)
    assert [near(sessions, mine) for _turn in range(4)] == [*ids, None]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE work SET priority = 1 WHERE job_id <> :mine",
        "UPDATE work SET share_of = 'another' WHERE job_id <> :mine",
        "UPDATE work SET share_of = '' WHERE job_id <> :mine",
        "UPDATE work SET priority = 1, queue = 'llm' WHERE job_id <> :mine",
        "UPDATE work SET queue = 'gpu.nvidia-h100' WHERE job_id = :mine AND state = 'queued'",
        "UPDATE jobs SET cancel_requested = true WHERE id = :mine",
        "UPDATE work SET not_before = now() + interval '1 h' WHERE job_id = :mine",
        "UPDATE work SET state = 'done' WHERE job_id = :mine AND state = 'queued'",
        "INSERT INTO workers (id, hostname, pid, queues, state) VALUES (:owner, 'h', 1, '{}', 'draining')",
    ],
)
def test_a_worker_leaves_its_job_for_what_comes_first(sessions: Sessions, change: str) -> None:
    evaluations(sessions, 2)
    mine, ids = evaluations(sessions, 2)
    with sessions.begin() as session:
        session.execute(text("UPDATE work SET share_of = 'key' WHERE share_of = ''"))
    assert near(sessions, mine) == ids[0]
    with sessions.begin() as session:
        session.execute(text(change), {"mine": mine, "owner": OWNER})
    assert near(sessions, mine) is None


def test_work_that_is_not_due_keeps_nobody_from_the_job_it_has_evaluated(sessions: Sessions) -> None:
    evaluations(sessions, 2)
    mine, ids = evaluations(sessions, 1)
    with sessions.begin() as session:
        delay = "UPDATE work SET priority = 5, not_before = now() + interval '1 h' WHERE job_id <> :mine"
        session.execute(text(delay), {"mine": mine})
    assert near(sessions, mine) == ids[0]
