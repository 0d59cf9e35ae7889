"""What the corpus's runner makes of reports and certificates, and what its file keeps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.redteam.attribution import failed_check, layer_of
from tests.redteam.certificates import NOT_CERTIFIED, as_report
from tests.redteam.entry import HONEST, NON_OK, WRONG, Entry
from tests.redteam.results import Results
from tests.redteam.runner import Outcome, row, summary
from worker.judge.timing.races import WRONG_WHEN_TIMED

CHEAT = Entry("one", 1, "title", "relu", "cpp", "class ModelNew: ...", WRONG, "system")
ATTACK = Entry("two", 70, "title", "relu", "cpp", "class ModelNew: ...", NON_OK, "clock", defused=True)
PLAIN = Entry("three", 0, "title", "relu", "cpp", "class ModelNew: ...", HONEST, certify=True)


def outcome(entry: Entry, verdict: str, ci95: tuple[float, float] = (0.9, 1.0)) -> Outcome:
    return Outcome(entry, verdict, "", "" if verdict == "ok" else entry.layer, "", 1.5, {"ci95": ci95, "speedup": 1.0})


def document(verdict: str, *, certified: bool, failed: str = "") -> dict[str, Any]:
    rows = [
        {"name": "system: autocast", "outcome": "reservation", "detail": "", "figures": {}},
        {"name": "system: leak slope", "outcome": failed or "passed", "detail": "grows", "figures": {}},
    ]
    return {
        "schema": "x",
        "verdict": verdict,
        "certified": certified,
        "reason": "" if certified else "leak slope: grows",
        "reservations": [],
        "layers": [{"id": "system", "rows": rows}],
        "timing": {"speedup": 1.25, "ci95": [1.2, 1.3]},
        "judge": {"judged_s": 3.0, "certified_s": 4.0, "device_held_s": 2.0},
        "environment": {},
    }


def test_only_what_is_about_the_system_or_asked_for_is_certified() -> None:
    assert [entry.certified for entry in (CHEAT, ATTACK, PLAIN, replace(PLAIN, certify=False))] == [
        True, False, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize("fields", [{"defused": True, "certify": False}, {"expected": WRONG, "layer": "values"}])
def test_rows_that_cannot_be_meant_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="only a cheat can be defused"):
        replace(PLAIN, **fields)


def test_a_refused_certificate_rejects_and_names_its_row() -> None:
    report = as_report(document("suspicious", certified=False, failed="failed"))
    assert report["verdict"] == "suspicious"
    assert failed_check(report) == "system: leak slope"
    assert layer_of(report, "system") == "system"


def test_a_wrong_timed_output_is_not_counted_as_a_wrong_checked_one() -> None:
    found = {"verdict": "incorrect", "reason": f"{WRONG_WHEN_TIMED}: output0: relative error 1", "checks": []}
    assert layer_of(found, "timed_outputs") == "timed_outputs"


def test_a_reservation_does_not_reject() -> None:
    report = as_report(document("ok", certified=True))
    assert (report["verdict"], failed_check(report), report["speedup"]) == ("ok", "", 1.25)


def test_a_right_candidate_without_a_certificate_is_not_accepted() -> None:
    report = as_report(document("ok", certified=False))
    assert report["verdict"] == NOT_CERTIFIED
    assert outcome(PLAIN, report["verdict"]).failure == "REJECTED"


def test_a_machine_that_failed_is_no_certificate() -> None:
    report = {"verdict": "infra_error", "reason": "the judge process died", "checks": []}
    assert as_report(report) == report


@pytest.mark.parametrize(("low", "failure"), [(0.2, ""), (1.04, ""), (1.06, "ACCEPTED")])
def test_a_defused_attack_fails_the_run_only_when_it_gains(low: float, failure: str) -> None:
    found = outcome(ATTACK, "ok", (low, low + 0.1))
    assert found.failure == failure
    assert found.defused is not bool(failure)
    assert row(found).startswith(failure or "defused")


def test_an_attack_without_an_interval_is_accepted_and_not_defused() -> None:
    assert replace(outcome(ATTACK, "ok"), report={}).failure == "ACCEPTED"


def test_a_wrong_one_is_never_defused() -> None:
    assert outcome(CHEAT, "ok").failure == "ACCEPTED"


def test_the_summary_counts_accepted_and_defused_ones_and_names_them() -> None:
    lines = summary([outcome(CHEAT, "ok"), outcome(ATTACK, "ok"), outcome(PLAIN, "ok")])
    assert "defused: 1 (accepted, no gain): two" in lines
    assert "cheats accepted: 1 of 2; with the defused 2" in lines


def test_a_file_is_whole_after_every_result_and_can_be_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    results = Results(path, resume=False)
    assert json.loads(path.read_text()) == []
    for made in (outcome(CHEAT, "suspicious"), outcome(ATTACK, "infra_error"), outcome(PLAIN, "ok")):
        results.add(made)
        assert json.loads(path.read_text())[-1]["entry"]["id"] == made.entry.id
    with path.open("a") as file:
        file.write('{"entry": {"id": "cut o')
    again = Results(path, resume=True)
    assert again.other_judges() == 0
    assert {found.entry.id for found in again.known([CHEAT, ATTACK, PLAIN])} == {"one", "three"}
    assert again.known([replace(CHEAT, source="class ModelNew: pass")]) == []
    assert again.known([CHEAT])[0].to_json() == json.loads(json.dumps(outcome(CHEAT, "suspicious").to_json()))
    assert len(json.loads(path.read_text())) == 3


def test_without_resume_the_file_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    Results(path, resume=False).add(outcome(CHEAT, "ok"))
    assert Results(path, resume=False).known([CHEAT]) == []
