"""From a judged candidate to a certificate and its page: real system checks, a judgement made by hand."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import json
from collections.abc import Iterator

import pytest

from tests.integration.judge.test_system_checks import PROBLEM, candidate
from tests.support.finalist import means
from worker.judge.certificate import certify as certify_module
from worker.judge.certificate.certify import CHECKS, certify, check_system
from worker.judge.certificate.document import is_intact
from worker.judge.certificate.parts import RefereeParts
from worker.judge.certificate.render import render
from worker.judge.certificate.system import compiled
from worker.judge.report import Evaluation, EvaluationRequest, WorkloadTiming
from worker.judge.verdict import Check, Verdict

NOON = datetime.datetime(2026, 1, 2, 12, 0, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefereeParts]:
    with means(tmp_path_factory.mktemp("home"), PROBLEM, "cpu") as ready:
        yield ready


@pytest.fixture(scope="module", autouse=True)
def patient() -> Iterator[None]:
    """torch.compile takes a candidate 20 s on two free cores, and more than its limit on busy ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "_COMPILE_LIMIT_S", 700.0)
        yield


def judged(speedup: float = 2.0, verdict: Verdict = Verdict.OK) -> Evaluation:
    samples = {"candidate": [10.0, 11.0, 10.5], "eager": [20.0, 22.0, 21.0]}
    row = WorkloadTiming("only", 10.5, {"eager": 21.0}, "eager", speedup, (speedup - 0.1, speedup + 0.1), samples)
    return Evaluation(
        "c",
        verdict,
        "" if verdict is Verdict.OK else "small: wrong",
        [Check("timed outputs", True, "all right")],
        timed=verdict is Verdict.OK,
        speedup=speedup,
        speedups={"eager": speedup},
        ci95=(speedup - 0.1, speedup + 0.1),
        workloads=[row],
        environment={"device": "cpu"},
    )


def request(source: str) -> EvaluationRequest:
    return EvaluationRequest("c", source, "relu", PROBLEM, "cpu", "cpp")


def test_an_honest_finalist_is_certified_with_the_smaller_speedup(parts: RefereeParts) -> None:
    exhibits = copy.copy(parts.exhibits)
    exhibits.workloads = list(exhibits.workloads)

    def again() -> Evaluation:
        exhibits.release()  # as the referee does, whose device has no room for two judgements
        return judged(1.95)

    narrowed: list[int] = []
    means_again = dataclasses.replace(
        parts, exhibits=exhibits, again=again, narrow=lambda: narrowed.append(len(exhibits.workloads))
    )
    document = certify(means_again, request(candidate()), judged(2.0), now=lambda: NOON).to_json()
    assert document["certified"], document["reason"]
    assert document["reservations"] == []
    assert narrowed == [1], "before the system checks, and not after the second judgement"
    assert is_intact(json.loads(json.dumps(document, allow_nan=False)))
    assert document["issued_at"] == "2026-01-02T12:00:00+00:00"
    assert document["timing"]["speedup"] == 1.95
    assert [each["name"] for each in document["problem"]["workloads"]] == ["only"]
    (point,) = document["roofline"]["points"]
    assert point["bytes_moved"] == 4 * (2 * 64 * 384 + 384)
    (layer,) = (layer for layer in document["layers"] if layer["id"] == "system")
    outcomes = [row["outcome"] for row in layer["rows"]]
    assert outcomes.count("not applicable") == 9  # graphs, streams, three of a backward, matrices, three GPU tools
    assert outcomes.count("passed") == len(outcomes) - 9
    page = render(document)
    assert "✓ Certified" in page
    assert "extern &quot;C&quot; void relu" in page


def test_checks_that_run_side_by_side_tell_the_same_in_the_same_order(
    parts: RefereeParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    side_by_side = certify_module._side_by_side
    monkeypatch.setattr(certify_module, "_side_by_side", lambda run, lanes, _device: side_by_side(run, lanes, "cuda:0"))
    honest, wrong = (
        check_system(parts, request(source)) for source in (candidate(), candidate(after="kept.append(y)"))
    )
    assert honest.verdict is Verdict.OK, honest.reason
    assert [row.name for row in honest.rows] == [f"system: {check.name}" for check in CHECKS]
    assert all(row.passed for row in honest.rows)
    assert wrong.verdict is Verdict.SUSPICIOUS
    assert [row.name for row in wrong.rows if not row.passed] == ["system: leak slope"]


def test_a_finalist_that_fails_a_system_check_is_not_certified_and_the_other_checks_are_made(
    parts: RefereeParts,
) -> None:
    leaking = candidate(after="kept.append(y)")
    again = dataclasses.replace(parts, again=judged)
    document = certify(again, request(leaking), judged()).to_json()
    assert not document["certified"]
    assert document["verdict"] == "suspicious"
    assert "bytes with every call" in document["reason"]
    (layer,) = (layer for layer in document["layers"] if layer["id"] == "system")
    assert {"passed", "failed"} <= {row["outcome"] for row in layer["rows"]}


def test_a_second_judgement_that_fails_is_no_certificate(parts: RefereeParts) -> None:
    again = dataclasses.replace(parts, again=lambda: judged(verdict=Verdict.INCORRECT))
    document = certify(again, request(candidate()), judged()).to_json()
    assert (document["certified"], document["verdict"]) == (False, "incorrect")
    assert "a fresh judgement failed: small: wrong" in document["reason"]


def test_a_candidate_that_was_judged_wrong_gets_a_document_without_system_checks(parts: RefereeParts) -> None:
    document = certify(parts, request(candidate()), judged(verdict=Verdict.INCORRECT)).to_json()
    assert (document["certified"], document["verdict"], document["timing"]) == (False, "incorrect", None)
    assert [layer["id"] for layer in document["layers"]] == ["timing"]
    assert "✗ Not certified" in render(document)
