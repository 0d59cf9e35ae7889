"""Learning from jobs that have ended, and what later proposals are told of it."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, text

from db import candidates, certificates, jobs, knowledge, recovery, uplift
from db.knowledge_models import KnowledgeRetirement, KnowledgeUse, Lesson, LessonEvidence
from db.ledger import Claim, Fenced
from db.models import Candidate, Job, Kernel
from db.vocabulary import StopReason, WorkKind, WorkState
from search.knowledge.holdout import retrieval_on
from search.prompts import build_prompt
from tests.support.ledger import (
    PROBLEM,
    claim_kind,
    evaluate,
    event_types,
    expire,
    make_candidates,
    make_job,
    propose,
    states,
)
from worker import learning
from worker.briefing import Brief, read_brief
from worker.judge.certificate.document import document_hash
from worker.learning import learn
from worker.runtime import Runtime

SLOW = """
import torch

TUNABLES = {"BLOCK": [64, 128]}
BLOCK = 64


class ModelNew(torch.nn.Module):
    pass
"""
ERROR = "candidate.cpp:3:1: error: '_mm512_foo_ps' was not declared in this scope"
BROKEN: dict[str, Any] = {
    "verdict": "build_error",
    "reason": "the build failed",
    "log": ERROR,
    "speedup": None,
    "ci95": None,
}
MODEL = "openai/scripted"


def finish(here: Runtime, job: Job) -> None:
    with here.sessions.begin() as session:
        jobs.finish_job(session, job.id, StopReason.BUDGET_CANDIDATES)


def learn_from(here: Runtime, job: Job) -> None:
    finish(here, job)
    learn(here, claim_kind(here.sessions, WorkKind.LEARN))


def searched(here: Runtime, gain: float = 1.5, number: int = 0, **fields: Any) -> tuple[Job, list[str]]:
    """A job in which raising BLOCK gained so much; not finished."""
    job = make_job(here.sessions, **{"problem_hash": f"hash {number}"} | fields)
    (parent,) = make_candidates(here.sessions, job)
    propose(here.sessions, parent, f"{SLOW}# {number}\n", tunable=True, plan="one pass over each row")
    evaluate(here.sessions, parent, speedup=1.0, ci95=[0.99, 1.01])
    (child,) = make_candidates(here.sessions, job, operator="tune", parents=(parent,))
    propose(here.sessions, child, SLOW.replace("BLOCK = 64", "BLOCK = 128") + f"# {number}\n", plan="tune: BLOCK=128")
    evaluate(here.sessions, child, speedup=gain, ci95=[gain * 0.99, gain * 1.01])
    return job, [parent, child]


def certify(here: Runtime, job: Job) -> None:
    body = {"certified": True, "verdict": "ok", "reason": ""}
    with here.sessions.begin() as session:
        certificates.enqueue_certify(session, jobs.fetch_job(session, job.id))
    claim = claim_kind(here.sessions, WorkKind.CERTIFY)
    with here.sessions.begin() as session:
        certificates.store_certificate(session, claim, body | {"sha256": document_hash(body)}, "page")


def lessons(here: Runtime) -> list[Lesson]:
    with here.sessions() as session:
        return list(session.scalars(select(Lesson).order_by(Lesson.id)))


def kernel(here: Runtime, job: Job) -> Kernel:
    with here.sessions() as session:
        return session.scalars(select(Kernel).where(Kernel.job_id == job.id)).one()


# --- learning ---------------------------------------------------------------------------------------------------------


def test_a_pair_becomes_a_lesson_and_a_second_job_confirms_it(here: Runtime) -> None:
    first, (parent, child) = searched(here)
    learn_from(here, first)
    (lesson,) = lessons(here)
    assert (lesson.kind, lesson.key, lesson.hardware_kin, lesson.state) == ("change", "BLOCK up", "x86", "tentative")
    with here.sessions() as session:
        (word,) = session.scalars(select(LessonEvidence))
    assert (word.candidate_id, word.parent_id, word.job_id, word.says) == (child, parent, first.id, "faster")
    learn_from(here, searched(here, 1.4, 1)[0])
    (lesson,) = lessons(here)
    assert (lesson.state, lesson.supporting, lesson.evidence) == ("confirmed", 2, 2)
    assert "raising BLOCK made kernels faster: x1.45" in lesson.text and "BLOCK: 64 -> 128" in lesson.text
    assert lesson.last_confirmed is not None and lesson.effect_low is not None and lesson.effect_low > 0


def test_a_rerun_does_not_confirm_and_a_contradiction_quarantines(here: Runtime) -> None:
    first, _ = searched(here)
    learn_from(here, first)
    learn_from(here, searched(here, 1.4, 0, parent_id=first.id)[0])
    assert [(lesson.state, lesson.supporting) for lesson in lessons(here)] == [("tentative", 1)]
    learn_from(here, searched(here, 0.5, 2)[0])
    assert [(lesson.state, lesson.opposing) for lesson in lessons(here)] == [("quarantined", 1)]


def test_a_failure_and_its_repair_become_a_lesson(here: Runtime) -> None:
    job = make_job(here.sessions)
    (broken,) = make_candidates(here.sessions, job)
    propose(here.sessions, broken, "x = _mm512_foo_ps")
    evaluate(
        here.sessions, broken, verdict="build_error", reason="the build failed", log=ERROR, speedup=None, ci95=None
    )
    (repaired,) = make_candidates(here.sessions, job, operator="repair", parents=(broken,))
    propose(here.sessions, repaired, "x = _mm512_exp2_ps")
    evaluate(here.sessions, repaired)
    learn_from(here, job)
    (lesson,) = lessons(here)
    assert (lesson.kind, lesson.state, lesson.evidence) == ("failure", "tentative", 2)
    assert "'_mm512_foo_ps' was not declared" in lesson.title
    assert lesson.notes == ["-x = _mm512_foo_ps\n+x = _mm512_exp2_ps"]


def test_learning_twice_is_learning_once(here: Runtime) -> None:
    job, _ = searched(here)
    certify(here, job)
    learn_from(here, job)
    before = [(lesson.id, lesson.evidence, lesson.text) for lesson in lessons(here)]
    with here.sessions.begin() as session:
        terms = session.execute(text("SELECT term, holders FROM knowledge_terms ORDER BY term")).all()
        session.execute(text("UPDATE work SET state = 'queued', finished_at = NULL WHERE kind = 'learn'"))
    learn(here, claim_kind(here.sessions, WorkKind.LEARN))
    assert [(lesson.id, lesson.evidence, lesson.text) for lesson in lessons(here)] == before
    with here.sessions.begin() as session:
        assert session.execute(text("SELECT term, holders FROM knowledge_terms ORDER BY term")).all() == terms


def test_of_a_problem_the_fastest_certified_kernel_is_the_current_one(here: Runtime) -> None:
    slow, fast, uncertified = (searched(here, gain, 7)[0] for gain in (1.5, 2.5, 9.0))
    for job in (slow, fast):
        certify(here, job)
    for job in (fast, slow, uncertified):
        learn_from(here, job)
    assert [kernel(here, job).current for job in (slow, fast, uncertified)] == [False, True, False]
    best = kernel(here, fast)
    assert (best.hardware_kin, best.params, best.title) == (
        "x86",
        {"BLOCK": 128},
        "softmax: other kernel for cpu in cpp",
    )
    assert "2.50 times the fastest baseline" in best.story and "BLOCK = 128" in best.story


def test_a_kernel_that_changes_nothing_about_the_others_leaves_their_rows_as_they_are(here: Runtime) -> None:
    versions = text("SELECT id, xmin::text FROM kernels WHERE job_id = ANY(:jobs) ORDER BY id")
    known = [searched(here, gain, 7)[0] for gain in (1.5, 2.5)]
    slower, _ = searched(here, 1.2, 7)
    for job in (*known, slower):
        certify(here, job)
    for job in known:
        learn_from(here, job)
    with here.sessions.begin() as session:
        before = session.execute(versions, {"jobs": [job.id for job in known]}).all()
    learn_from(here, slower)
    with here.sessions.begin() as session:
        assert session.execute(versions, {"jobs": [job.id for job in known]}).all() == before
    assert [kernel(here, job).current for job in (*known, slower)] == [False, True, False]


def test_jobs_without_evaluations_or_in_error_teach_nothing_and_a_cancelled_one_teaches(here: Runtime) -> None:
    finish(here, make_job(here.sessions))
    job, _ = searched(here)
    with here.sessions.begin() as session:
        jobs.finish_job(session, job.id, StopReason.ERROR, "the problem cannot be judged")
    assert states(here.sessions, WorkKind.LEARN) == []
    job, _ = searched(here)
    with here.sessions.begin() as session:
        jobs.cancel_job(session, job.id)
        jobs.finish_job(session, job.id, StopReason.CANCELLED)
    learn(here, claim_kind(here.sessions, WorkKind.LEARN))
    assert len(lessons(here)) == 1
    assert event_types(here.sessions, job.id)[-1] == "job.finished"


def test_a_learner_that_is_late_changes_nothing(here: Runtime) -> None:
    job, _ = searched(here)
    finish(here, job)
    claim = claim_kind(here.sessions, WorkKind.LEARN)
    expire(here.sessions, claim)
    with here.sessions.begin() as session:
        assert recovery.reap(session).requeued == 1
    with pytest.raises(Fenced):
        learn(here, claim)
    assert lessons(here) == []


def test_a_learn_that_dies_leaves_its_job_as_it_was(here: Runtime) -> None:
    job, _ = searched(here)
    finish(here, job)
    for _ in range(3):
        with here.sessions.begin() as session:
            state = recovery.give_back(session, _claim_due(here), "it broke")
    assert state is WorkState.DEAD
    with here.sessions.begin() as session:
        assert jobs.fetch_job(session, job.id).state == "succeeded"


def _claim_due(here: Runtime) -> Claim:
    return claim_kind(here.sessions, WorkKind.LEARN)


# --- recalling --------------------------------------------------------------------------------------------------------


def known(here: Runtime) -> None:
    """A certified kernel and a confirmed lesson, of two jobs."""
    for number in (0, 1):
        job, _ = searched(here, 1.5, number)
        certify(here, job)
        learn_from(here, job)


def asked(here: Runtime, job: Job, operator: str = "seed", parents: tuple[str, ...] = (), count: int = 1) -> list[str]:
    fields = {"proposer": "llm", "model": MODEL, "queue": "llm", "operator": operator, "parents": parents}
    return make_candidates(here.sessions, job, count, **fields)


def brief(here: Runtime, candidate_id: str) -> Brief:
    claim = claim_kind(here.sessions, WorkKind.PROPOSE, candidate_id)
    with here.sessions.begin() as session:
        return read_brief(session, claim)


def uses(here: Runtime, candidate_id: str) -> list[KnowledgeUse]:
    with here.sessions() as session:
        return list(knowledge.uses_of(session, candidate_id))


def candidate(here: Runtime, candidate_id: str) -> Candidate:
    with here.sessions() as session:
        return session.get_one(Candidate, candidate_id)


def with_retrieval(job: Job, count: int = 5) -> list[bool]:
    return [retrieval_on(f"{job.problem_hash} {job.seed}", ordinal) for ordinal in range(1, count + 1)]


def test_one_proposal_in_five_goes_without_and_both_are_recorded(here: Runtime) -> None:
    known(here)
    job = make_job(here.sessions, problem_hash="new", models=(MODEL,))
    ids = asked(here, job, count=5)
    briefs = [brief(here, candidate_id) for candidate_id in ids]
    on = with_retrieval(job)
    assert 3 <= sum(on) <= 5
    assert [candidate(here, candidate_id).retrieval for candidate_id in ids] == on
    for candidate_id, made, told in zip(ids, briefs, on, strict=True):
        found = uses(here, candidate_id)
        assert {use.kind for use in found} == {"kernel", "lesson", "fact"}
        assert bool(made.request.knowledge) == told == any(use.shown for use in found)
        assert [item.id for item in made.request.knowledge] == [use.item_id for use in found if use.shown]
        assert all(use.parts for use in found)
        assert all(item.ours == item.id.startswith("fact:") for item in made.request.knowledge)


def test_the_prompt_holds_all_that_is_recorded_as_shown_with_strangers_words_fenced(here: Runtime) -> None:
    known(here)
    job = make_job(here.sessions, problem_hash="new", models=(MODEL,))
    # Each goes without a tenth of the items, by dice on ids that are new each time: of ten one is told nearly all.
    told = max((brief(here, each) for each in asked(here, job, count=10)), key=lambda made: len(made.request.knowledge))
    prompt = build_prompt(told.request).messages[1]["content"]
    assert len(told.request.knowledge) >= 4
    for item in told.request.knowledge:
        assert " ".join(item.text.split())[:60] in " ".join(prompt.split()), item.id
    kernels = [item for item in told.request.knowledge if item.id.startswith("kernel_")]
    assert all(f"```text\n{item.title}" in prompt for item in kernels)


def test_a_second_attempt_is_told_the_same_though_the_shelf_has_changed(here: Runtime) -> None:
    known(here)
    job = make_job(here.sessions, problem_hash="new", models=(MODEL,))
    (candidate_id,) = asked(here, job)
    claim = claim_kind(here.sessions, WorkKind.PROPOSE, candidate_id)
    with here.sessions.begin() as session:
        first = read_brief(session, claim).request
    with here.sessions.begin() as session:
        session.execute(text("UPDATE kernels SET current = false"))
        session.execute(text("UPDATE lessons SET text = 'changed', state = 'quarantined'"))
    with here.sessions.begin() as session:
        assert read_brief(session, claim).request == first


def test_a_repair_is_told_of_its_own_error_first(here: Runtime) -> None:
    for number in (0, 1):
        job = make_job(here.sessions, problem_hash=f"hash {number}")
        (broken,) = make_candidates(here.sessions, job)
        propose(here.sessions, broken)
        evaluate(here.sessions, broken, **BROKEN)
        learn_from(here, job)
    job = make_job(here.sessions, problem_hash="new", models=(MODEL,))
    (broken,) = make_candidates(here.sessions, job)
    propose(here.sessions, broken)
    evaluate(here.sessions, broken, **BROKEN)
    (repair,) = asked(here, job, "repair", (broken,))
    brief(here, repair)
    first = uses(here, repair)[0]
    assert (first.kind, first.rank, first.parts["exact"]) == ("lesson", 1, 1)
    assert "_mm512_foo_ps" in first.title


def test_the_built_in_proposer_is_told_nothing(here: Runtime) -> None:
    known(here)
    job = make_job(here.sessions, problem_hash="new")
    (candidate_id,) = make_candidates(here.sessions, job)
    assert brief(here, candidate_id).request.knowledge == ()
    assert (candidate(here, candidate_id).retrieval, uses(here, candidate_id)) == (None, [])


def test_kernels_that_are_not_certified_or_for_others_are_not_told(here: Runtime) -> None:
    known(here)
    job = make_job(here.sessions, problem_hash="new", models=(MODEL,))
    changes = ("current = false", "current = true, language = 'triton'", "language = 'cpp', hardware_kin = 'hopper'")
    for change, candidate_id in zip(changes, asked(here, job, count=3), strict=True):
        with here.sessions.begin() as session:
            session.execute(text(f"UPDATE kernels SET {change}"))
        brief(here, candidate_id)
        assert "kernel" not in {use.kind for use in uses(here, candidate_id)}, change


SOFTMAX = 'SPEC = {"op_family": "softmax", "workloads": [{"name": "w"}]}\n' + PROBLEM


def test_the_tuner_begins_with_what_won_for_a_sibling(here: Runtime) -> None:
    sibling, _ = searched(here, 1.5, 0, problem_source=SOFTMAX)
    certify(here, sibling)
    learn_from(here, sibling)
    job, (parent, _) = searched(here, 1.1, 1, problem_source=SOFTMAX)
    ids = make_candidates(here.sessions, job, 5, operator="tune", parents=(parent,))
    briefs = [brief(here, candidate_id) for candidate_id in ids]
    on = [retrieval_on(f"{job.problem_hash} {job.seed}", ordinal) for ordinal in range(3, 8)]
    assert 3 <= sum(on) <= 5
    assert [made.request.hints for made in briefs] == [({"BLOCK": 128},) if told else () for told in on]
    assert [candidate(here, candidate_id).retrieval for candidate_id in ids] == on


def test_all_built_in_seeds_of_a_job_are_told_what_its_first_one_was(here: Runtime) -> None:
    sibling, _ = searched(here, 1.5, 0, problem_source=SOFTMAX)
    certify(here, sibling)
    learn_from(here, sibling)
    seen = set()
    for number in range(1, 9):
        job = make_job(here.sessions, problem_hash=f"new {number}", problem_source=SOFTMAX)
        first, second = make_candidates(here.sessions, job, 2)
        with here.sessions.begin() as session:  # what is known changes between the two
            session.execute(text("UPDATE kernels SET params = '{\"BLOCK\": 128}'"))
        told = brief(here, first)
        with here.sessions.begin() as session:
            session.execute(text("UPDATE kernels SET params = '{\"BLOCK\": 256}'"))
        again = brief(here, second)
        on = retrieval_on(f"{job.problem_hash} {job.seed}", 1)
        assert (told.builtin_index, again.builtin_index) == (0, 1)
        assert told.request.hints == again.request.hints == (({"BLOCK": 128},) if on else ())
        assert (candidate(here, first).retrieval, candidate(here, second).retrieval) == (on, None)
        seen.add(on)
    assert seen == {True, False}


def test_a_hint_for_other_tunables_is_none(here: Runtime) -> None:
    sibling, _ = searched(here, 1.5, 0, problem_source=SOFTMAX)
    certify(here, sibling)
    learn_from(here, sibling)
    with here.sessions.begin() as session:
        session.execute(text("""UPDATE kernels SET params = '{"BLOCK": 128, "MORE": 1}'"""))
    job, (parent, _) = searched(here, 1.1, 1, problem_source=SOFTMAX)
    (tune,) = make_candidates(here.sessions, job, operator="tune", parents=(parent,))
    assert brief(here, tune).request.hints == ()
    assert candidate(here, tune).retrieval is None


# --- uplift -----------------------------------------------------------------------------------------------------------


def proposals(here: Runtime, job: Job, count: int, *, shown: bool, **found: Any) -> None:
    """Evaluated proposals for which one item came up."""
    use = knowledge.NewUse("fact:roofline-first", "fact", 1, 0.1, shown, "title", "text")
    for candidate_id in asked(here, job, count=count):
        with here.sessions.begin() as session:
            knowledge.store_uses(session, candidate_id, retrieval=shown, uses=[use])
        propose(here.sessions, candidate_id)
        evaluate(here.sessions, candidate_id, **found)


WRONG = {"verdict": "incorrect", "speedup": None, "ci95": None}


def test_the_arms_count_what_was_shown_and_what_was_not(here: Runtime) -> None:
    job = make_job(here.sessions, models=(MODEL,))
    proposals(here, job, 2, shown=True, speedup=2.0)
    proposals(here, job, 1, shown=True, **WRONG)
    proposals(here, job, 1, shown=False, speedup=0.5)
    with here.sessions.begin() as session:
        overall, items = uplift.overall_arms(session), uplift.item_arms(session)
    assert items == {"fact:roofline-first": overall}
    assert (overall.shown.proposals, overall.shown.correct, overall.shown.gained_n) == (3, 2, 3)
    assert overall.shown.gained_mean == pytest.approx(2 * 0.6931 / 3, abs=1e-4)
    assert (overall.withheld.proposals, overall.withheld.correct, overall.withheld.gained_mean) == (1, 1, 0.0)


def test_an_item_that_does_harm_is_retired_and_comes_up_no_more(here: Runtime) -> None:
    job = make_job(here.sessions, models=(MODEL,), budget_candidates=100)
    proposals(here, job, 8, shown=True, **WRONG)
    proposals(here, job, 8, shown=False, speedup=2.0)
    learn_from(here, job)
    with here.sessions.begin() as session:
        (retired,) = session.scalars(select(KnowledgeRetirement))
        assert "negative lift" in retired.reason and retired.lift["gained"]["high"] < 0
        assert knowledge.Shelf(session).retired() == {"fact:roofline-first"}
        assert learning.retire_harmful(session, []) == []


def test_failures_of_others_are_no_evidence(here: Runtime) -> None:
    job = make_job(here.sessions, models=(MODEL,))
    proposals(here, job, 1, shown=True, **{**WRONG, "verdict": "infra_error"})
    (candidate_id,) = asked(here, job)
    with here.sessions.begin() as session:
        knowledge.store_uses(session, candidate_id, retrieval=True, uses=[])
        candidates.reject_unsettled(session, candidate_id, "provider_error")
        assert uplift.overall_arms(session).shown.proposals == 0
    (candidate_id,) = asked(here, job)
    with here.sessions.begin() as session:
        knowledge.store_uses(session, candidate_id, retrieval=True, uses=[])
        candidates.reject_unsettled(session, candidate_id, "no_code")
        assert uplift.overall_arms(session).shown.proposals == 1
