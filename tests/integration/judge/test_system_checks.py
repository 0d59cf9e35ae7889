"""System checks of a finalist, with real candidates in real sandboxes: an honest one passes, each flaw shows in a row.

The flawed ones compute right values when they are called plainly: only the system check can tell.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.finalist import means
from tests.support.finalist import outcome as outcome_on
from worker.judge.certificate.certify import check_system
from worker.judge.certificate.document import Outcome
from worker.judge.certificate.parts import RefereeParts
from worker.judge.certificate.stage import SystemCheck, staged
from worker.judge.certificate.system import (
    alive,
    autocast,
    compiled,
    copies,
    graphs,
    leak,
    modes,
    partial_backward,
    rewritten,
    sanitizers,
    streams,
    summed,
    threads,
    untrained_gradients,
)
from worker.judge.lease import DeviceLease
from worker.judge.report import EvaluationRequest
from worker.judge.runners.sessions import Runner
from worker.judge.verdict import Verdict

PROBLEM = """
import torch
from torch import nn

SPEC = {"workloads": [{"name": "only", "params": {"rows": 64, "cols": 384}}]}

class Model(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))
    def forward(self, x):
        return torch.relu(x + self.bias)

def get_inputs(rows=64, cols=384):
    return [torch.rand(rows, cols)]

def get_init_inputs(cols=384):
    return [cols]
"""

CANDIDATE = '''
import torch
from torch import nn
from kernelwright import load_cpp
SOURCE = r"""
#include <cstdint>
extern "C" void relu(const float* x, const float* b, float* y, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < cols; c++) {
      float v = x[r * cols + c] + b[c];
      y[r * cols + c] = v < 0 ? 0 : v;
    }
  %(extra)s
}
"""
lib = load_cpp(SOURCE)
kept = []
class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))
        self.buffer = None
    def forward(self, x):
        %(before)s
        y = torch.empty_like(x)
        lib.relu(x, self.bias, y, *x.shape)
        %(after)s
        return y
'''


TRAINED = """
import torch
from torch import nn

SPEC = {"backward": True, "workloads": [{"name": "only", "params": {"rows": 64, "cols": 384}}]}

class Model(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x)

def get_inputs(rows=64, cols=384):
    return [torch.rand(rows, cols)]

def get_init_inputs():
    return []
"""

SIGMOID = '''
import torch
from torch import nn
from kernelwright import load_cpp
SOURCE = r"""
#include <cmath>
#include <cstdint>
extern "C" void forward(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = 1 / (1 + std::exp(-x[i]));
}
extern "C" void backward(const float* dy, const float* y, float* dx, int64_t n) {
  for (int64_t i = 0; i < n; i++) dx[i] = dy[i] * y[i] * (1 - y[i]);
}
"""
lib = load_cpp(SOURCE)
class Sigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.forward(x, y, x.numel())
        ctx.save_for_backward(y.clone())
        return y
    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        dy = %(cotangent)s
        dx = %(room)s
        lib.backward(dy, y, dx, y.numel())
        return dx
class ModelNew(nn.Module):
    def forward(self, x):
        return Sigmoid.apply(x)
'''


PAIR = """
import torch
from torch import nn

SPEC = {"backward": True, "workloads": [{"name": "only", "params": {"rows": 64, "cols": 384}}]}

class Model(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))
    def forward(self, x):
        return x * self.weight, torch.sigmoid(x)

def get_inputs(rows=64, cols=384):
    return [torch.rand(rows, cols)]

def get_init_inputs(cols=384):
    return [cols]
"""

BOTH = """
import torch
from torch import nn
class Both(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.set_materialize_grads(%(zeros)s)
        gate = torch.sigmoid(x)
        ctx.save_for_backward(x, weight, gate)
        return x * weight, gate
    @staticmethod
    def backward(ctx, scaled, gated):
        x, weight, gate = ctx.saved_tensors
        %(before)s
        return scaled * weight + gated * gate * (1 - gate), (scaled * x).sum(0) %(after)s
class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))
    def forward(self, x):
        return Both.apply(x, self.weight)
