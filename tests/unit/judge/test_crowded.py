"""Whose fault it is when a device's memory is full: others', the problem's, or nobody's who is judged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from worker.judge.__main__ import _answer, _failure
from worker.judge.referee import Referee
from worker.judge.report import Evaluation, EvaluationRequest
from worker.judge.room import Shortfall
from worker.judge.runners.processes import RefereeOptions
from worker.judge.verdict import Fault, ReferenceFull, Verdict

FULL = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
REQUEST = EvaluationRequest("cand_1", "class ModelNew: pass", "relu", "it", "cpu", "cpp")
ASKED = {"ask": "evaluate", "what": {name: getattr(REQUEST, name) for name in REQUEST.__slots__}}


@pytest.fixture
def referee(tmp_path: Path) -> Iterator[Any]:
    made: Any = Referee(RefereeOptions(tmp_path, "cpu"))
    made._shortfall = Shortfall(tmp_path / "room.json")
    yield made
    made._room = None
    made.close()


@pytest.mark.parametrize(("crowded", "key"), [(True, "infra_error"), (False, "problem_error")])
def test_a_problem_that_does_not_fit_beside_others_may_fit_later(
    referee: Any, monkeypatch: pytest.MonkeyPatch, crowded: bool, key: str
) -> None:
    def fail(_request: object) -> None:
        raise ReferenceFull("forward failed: it needs more memory than there is")

    monkeypatch.setattr(referee, "exhibits_for", fail)
    referee._room = SimpleNamespace(crowded=crowded)
    answer = _answer(referee, ASKED)
    assert list(answer) == [key]
    referee.learn_of_room(_failure(answer))
    assert (referee._shortfall.times > 1) == crowded, "and will be given more room then"


def test_a_candidate_that_finds_no_memory_is_to_blame_for_it(referee: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise Fault(Verdict.LAUNCH_ERROR, FULL)

    monkeypatch.setattr(referee, "exhibits_for", lambda _request: None)
    monkeypatch.setattr(referee, "_judge", fail)
    referee._room = SimpleNamespace(crowded=True, promised=0)
    answer = _answer(referee, ASKED)
    assert answer["report"]["verdict"] == "launch_error" and _failure(answer) is None


def test_baselines_that_cannot_be_made_are_no_verdict_on_a_candidate(
    referee: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_exhibits: object) -> None:
        raise Fault(Verdict.TIMEOUT, "no answer within 120 s")

    def judge(_request: object, exhibits: object, evaluation: Evaluation, *_: Any) -> None:
        referee._time(SimpleNamespace(exhibits=exhibits, evaluation=evaluation))

    monkeypatch.setattr(referee, "exhibits_for", lambda _request: None)
    monkeypatch.setattr(referee, "baselines_of", fail)
    monkeypatch.setattr(referee, "_judge", judge)
    answer = _answer(referee, ASKED)
    assert answer["report"]["verdict"] == "infra_error"
    assert _failure(answer) == "the baselines: no answer within 120 s"


@pytest.mark.parametrize(
    ("crowded", "failure", "times"),
    [(True, FULL, 1.4), (False, FULL, 1.0), (True, "the judge process died", 1.0), (True, None, 1.0)],
)
def test_a_problem_asks_for_more_room_only_where_others_left_too_little(
    referee: Any, crowded: bool, failure: str | None, times: float
) -> None:
    referee._room = SimpleNamespace(crowded=crowded)
    referee.learn_of_room(failure)
    assert referee._shortfall.times == times
