"""The record's figures, met or not, its losses with their reasons, and its plots."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.record.figures import COMPILED, Figure, Outcome, Suite, figures, suite_of
from benchmarks.record.plan import Entry
from benchmarks.record.plots import Curve, curve_of, draw
from benchmarks.record.results import missing, read_documents, read_results
from benchmarks.record.run import UNFINISHED_JOBS
from benchmarks.record.tables import NAME, NOTES, read_notes, write_tables
from tests.unit.benchmarks.record_files import candidate, certificate, row, store


def suite(folder: Path, *unseen: str) -> Suite:
    results = read_results(folder)
    return suite_of("nvidia-h200", results, missing(folder, results), unseen)


def figure(found: Suite, word: str) -> Figure:
    (one,) = (each for each in figures(found) if word in each.what)
    return one


def test_figures_of_a_suite_that_was_run_whole_are_met_or_missed(tmp_path: Path) -> None:
    for name, speedup in (("softmax", 4.0), ("topk", 3.0), ("cumsum", 1.6)):
        store(tmp_path, Entry(name, "triton", ()), [row("w0", speedup, speedup - 0.1, speedup + 0.1)], roofs=["memory"])
    found = suite(tmp_path)
    assert figure(found, "certified") == Figure("operators with a certified kernel", "all", "3 of 3", Outcome.MET)
    assert figure(found, "geometric mean of the speedup").outcome == Outcome.MET
    assert figure(found, "median of the speedup").seen == "3.00x"
    assert figure(found, "faster than every baseline").outcome == Outcome.MET
    assert figure(found, "slower than the fastest").outcome == Outcome.MET
    light = figure(found, "memory-bound")
    assert (light.seen, light.outcome) == ("0.50 (of 3)", Outcome.MISSED)


def test_an_operator_without_a_certified_kernel_counts_as_its_fastest_baseline(tmp_path: Path) -> None:
    store(tmp_path, Entry("softmax", "triton", ()), [row("w0", 4.0, 3.9, 4.1)])
    store(tmp_path, Entry("topk", "triton", ()), None)
    refused = certificate(certified=False, reason="it drifts")
    store(tmp_path, Entry("cumsum", "triton", ()), [row("w0", 9.0, 8.9, 9.1)], certified=refused)
    found = suite(tmp_path)
    assert (found.failed, found.open) == (("cumsum", "topk"), 0)
    certified = figure(found, "certified")
    assert (certified.seen, certified.outcome, certified.why) == ("1 of 3", Outcome.MISSED, "without one: cumsum, topk")
    mean = figure(found, "geometric mean of the speedup")
    assert (mean.seen, mean.outcome) == ("1.59x", Outcome.MISSED), "the third root of 4"
    assert figure(found, "median of the speedup").seen == "1.00x"


def test_no_figure_of_the_suite_is_met_before_all_of_it_has_been_run(tmp_path: Path) -> None:
    store(tmp_path, Entry("softmax", "triton", ()), [row("w0", 4.0, 3.9, 4.1)])
    store(tmp_path, Entry("topk", "triton", ()), [row("w0", 4.0, 3.9, 4.1)], certified={})
    found = suite(tmp_path, "cumsum")
    assert (found.total, found.judged, found.progress) == (3, ("topk",), "1 of 3 run")
    of_all = figures(found)[:6]
    assert {each.outcome for each in of_all if "memory" not in each.what} == {Outcome.OPEN}
    assert figure(found, "geometric mean of the speedup").seen == "4.00x", "of what was run"
    store(tmp_path, Entry("geglu", "triton", ()), None)
    store(tmp_path, Entry("swiglu", "triton", ()), None)
    assert figure(suite(tmp_path), "faster than every").outcome == Outcome.MISSED, "nothing that comes can mend it"


def test_nothing_was_run_yet() -> None:
    assert {each.outcome for each in figures(suite_of("nvidia-h200", []))} == {Outcome.OPEN}
    assert len(figures(suite_of("cpu", []))) == 6, "the others are of workloads for a GPU"


def test_a_kernel_that_is_slower_than_a_baseline_of_its_race_is_seen_after_dispatch(tmp_path: Path) -> None:
    store(tmp_path, Entry("softmax", "triton", ()), [row("w0", 1.2, 1.1, 1.3, latency_us=11.0), row("w1", 0.5, 0.4, 2)])
    slower = figure(suite(tmp_path), "slower than the fastest")
    assert (slower.seen, slower.outcome, slower.why) == ("1 of 2", Outcome.MISSED, "1 run the fastest baseline")


def test_memory_bound_operators_are_near_the_speed_of_light_only_if_those_without_a_kernel_cannot_change_it(
    tmp_path: Path,
) -> None:
    store(tmp_path, Entry("softmax", "triton", ()), [row("a", 2.0, 1.9, 2.1, sol_fraction=0.95)])
    assert figure(suite(tmp_path), "memory-bound").outcome == Outcome.MET
    store(tmp_path, Entry("topk", "triton", ()), None)
    assert figure(suite(tmp_path), "memory-bound").outcome == Outcome.OPEN


def test_conv1d_is_compared_with_eager_of_the_same_race(tmp_path: Path) -> None:
    assert figure(suite(tmp_path, "conv1d"), "conv1d").why == "not run"
    store(tmp_path, Entry("conv1d", "cuda", ()), [row("odd_fp16", 2.0, 1.9, 2.1)])
    assert figure(suite(tmp_path), "conv1d").why == "no such workload in its result"
    store(tmp_path, Entry("conv1d", "cuda", ()), [row("fp16", 1.2, 1.1, 1.3)])
    conv1d = figure(suite(tmp_path), "conv1d")
    assert (conv1d.wanted, conv1d.seen, conv1d.outcome) == (">= 2.5x", "2.40x", Outcome.MISSED)


def test_the_triangle_update_needs_all_of_its_workloads(tmp_path: Path) -> None:
    names = ["n256_c128_b2", "n768_c128_cauchy", "n256_c384_b2_masked", "n512_c128", "n1024_c128_cauchy",
             "n768_c384_masked", "n1024_c384"]  # fmt: skip
    rows = [row(name, 2.0, 1.9, 2.1, latency_us=830.0) for name in names]
    entry = Entry("triangle_multiplicative_update", "triton", ())
    store(tmp_path, entry, rows[:6])
    assert figure(suite(tmp_path), "triangle").outcome == Outcome.OPEN
    store(tmp_path, entry, rows)
    triangle = figure(suite(tmp_path), "triangle")
    assert (triangle.wanted, triangle.seen, triangle.outcome) == ("<= 0.90 ms", "0.83 ms", Outcome.MET)
    store(tmp_path, entry, None)
    assert figure(suite(tmp_path), "triangle").outcome == Outcome.MISSED


def test_what_libraries_have_is_compared_with_them_and_with_every_mode_of_torch_compile(tmp_path: Path) -> None:
    rows, over = [row("bf16", 1.2, 1.1, 1.3)], dict.fromkeys(COMPILED, 1.2)
    entry = Entry("swiglu", "triton", ())
    store(tmp_path, entry, rows, speedups=over)
    swiglu = figure(suite(tmp_path), "swiglu")
    assert (swiglu.outcome, swiglu.why) == (Outcome.OPEN, "not raced: a library's kernel")
    store(tmp_path, entry, rows, speedups=over | {"library_liger": 1.3})
    assert figure(suite(tmp_path), "swiglu").outcome == Outcome.MET
    store(tmp_path, entry, rows, speedups=over | {"library_liger": 0.97})
    swiglu = figure(suite(tmp_path), "swiglu")
    assert swiglu.outcome == Outcome.MISSED and swiglu.seen.startswith("no: library_liger 0.97x, compile 1.20x")
    over = {"compile": 1.2, "library_liger": 1.3}
    unmade = {"baselines_missing": dict.fromkeys(COMPILED[1:], "InductorError")}
    store(tmp_path, entry, rows, speedups=over, environment=unmade)
    assert figure(suite(tmp_path), "swiglu").outcome == Outcome.MET, "nobody can have the other modes"


def test_a_line_of_an_operator_has_its_baselines_and_what_its_certificate_states(tmp_path: Path) -> None:
    granted = certificate(reservations=["A/A control: 1.03 [1.01, 1.08]: times were off"])
    report = {"speedups": {"eager": 3.9, "compile": 2.0, "library_liger": 2.5}}
    store(tmp_path, Entry("swiglu", "triton", ()), [row("bf16", 2.0, 1.9, 2.1)], certified=granted, **report)
    write_tables(tmp_path, [tmp_path / "speedup.svg"])
    page = (tmp_path / NAME).read_text()
    assert (
        "| swiglu | triton | ask/tell | 1.50x [1.40, 1.60] | 2.00x | 2.00x [1.10, 1.90] | 3.90x | 2.00x | "
        "2.50x (liger) | bf16 2.00x [1.90, 2.10] |  | 0.97 | A/A control |"
    ) in page
    assert "- reservation: A/A control: 1.03 [1.01, 1.08]: times were off" in page
    assert "![speedup](speedup.svg)" in page


def test_a_loss_is_told_with_what_is_known_of_why(tmp_path: Path) -> None:
    rows = [row("a", 0.5, 0.4, 0.6), row("b", 1.2, 0.9, 1.4), row("c", 2.0, 1.9, 2.1)]
    profile = {"workload": "a", "primary": "main memory is in use to 40%. It calls for: fewer bytes."}
    store(tmp_path, Entry("softmax", "triton", ()), rows, profile=profile)
    store(tmp_path, Entry("topk", "triton", ()), None, candidates=[candidate(1, "incorrect", reason="row 3 is wrong")])
    (tmp_path / UNFINISHED_JOBS).mkdir()
    store(tmp_path / UNFINISHED_JOBS, Entry("geglu", "triton", ()), [row("a", 2.0, 1.9, 2.1)], certified={})
    notes = {"softmax": {"b": "Launches take half of it."}, "topk": "it sorts"}
    (tmp_path / NOTES).write_text(json.dumps(notes))
    write_tables(tmp_path)
    page = (tmp_path / NAME).read_text()
    lost, undecided = page.index("slower than the fastest baseline:"), page.index("Where the interval leaves it open:")
    said = "The profile says: main memory is in use to 40%. It calls for: fewer bytes"
    assert f"- `softmax` a: 0.50x [0.40, 0.60] of compile. {said}\n" in page[lost:undecided]
    assert "- `softmax` b: 1.20x [0.90, 1.40] of compile. Launches take half of it. The profile of a says:" in page
    assert "- `softmax` c:" not in page
    assert "- `topk`: 1 incorrect (row 3 is wrong). It sorts\n" in page
    assert "- `geglu`: 2.00x after dispatch, judged, no certificate yet\n" in page


def test_notes_of_another_form_are_refused(tmp_path: Path) -> None:
    assert read_notes(tmp_path) == {}
    (tmp_path / NOTES).write_text('{"softmax": ["slow"]}')
    with pytest.raises(ValueError, match='"softmax" has neither a reason nor one for each workload'):
        read_notes(tmp_path)


def test_a_certified_kernel_goes_before_a_faster_one_that_is_not(tmp_path: Path) -> None:
    store(tmp_path, Entry("softmax", "triton", ()), [row("w", 9.0, 8.9, 9.1)], certified={})
    store(tmp_path, Entry("softmax", "cuda", ()), [row("w", 2.0, 1.9, 2.1)])
    assert [each.language for each in read_results(tmp_path)] == ["cuda"]


def test_a_curve_is_the_best_so_far_in_the_order_of_judging(tmp_path: Path) -> None:
    judged = [
        candidate(4, "ok", 1.8),
        candidate(1, "incorrect"),
        candidate(2, "infra_error"),
        candidate(3, "ok", 1.5),
        candidate(5, "ok", 1.2),
    ]
    store(tmp_path, Entry("topk", "cuda", ()), None, candidates=judged)
    (document,) = read_documents(tmp_path)["topk"]
    assert curve_of(document) == Curve("cuda", (None, 1.5, 1.8, 1.8), (False, True, True, True))


def test_the_same_results_give_the_same_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    judged = [candidate(1, "incorrect"), candidate(2, "ok", 1.5), candidate(3, "ok", 2.0)]
    rows = [row("w0", 2.0, 1.9, 2.1), row("w1", 0.8, 0.7, 0.9)]
    store(tmp_path, Entry("softmax", "triton", ()), rows, roofs=["memory", "compute"], candidates=judged)
    store(tmp_path, Entry("softmax", "cuda", ()), rows, certified={}, candidates=judged[:2])
    store(tmp_path, Entry("topk", "triton", ()), None, candidates=judged[:1])
    first, second = draw(tmp_path, tmp_path / "one"), draw(tmp_path, tmp_path / "two")
    assert [path.name for path in first] == ["speedup.svg", "roofline.svg", "best-so-far.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_without_results_nothing_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert draw(tmp_path, tmp_path) == []
