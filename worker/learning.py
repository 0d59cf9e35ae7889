"""Learn from a job that has ended: lessons from its candidates, its kernel made findable, harmful items retired.

Pure code decides (`search.knowledge`), rows remember (`db.lessons`, `db.uplift`); here one is handed to the other.
Learning a job twice changes nothing.
"""

from __future__ import annotations

from dataclasses import asdict

import structlog
from sqlalchemy.orm import Session

from db import jobs, ledger, lessons, uplift
from db.knowledge_models import LessonEvidence
from db.ledger import Claim
from db.lessons import Described, Judged, NewEvidence, Settled
from db.models import Candidate, Evaluation, Job, Kernel, Problem
from problems.catalog import outline
from search.hardware import kin
from search.knowledge.distil import Attempt, Finding, LessonKey, Scene, bound_of, by_lesson, distil
from search.knowledge.effects import Effect
from search.knowledge.embedding import HashingEmbedder
from search.knowledge.standing import Evidence, Standing, standing_of
from search.knowledge.texts import excerpt, kernel_document, lesson_document
from search.knowledge.uplift import arm_of, harmful, lift
from search.tunables import read_space
from worker.runtime import Runtime

log = structlog.get_logger(__name__)


def learn(here: Runtime, claim: Claim) -> None:
    """Turn what the claimed job's candidates showed into lessons and evidence. One transaction. Raises Fenced."""
    with here.transaction() as session:
        job = jobs.fetch_job(session, claim.job_id)
        problem = session.get_one(Problem, job.problem_hash)
        scene = Scene(outline(problem.source, job.problem_name).op_family, job.hardware, job.language)
        found = by_lesson(distil(scene, [_attempt(judged) for judged in lessons.judged_of(session, job.id)]))
        ledger.settle(session, claim)
        lessons.lock_learners(session)
        for key, findings in found.items():
            _learn_lesson(session, job, key, findings)
        kernel = lessons.kernel_of(session, job.id)
        current = kernel is not None and _learn_kernel(session, scene, problem, kernel)
        retired = retire_harmful(session, uplift.items_of_job(session, job.id))
    log.info("job.learned", lessons=len(found), kernel_current=current, retired=retired or None)


def retire_harmful(session: Session, items: list[str]) -> list[str]:
    """Retire those of the items that do harm beyond chance; their ids."""
    retired = []
    for item_id, arms in uplift.item_arms(session, items).items() if items else ():
        shown, withheld = arm_of(arms.shown), arm_of(arms.withheld)
        reason = harmful(shown, withheld)
        if reason is not None:
            uplift.retire(session, item_id, reason, asdict(lift(shown, withheld)))
            log.warning("knowledge.retired", item=item_id, reason=reason)
            retired.append(item_id)
    return retired


def _attempt(judged: Judged) -> Attempt:
    candidate, found = judged.candidate, judged.evaluation
    return Attempt(
        id=candidate.id,
        operator=candidate.operator,
        parents=tuple(candidate.parents),
        source=candidate.source or "",
        verdict=found.verdict,
        reason=found.reason,
        log=found.report.get("log"),
        speedup=found.speedup,
        ci95=_ci95(found),
        bound=bound_of(found.report),
    )


def _ci95(found: Evaluation) -> tuple[float, float] | None:
    if found.ci95_low is None or found.ci95_high is None:
        return None
    return found.ci95_low, found.ci95_high


def _learn_lesson(session: Session, job: Job, key: LessonKey, findings: list[Finding]) -> None:
    facets = {"language": key.language, "hardware_kin": key.hardware, "op_family": key.op_family, "bound": key.bound}
    lesson_id = lessons.store_lesson(session, findings[0].statement, kind=key.kind, key=key.key, **facets)
    # A candidate has one word: that of a repair counts before that of another failure.
    words = {finding.candidate_id: _evidence(finding) for finding in findings}
    lessons.add_evidence(session, lesson_id, job.id, lessons.origin_of(session, job.id), list(words.values()))
    standing = standing_of(key.kind, [_said(row) for row in lessons.evidence_of(session, lesson_id)])
    lessons.settle_lesson(session, lesson_id, _settled(key, findings[0].statement, standing))


def _evidence(finding: Finding) -> NewEvidence:
    effect = finding.effect
    return NewEvidence(
        candidate_id=finding.candidate_id,
        parent_id=finding.parent_id,
        says=finding.says,
        effect_log=effect.log if effect else None,
        effect_low=effect.low if effect else None,
        effect_high=effect.high if effect else None,
        note=finding.note,
    )


def _said(row: LessonEvidence) -> Evidence:
    known = row.effect_log is not None and row.effect_low is not None and row.effect_high is not None
    effect = Effect(row.effect_log or 0.0, row.effect_low or 0.0, row.effect_high or 0.0) if known else None
    return Evidence(row.origin, row.says, row.created_at, effect, row.note)


def _settled(key: LessonKey, statement: str, standing: Standing) -> Settled:
    document = lesson_document(
        kind=key.kind,
        statement=statement,
        op_family=key.op_family,
        hardware=key.hardware,
        language=key.language,
        bound=key.bound,
        standing=standing,
    )
    effect, embedder = standing.effect, HashingEmbedder()
    return Settled(
        state=standing.state,
        title=document.title,
        text=document.text,
        terms=document.terms,
        evidence=standing.evidence,
        supporting=standing.supporting,
        opposing=standing.opposing,
        effect_log=effect.log if effect else None,
        effect_low=effect.low if effect else None,
        effect_high=effect.high if effect else None,
        notes=standing.notes,
        last_confirmed=standing.last_confirmed,
        embedder=embedder.name,
        embedding=embedder.embed(document.terms),
    )


def _learn_kernel(session: Session, scene: Scene, problem: Problem, kernel: Kernel) -> bool:
    evaluation = lessons.evaluation_of(session, kernel)
    space, embedder = read_space(kernel.source), HashingEmbedder()
    document = kernel_document(
        problem_name=kernel.problem_name,
        op_family=scene.op_family,
        hardware=scene.hardware,
        language=scene.language,
        speedup=kernel.speedup,
        plan=session.get_one(Candidate, kernel.candidate_id).plan,
        problem_source=problem.source,
    )
    described = Described(
        op_family=scene.op_family,
        hardware_kin=kin(scene.hardware),
        bound=bound_of(evaluation.report),
        title=document.title,
        story=f"{document.text}\n\n{excerpt(kernel.source)}",
        terms=document.terms,
        embedder=embedder.name,
        embedding=embedder.embed(document.terms),
        params=dict(space.defaults) if space else {},
    )
    return lessons.describe_kernel(session, kernel, described)
