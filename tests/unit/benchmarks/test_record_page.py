"""docs/results/record.md is written by hand: its figures are held against the results that lie beside it."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest

from benchmarks.record.results import Result, read_results

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
PAGE = (RESULTS / "record.md").read_text(encoding="utf-8")
CALLS = PAGE[PAGE.index("### Calls from C++") : PAGE.index("## What was found on the way")]
NUMBER = re.compile(r"\d+\.\d+")


def results_of(hardware: str) -> list[Result]:
    return [each for each in read_results(RESULTS / f"{hardware}-record") if each.certified]


def operators_of(results: list[Result]) -> dict[str, Result]:
    return {each.problem: each for each in results}


@pytest.mark.parametrize("hardware", ["h100", "h200"])
def test_the_first_table_says_what_the_results_do(hardware: str) -> None:
    certified = results_of(hardware)
    row = next(line for line in PAGE.splitlines() if line.startswith("|") and f"{hardware}-record/README.md" in line)
    gains = [each.dispatched for each in certified]
    mean, median = statistics.geometric_mean(gains), statistics.median(gains)
    assert f"| {len(certified)} of 59 | {mean:.2f}x, median {median:.2f}x |" in row


def test_the_paragraph_on_h200s_says_how_many_have_a_reservation_and_are_faster() -> None:
    certified = results_of("h200")
    reserved = sum(bool(each.stated and each.stated.reservations) for each in certified)
    faster = sum(each.dispatched > 1.0 for each in certified)
    assert f"{reserved} of the {len(certified)} have a reservation" in PAGE
    assert f"{faster} of the {len(certified)} are faster than every baseline" in PAGE


def test_calls_from_cpp_are_told_as_they_were_measured() -> None:
    before, now = operators_of(results_of("h100")), operators_of(results_of("h200"))
    rows = [line.split("|")[1:-1] for line in CALLS.splitlines() if line.startswith("| ") and "`" in line]
    assert len(rows) == 24
    for operator, _kernel, earlier, with_it, _smallest in rows:
        name = operator.strip()
        told = [float(number) for number in NUMBER.findall(with_it)]
        decimals = len(NUMBER.findall(with_it)[0].partition(".")[2])
        assert f"{before[name].dispatched:.2f}x" == earlier.strip(), name
        assert told[0] == round(now[name].dispatched, decimals), name
        if "[" in with_it:
            assert told[-2:] == [round(bound, decimals) for bound in now[name].ci95 or ()], name
