"""Admitting with the real judge: the finding is stored, and whatever interrupts it is not the problem's fault."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import text

from db import jobs, recovery
from db.admissions import find_admission
from db.ledger import Claim, Fenced
from db.vocabulary import WorkKind
from tests.integration.worker.test_evaluating import BROKEN_PROBLEM
from tests.support.ledger import PROBLEM, claim_kind, event_types, fresh, make_job, states
from tests.support.working import Working
from worker.admitting import admit
from worker.heartbeat import CancelRequested
from worker.judge.version import judge_hash
from worker.runtime import Runtime

RANDOM = PROBLEM.replace("torch.softmax(x, -1)", "x + torch.randn_like(x)")
STUCK = PROBLEM.replace("import torch\n", "import time\n\nimport torch\n\ntime.sleep(600)\n", 1)


def test_the_judges_finding_becomes_the_admission(here: Runtime) -> None:
    job = make_job(here.sessions, admit=True)
    admit(here, claim_kind(here.sessions, WorkKind.ADMIT))
    with here.sessions.begin() as session:
        found = find_admission(session, job.problem_hash, "cpu", judge_hash())
    assert found is not None and found.verdict.startswith("admitted")
    assert found.report["domains"]["x"]["kind"] == "real"
    assert len(found.report["families"]) >= 5
    assert fresh(here.sessions, job).admission_id == found.id
    assert event_types(here.sessions, job.id)[-1] == "problem.admitted"

    second = make_job(here.sessions, admit=True)
    assert fresh(here.sessions, second).admission_id == found.id
    assert states(here.sessions, WorkKind.ADMIT) == ["done"]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (BROKEN_PROBLEM, "no such operation"),
        (RANDOM, "the reference is random"),
        ("import nothing_such\n" + PROBLEM, "nothing_such"),
    ],
)
def test_a_problem_that_cannot_be_judged_ends_the_job_and_says_why(here: Runtime, source: str, says: str) -> None:
    job = make_job(here.sessions, admit=True, problem_hash="broken", problem_source=source)
    admit(here, claim_kind(here.sessions, WorkKind.ADMIT))
    after = fresh(here.sessions, job)
    assert (after.state, after.stop_reason) == ("failed", "error")
    assert (after.error or "").startswith("the problem cannot be judged: ") and says in (after.error or "")
    assert states(here.sessions, WorkKind.ADVANCE) == ["cancelled"]


def test_what_another_job_found_meanwhile_is_reused(here: Runtime) -> None:
    first, second = make_job(here.sessions, admit=True), make_job(here.sessions, admit=True)
    admit(here, claim_kind(here.sessions, WorkKind.ADMIT))
    here.judge("cpu").close()
    began = time.monotonic()
    admit(here, claim_kind(here.sessions, WorkKind.ADMIT))
    assert here.judge("cpu")._processes == {}, f"a judge was asked again, for {time.monotonic() - began:.1f} s"
    assert fresh(here.sessions, second).admission_id == fresh(here.sessions, first).admission_id is not None


def stuck(here: Runtime) -> tuple[str, Claim]:
    job = make_job(here.sessions, admit=True, problem_hash="stuck", problem_source=STUCK)
    return job.id, claim_kind(here.sessions, WorkKind.ADMIT)


def test_a_cancel_kills_the_examination(here: Runtime) -> None:
    job_id, claim = stuck(here)
    with Working(admit, here, claim) as running, here.sessions.begin() as session:
        jobs.cancel_job(session, job_id)
    assert isinstance(running.raised, CancelRequested)


def test_a_lost_lease_kills_the_examination_and_stores_nothing(here: Runtime) -> None:
    _, claim = stuck(here)
    with Working(admit, here, claim) as running, here.sessions.begin() as session:
        session.execute(text("UPDATE work SET lease_token = gen_random_uuid() WHERE id = :id"), {"id": claim.id})
    assert isinstance(running.raised, Fenced)
    with here.sessions.begin() as session:
        assert session.execute(text("SELECT count(*) FROM admissions")).scalar_one() == 0


def test_a_judge_that_dies_gives_the_work_back_without_counting_it(here: Runtime) -> None:
    _, claim = stuck(here)
    with Working(admit, here, claim) as running:
        running.lose_the_judge()
    assert running.raised is None
    with here.sessions.begin() as session:
        row = session.execute(text("SELECT state, attempt, returned FROM work WHERE kind = 'admit'")).one()
    assert tuple(row) == ("queued", 0, 1)


def test_a_fenced_claim_never_reaches_the_judge(here: Runtime) -> None:
    _, claim = stuck(here)
    with here.sessions.begin() as session:
        recovery.give_back(session, claim, "elsewhere")
    with pytest.raises(Fenced):
        admit(here, claim)
