"""The lines of `kernelwright admit` are those of the judge, whatever way the report has come."""

from __future__ import annotations

import json

from cli.admit import _admission
from worker.judge.reference.domains import InferredDomain
from worker.judge.reference.findings import WARNED, Admission, FamilyFinding

FOUND = Admission(
    problem="gather",
    hardware="cpu",
    verdict=WARNED,
    workload="small",
    domains={"ids": InferredDomain("index", 32, "it indexes dimension 0 of table")},
    families=(
        FamilyFinding("normal", True, (), {"out": ("zeros",)}, True),
        FamilyFinding("equal", True, ("zeros",)),
        FamilyFinding("special", False),
    ),
    warnings=("zeros would pass in 1 of 2 families (equal)",),
    notes=("random reference: seeds are fixed",),
)


def test_a_report_that_travelled_reads_as_before() -> None:
    travelled = _admission(json.loads(json.dumps(FOUND.to_json())))
    assert travelled.lines() == FOUND.lines()
    assert len(FOUND.lines()) == 7


def test_a_refusal_without_domains_reads_too() -> None:
    refused = Admission("noise", "cpu", "refused", "the reference is random")
    assert _admission(json.loads(json.dumps(refused.to_json()))).lines() == refused.lines()
