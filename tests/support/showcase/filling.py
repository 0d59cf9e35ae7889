"""Fills a database with the story, through the functions that the API and the workers use."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from db import admitting, candidates, certificates, jobs, knowledge, ledger, lessons, llm_calls, tunings, workers
from db.candidates import NewCandidate, Proposed
from db.knowledge import NewUse
from db.ledger import Claim
from db.lessons import Settled
from db.llm_calls import CallRecord
from db.models import Work
from db.tunings import NewTuning
from db.vocabulary import QUEUE_CPU, QUEUE_LLM, StopReason, Verdict, WorkKind, WorkState
from db.workers import WorkerFacts
from problems.catalog import bundled
from search.knowledge.embedding import HashingEmbedder
from tests.support.showcase.story import ASSEMBLY, STEPS, Step, report, source

CHEEKY = "<script>document.title = 'taken'</script><img src=x onerror=alert(1)>"
"""What a candidate's plan and source may try to be."""

_ADMISSION = {
    "verdict": "admitted with warnings",
    "warnings": ["zeros would pass in 1 of 9 families (equal)"],
    "notes": ["tolerances follow float32"],
    "domains": {"x": {"kind": "real", "bound": None, "why": "finite for normal values"}},
}
_PROMPT = [
    {"role": "system", "content": "You write C++ kernels that are correct first and fast second.\n"},
    {
        "role": "user",
        "content": "# Target\n\nHardware: cpu. Language: C++.\n\n# Parent\n\nIts bottleneck: see below.\n",
    },
]
_OWNER = "worker_of_the_showcase"
_H100_NOW = {
    "sm_mhz": 1755,
    "memory_mhz": 2619,
    "power_w": 412.5,
    "temperature_c": 61,
    "throttled": ["power cap"],
}


@dataclass(frozen=True, slots=True)
class Showcase:
    """What there is to look at. `ids` are the finished job's candidates by ordinal, from 1 (0 is empty)."""

    job_id: str
    ids: tuple[str, ...]
    running_id: str
    cheeky_id: str


def fill(sessions: sessionmaker[Session]) -> Showcase:
    """Write everything."""
    filler = _Filler(sessions)
    filler.workers()
    job_id, ids = filler.finished()
    filler.lesson()
    running_id, cheeky_id = filler.running()
    return Showcase(job_id, tuple(ids), running_id, cheeky_id)


