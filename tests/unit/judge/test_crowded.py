"""Whose fault it is when a device's memory is full: others', the problem's, or nobody's who is judged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

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


@pytest.mark.parametrize(
    ("crowded", "free_gib", "reason", "verdict"),
    [
        (True, 5, FULL, "infra_error"),  # others have what it was promised
        (True, 7, FULL, "launch_error"),  # it is all there once the candidate's process has ended
        (False, 5, FULL, "launch_error"),
        (True, 5, "RuntimeError: no configuration fits", "launch_error"),
    ],
)
def test_a_candidate_that_finds_no_memory_is_to_blame_unless_others_have_it(
    referee: Any, monkeypatch: pytest.MonkeyPatch, crowded: bool, free_gib: int, reason: str, verdict: str
) -> None:
    def fail(*_: Any) -> None:
        raise Fault(Verdict.LAUNCH_ERROR, reason)

    monkeypatch.setattr(referee, "exhibits_for", lambda _request: None)
    monkeypatch.setattr(referee, "_judge", fail)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free_gib << 30, 80 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 12 << 30)
    referee._room = SimpleNamespace(crowded=crowded, promised=18 << 30)
    answer = _answer(referee, ASKED)
    assert answer["report"]["verdict"] == verdict
    failure = _failure(answer)
    assert failure == (reason if verdict == "infra_error" else None)
    referee.learn_of_room(failure)
    assert (referee._shortfall.times > 1) == (verdict == "infra_error"), "it asks for more the next time"


@pytest.mark.parametrize(
    ("short_alone", "verdict"), [({"compile", "library_fused"}, "infra_error"), ({"compile"}, "launch_error")]
)
def test_a_candidate_that_leaves_baselines_no_memory_is_not_raced_against_fewer(
    referee: Any, monkeypatch: pytest.MonkeyPatch, short_alone: set[str], verdict: str
) -> None:
    """Made again without it they say who took it: if they find none either, the device is too small for them."""
    beside: Any = SimpleNamespace(short={"compile", "library_fused"}, missing={})
    panels = iter([beside, SimpleNamespace(short=short_alone)])

    def judge(_request: object, exhibits: object, evaluation: Evaluation, *_: Any) -> None:
        referee._time(SimpleNamespace(exhibits=exhibits, evaluation=evaluation))

    problem = SimpleNamespace(problem=SimpleNamespace(outline=SimpleNamespace(source_hash="hash")))
    monkeypatch.setattr(referee, "exhibits_for", lambda _request: problem)
    monkeypatch.setattr(referee, "baselines_of", lambda _exhibits: next(panels))
    monkeypatch.setattr(referee, "_judge", judge)
    report = _answer(referee, ASKED)["report"]
    assert report["verdict"] == verdict and "compile, library_fused" in report["reason"]
    learnt = referee._unusable("hash").reasons
    assert learnt.keys() == (short_alone if verdict == "infra_error" else set())


def test_beside_other_judges_nobody_can_tell_who_left_baselines_no_memory(
    referee: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(_request: object, exhibits: object, evaluation: Evaluation, *_: Any) -> None:
        referee._time(SimpleNamespace(exhibits=exhibits, evaluation=evaluation))

    panels = iter([SimpleNamespace(short={"compile"}, missing={})])
    problem = SimpleNamespace(problem=SimpleNamespace(outline=SimpleNamespace(source_hash="hash")))
    monkeypatch.setattr(referee, "exhibits_for", lambda _request: problem)
    monkeypatch.setattr(referee, "baselines_of", lambda _exhibits: next(panels))
    monkeypatch.setattr(referee, "_judge", judge)
    referee._room = SimpleNamespace(crowded=True, promised=0)
    answer = _answer(referee, ASKED)
    assert answer["report"]["verdict"] == "infra_error"
    assert referee._unusable("hash").reasons == {}, "what others had is no reason to judge without a baseline"
    referee.learn_of_room(_failure(answer))
    assert referee._shortfall.times > 1, "it asks for more the next time"


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


@pytest.mark.parametrize(
    ("times", "kept", "promised"), [(1.0, 40, 40), (1.4, 60, 79), (1.0, 75, "all"), (1.4, 75, "all")]
)
def test_a_problem_of_nearly_a_whole_device_has_it_to_itself(
    referee: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, times: float, kept: int, promised: int | str
) -> None:
    monkeypatch.setattr("worker.judge.referee.memory_bytes", lambda _device: 79)
    monkeypatch.setattr("worker.judge.referee.expected_bytes", lambda *_problem, **_how: (kept, 5))
    (tmp_path / "room.json").write_text(str(times))
    monkeypatch.setattr(referee, "_kept", lambda *_names: tmp_path / "room.json")
    taken: list[Any] = []
    referee._room = SimpleNamespace(all="all", take=lambda *nbytes, finalist: taken.append((*nbytes, finalist)))
    referee._take_room(SimpleNamespace(outline=SimpleNamespace(source_hash="hash")), "nvidia-h100", finalist=True)
    assert taken == [(promised, int(5 * times), True)]
