"""A baseline that takes too long to compile leaves those that take less."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from problems.catalog import Spec
from worker.judge.baselines import Unusable, _compile, _modes, _Trouble
from worker.judge.verdict import Fault, Verdict

MODES = [mode for mode in _modes("cuda:0", Spec()) if mode.compile_mode is not None]
NAMES = ["compile", "compile_reduce_overhead", "compile_max_autotune", "compile_max_autotune_graphs"]


@pytest.mark.parametrize("slow", NAMES)
def test_those_that_search_for_longer_are_none_either(tmp_path: Path, slow: str) -> None:
    compiled = []

    def run(name: str, _slot: int, _timeout_s: float) -> None:
        if name == slow:
            raise Fault(Verdict.TIMEOUT, "no answer to 'run' within 240 s")
        compiled.append(name)

    bench: Any = SimpleNamespace(name="few", run=run, construct=lambda *_what: None, trim=lambda: None)
    trouble = _Trouble(Unusable(tmp_path / "unusable.json"))
    _compile(MODES, cast(Any, bench), contextlib.nullcontext, trouble)
    place = NAMES.index(slow)
    assert compiled == NAMES[:place]
    assert trouble.unusable.reasons == dict.fromkeys(NAMES[place:], "not compiled within 240 s for 'few'")
    _compile(MODES, cast(Any, bench), contextlib.nullcontext, trouble)
    assert compiled == NAMES[:place] * 2, "of the next workload they are not tried"