"""

SQUARED = """
import torch
from torch import nn

SPEC = {"backward": True, "workloads": [{"name": "only", "params": {"rows": 64}}]}

class Model(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))
    def forward(self, x):
        return x.square() * self.scale

def get_inputs(rows=64):
    return [torch.randn(rows, 64)]

def get_init_inputs():
    return []
"""

BY_ROOTS = """
import torch
from torch import nn
class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        y = x.square() * scale
        ctx.save_for_backward(scale, x, %s)
        ctx.y = %s
        return y
    @staticmethod
    def backward(ctx, dy):
        scale, x, saved = ctx.saved_tensors
        y = saved if saved is not None else ctx.y
        square = x.square() if y is None else y / scale
        return 2 * dy * scale * torch.copysign(square.sqrt(), x), (dy * square).sum()
class ModelNew(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))
    def forward(self, x):
        return Squared.apply(x, self.scale)
"""

CLAMPED = """
import torch
from torch import nn

SPEC = {"workloads": [{"name": "only", "params": {"rows": 64}}]}

class Model(nn.Module):
    def forward(self, x):
        return %s

def get_inputs(rows=64):
    return [torch.rand(rows, 64)]

def get_init_inputs():
    return []
"""


def both(zeros: bool = True, before: str = "", after: str = "") -> str:
    return BOTH % {"zeros": zeros, "before": before, "after": after}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefereeParts]:
    with means(tmp_path_factory.mktemp("pair"), PAIR, "cpu") as ready:
        yield ready


@pytest.fixture(scope="module")
def squared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefereeParts]:
    with means(tmp_path_factory.mktemp("squared"), SQUARED, "cpu") as ready:
        yield ready


def sigmoid(cotangent: str = "dy.contiguous()", room: str = "torch.empty_like(y)") -> str:
    return SIGMOID % {"cotangent": cotangent, "room": room}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefereeParts]:
    with means(tmp_path_factory.mktemp("trained"), TRAINED, "cpu") as ready:
        yield ready


def candidate(extra: str = "", before: str = "", after: str = "") -> str:
    return CANDIDATE % {"extra": extra, "before": before, "after": after}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefereeParts]:
    with means(tmp_path_factory.mktemp("home"), PROBLEM, "cpu") as ready:
        yield ready


def outcome(parts: RefereeParts, check: SystemCheck, source: str) -> tuple[Outcome, str, Verdict]:
    return outcome_on(parts, check, source, "cpp")


@pytest.mark.parametrize(
    "check",
    [
        alive.CHECK,
        autocast.CHECK,
        leak.CHECK,
        modes.CHECK,
        threads.CHECK,
        untrained_gradients.CHECK,
        copies.CHECK,
        sanitizers.ASAN,
    ],
)
def test_an_honest_kernel_passes(parts: RefereeParts, check: SystemCheck) -> None:
    assert outcome(parts, check, candidate())[0] is Outcome.PASSED


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        (graphs.CHECK, "no CUDA graphs"),
        (streams.CHECK, "no streams"),
        (sanitizers.MEMCHECK, "AddressSanitizer does this"),
        (sanitizers.RACECHECK, "ThreadSanitizer"),
    ],
)
def test_what_needs_a_gpu_says_so_openly_on_a_cpu(parts: RefereeParts, check: SystemCheck, reason: str) -> None:
    found, detail, verdict = outcome(parts, check, candidate())
    assert found is Outcome.NOT_APPLICABLE
    assert reason in detail
    assert verdict is Verdict.OK


def test_a_buffer_that_is_handed_out_twice_is_refused(parts: RefereeParts) -> None:
    reusing = candidate(
        after="self.buffer = y if self.buffer is None else self.buffer.copy_(y)\n        y = self.buffer"
    )
    found, detail, verdict = outcome(parts, alive.CHECK, reusing)
    assert (found, verdict) == (Outcome.FAILED, Verdict.INCORRECT)
    assert "relative error" in detail


@pytest.mark.parametrize(
    ("honest", "returned", "wanted"),
    [
        ("torch.clamp(x, -1e30, 1e30)", "x", (Outcome.FAILED, Verdict.INCORRECT)),
        ("x.mT", "x.mT", (Outcome.PASSED, Verdict.OK)),
    ],
)
def test_a_result_that_is_its_input_is_refused_where_the_references_is_none(
    tmp_path: Path, honest: str, returned: str, wanted: tuple[Outcome, Verdict]
) -> None:
    idle = "from torch import nn\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        return "
    with means(tmp_path, CLAMPED % honest, "cpu") as parts:
        found, detail, verdict = outcome(parts, alive.CHECK, idle + returned)
    assert (found, verdict) == wanted, detail


def test_an_honest_backward_of_a_part_passes(pair: RefereeParts) -> None:
    found, detail, verdict = outcome(pair, partial_backward.CHECK, both())
    assert (found, verdict) == (Outcome.PASSED, Verdict.OK), detail
    assert "4 backwards" in detail


@pytest.mark.parametrize(
    "flawed",
    [
        both(after="* all(ctx.needs_input_grad)"),
        both(zeros=False, before="if scaled is None or gated is None: return None, None"),
    ],
)
def test_a_backward_that_is_right_only_as_a_whole_is_refused(pair: RefereeParts, flawed: str) -> None:
    assert outcome(pair, summed.CHECK, flawed)[0] is Outcome.PASSED
    found, detail, verdict = outcome(pair, partial_backward.CHECK, flawed)
    assert (found, verdict) == (Outcome.FAILED, Verdict.INCORRECT)
    assert "is wrong" in detail


def test_a_backward_that_says_it_cannot_do_a_part_gets_a_reservation(pair: RefereeParts) -> None:
    found, detail, verdict = outcome(pair, partial_backward.CHECK, both(zeros=False))
    assert (found, verdict) == (Outcome.RESERVATION, Verdict.OK)
    assert "a backward of a part could not be made" in detail


@pytest.mark.exhaustive  # all system checks with backwards: 146 s on two slow cores
def test_where_the_smallest_workload_has_no_backward_a_larger_one_is_asked(tmp_path: Path) -> None:
    mixed = PAIR.replace('"workloads": [', '"workloads": [{"name": "b", "params": {"rows": 9}, "backward": False}, ')
    with means(tmp_path, mixed, "cpu") as parts:
        request = EvaluationRequest("c", both(after="* all(ctx.needs_input_grad)"), "problem", mixed, "cpu", "cpp")
        rows = check_system(parts, request).rows
    found = {row.name.removeprefix("system: "): row for row in rows}
    assert found[summed.NAME].detail == "the second gradients from one graph are right"
    assert not found[partial_backward.NAME].passed


def test_one_gradient_of_one_result_has_no_parts(trained: RefereeParts) -> None:
    assert outcome(trained, partial_backward.CHECK, sigmoid())[0] is Outcome.NOT_APPLICABLE


def test_a_sum_has_the_same_gradients_twice(trained: RefereeParts) -> None:
    found, detail, verdict = outcome(trained, summed.CHECK, sigmoid())
    assert (found, verdict) == (Outcome.PASSED, Verdict.OK), detail


def test_a_backward_that_uses_up_what_forward_kept_is_refused(trained: RefereeParts) -> None:
    found, detail, verdict = outcome(trained, summed.CHECK, sigmoid(room="y"))
    assert (found, verdict) == (Outcome.FAILED, Verdict.INCORRECT)
    assert "output 1 is wrong" in detail


def test_a_backward_that_reads_behind_a_single_cotangent_is_refused(trained: RefereeParts) -> None:
    found, _detail, verdict = outcome(trained, summed.CHECK, sigmoid(cotangent="dy"))
    assert found is Outcome.FAILED
    assert verdict in (Verdict.INCORRECT, Verdict.ILLEGAL_ACCESS)


@pytest.mark.parametrize(
    ("saved", "kept", "wanted"),
    [
        ("None", "None", (Outcome.PASSED, Verdict.OK)),
        ("y", "None", (Outcome.RESERVATION, Verdict.OK)),
        ("None", "y", (Outcome.FAILED, Verdict.INCORRECT)),
        ("None", "y if float(scale) == 1.0 else None", (Outcome.FAILED, Verdict.INCORRECT)),
    ],
    ids=["not read again", "protected", "unprotected", "unprotected as training begins"],
)
def test_a_result_that_was_written_over_is_read_again_by_nobody_unseen(
    squared: RefereeParts, saved: str, kept: str, wanted: tuple[Outcome, Verdict]
) -> None:
    found, detail, verdict = outcome(squared, rewritten.CHECK, BY_ROOTS % (saved, kept))
    assert (found, verdict) == wanted, detail


@pytest.mark.parametrize(
    ("kept", "wanted"),
    [("scale", (Outcome.PASSED, Verdict.OK)), ("None", (Outcome.FAILED, Verdict.INCORRECT))],
)
def test_a_parameter_that_an_optimizer_may_have_moved_is_kept_for_the_backward(
    squared: RefereeParts, kept: str, wanted: tuple[Outcome, Verdict]
) -> None:
    source = (BY_ROOTS % ("None", "None")).replace(
        "save_for_backward(scale,", f"scale = scale; ctx.save_for_backward({kept},"
    )
    source = source.replace(
        "scale, x, saved = ctx.saved_tensors", "kept, x, saved = ctx.saved_tensors; scale = ctx.scale"
    )
    source = source.replace("ctx.scale = scale; ctx.save", "ctx.scale = scale\n        ctx.save")
    found, detail, verdict = outcome(squared, rewritten.CHECK, source)
    assert (found, verdict) == wanted, detail


def test_what_the_references_backward_reads_again_is_not_written_over(trained: RefereeParts) -> None:
    found, detail, _verdict = outcome(trained, rewritten.CHECK, sigmoid())
    assert found is Outcome.PASSED and "or refused where the reference refuses them" in detail


@pytest.mark.parametrize(
    ("kept", "wanted"),
    [("save_for_backward(x)", (Outcome.RESERVATION, Verdict.OK)), ("x = x", (Outcome.FAILED, Verdict.INCORRECT))],
)
def test_an_input_that_was_written_over_is_read_again_by_nobody_unseen(
    trained: RefereeParts, kept: str, wanted: tuple[Outcome, Verdict]
) -> None:
    again = "torch.sigmoid(ctx.x)" if kept == "x = x" else "torch.sigmoid(ctx.saved_tensors[0])"
    source = sigmoid().replace("save_for_backward(y.clone())", kept).replace("(y,) = ctx.saved_tensors", f"y = {again}")
    found, detail, verdict = outcome(trained, rewritten.CHECK, source)
    assert (found, verdict) == wanted, detail


FIRST_CALL = """
import torch
from torch import nn
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.trains = None
    def forward(self, x):
        self.trains = torch.is_grad_enabled() if self.trains is None else self.trains
        y = torch.sigmoid(x)
        return y if self.trains else y.detach()
