"""Looking at a proposal with other constants: how they are written, and where they are refused."""

from __future__ import annotations

import sys

import pytest

from benchmarks.record.__main__ import main
from benchmarks.record.look import changes_of
from benchmarks.record.plan import PROPOSALS
from search.tunables import with_values


def test_names_with_literals_become_values() -> None:
    assert changes_of("PAIR=1, EARLY=False,KIND='wide',SCALE=0.5") == {
        "PAIR": 1,
        "EARLY": False,
        "KIND": "wide",
        "SCALE": 0.5,
    }


def test_a_proposal_takes_them_whether_or_not_a_tuner_may_change_them() -> None:
    source = (PROPOSALS / "sdpa_mlp" / "warp_groups.py").read_text()
    changed = with_values(source, changes_of("PAIR=1,SKEW=0"))
    assert "\nPAIR = 1\n" in changed and "\nSKEW = 0\n" in changed
    assert len(changed.splitlines()) == len(source.splitlines())


@pytest.mark.parametrize("words", ["PAIR", "PAIR=", "PAIR=two", "=1,,"])
def test_anything_else_is_refused_before_a_device_is_touched(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["record", "look", "--problems", "sdpa_mlp", "--with", words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "--with takes names with" in capsys.readouterr().err
