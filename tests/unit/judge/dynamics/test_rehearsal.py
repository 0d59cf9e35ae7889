"""Honest kernels train as honest ones do; lost gradients do not, and the report says why."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import pytest
import torch

from tests.unit.judge.dynamics.problems import LAYER, LOSS, embedding, in_bf16, reference, seat_of, shrunk
from worker.judge.dynamics.honest import accumulated_in, honest_operations
from worker.judge.dynamics.rehearsal import Rehearsal
from worker.judge.dynamics.statistics import Bias, Distance, distance
from worker.judge.dynamics.training import Run

STEPS = 5


@pytest.fixture(scope="module")
def rehearsal() -> Rehearsal:
    return Rehearsal(seat_of(embedding()), 11, steps=STEPS)


def test_the_null_has_six_different_runs_for_each_of_four_optimisers(rehearsal: Rehearsal) -> None:
    assert list(rehearsal.null) == ["SGD", "SGD with momentum", "AdamW", "Adafactor"]
    for runs in rehearsal.null.values():
        assert len(runs) == 6
        assert all(len(run.losses) == STEPS for run in runs)
        assert runs[0].losses[-1] < runs[0].losses[0]
    rows = [run.hot_rows for run in rehearsal.null["SGD"]]
    assert not any(torch.equal(rows[0], other) for other in rows[1:])


def test_an_honest_kernel_passes_under_every_optimiser(rehearsal: Rehearsal) -> None:
    report = rehearsal.judge(reference(rehearsal.seat))
    assert report.passed, report.sentence
    assert "6 honest variants" in report.sentence
    assert len(json.dumps(report.to_json())) > 100


def test_the_device_may_be_given_to_others_after_some_steps_and_every_run() -> None:
    pauses: list[int] = []
    rehearsal = Rehearsal(seat_of(embedding()), 11, steps=9, null_runs=2, pause=lambda: pauses.append(1))
    assert len(pauses) == len(rehearsal.null) * 2 * 2


def test_sums_in_bf16_are_refused_and_the_sentence_says_so(rehearsal: Rehearsal) -> None:
    report = rehearsal.judge(in_bf16(rehearsal.seat))
    assert not report.passed
    assert not report.bias.passed
    assert report.bias.cause == "bf16"
    assert report.bias.hits > 50
    assert "because sums are kept in bf16" in report.sentence
    assert not next(found for found in report.distances if found.optimiser == "SGD").passed


def test_a_16_bit_problem_tells_rounded_results_from_rounded_sums() -> None:
    rehearsal = Rehearsal(seat_of(embedding("bfloat16")), 11, steps=STEPS)
    honest = rehearsal.judge(reference(rehearsal.seat))
    assert honest.passed, honest.sentence
    broken = rehearsal.judge(in_bf16(rehearsal.seat))
    assert not broken.passed
    assert broken.bias.cause == "bf16"


def test_a_gradient_that_is_always_a_little_too_small_is_a_bias(rehearsal: Rehearsal) -> None:
    report = rehearsal.judge(shrunk(rehearsal.seat, 0, 0.9))
    assert report.bias.beta == pytest.approx(0.1, rel=0.02)
    assert report.bias.received == pytest.approx(0.9, rel=0.02)
    assert "receive 90% of their gradient" in report.sentence
    assert report.bias.cause == ""


@pytest.mark.parametrize(("source", "gradient"), [(LAYER, 1), (LOSS, 1)])
def test_layers_and_losses_train_too(source: str, gradient: int) -> None:
    rehearsal = Rehearsal(seat_of(source), 11, steps=STEPS)
    assert rehearsal.judge(reference(rehearsal.seat)).passed
    report = rehearsal.judge(shrunk(rehearsal.seat, gradient, 0.97))
    assert not report.passed
    assert report.bias.beta == pytest.approx(0.03, rel=0.05)


def test_who_is_just_outside_of_the_band_is_tried_once_anew(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def unlucky(self: Rehearsal, optimiser: str, run: Run) -> Distance:
        found = honest_distance(self, optimiser, run)
        first = optimiser not in seen
        seen.append(optimiser)
        return replace(found, loss=9.7, left_at=4) if first and optimiser == "Adafactor" else found

    honest_distance = Rehearsal.distance
    monkeypatch.setattr(Rehearsal, "distance", unlucky)
    pauses: list[int] = []
    report = rehearsal.judge(reference(rehearsal.seat), pause=lambda: pauses.append(1))
    assert report.passed, report.sentence
    assert [found.optimiser for found in report.distances if found.first is not None] == ["Adafactor"]
    assert seen.count("Adafactor") == 2
    assert "under Adafactor at a second attempt" in report.sentence
    assert report.to_json()["runs"][-1]["first_of_limit"] == pytest.approx(9.7 / 8)
    assert len(pauses) == 12, "others may have the device between its honest runs"


def test_who_is_just_outside_twice_fails_and_has_no_third_attempt(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest_distance = Rehearsal.distance

    def outside(self: Rehearsal, optimiser: str, run: Run) -> Distance:
        return replace(honest_distance(self, optimiser, run), drift=9.0)

    monkeypatch.setattr(Rehearsal, "distance", outside)
    report = rehearsal.judge(reference(rehearsal.seat))
    assert not report.passed
    assert [found.first is not None for found in report.distances] == [True, False, False, False]


@pytest.mark.parametrize("factor", [math.nan, 1000.0, 0.0])
def test_one_wrong_gradient_of_a_run_is_no_ill_luck(rehearsal: Rehearsal, factor: float) -> None:
    honest, calls = reference(rehearsal.seat), itertools.count()
    broken = shrunk(rehearsal.seat, 0, factor)
    report = rehearsal.judge(lambda arguments: (broken if next(calls) == 1 else honest)(arguments))
    assert not report.passed
    assert report.distances[0].first is None


def test_the_second_attempt_has_other_weights_and_twelve_honest_runs(rehearsal: Rehearsal) -> None:
    other = rehearsal.anew("AdamW")
    assert list(other.null) == ["AdamW"] and len(other.null["AdamW"]) == 12
    assert other.steps == STEPS
    assert not torch.equal(other.start["table"], rehearsal.start["table"])


def test_a_kernel_that_returns_nan_is_infinitely_far_away(rehearsal: Rehearsal) -> None:
    report = rehearsal.judge(shrunk(rehearsal.seat, 0, math.nan))
    assert not report.passed
    assert report.distances[0].left_at is not None


def test_the_same_honest_variants_come_from_the_same_seed_and_agree_with_each_other() -> None:
    seat = seat_of(embedding())
    results = [operation(seat.inputs)[0] for operation in honest_operations(seat, 6, 5)]
    again = [operation(seat.inputs)[0] for operation in honest_operations(seat, 6, 5)]
    assert all(torch.equal(first, second) for first, second in zip(results, again, strict=True))
    exact = accumulated_in(seat, seat.inputs, torch.float64)
    worst = max(float((result - exact).norm() / exact.norm()) for result in results)
    assert worst < 3e-6
    broken = accumulated_in(seat, seat.inputs, torch.bfloat16)
    assert float((broken - exact).norm() / exact.norm()) > 1e-3


def test_distances_are_in_standard_deviations_of_the_null() -> None:
    null = [Run([4.0, 3.0 + 0.01 * turn], [1.0, 1.0], torch.full((3, 2), 1.0 + 0.01 * turn)) for turn in range(6)]
    inside = distance("SGD", Run([4.0, 3.03], [1.0, 1.0], torch.full((3, 2), 1.03)), null, torch.zeros(3, 2))
    outside = distance("SGD", Run([4.0, 3.5], [1.0, 2.0], torch.full((3, 2), 1.5)), null, torch.zeros(3, 2))
    assert inside.passed and inside.left_at is None and inside.loss < 1
    assert not outside.passed and outside.left_at == 2
    assert outside.drift > 8 and outside.norm > 8
    assert outside.null_low[1] < 3.0 < outside.null_high[1]


def test_noise_averages_out_of_the_bias_and_lost_gradients_do_not() -> None:
    generator = torch.Generator().manual_seed(1)
    truths = [torch.randn(4, 5000, generator=generator, dtype=torch.float64) for _step in range(3)]
    noisy = [truth * (1 + 0.05 * torch.randn(4, 5000, generator=generator, dtype=torch.float64)) for truth in truths]
    assert Bias.of(list(zip(noisy, truths, strict=True))).worst < 0.005
    lost = Bias.of([(0.38 * truth, truth) for truth in truths])
    assert lost.worst == pytest.approx(0.62)
    assert float(lost.error_per_slice.max()) == pytest.approx(0.62)
