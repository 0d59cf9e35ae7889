"""A certificate takes the judgement that was just made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from worker.judge import referee as judging
from worker.judge.referee import Referee
from worker.judge.report import Evaluation, EvaluationRequest
from worker.judge.runners.processes import RefereeOptions

REQUEST = EvaluationRequest("cand_1", "class ModelNew: pass", "relu", "the problem", "cpu", "cpp")


class Issued:
    """A certificate that names its judgement."""

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation

    def to_json(self) -> dict[str, Any]:
        return {"judgement": self._evaluation.reason}


@pytest.fixture
def referee(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Referee]:
    """Judges nothing: each judgement says which it is."""
    made = Referee(RefereeOptions(tmp_path, "cpu"))
    numbers = iter(range(1, 9))
    monkeypatch.setattr(made, "exhibits_for", lambda _request: None)
    monkeypatch.setattr(
        made, "_evaluate", lambda request, *_: Evaluation(request.candidate_id, reason=f"{next(numbers)}")
    )
    monkeypatch.setattr(judging, "Training", lambda *_: None)
    monkeypatch.setattr(judging, "certify", lambda _parts, _request, evaluation: Issued(evaluation))
    yield made
    made.close()


class Released:
    """Counts how often it was."""

    def __init__(self) -> None:
        self.times = 0

    def release(self) -> None:
        self.times += 1


def test_what_was_judged_last_is_not_judged_again(referee: Referee) -> None:
    assert referee.evaluate(REQUEST).reason == "1"
    assert referee.certify(REQUEST) == {"judgement": "1"}


def test_anything_else_is(referee: Referee) -> None:
    assert referee.certify(REQUEST) == {"judgement": "1"}
    referee.evaluate(REQUEST)
    referee.evaluate(replace(REQUEST, candidate_id="cand_2"))
    assert referee.certify(REQUEST) == {"judgement": "4"}
    assert referee.certify(replace(REQUEST, candidate_id="cand_2", own_kernel_share=0.5)) == {"judgement": "5"}


def test_the_second_judgement_prepares_when_the_first_ones_values_are_gone(
    referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, training = Released(), Released()
    told: list[tuple[int, int]] = []

    def prepare(_request: EvaluationRequest, _seed: int, *, finalist: bool = False) -> Released:
        assert finalist, "it goes before others who wait for room"
        told.append((first.times, training.times))
        return Released()

    def certify(parts: Any, _request: EvaluationRequest, _evaluation: Evaluation) -> Issued:
        return Issued(parts.again())

    def exhibits_for(_request: EvaluationRequest) -> Any:
        monkeypatch.setattr(referee, "_exhibits", first)
        return first

    monkeypatch.setattr(referee, "exhibits_for", exhibits_for)
    monkeypatch.setattr(referee, "_prepare", prepare)
    monkeypatch.setattr(judging, "Training", lambda *_: training)
    monkeypatch.setattr(judging, "certify", certify)
    assert referee.certify(REQUEST) == {"judgement": "2"}
    assert told == [(1, 1)]


def test_what_was_narrowed_for_a_finalist_judges_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Referee(RefereeOptions(tmp_path, "cpu"))
    try:
        narrowed: Any = SimpleNamespace(whole=False, release=lambda: None)
        whole: Any = SimpleNamespace(
            whole=True, release=lambda: None, problem=SimpleNamespace(outline=SimpleNamespace(source="the problem"))
        )
        monkeypatch.setattr(made, "_exhibits", narrowed)
        monkeypatch.setattr(made, "_prepare", lambda *_: whole)
        assert made.exhibits_for(REQUEST) is whole
        assert made.exhibits_for(REQUEST) is whole, "it is not prepared a second time"
    finally:
        made.close()
