"""A kernel certified for another target, from its row to a candidate of this job; and edits that do not apply."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from db import candidates
from db.models import Candidate, Job
from db.vocabulary import WorkKind
from search.prompts import build_prompt
from search.proposing import ProposalRequest
from search.types import Target
from tests.integration.db.test_portable import champion
from tests.support.ledger import claim_kind, evaluate, make_candidates, make_job, propose
from worker import proposing
from worker.advancing import advance
from worker.briefing import read_brief
from worker.runtime import Runtime


def tree(here: Runtime, job: Job) -> list[candidates.TreeRow]:
    with here.sessions.begin() as session:
        return candidates.load_tree(session, job.id)


def request_of(here: Runtime, candidate_id: str) -> ProposalRequest:
    claim = claim_kind(here.sessions, WorkKind.PROPOSE, candidate_id)
    with here.sessions.begin() as session:
        return read_brief(session, claim).request


def test_a_kernel_of_a_sibling_is_judged_as_it_is_on_the_jobs_own_device(here: Runtime) -> None:
    sibling = champion(here.sessions, "nvidia-a100", "triton", 2.0)
    job = make_job(here.sessions, hardware="nvidia-h100", language="triton")
    advance(here, claim_kind(here.sessions, WorkKind.ADVANCE))
    first = tree(here, job)[0]
    assert (first.operator, first.proposer, first.parents) == ("port", "builtin", (sibling,))
    proposing.propose(here, claim_kind(here.sessions, WorkKind.PROPOSE, first.id))
    with here.sessions.begin() as session:
        made = session.get_one(Candidate, first.id)
        assert made.source == session.get_one(Candidate, sibling).source
        assert made.plan == "the certified kernel of nvidia-a100 as it is"
        queues = session.execute(text("SELECT queue FROM work WHERE candidate_id = :id"), {"id": first.id}).scalars()
        assert set(queues) == {"gpu.nvidia-h100"}


def test_a_kernel_in_another_language_is_a_models_and_the_prompt_says_what_it_was_written_for(here: Runtime) -> None:
    sibling = champion(here.sessions, "nvidia-h100", "cuda", 2.0)
    job = make_job(here.sessions, hardware="nvidia-h100", language="triton", models=("openai/a",))
    advance(here, claim_kind(here.sessions, WorkKind.ADVANCE))
    (ported,) = [row for row in tree(here, job) if row.operator == "port"]
    assert (ported.proposer, ported.model, ported.parents) == ("llm", "openai/a", (sibling,))
    request = request_of(here, ported.id)
    (parent,) = request.parents
    assert (parent.id, parent.target, parent.speedup) == (sibling, Target("nvidia-h100", "cuda"), 2.0)
    user = build_prompt(request).messages[1]["content"]
    assert "It is CUDA C++ for nvidia-h100" in user


def test_after_an_edit_that_did_not_apply_the_whole_file_is_asked_for(here: Runtime) -> None:
    job = make_job(here.sessions, models=("openai/a",))
    parent, other = make_candidates(here.sessions, job, 2)
    for candidate_id in (parent, other):
        propose(here.sessions, candidate_id)
        evaluate(here.sessions, candidate_id)
    by_model: dict[str, Any] = {"operator": "refine", "proposer": "llm", "model": "openai/a", "queue": "llm"}
    edit, beside_it = make_candidates(here.sessions, job, 2, parents=(parent,), **by_model)
    claim = claim_kind(here.sessions, WorkKind.PROPOSE, edit)
    with here.sessions.begin() as session:
        assert not read_brief(session, claim).request.whole_file
        candidates.reject_candidate(session, claim, "diff_failed", "not found")
    (again,) = make_candidates(here.sessions, job, parents=(parent,), **by_model)
    (elsewhere,) = make_candidates(here.sessions, job, parents=(other,), **by_model)
    assert request_of(here, again).whole_file
    assert not request_of(here, elsewhere).whole_file
    assert not request_of(here, beside_it).whole_file, "it was decided on before anybody knew"
