"""The tuning benchmark: a recording survives its file, all searches get the same number of evaluations, and every
committed recording is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tuning.__main__ import dice, ours, shares
from benchmarks.tuning.peers import write_cache
from benchmarks.tuning.spaces import FOLDER, Recorded, read, recorded
from search.tunables import Space

SPACE = Space({"A": (1, 2, 4, 8), "B": (0, 1)}, {"A": 1, "B": 0}, ("A + B < 9",))


def made() -> Recorded:
    rows = {
        (params["A"], params["B"]): None if params == {"A": 4, "B": 1} else (100.0 / int(params["A"]), 50.0)
        for params in SPACE.configurations()
    }
    return Recorded("made.up", SPACE, rows, ("small", "large"))


def test_a_recording_survives_its_file(tmp_path: Path) -> None:
    (tmp_path / "made.up.json").write_text(made().to_json(cores=2))
    assert list(recorded(tmp_path)) == [made()]


def test_speedups_are_against_the_kernel_as_it_is() -> None:
    space = made()
    assert space.size == 7
    assert space.speedup({"A": 1, "B": 0}) == 1.0
    assert space.speedup({"A": 4, "B": 1}) is None
    assert space.best == pytest.approx(8**0.5)


def test_with_the_whole_space_every_search_finds_the_best() -> None:
    space = made()
    assert ours(space, 0, space.size) == dice(space, 0, space.size) == space.best
    assert dice(space, 3, 1) <= space.best
    assert shares(dice, space, 3) == shares(dice, space, 3)


def test_kernel_tuner_is_given_every_configuration(tmp_path: Path) -> None:
    text = write_cache(made(), tmp_path).read_text()
    assert text.count('"time":') == made().size
    assert '"4,1"' in text and "RuntimeFailedConfig" in text


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_a_recording_holds_its_whole_space(path: Path) -> None:
    found = read(path)
    assert {found.key(params) for params in found.space.configurations()} == set(found.latency_us)
    assert found.space.allows(found.space.defaults)
    assert all(len(row) == len(found.workloads) for row in found.latency_us.values() if row)
