"""References that cannot be judged: one sentence each, with the line, and nothing allocated or left running."""

from __future__ import annotations

import signal
import threading

import pytest
import torch

from problems.catalog import bundled
from worker.judge.reference import footprint
from worker.judge.reference.blame import blame
from worker.judge.reference.footprint import _tensors
from worker.judge.reference.problem import Problem, call_reference
from worker.judge.reference.randomness import random_call, refuse_random
from worker.judge.verdict import ReferenceFailed, ReferenceFull

FILE = """
import torch
from torch import nn
from torch.nn import functional as F
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.quiet = nn.Dropout(0.0)
    def forward(self, x):
        {body}
def get_inputs():
    {inputs}
def get_init_inputs():
    return []
"""


def problem(body: str, inputs: str = "return [torch.rand(64, 8)]") -> Problem:
    return Problem(FILE.format(body=body, inputs=inputs), "broken")


def instance_of(given: Problem):  # type: ignore[no-untyped-def]
    return given.instance(given.workloads("cpu")[0], "cpu", seed=1)


# Those of the suite whose sizes follow from values: of lists, of lengths, of an expert's share.
BY_VALUES = ("histogram", "batch_event_truncate", "merge_bucketized_dense", "moe_grouped_gemm", "sparse_inverted_index")


class TestForward:
    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ("return None", "line 11: forward returns nothing; return a tensor"),
            ("y = x\n        return [y, 'done']", "line 12: forward returns a str; return a tensor"),
            ("return ()", "line 11: forward returns nothing"),
            ("return x @ x", "line 11: forward failed: RuntimeError"),
            ("import _socket; _socket.getaddrinfo('example.org', 80)", "line 11: forward failed: it opens a network"),
            ("import urllib.request as u; u.urlopen('http://example.org/w.bin')", "network connection .*example.org"),
            (
                "return torch.zeros((1 << 50) + int(torch.ones(1 << 19)[0]))",  # too many values for an estimate
                "line 11: forward failed: it needs more memory than there is",
            ),
        ],
    )
    def test_says_why_and_where(self, body: str, message: str) -> None:
        given = problem(body)
        with pytest.raises(ReferenceFailed, match=message):
            call_reference(instance_of(given).model, (torch.rand(64, 8),))

    @pytest.mark.parametrize(
        ("full", "found"),
        [
            (torch.OutOfMemoryError("of 3 GiB"), ReferenceFull),
            (RuntimeError("CUDA error: out of memory"), ReferenceFull),
            (MemoryError(), ReferenceFailed),
        ],
    )
    def test_a_full_device_is_told_from_a_full_machine(self, full: Exception, found: type[Exception]) -> None:
        told = "forward failed: it needs more memory"
        with pytest.raises(ReferenceFailed, match=told) as failed, blame("forward failed"):
            raise full
        assert type(failed.value) is found

    def test_the_network_stays_open_to_the_judge_itself(self) -> None:
        with pytest.raises(ReferenceFailed, match="network"), blame("test"):
            _resolve()
        _resolve()


def _resolve() -> None:
    import sys

    sys.audit("socket.getaddrinfo", "example.org", 80, 0, 0, 0)


class TestRandom:
    @pytest.mark.parametrize(
        ("body", "named"),
        [
            ("return x + torch.rand_like(x)", r"line 11: `torch.rand_like\(x\)`: the reference is random"),
            ("return x + 1e-6 * torch.randn(8)", "line 11: .*random seed"),
            ("y = x * 2\n        return self.drop(y)", r"line 12: `self.drop\(y\)`"),
            ("return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)", "line 11"),
            ("self.calls = getattr(self, 'calls', 0) + 1\n        return x * self.calls", "same inputs and seed"),
            (  # noise in two calls does not hide a draw
                "self.calls = getattr(self, 'calls', 0) + 1\n"
                "        return F.dropout(0.004 * x, 0.5, True) * (1 + 1e-4 * (self.calls in (2, 7)))",
                "line 12: .*random seed",
            ),
        ],
    )
    def test_is_blamed_on_its_line(self, body: str, named: str) -> None:
        given = problem(body)
        with pytest.raises(ReferenceFailed, match=named):
            refuse_random(given, instance_of(given), (torch.rand(64, 8),))

    def test_noise_that_two_calls_agree_on_by_luck_is_not_a_draw(self) -> None:
        given = problem(
            "self.calls = getattr(self, 'calls', 0) + 1\n"
            "        return x * (1 + 1e-4 * (self.calls in (3, 5)))"  # the first two agree, the third does not
        )
        refuse_random(given, instance_of(given), (torch.rand(64, 8),))

    def test_a_dropout_of_zero_is_not_random(self) -> None:
        given = problem("return self.quiet(x)")
        refuse_random(given, instance_of(given), (torch.rand(64, 8),))

    def test_no_bundled_reference_draws(self) -> None:
        assert {name: random_call(found.source) for name, found in bundled().items()} == dict.fromkeys(
            bundled(), (0, "")
        )