"""


def test_a_module_that_decides_at_its_first_call_whether_it_is_trained_is_refused(trained: RefereeParts) -> None:
    found, detail, verdict = outcome(trained, modes.CHECK, FIRST_CALL)
    assert found is Outcome.FAILED and verdict is not Verdict.OK
    assert "carries no gradient" in detail


HELD = """
import torch
from torch import nn
FOLDED = {}
class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))
        %(made)s
    def forward(self, x):
        return torch.relu(x + %(bias)s)
    def folded(self):
        key = (self.bias.data_ptr(), self.bias._version)
        if key not in FOLDED:
            FOLDED[key] = self.bias.detach().clone()
        return FOLDED[key]
"""


@pytest.mark.parametrize(
    ("made", "bias", "what"),
    [
        ("held = self.bias; self.read = lambda: held", "self.read()", "a deep copy with other parameters"),
        ("self.held = [self.bias]", "self.held[0]", "parameters that are replaced"),
        ("pass", "self.folded()", "models made one after the other"),
    ],
)
def test_a_module_that_holds_on_to_other_parameters_than_its_own_is_refused(
    parts: RefereeParts, made: str, bias: str, what: str
) -> None:
    found, detail, verdict = outcome(parts, copies.CHECK, HELD % {"made": made, "bias": bias})
    assert (found, verdict) == (Outcome.FAILED, Verdict.INCORRECT), detail
    assert what in detail


def test_a_module_that_cannot_be_copied_gets_a_reservation(parts: RefereeParts) -> None:
    source = HELD % {"made": "self.lock = __import__('threading').Lock()", "bias": "self.bias"}
    found, detail, verdict = outcome(parts, copies.CHECK, source)
    assert (found, verdict) == (Outcome.RESERVATION, Verdict.OK)
    assert "a deep copy with other parameters could not be made" in detail


def test_a_module_that_cannot_be_copied_is_asked_for_the_rest(parts: RefereeParts) -> None:
    source = HELD % {
        "made": "self.lock = __import__('threading').Lock(); self.held = [self.bias]",
        "bias": "self.held[0]",
    }
    found, detail, verdict = outcome(parts, copies.CHECK, source)
    assert (found, verdict) == (Outcome.FAILED, Verdict.INCORRECT), detail
    assert "parameters that are replaced" in detail


def test_parameters_that_are_tied_are_replaced_as_one(tmp_path: Path) -> None:
    tied = PROBLEM.replace("torch.zeros(cols))", "torch.zeros(cols)); self.same = self.bias")
    tied = tied.replace("x + self.bias", "x + self.bias + self.same")
    source = candidate(before="x = x + self.same").replace(
        "self.buffer = None", "self.buffer, self.same = None, self.bias"
    )
    with means(tmp_path, tied, "cpu") as ready:
        found, detail, verdict = outcome(ready, copies.CHECK, source)
    assert (found, verdict) == (Outcome.PASSED, Verdict.OK), detail


@pytest.mark.parametrize("check", [modes.CHECK, threads.CHECK, copies.CHECK])
def test_an_honest_backward_is_right_however_it_is_called(trained: RefereeParts, check: SystemCheck) -> None:
    found, detail, verdict = outcome(trained, check, sigmoid())
    assert (found, verdict) == (Outcome.PASSED, Verdict.OK), detail


@pytest.mark.parametrize(
    "less", ["x = x if self.training else x.abs() + 1", "x = x + 1 if torch.is_inference_mode_enabled() else x"]
)
def test_a_module_that_does_something_else_where_it_serves_is_refused(parts: RefereeParts, less: str) -> None:
    found, detail, verdict = outcome(parts, modes.CHECK, candidate(before=less))
    assert (found, verdict) == (Outcome.FAILED, Verdict.INCORRECT)
    assert "output 0 of a call in" in detail


def test_a_module_that_cannot_be_called_in_inference_mode_gets_a_reservation(parts: RefereeParts) -> None:
    found, detail, verdict = outcome(parts, modes.CHECK, candidate(before="assert x._version >= 0"))
    assert (found, verdict) == (Outcome.RESERVATION, Verdict.OK)
    assert "do not track version counter" in detail


def test_a_module_that_cannot_be_called_in_inference_mode_is_asked_for_the_rest(parts: RefereeParts) -> None:
    source = candidate(before="assert x._version >= 0; x = x if self.training else x.abs() + 1")
    found, detail, verdict = outcome(parts, modes.CHECK, source)
    assert (found, verdict) == (Outcome.FAILED, Verdict.INCORRECT)
    assert "output 0 of a call in eval() is wrong" in detail


def test_in_eval_the_reference_may_do_something_else_too(tmp_path: Path) -> None:
    halved = PROBLEM.replace("torch.relu(x + self.bias)", "torch.relu(x + self.bias) * (1 if self.training else 0.5)")
    with means(tmp_path, halved, "cpu") as ready:
        as_it_does = outcome(ready, modes.CHECK, candidate(after="y = y if self.training else y / 2"))
        whatever = outcome(ready, modes.CHECK, candidate())
    assert as_it_does[0] is Outcome.PASSED, as_it_does
    assert whatever[0] is Outcome.FAILED


def test_training_moves_statistics_and_eval_is_judged_on_the_references(tmp_path: Path) -> None:
    normalized = PROBLEM.replace("self.bias = nn.Parameter(torch.zeros(cols))", "self.norm = nn.BatchNorm1d(cols)")
    normalized = normalized.replace("torch.relu(x + self.bias)", "self.norm(x)")
    source = normalized[normalized.index("class Model") : normalized.index("def get_inputs")].replace(
        "Model(", "ModelNew("
    )
    with means(tmp_path, normalized, "cpu") as ready:
        found, detail, verdict = outcome(ready, modes.CHECK, f"import torch\nfrom torch import nn\n{source}")
    assert (found, verdict) == (Outcome.PASSED, Verdict.OK), detail


def test_a_buffer_that_two_threads_share_is_refused_also_where_bits_differ_from_call_to_call(
    parts: RefereeParts,
) -> None:
    source = candidate().replace('extern "C"', 'static float held[64 * 384];\nextern "C"')
    source = source.replace("y[r * cols + c] = v < 0", "held[r * cols + c] = v < 0")
    source = source.replace("  }\n  \n}", "  }\n  for (int64_t i = 0; i < rows * cols; i++) y[i] = held[i];\n}")
    assert source.count("held[") == 3
    noisy = source.replace("y[i] = held[i]", "y[i] = held[i] * (1 + 1.5e-7f * (turn % 2)); turn++")
    for kernel in (source, noisy.replace("static float", "static int turn; static float")):
        assert outcome(parts, alive.CHECK, kernel)[0] is Outcome.PASSED
        found, detail, verdict = outcome(parts, threads.CHECK, kernel)
        assert (found, verdict) == (Outcome.FAILED, Verdict.INCORRECT), detail


UNTRAINED = '"cols": 384}, "backward": False}'


@pytest.mark.parametrize(
    ("asked", "cotangent", "wanted"),
    [
        (True, "dy.contiguous()", (Outcome.PASSED, Verdict.OK)),
        (True, "2 * dy.contiguous()", (Outcome.FAILED, Verdict.INCORRECT)),
        (False, "2 * dy.contiguous()", (Outcome.RESERVATION, Verdict.OK)),
    ],
)
def test_gradients_that_no_workload_asks_for_are_right_or_not_to_be_had(
    tmp_path: Path, asked: bool, cotangent: str, wanted: tuple[Outcome, Verdict]
) -> None:
    problem = TRAINED.replace('"cols": 384}}', UNTRAINED).replace('"backward": True', f'"backward": {asked}')
    with means(tmp_path, problem, "cpu") as ready:
        found, detail, verdict = outcome(ready, untrained_gradients.CHECK, sigmoid(cotangent=cotangent))
    assert (found, verdict) == wanted, detail
    assert detail == "they are right" or detail.startswith("grad:x is wrong")


def test_a_module_without_gradients_says_so_and_passes(parts: RefereeParts) -> None:
    found, detail, _verdict = outcome(parts, untrained_gradients.CHECK, candidate())
    assert found is Outcome.PASSED
    assert "there are none to be had" in detail and "carries no gradient" in detail


def test_a_module_that_fails_where_gradients_are_recorded_gets_a_reservation(parts: RefereeParts) -> None:
    failing = candidate(before="assert not torch.is_grad_enabled()")
    found, detail, verdict = outcome(parts, untrained_gradients.CHECK, failing)
    assert (found, verdict) == (Outcome.RESERVATION, Verdict.OK)
    assert "a call with gradients could not be made: AssertionError" in detail


def test_where_gradients_are_judged_they_are_not_asked_for_once_more(trained: RefereeParts) -> None:
    assert outcome(trained, untrained_gradients.CHECK, sigmoid())[0] is Outcome.NOT_APPLICABLE


def test_without_a_backward_nothing_is_summed(parts: RefereeParts) -> None:
    assert outcome(parts, summed.CHECK, candidate())[0] is Outcome.NOT_APPLICABLE


def test_others_may_have_the_device_while_a_candidate_is_built_that_is_examined_alone(
    parts: RefereeParts, tmp_path: Path
) -> None:
    lease, beside = DeviceLease(tmp_path, "test"), DeviceLease(tmp_path, "test")
    had: list[bool] = []

    def others_get_it() -> bool:
        got = threading.Event()

        def have() -> None:
            with beside.exclusive():
                got.set()

        threading.Thread(target=have, daemon=True).start()
        had.append(got.wait(2))
        return had[-1]

    @contextmanager
    def runner(unlimited: bool) -> Iterator[Runner]:
        with parts.runner(unlimited) as started:
            build = started.build
            assert build is not None
            started.build = lambda *what: build(*what) if others_get_it() else ""
            yield started

    asked = EvaluationRequest("c", candidate(), "problem", PROBLEM, "cpu", "cpp")
    with staged(replace(parts, runner=runner, lease=lease), asked, alone=True):
        assert not others_get_it()
    assert had == [True, False]


def test_memory_that_is_kept_with_every_call_is_refused(parts: RefereeParts) -> None:
    found, detail, verdict = outcome(parts, leak.CHECK, candidate(after="kept.append(y)"))
    assert (found, verdict) == (Outcome.FAILED, Verdict.SUSPICIOUS)
    assert "bytes with every call" in detail


def test_a_kernel_that_reads_bf16_as_fp32_inside_autocast_is_refused(parts: RefereeParts) -> None:
    mixing = candidate(before="x = x @ torch.eye(x.shape[1])")
    found, _detail, verdict = outcome(parts, autocast.CHECK, mixing)
    assert found is Outcome.FAILED
    # Reading twice the bytes that are there gives wrong values, or ends the process.
    assert verdict in (Verdict.INCORRECT, Verdict.ILLEGAL_ACCESS, Verdict.LAUNCH_ERROR)


def test_a_read_behind_the_end_of_a_tensor_is_an_illegal_access(parts: RefereeParts) -> None:
    reading = candidate(extra="volatile float sink = x[rows * cols + 3]; (void)sink;")
    found, detail, verdict = outcome(parts, sanitizers.ASAN, reading)
    assert (found, verdict) == (Outcome.FAILED, Verdict.ILLEGAL_ACCESS)
    assert "heap-buffer-overflow" in detail


def test_undefined_behaviour_is_a_reservation(parts: RefereeParts) -> None:
    overflowing = candidate(extra="volatile int32_t n = INT32_MAX; n = n + (int32_t)rows;")
    found, detail, verdict = outcome(parts, sanitizers.ASAN, overflowing)
    assert (found, verdict) == (Outcome.RESERVATION, Verdict.OK)
    assert "signed integer overflow" in detail


def test_without_cpp_of_its_own_there_is_nothing_for_address_sanitizer(parts: RefereeParts) -> None:
    plain = (
        candidate()
        .replace("lib = load_cpp(SOURCE)", "")
        .replace("lib.relu(x, self.bias, y, *x.shape)", "y = torch.relu(x + self.bias)")
    )
    found, detail, _verdict = outcome(parts, sanitizers.ASAN, plain)
    assert found is Outcome.NOT_APPLICABLE
    assert "no C++" in detail


@pytest.mark.exhaustive
def test_a_module_inside_torch_compile_is_right_or_reserved(parts: RefereeParts) -> None:
    found, detail, verdict = outcome(parts, compiled.CHECK, candidate())
    assert found in (Outcome.PASSED, Outcome.RESERVATION), detail
    assert verdict is Verdict.OK


@pytest.mark.exhaustive
def test_wrong_values_only_inside_torch_compile_are_refused(parts: RefereeParts) -> None:
    dodging = candidate(before="if torch.compiler.is_compiling(): return torch.zeros_like(x)")
    found, _detail, verdict = outcome(parts, compiled.CHECK, dodging)
    assert (found, verdict) == (Outcome.FAILED, Verdict.INCORRECT)
