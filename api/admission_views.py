"""From a stored admission to what a job and a dry run show of it."""

from __future__ import annotations

from api.job_parts import Admission, Domain
from db.models import Admission as AdmissionRow
from db.vocabulary import AdmissionVerdict


def admission_view(row: AdmissionRow | None) -> Admission | None:
    """The verdict with what a submitter must know; what each family of inputs told stays in the report."""
    if row is None:
        return None
    report = row.report
    return Admission(
        verdict=AdmissionVerdict(row.verdict),
        reason=row.reason,
        warnings=report.get("warnings") or [],
        notes=report.get("notes") or [],
        domains={name: Domain(**found) for name, found in (report.get("domains") or {}).items()},
        examined_at=row.created_at,
    )
