"""Admissions: whether a problem can be judged on a kind of hardware, examined once for each version of the judge.

Here they are looked up; `db.admitting` stores them. Which version of the judge is in service, the workers say: each
writes its judge's hash beside the facts of its device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from db.models import Admission, Work
from db.vocabulary import AdmissionVerdict, WorkKind, WorkState

JUDGE_FACT = "judge"
"""The key, among a device's facts, of the hash of the judge that serves it."""


class ProblemRefused(Exception):
    """The problem cannot be judged on this hardware, as an earlier job has found; the message says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(refusal(reason))


def refusal(reason: str | None) -> str:
    """The one sentence of a job that ends because its problem was refused."""
    return f"the problem cannot be judged: {reason or 'it was refused'}"


CURRENT: Final = text(
    """
    SELECT admissions.*
    FROM admissions
    LEFT JOIN (
        SELECT device ->> :fact AS judge FROM workers
        WHERE hardware = :hardware AND device <> '{}' ORDER BY heartbeat_at DESC LIMIT 1
    ) AS heard ON true
    WHERE problem_hash = :problem AND hardware = :hardware AND (heard.judge IS NULL OR judge_hash = heard.judge)
    ORDER BY created_at DESC, id DESC
    LIMIT 1
    """
).bindparams(fact=JUDGE_FACT)
"""In one journey: the judge's hash by the worker that was heard last, then its finding about `:problem`."""

_CURRENT: Final = select(Admission).from_statement(CURRENT).execution_options(populate_existing=True)


def find_admission(session: Session, problem_hash: str, hardware: str, judge_hash: str) -> Admission | None:
    """What this version of the judge found about the problem."""
    query = select(Admission).where(
        Admission.problem_hash == problem_hash, Admission.hardware == hardware, Admission.judge_hash == judge_hash
    )
    return session.scalars(query).one_or_none()


def current_admission(session: Session, problem_hash: str, hardware: str) -> Admission | None:
    """What the judge in service found, or the newest finding of all when no worker of this hardware was ever heard."""
    return session.scalars(_CURRENT, {"problem": problem_hash, "hardware": hardware}).one_or_none()


def raise_if_refused(admission: Admission | None) -> None:
    """Raises ProblemRefused for a problem that was refused."""
    if admission is not None and admission.verdict == AdmissionVerdict.REFUSED:
        raise ProblemRefused(admission.reason or "")


def admissions_by_id(session: Session, ids: Sequence[str | None]) -> dict[str, Admission]:
    """Some admissions; None among the ids is passed over."""
    wanted = {admission_id for admission_id in ids if admission_id is not None}
    if not wanted:
        return {}
    return {found.id: found for found in session.scalars(select(Admission).where(Admission.id.in_(wanted)))}


def admission_pending(session: Session, job_id: str) -> bool:
    """Whether the job's problem is still to be examined."""
    open_states = (WorkState.QUEUED.value, WorkState.RUNNING.value)
    query = select(Work.id).where(Work.job_id == job_id, Work.kind == WorkKind.ADMIT.value, Work.state.in_(open_states))
    return session.scalars(query).first() is not None
