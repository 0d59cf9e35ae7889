"""What a candidate is asked beside the workloads: probes, other sizes, other memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.redteam.problems import source_of
from worker.judge.inputs import families, probes
from worker.judge.inputs.constants import _another_constant
from worker.judge.inputs.probes import Variant, make_layouts, make_shapes
from worker.judge.numerics.case import Case
from worker.judge.numerics.truth import Truth
from worker.judge.reference.domains import resolved
from worker.judge.reference.problem import Problem
from worker.judge.verdict import ReferenceFailed, ReferenceFull

SEED = 5
A_MATRIX_FOR_EACH_ROW = """
import torch

SPEC = {"workloads": [{"name": "small", "params": {"rows": 8, "dim": 16}}]}

class Model(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim, self.weights = dim, torch.nn.Linear(8, dim * dim)
    def forward(self, x):
        return torch.bmm(x[:, None], self.weights(x[:, :8]).view(-1, self.dim, self.dim))

def get_inputs(rows=8, dim=16):
    return [torch.randn(rows, dim)]

def get_init_inputs(dim=16):
    return [dim]
"""


def first_case(name: str, family: str = "normal") -> tuple[Problem, Truth, Case]:
    problem = Problem(source_of(name), name)
    instance = problem.instance(problem.workloads("cpu")[-1], "cpu", SEED)
    domains = resolved(problem, instance)
    generator = torch.Generator().manual_seed(SEED)
    drawn = families.draw(instance.like, instance.arguments, domains, instance.workload.params, family, generator)
    truth = Truth(instance, problem.spec.precision, domains)
    return problem, truth, truth.case(family, drawn)


SCALED = """
import torch
from torch import nn

SPEC = {"backward": True, "workloads": [{"name": "only", "params": {"rows": 16}}]}

class Model(nn.Module):
    def forward(self, x, alpha, shift, exact=True):
        return %s

def get_inputs(rows=16):
    return [torch.randn(rows, 8), 0.5, 3, True]

def get_init_inputs():
    return []
"""


def layouts(name: str) -> dict[str, Variant]:
    _problem, truth, case = first_case(name)
    return {variant.name.partition(" ")[2]: variant for variant in make_layouts(truth.instance, case)}


def tensor(variant: Variant) -> torch.Tensor:
    (case,) = variant.cases
    value = case.inputs[0]
    assert isinstance(value, torch.Tensor)
    return value


class TestLayouts:
    def test_hold_the_same_values_elsewhere(self) -> None:
        found = layouts("softmax")
        expected = first_case("softmax")[2].inputs[0]
        rows, cols = expected.shape
        strides = {name: tensor(variant).stride() for name, variant in found.items()}
        assert strides == {
            "with transposed strides": (1, rows),
            "with padded rows": (cols + 3, 1),
            "with every other element": (2 * cols, 2),
            "off alignment": (cols, 1),
        }
        assert all(torch.equal(tensor(variant), expected) for variant in found.values())
        assert [variant.shift for variant in found.values()] == [0, 0, 0, 1]

    @pytest.mark.parametrize("wrong", ["with padded rows", "with every other element"])
    def test_show_a_kernel_that_takes_rows_for_neighbours(self, wrong: str) -> None:
        variant = layouts("softmax")[wrong]
        x = tensor(variant)
        memory = torch.zeros(x.untyped_storage().nbytes() // 4 + x.numel()).copy_(
            torch.cat([torch.empty(0).set_(x.untyped_storage()), torch.zeros(x.numel())])
        )
        read = memory[: x.numel()].reshape(x.shape)  # as if it were contiguous
        assert not variant.cases[0].judge((torch.softmax(read, -1),))[0].passed
        assert variant.cases[0].judge((torch.softmax(x, -1),))[0].passed

    def test_images_lie_with_their_channels_side_by_side_too(self) -> None:
        case = first_case("group_norm")[2]
        variant = layouts("group_norm")["with channels last"]
        own = variant.cases[0].inputs
        assert all(value.is_contiguous(memory_format=torch.channels_last) for value in own), "the gradient as well"
        assert not any(value.is_contiguous() for value in own)
        assert all(torch.equal(*pair) for pair in zip(own, case.inputs, strict=True))

    def test_leave_vectors_alone(self) -> None:
        ids = layouts("embedding")
        assert list(ids) == ["off alignment"]


class TestShapes:
    def test_are_asked_with_two_families_and_stretched_ones_with_three(self) -> None:
        found = self.variants("row_max")
        assert 8 <= len(found) <= 12
        assert [len(variant.cases) for variant in found if "=65539" in variant.name] == [1], "of 61 rows, large"
        for variant in found:
            if "=65539" in variant.name:
                continue
            stretched = variant.instance.like[0].numel() > 1.5 * 61 * 333
            expected = ["mixed", "ends", "offset"] if stretched else ["mixed", "ends"]
            assert [case.family for case in variant.cases] == expected, variant.name
        assert {"odd with rows=245", "odd with cols=1333"} <= {variant.name for variant in found}

    def test_a_lost_tail_shows_whatever_else_is_large(self) -> None:
        case = self.named("row_max", "odd with cols=1333").cases[1]
        for lost in (1, 20, 53):
            assert not case.judge((case.inputs[0][:, :-lost].amax(-1),))[0].passed, lost
        assert case.judge((case.inputs[0].amax(-1),))[0].passed

    def test_a_variance_of_columns_that_cancels_shows(self) -> None:
        variant = self.named("batchnorm", "odd with rows=245")
        (case,) = (case for case in variant.cases if case.family == "offset")
        norm = variant.instance.model.get_submodule("norm")
        x, mean = case.inputs[0], case.inputs[0].mean(0)

        def scaled(variance: torch.Tensor) -> torch.Tensor:
            return ((x - mean) * torch.rsqrt(variance + 1e-5) * norm.weight + norm.bias).detach()

        assert case.judge((scaled((x - mean).square().mean(0)),))[0].passed
        assert not case.judge((scaled((x.square().mean(0) - mean.square()).clamp_min(0)),))[0].passed

    def test_large_ones_are_asked_with_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("worker.judge.inputs.probes._BOTH_BYTES", 0)
        assert {len(variant.cases) for variant in self.variants("row_max") if variant.cases[0].inputs[0].numel()} == {1}

    @pytest.mark.parametrize("name", ["bias_relu", "matmul"])
    def test_every_size_is_also_even(self, name: str) -> None:
        """The smallest workload's are odd: a mask in place of a remainder shows at 334."""
        sizes = {"bias_relu": {"cols=334", "rows=62"}, "matmul": {"k=334", "n=78", "m=62"}}[name]
        assert {f"odd with {size}" for size in sizes} <= {variant.name for variant in self.variants(name)}

    @pytest.mark.filterwarnings("ignore:var")
    def test_sizes_without_any_result_must_only_be_survived(self) -> None:
        assert self.named("variance", "odd with cols=1333").compared
        assert not self.named("variance", "odd with cols=1").compared, "a variance of one number is NaN"

    def test_none_has_parameters_that_are_out_of_proportion(self) -> None:
        problem = Problem(A_MATRIX_FOR_EACH_ROW, "made")
        smallest = problem.instance(problem.workloads("cpu")[0], "cpu", SEED)
        found = make_shapes(problem, smallest, resolved(problem, smallest), SEED)
        largest = {variant.name: max(each.numel() for each in variant.instance.model.parameters()) for variant in found}
        assert max(largest.values()) * 4 <= probes._MAX_GROWTH * 16**2 * 8 * 4 + probes._MORE_PARAMETERS
        assert "small with rows=4377" in largest, "more rows than 16 bits can count numbers"
        assert "small with dim=17" in largest
        assert "small with dim=8753" not in largest, "two gigabytes of weights"

    def named(self, problem: str, name: str) -> Variant:
        return next(variant for variant in self.variants(problem) if variant.name == name)

    @staticmethod
    def variants(name: str) -> list[Variant]:
        problem, truth, _case = first_case(name)
        return make_shapes(problem, truth.instance, truth.domains, SEED)

    @pytest.mark.parametrize("full", [torch.OutOfMemoryError("of 3 GiB"), ReferenceFull("forward failed")])
    def test_are_not_left_out_because_the_device_is_full(
        self, monkeypatch: pytest.MonkeyPatch, full: Exception
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise full

        problem, truth, _case = first_case("softmax")
        monkeypatch.setattr(probes, "_variant", fail)
        with pytest.raises(type(full)):
            make_shapes(problem, truth.instance, truth.domains, SEED)


class TestPatterns:
    @pytest.mark.parametrize("full", [torch.OutOfMemoryError("of 3 GiB"), ReferenceFull("forward failed")])
    def test_are_not_left_out_because_the_device_is_full(
        self, monkeypatch: pytest.MonkeyPatch, full: Exception
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise full

        _problem, truth, _case = first_case("softmax")
        monkeypatch.setattr(type(truth), "case", fail)
        with pytest.raises(type(full)):
            probes.make_patterns(truth, truth.domains, SEED)

    def test_keys_are_drawn_and_a_few_of_them_move_while_all_else_stays(self) -> None:
        _problem, truth, _case = first_case("keyed")
        (variant,) = probes.make_patterns(truth, truth.domains, SEED)
        strided, moved, sparse = variant.cases
        assert [case.family for case in variant.cases] == ["strided", "moved", "sparse"] and variant.listed
        ids, keys, values = zip(strided.inputs, moved.inputs, strict=True)
        assert torch.equal(*values) and not torch.equal(strided.truth[0], moved.truth[0])
        assert all(1 <= int((before != after).sum()) <= 8 for before, after in (ids, keys))
        for case in variant.cases:
            assert not torch.equal(case.inputs[1], truth.instance.like[1]) and (case.inputs[1].diff() > 0).all()
        assert not torch.equal(sparse.inputs[1], strided.inputs[1])

    def test_a_mask_hides_one_argument_at_a_time_where_results_stay_finite(self) -> None:
        _problem, truth, _case = first_case("softmax")
        (variant,) = probes.make_masked(truth, truth.domains, SEED)
        (case,) = variant.cases
        hidden = torch.isneginf(case.inputs[0])
        assert 0.02 < float(hidden.float().mean()) < 0.08 and not hidden.all(dim=1).any() and variant.listed
        assert torch.isfinite(case.truth[0]).all()
        _problem, truth, _case = first_case("matmul")
        assert probes.make_masked(truth, truth.domains, SEED) == [], "a product of infinities is nobody's mask"

    def test_a_mean_loss_is_asked_with_masks_in_few_rows(self) -> None:
        """With masks in all rows some target is always hidden, and the loss is infinite."""
        _problem, truth, _case = first_case("cross_entropy")
        (variant,) = probes.make_masked(truth, truth.domains, SEED)
        (case,) = variant.cases
        assert 1 <= int(torch.isneginf(case.inputs[0]).any(1).sum()) <= 2 and case.finite

    def test_no_mask_for_8_bit_floats(self) -> None:
        """They have no infinity: the judge ended with every candidate for a product of them."""
        _problem, truth, case = first_case("gemm_w8a8_fp8")
        narrow = [place for place, value in enumerate(case.inputs) if value.element_size() == 1]
        masked = [each for variant in probes.make_masked(truth, truth.domains, SEED) for each in variant.cases]
        assert narrow and all(each.inputs[place].float().isfinite().all() for each in masked for place in narrow)

    @pytest.mark.parametrize(("name", "sizes"), [("softmax", {"rows": 62, "cols": 334}), ("embedding_grad", None)])
    def test_a_large_workload_has_one_more_of_each_size(self, name: str, sizes: dict[str, int] | None) -> None:
        problem, truth, _case = first_case(name)
        (variant,) = probes.make_one_more(problem, truth.instance, SEED)
        params = truth.instance.workload.params
        wanted = sizes or {key: value + 1 for key, value in params.items() if isinstance(value, int)}
        assert variant.instance.workload.params == wanted and not variant.listed

    def test_what_is_trained_with_is_also_called_without_gradients(self) -> None:
        problem, truth, _case = first_case("gelu_train")
        (variant,) = probes.make_served(problem, truth.instance, SEED)
        assert not variant.instance.backward and variant.listed
        assert len(variant.cases[0].truth) == 1 < len(_case.truth)
        problem, truth, _case = first_case("softmax")
        assert probes.make_served(problem, truth.instance, SEED) == []

    def test_models_are_made_with_other_constants_one_at_a_time(self) -> None:
        problem, truth, case = first_case("adamw_multi_tensor")
        found = probes.make_constructed(problem, truth.instance, SEED)
        listed = (1e-3, (0.9, 0.95), 1e-8, 0.1)
        changed = [variant.instance.init[2:] for variant in found]
        assert [sum(a != b for a, b in zip(made, listed, strict=False)) for made in changed] == [1, 1, 1, 1]
        beta = found[1].cases[0]
        assert not beta.judge(truth.case("mixed", beta.inputs).eager)[2].passed, "another second moment"
        assert not any(variant.listed for variant in found), "a candidate may refuse"
        assert len(case.truth) == len(beta.truth)

    def test_forward_is_called_with_other_numbers_one_at_a_time(self) -> None:
        source = SCALED % "torch.tanh(x * alpha) + shift if exact else x * alpha + shift"
        problem = Problem(source, "scaled")
        instance = problem.instance(problem.workloads("cpu")[0], "cpu", SEED)
        found = probes.make_called(problem, instance, SEED)
        assert [variant.instance.like[1:4] for variant in found] == [(0.25, 3, True), (0.5, 4, True), (0.5, 3, False)]
        assert [variant.name.partition(" called ")[2] for variant in found] == [
            "with alpha=0.25",
            "with shift=4",
            "with exact=False",
        ]
        kept = Truth(instance, problem.spec.precision, {}).case(
            "mixed", (found[2].cases[0].inputs[0], 0.5, 3, True, *found[2].cases[0].inputs[4:])
        )
        assert not found[2].cases[0].judge(kept.eager)[0].passed

    def test_numbers_that_the_reference_does_not_take_are_left_out(self) -> None:
        listed = "(alpha, shift, exact) == (0.5, 3, True)"
        problem = Problem(SCALED % f"torch.tanh(x) if {listed} else x.view(7, 7)", "scaled")
        instance = problem.instance(problem.workloads("cpu")[0], "cpu", SEED)
        found = probes.make_called(problem, instance, SEED)
        assert [variant.name.partition(" called ")[2] for variant in found] == []

    def test_one_row_stands_for_all(self) -> None:
        _problem, truth, case = first_case("softmax")
        (variant,) = probes.make_repeated(truth, case)
        value = tensor(variant)
        assert value.stride(0) == 0 and value.shape == case.inputs[0].shape
        assert variant.cases[0].judge(variant.cases[0].eager)[0].passed
        _problem, truth, case = first_case("histogram")
        assert probes.make_repeated(truth, case) == [], "no rows of floats"

    @pytest.mark.parametrize(
        ("value", "other"),
        [(0.0, 0.125), (1e-6, 1e-3), (1e-3, 2e-3), (0.1, 0.2), (0.9, 0.85), (1.0, 2.0), (-2.0, -4.0),
         ((0.9, 0.5), (0.85, 0.25)), (3, None), (True, None), ("float32", None), (float("inf"), None), ((), None)],
    )  # fmt: skip
    def test_another_constant_is_of_the_same_kind(self, value: object, other: object) -> None:
        assert _another_constant(value) == (pytest.approx(other) if other is not None else None)

    def test_a_problem_without_such_constants_has_no_other_models(self) -> None:
        problem, truth, _case = first_case("softmax")
        assert probes.make_constructed(problem, truth.instance, SEED) == []

    def test_a_reference_that_takes_no_other_values_has_no_such_variant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object, **__: object) -> None:
            raise ReferenceFailed("not of these values")

        problem, truth, _case = first_case("gelu_train")
        monkeypatch.setattr(probes, "_variant", fail)
        assert probes.make_served(problem, truth.instance, SEED) == []
        problem, truth, _case = first_case("rmsnorm_residual")
        assert probes.make_constructed(problem, truth.instance, SEED) == []

    def test_nothing_moves_where_nothing_has_an_order(self) -> None:
        _problem, truth, _case = first_case("softmax")
        (variant,) = probes.make_patterns(truth, truth.domains, SEED)
        assert [case.family for case in variant.cases] == ["strided", "sparse"]

    def test_a_cotangent_keeps_its_layout_and_a_few_elements(self) -> None:
        cotangent = torch.randn(2, 8, 5, 5).to(memory_format=torch.channels_last)
        few = probes._all_but_few_zero(cotangent, torch.Generator().manual_seed(SEED))
        assert few.stride() == cotangent.stride() and 1 <= int((few != 0).sum()) <= 8


class TestSpecialValues:
    def test_a_maximum_is_not_a_number_where_one_element_is_none(self) -> None:
        _problem, _truth, case = first_case("row_max", "special")
        x = case.inputs[0]
        assert x.isnan().any()
        dropped = x.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).amax(-1)
        assert not case.judge((dropped,))[0].passed
        assert case.judge((x.amax(-1),))[0].passed

    def test_what_a_mask_hides_may_be_either(self) -> None:
        problem, truth, case = first_case("masked_softmax")
        x, mask = case.inputs
        hidden = x.masked_fill((mask == 0) & (torch.rand(x.shape) < 0.1), torch.nan)
        source = source_of("masked_softmax").replace(
            "return torch.softmax(x.masked_fill(~(mask > 0), float('-inf')), -1)", "return (x.exp() * mask).sum(-1)"
        )
        times = Problem(source, "times")
        instance = replace(times.instance(times.workloads("cpu")[-1], "cpu", SEED), like=truth.instance.like)
        found = Truth(instance, problem.spec.precision, truth.domains).case("special", (hidden, mask))
        assert found.eager[0].isnan().any(), "NaN times zero"
        skipping = (hidden.masked_fill(mask == 0, -torch.inf).exp() * mask).sum(-1)
        assert found.judge((skipping,))[0].passed
        assert found.judge(found.eager)[0].passed

    def test_nan_that_infinities_make_may_be_an_infinity_and_no_number(self) -> None:
        problem, truth, case = first_case("masked_softmax")
        x, mask = case.inputs
        wild = x.clone()
        wild[0, :2] = torch.tensor([torch.inf, -torch.inf])
        wild[1, 0] = torch.nan
        source = source_of("masked_softmax").replace(
            "return torch.softmax(x.masked_fill(~(mask > 0), float('-inf')), -1)", "return x.sum(-1)"
        )
        sums = Problem(source, "sums")
        instance = replace(sums.instance(sums.workloads("cpu")[-1], "cpu", SEED), like=truth.instance.like)
        found = Truth(instance, problem.spec.precision, truth.domains).case("special", (wild, mask))
        honest = found.eager[0]
        assert honest[:2].isnan().all()
        for row, value, right in ((0, torch.inf, True), (0, -torch.inf, True), (0, 1.0, False), (1, torch.inf, False)):
            output = honest.clone()
            output[row] = value
            assert found.judge((output,))[0].passed == right, (row, value)

    def test_what_a_mask_hides_may_be_either_beside_an_infinity_that_counts(self) -> None:
        problem, truth, case = first_case("masked_softmax")
        x, mask = case.inputs
        mask[:, 0], mask[:, 1] = 0, 1
        hidden = x.clone()
        hidden[:, 0], hidden[::2, 1] = torch.nan, torch.inf
        source = source_of("masked_softmax").replace(
            "return torch.softmax(x.masked_fill(~(mask > 0), float('-inf')), -1)", "return (x.exp() * mask).sum(-1)"
        )
        times = Problem(source, "times")
        instance = replace(times.instance(times.workloads("cpu")[-1], "cpu", SEED), like=truth.instance.like)
        found = Truth(instance, problem.spec.precision, truth.domains).case("special", (hidden, mask))
        skipping = (hidden.masked_fill(mask == 0, -torch.inf).exp() * mask).sum(-1)
        assert skipping[::2].isinf().all()
        assert found.judge((skipping,))[0].passed
        assert found.judge(found.eager)[0].passed
        assert not found.judge((torch.where(skipping.isinf(), 0.0, skipping),))[0].passed


def test_all_parameters_are_drawn_at_once_with_other_signs_zeros_and_large() -> None:
    _problem, truth, case = first_case("layernorm")
    weights = dict(truth.instance.model.named_parameters())
    found = probes.make_probes(truth, case, truth.domains, torch.Generator().manual_seed(SEED))
    signs, large = (probe.state for probe in found if probe.name.startswith("all parameters"))
    assert signs is not None and large is not None and set(signs) == set(large) == set(weights)
    for name, weight in weights.items():
        assert (signs[name] == 0).any() and (signs[name] == -weight).any() and (signs[name] == weight).any()
        assert torch.equal(large[name], 8 * weight)


def test_statistics_are_drawn_anew_and_keep_their_sign() -> None:
    _problem, truth, case = first_case("batchnorm_inference_act")
    found = probes.make_probes(truth, case, truth.domains, torch.Generator().manual_seed(SEED))
    drawn = {probe.name: probe for probe in found if "running" in probe.name}
    assert {name.rpartition(".")[2] for name in drawn} == {"running_mean", "running_var"}
    assert all(any(probe.moved) for probe in drawn.values())
    (variance,) = (probe.state[name] for name, probe in drawn.items() if probe.state and name.endswith("var"))
    assert (variance > 0).all()


def test_a_parameter_is_drawn_anew_whole_and_in_one_element() -> None:
    _problem, truth, case = first_case("layernorm")
    weights = dict(truth.instance.model.named_parameters())
    found = probes.make_probes(truth, case, truth.domains, torch.Generator().manual_seed(SEED))
    changed = [
        (probe.name, int((probe.state[probe.name] != weights[probe.name]).sum()), any(probe.moved))
        for probe in found
        if probe.state is not None and probe.name in weights
    ]
    sizes = {name: weight.numel() for name, weight in weights.items()}
    assert [(name, moved) for name, _count, moved in changed] == [(name, True) for name in [*weights, *weights]]
    assert [count for _name, count, _moved in changed] == [*sizes.values(), *(1 for _name in sizes)]