class TestSize:
    def test_a_workload_too_large_is_refused_before_anything_is_made(self) -> None:
        given = problem("return x * 2", "return [torch.rand(1 << 20, 1 << 22)]")
        with pytest.raises(ReferenceFailed, match=r"'default' does not fit cpu: .*\(inputs 16,384.0 GiB.*smaller"):
            instance_of(given)

    def test_what_lies_between_inputs_and_outputs_counts(self) -> None:
        given = problem("return (x[:, None, :] * x[None, :, :]).sum((0, 1))", "return [torch.rand(1 << 22, 16)]")
        with pytest.raises(ReferenceFailed, match="the largest tensor between"):
            instance_of(given)

    def test_bytes_of_a_plain_workload(self) -> None:
        found = footprint.estimate(
            lambda name: [torch.empty(4, 6)] if name == "get_inputs" else [6], torch.nn.LayerNorm
        )
        assert found is not None
        assert (found.inputs, found.parameters, found.outputs) == (96, 48, 96)
        assert found.needed > 3 * 96

    def test_what_autograd_may_keep_is_all_that_is_made_but_no_views(self) -> None:
        class Model(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return (x * 2).exp_().view(-1).sum() + x.T.sum()

        found = footprint.estimate(lambda name: [torch.empty(4, 6)] if name == "get_inputs" else [], Model)
        assert found is not None
        assert found.saved == 8 * (24 + 1 + 1 + 1), "a product, two sums and their sum, in float64"

    def test_a_reference_that_reads_many_values_is_not_estimated_and_still_runs(self) -> None:
        given = problem("return x * float(x.sum())", "return [torch.rand(1 << 16, 8)]")
        assert given.footprint(given.workloads("cpu")[0]) is None
        assert instance_of(given).like[0].shape == (1 << 16, 8)

    def test_sizes_that_follow_from_few_values_are_told_without_allocating_what_is_large(self) -> None:
        inputs = "n = torch.tensor([1 << 21, 1 << 22]); return [torch.rand(int(n.sum()), 1 << 20)]"
        with pytest.raises(ReferenceFailed, match=r"does not fit cpu: .*\(inputs 24,576.0 GiB"):
            instance_of(problem("return x * 2", inputs))

    def test_what_is_written_into_values_without_having_any_is_not_taken_for_a_size(self) -> None:
        large = "many = torch.rand(1 << 20).sum(); few = torch.ones(1, dtype=torch.int64); few += many.long()"
        given = problem("return x * 2", f"{large}; return [torch.rand(int(few), 8)]")
        assert given.footprint(given.workloads("cpu")[0]) is None

    def test_an_estimate_draws_nothing_from_the_judges_generator(self) -> None:
        given = problem("return x * 2", "return [torch.rand(int(torch.randint(3, 9, (1,))), 8)]")
        before = torch.random.get_rng_state()
        assert given.footprint(given.workloads("cpu")[0]) is not None
        assert torch.equal(torch.random.get_rng_state(), before)

    @pytest.mark.parametrize("name", bundled())
    def test_every_bundled_workload_has_an_estimate(self, name: str) -> None:
        given = Problem(bundled()[name].source, name)
        for workload in given.spec.workloads:
            found = given.footprint(workload)
            assert found is not None
            assert 0 < found.needed < 80 << 30

    @pytest.mark.parametrize("name", BY_VALUES)
    def test_an_estimate_by_values_is_what_the_reference_takes_and_gives(self, name: str) -> None:
        given = Problem(bundled()[name].source, name)
        for workload in given.workloads("cpu"):
            found, made = given.footprint(workload), given.instance(workload, "cpu", seed=1)
            assert found is not None
            inputs = given._call("get_inputs", workload)
            outputs = call_reference(made.model, inputs)
            assert found.inputs == sum(each.nbytes for each in inputs)
            assert found.outputs == sum(each.nbytes for each in _tensors(outputs))


class TestTime:
    def test_a_loop_without_end_is_stopped_and_named(self) -> None:
        given = problem("return x", "while True: pass")
        code = given._module.get_inputs
        message = "line 13: get_inputs failed: it was not done within 0.2 s"
        with pytest.raises(ReferenceFailed, match=message), blame("get_inputs failed", limit_s=0.2):
            code()

    def test_a_timer_of_the_caller_goes_on(self) -> None:
        before = signal.getitimer(signal.ITIMER_REAL)[0]
        with blame("quick"):
            pass
        after = signal.getitimer(signal.ITIMER_REAL)[0]
        assert (before == 0) == (after == 0)

    def test_another_thread_may_run_a_reference_too(self) -> None:
        done = []

        def work() -> None:
            with blame("elsewhere"):
                done.append(1)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert done == [1]