class _Filler:
    def __init__(self, sessions: sessionmaker[Session]) -> None:
        self._sessions = sessions

    def workers(self) -> None:
        device = {"name": "AMD EPYC 9554", "cores": 16, "copy_gbps": 41.0}
        h100 = {"name": "NVIDIA H100 80GB HBM3", "sms": 132, "copy_gbps": 2870.0, "power_w": 412}
        with self._sessions.begin() as session:
            for facts in (
                WorkerFacts("worker_1", "node7", 4211, ("cpu",), "cpu", device),
                WorkerFacts("worker_2", "gpu3", 811, ("gpu.nvidia-h100",), "nvidia-h100", h100),
                WorkerFacts("worker_3", "node7", 4212, ("control", "llm")),
            ):
                workers.register(session, facts)
            workers.beat(session, "worker_2", _H100_NOW)

    def finished(self) -> tuple[str, list[str]]:
        job_id = self._job(budget_candidates=22, budget_usd=Decimal("2.00"), target_speedup=2.3, certify=True)
        with self._sessions.begin() as session:
            claim = self._claim(session, None, WorkKind.ADMIT, job_id)
            admitting.store_admission(session, claim, "judge", _ADMISSION)
        ids, lines = [""], [("",)] * (len(STEPS) + 1)
        for ordinal, step in enumerate(STEPS, start=1):
            lines[ordinal] = tuple(dict.fromkeys([*(each for p in step.parents for each in lines[p]), step.line]))
            ids.append(self.candidate(job_id, ordinal, step, ids, lines[ordinal]))
        with self._sessions.begin() as session:
            certificates.enqueue_certify(session, jobs.fetch_job(session, job_id))
        with self._sessions.begin() as session:
            claim = self._claim(session, ids[-1], WorkKind.CERTIFY)
            document = {"certified": True, "verdict": "ok", "reason": "", "sha256": "0" * 64, "reservations": []}
            certificates.store_certificate(session, claim, document, "<!doctype html><title>certificate</title>")
        with self._sessions.begin() as session:
            jobs.finish_job(session, job_id, StopReason.TARGET_REACHED)
        return job_id, ids

    def running(self) -> tuple[str, str]:
        """A job with one candidate that means mischief and one that is still being proposed."""
        job_id = self._job(budget_candidates=40)
        step = Step("seed", "openai/gpt-5", (), "ok", 1.12, CHEEKY)
        cheeky = self.candidate(job_id, 1, step, [""], (f"// {CHEEKY} \u202e",))
        with self._sessions.begin() as session:
            new = NewCandidate("refine", "llm", QUEUE_LLM, "openai/gpt-5", (cheeky,))
            candidates.add_candidates(session, jobs.fetch_job(session, job_id), [new])
        with self._sessions.begin() as session:
            workers.set_current(session, "worker_3", session.scalars(self._work(job_id=job_id, queue=QUEUE_LLM)).one())
        self._job(budget_candidates=20, start=False)
        return job_id, cheeky

    def candidate(self, job_id: str, ordinal: int, step: Step, ids: list[str], lines: tuple[str, ...]) -> str:
        """One candidate, all the way."""
        proposer, queue = ("llm", QUEUE_LLM) if step.model else ("builtin", QUEUE_CPU)
        parents = tuple(ids[each] for each in step.parents)
        new = NewCandidate(step.operator, proposer, queue, step.model, parents)
        with self._sessions.begin() as session:
            (made,) = candidates.add_candidates(session, jobs.fetch_job(session, job_id), [new])
            if step.model:
                self._pay(session, made, step)
        with self._sessions.begin() as session:
            claim = self._claim(session, made, WorkKind.PROPOSE)
            if step.verdict == "no_code":
                candidates.reject_candidate(session, claim, "no_code", "the answer has no fenced block")
                return made
            self._propose(session, claim, ordinal, step, lines)
        if step.verdict in set(Verdict):
            with self._sessions.begin() as session:
                claim = self._claim(session, made, WorkKind.EVALUATE)
                found = report(step)
                code = {"assembly": ASSEMBLY} if step.verdict == Verdict.OK else {}
                candidates.store_evaluation(session, claim, found | {"code": code}, worker_id="worker_1")
        return made

    def _propose(self, session: Session, claim: Claim, ordinal: int, step: Step, lines: tuple[str, ...]) -> None:
        text = source(ordinal, lines)
        same = "same" if step.verdict == "duplicate" or ordinal == 11 else str(ordinal)
        digest = hashlib.sha256(f"{claim.job_id} {same}".encode()).hexdigest()
        params = {"THREADS": 2, "UNROLL": 8} if step.operator == "tune" else None
        proposed = Proposed(text, digest, step.plan, params, tunable=step.operator == "tune")
        candidates.store_proposal(session, claim, proposed, queue=QUEUE_CPU)
        if step.operator == "tune":
            parent = candidates.get_candidate(session, claim.candidate)
            assert parent is not None
            trials = [_trial(unroll, 1.0 + 0.04 * unroll) for unroll in (1, 2, 4, 8)]
            tunings.store_tuning(session, claim.candidate, NewTuning(parent.candidate.parents[0], trials, {}, 6.2, 9.0))

    def _pay(self, session: Session, candidate_id: str, step: Step) -> None:
        call = llm_calls.start_call(session, candidate_id, "propose", str(step.model))
        answer = f"{step.plan}\n\n```python\n...\n```\n"
        record = CallRecord(
            str(step.model), json.dumps(_PROMPT), answer, 5210, 1890, Decimal("0.0317"), "provider", 14.2
        )
        llm_calls.finish_call(session, call, record)
        shown = step.operator != "repair"
        use = NewUse("fact:softmax-online", "fact", 1, 0.031, shown, "Softmax: one pass", "Keep a running maximum and "
                     "rescale the sum when it grows: one pass over the row.", {"structured": 1, "text": 2})  # fmt: skip
        more = NewUse("fact:cpu-exp", "fact", 2, 0.016, shown, "exp on a CPU", "A polynomial of degree 5 vectorises; "
                      "the library's exp does not.", {"text": 1})  # fmt: skip
        knowledge.store_uses(session, candidate_id, retrieval=shown, uses=[use, more])

    def lesson(self) -> None:
        """A lesson that was confirmed by two jobs."""
        title = "Accumulating in float32 is refused as biased: add up in double"
        embedder = HashingEmbedder()
        facets = {"language": "cpp", "hardware_kin": "x86", "op_family": "softmax", "bound": ""}
        settled = Settled(
            state="confirmed", title=title, text=f"{title}. Seen in 2 independent jobs.",
            terms="accumulate double bias",
            evidence=3, supporting=2, opposing=0, effect_log=0.12, effect_low=0.05, effect_high=0.19, notes=(),
            last_confirmed=None, embedder=embedder.name, embedding=embedder.embed(title),
        )  # fmt: skip
        with self._sessions.begin() as session:
            found = lessons.store_lesson(session, title, kind="change", key="double", **facets)
            lessons.settle_lesson(session, found, settled)

    def _job(self, *, start: bool = True, **options: Any) -> str:
        problem = bundled()["softmax"]
        new = jobs.NewJob(
            problem.source_hash, problem.name, problem.source, "cpu", "cpp", admit=True,
            models=("openai/gpt-5", "anthropic/claude-sonnet-4-5"), labels={"team": "ranking"}, **options,
        )  # fmt: skip
        with self._sessions.begin() as session:
            job_id = jobs.create_job(session, new).job.id
            if start:
                jobs.start_job(session, jobs.fetch_job(session, job_id))
        return job_id

    def _claim(self, session: Session, candidate_id: str | None, kind: WorkKind, job_id: str | None = None) -> Claim:
        named = {"candidate_id": candidate_id} if candidate_id else {"job_id": job_id}
        work_id = session.scalars(self._work(kind=kind.value, **named)).one()
        claim = ledger.claim(session, work_id, _OWNER)
        assert claim is not None
        return claim

    @staticmethod
    def _work(**where: Any) -> Any:
        return select(Work.id).filter_by(state=WorkState.QUEUED.value, **where)


def _trial(unroll: int, ratio: float) -> dict[str, Any]:
    return {"params": {"THREADS": 2, "UNROLL": unroll}, "verdict": "ok", "ratios": {"small": ratio, "large": ratio}}
