"""A referee shares the device for its baselines only while it makes them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from worker.judge.referee import Referee


@pytest.mark.parametrize(
    ("baselines", "joins"),
    [(None, 1), (SimpleNamespace(dead=True), 1), (SimpleNamespace(dead=False), 0)],
    ids=["none yet", "their runner died", "live"],
)
def test_live_baselines_need_no_part_of_the_device(baselines: Any, joins: int) -> None:
    joined, closed, made = [], [], SimpleNamespace(dead=False)

    @contextlib.contextmanager
    def lent(*, counted: bool) -> Iterator[Callable[[object], None]]:
        joined.append(counted)
        yield lambda _runner: None

    referee: Any = SimpleNamespace(
        _baselines=baselines,
        _lease=SimpleNamespace(lent=lent),
        _close_baselines=lambda: closed.append(referee._baselines),
        _made_baselines=lambda _exhibits, _lend: made,
    )
    found = Referee.baselines_of(cast(Referee, referee), cast(Any, None))
    assert found is (made if joins else baselines)
    assert referee._baselines is found
    assert closed == [baselines] * joins, "what the others of a dead panel hold is given back"
    assert joined == [False] * joins, "what all candidates need is not counted"
