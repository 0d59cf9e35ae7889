"""Certified workloads on which the kernel was not surely faster: they get the fastest baseline, as it was judged."""

from __future__ import annotations

import copy
import dataclasses
import functools
import io
import itertools
import pickle
import sys
import threading
import types
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

from problems.catalog import Spec
from tests.unit.worker.packaged.conftest import SIZES, Import
from worker.judge.baselines import _modes

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about itself, as it compiles
SAID = "baseline: {} on small: the kernel was not surely faster there (0.82x [0.80, 0.84])"


def made(package: types.ModuleType, workload: str = "small") -> tuple[Any, torch.Tensor]:
    """The drop-in of a workload, and an input."""
    rows, cols = SIZES[workload]
    return package.dispatch.DropIn(cols), torch.randn(rows, cols)


def exact(module: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x + module.bias) * module.scale


class Compiler:
    """Stands in for Inductor: keeps what torch.compile was told, and what it was to compile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.modes: list[str | None] = []
        self.shapes: list[list[torch.Size]] = []
        real = torch.compile

        def compile_(function: Callable[..., Any], *, mode: str | None = None) -> Any:
            self.modes.append(mode)
            return real(function, backend=self._backend)

        monkeypatch.setattr(torch, "compile", compile_)

    def _backend(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        self.shapes.append([each.shape for each in inputs])
        return graph.forward


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    return Compiler(monkeypatch)


def refuse(*_arguments: Any, **_options: Any) -> Any:
    raise AssertionError("nothing is to be compiled here")


def test_inductor_compiles_the_reference_with_the_modules_own_parameters(package: Import) -> None:
    module, x = made(package("compile"))
    with torch.no_grad():
        assert module.explain(x) == SAID.format("compile")
        torch.testing.assert_close(module(x), exact(module, x))
        module.load_state_dict({"bias": torch.randn(16)})
        torch.testing.assert_close(module(x), exact(module, x))
    assert not torch._dynamo.utils.counters["unimplemented"]


@pytest.mark.exhaustive
def test_inductor_compiles_the_references_backward(package: Import) -> None:
    _has_the_references_gradients(package("compile", backward=True))


def test_gradients_go_through_the_baseline_where_the_backward_was_judged(package: Import, compiler: Compiler) -> None:
    _has_the_references_gradients(package("compile", backward=True))
    assert len(compiler.shapes) == 1


def _has_the_references_gradients(used: types.ModuleType) -> None:
    ends = torch.randn(8, 16)
    for module, x in (made(used), made(used)):
        torch.nn.init.normal_(module.bias)
        (expected,) = torch.autograd.grad(exact(module, x), [module.bias], ends)
        assert module.explain(x) == SAID.format("compile")
        module(x).backward(ends)
        torch.testing.assert_close(module.bias.grad, expected)


def test_every_workload_has_its_sizes_as_constants_and_all_modules_share_what_was_compiled(
    package: Import, compiler: Compiler
) -> None:
    used = package("compile")
    with torch.no_grad():
        for workload in ("small", "odd", "small"):
            for module, x in (made(used, workload), made(used, workload)):
                torch.testing.assert_close(module(x), exact(module, x))
    assert compiler.modes == [None, None]
    sizes = [[(8, 16), (16,)], [(5, 13), (13,)]]
    assert [sorted(map(tuple, shapes)) for shapes in compiler.shapes] == [sorted(each) for each in sizes]
    assert all(type(size) is int for shapes in compiler.shapes for shape in shapes for size in shape)


JUDGED = [(mode.name, mode.compile_mode) for mode in _modes("cuda", Spec()) if mode.compile_mode is not None]


@pytest.mark.parametrize(("baseline", "mode"), JUDGED)
def test_the_mode_is_the_judges(
    package: Import, compiler: Compiler, monkeypatch: pytest.MonkeyPatch, baseline: str, mode: str
) -> None:
    used = package(baseline)
    monkeypatch.setattr(used.dispatch.baselines, "_may_replay", lambda _device, *, gradient: not gradient)
    module, x = made(used)
    with torch.no_grad():
        assert module.explain(x) == SAID.format(baseline)
        module(x)
    assert compiler.modes == [None if mode == "default" else mode]


@pytest.mark.parametrize(
    ("baseline", "without"),
    [("compile_reduce_overhead", None), ("compile_max_autotune_graphs", "max-autotune-no-cudagraphs")],
)
def test_with_gradients_and_in_other_threads_there_are_no_graphs(
    package: Import, compiler: Compiler, baseline: str, without: str | None
) -> None:
    module, x = made(package(baseline, backward=True))
    expected = exact(module, x)
    torch.testing.assert_close(module(x), expected)
    torch.testing.assert_close(torch.autograd.grad(module(x).sum(), [module.bias]), _gradient(module, expected))
    with torch.no_grad(), ThreadPoolExecutor(1) as threads:
        torch.testing.assert_close(threads.submit(module, x).result(), expected.detach())
    assert compiler.modes == [without]


def _gradient(module: Any, output: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(output.sum(), [module.bias])


def test_results_of_a_graph_outlive_the_next_call(package: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    used = package("compile_reduce_overhead")
    memory = torch.empty(8, 16)

    def replaying(function: Callable[..., Any], *, mode: str | None) -> Callable[..., Any]:
        return lambda module, x: memory.copy_(function(module, x))

    monkeypatch.setattr(torch, "compile", replaying)
    monkeypatch.setattr(used.dispatch.baselines, "_may_replay", lambda _device, *, gradient: True)
    module, x = made(used)
    with torch.no_grad():
        first, second = module(x), module(-x)
        torch.testing.assert_close(first, exact(module, x))
        torch.testing.assert_close(second, exact(module, -x))


def test_outputs_keep_the_references_container(package: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "return torch.tanh(x + self.bias) * self.scale"
    used = package("compile_reduce_overhead", change=(line, "return [x + self.bias, x * self.scale]"))
    monkeypatch.setattr(torch, "compile", lambda function, *, mode: function)
    monkeypatch.setattr(used.dispatch.baselines, "_may_replay", lambda _device, *, gradient: True)
    module, x = made(used)
    with torch.no_grad():
        outputs = module(x)
    assert type(outputs) is list
    torch.testing.assert_close(outputs, [x + module.bias.detach(), x * 2.0])


@pytest.mark.parametrize("backward", [False, True])
def test_the_library_computes_with_the_modules_parameters(package: Import, backward: bool) -> None:
    module, x = made(package("library_fused", backward=backward))
    with torch.no_grad():
        assert module.explain(x) == SAID.format("library_fused")
        torch.testing.assert_close(module(x), exact(module, x))
    torch.testing.assert_close(module(x), exact(module, x))
    torch.testing.assert_close(_gradient(module, module(x)), _gradient(module, exact(module, x)))


def test_where_the_problem_allows_tf32_a_gpus_baseline_is_called_with_it(
    package: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = package("eager_tf32")
    baselines, row = used.dispatch.baselines, used.dispatch.ROWS[0]
    on_gpu = dataclasses.replace(row, kernel=dataclasses.replace(row.kernel, device="cuda"))
    monkeypatch.setattr(torch, "compile", refuse)
    monkeypatch.setattr(used.dispatch.reference.Model, "forward", lambda _self, _x: torch.backends.cudnn.allow_tf32)
    with torch.backends.cudnn.flags(allow_tf32=False):
        for allowed, device in itertools.product((False, True), (row, on_gpu)):
            monkeypatch.setattr(baselines, "TF32", allowed)
            found = baselines._make(device, graphs=False)(None, None)
            assert found is (allowed and device is on_gpu)


def test_tf32_is_restored_when_the_last_call_leaves(package: Import) -> None:
    tf32 = package().dispatch.baselines._tf32
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    tf32.__enter__()
    with tf32:
        assert (matmul.allow_tf32, cudnn.allow_tf32) == (True, True)
    assert matmul.allow_tf32, "another call is inside still"
    tf32.__exit__()
    assert (matmul.allow_tf32, cudnn.allow_tf32) == before


def _other(package: types.ModuleType, case: str) -> tuple[Any, torch.Tensor]:
    module, x = made(package)
    if case == "shape":
        x = x[:7]
    elif case == "type":
        module, x = module.double(), x.double()
    elif case == "init":
        module = package.dispatch.DropIn(16, scale=3.0)
    elif case == "attribute":
        module.scale = 4.0
    elif case == "machine":
        package.dispatch._PROCESSOR = "another"
    elif case in ("kernel", "reference"):
        package.dispatch.use(case)
    return module, x


@pytest.mark.parametrize("case", ["shape", "type", "init", "attribute", "machine", "reference"])
def test_all_other_calls_get_the_reference_in_eager_mode(
    package: Import, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    module, x = _other(package(), case)
    monkeypatch.setattr(torch, "compile", refuse)
    with torch.no_grad():
        assert module.explain(x).startswith("reference: ")
        torch.testing.assert_close(module(x), exact(module, x), rtol=0, atol=0)


def test_a_gradient_of_a_problem_judged_forward_only_is_the_references(
    package: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, x = made(package())
    monkeypatch.setattr(torch, "compile", refuse)
    assert "a gradient is wanted" in module.explain(x)
    torch.testing.assert_close(_gradient(module, module(x)), _gradient(module, exact(module, x)), rtol=0, atol=0)


def test_autocast_and_transforms_get_the_reference(package: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = made(package())
    monkeypatch.setattr(torch, "compile", refuse)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert "torch.autocast" in module.explain(x)
        module(x)
    with torch.no_grad():
        torch.testing.assert_close(torch.vmap(module)(x[None])[0], exact(module, x))
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            assert "forward-mode AD" in module.explain(dual)
            assert forward_ad.unpack_dual(module(dual)).tangent is not None


def test_what_records_operations_sees_those_of_the_reference(package: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = made(package())
    monkeypatch.setattr(torch, "compile", refuse)
    with torch.no_grad():
        with torch.utils.flop_counter.FlopCounterMode(display=False):
            assert module.explain(x).startswith("reference: ")
            module(x)
        graph = torch.fx.experimental.proxy_tensor.make_fx(module)(x)
    assert any(node.target is torch.ops.aten.tanh.default for node in graph.graph.nodes)


def test_inside_of_a_compiled_caller_it_is_the_reference_in_the_same_graph(package: Import) -> None:
    module, x = made(package())
    graphs: list[Any] = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    with torch.no_grad():
        found = torch.compile(lambda x: module(x) + 1, fullgraph=True, backend=backend)(x)
        torch.testing.assert_close(found, exact(module, x) + 1)
    assert [node.target for node in graphs[0].graph.nodes if node.op == "call_function"].count(torch.tanh) == 1
    assert not module_of(module).dispatch.baselines._made


def module_of(module: Any) -> Any:
    """The package that a drop-in is from."""
    return sys.modules[type(module).__module__.partition(".")[0]]


def test_the_switch_asks_for_the_kernel(package: Import) -> None:
    module, x = _other(package(), "kernel")
    with torch.no_grad():
        assert module.explain(x).startswith("kernel: ")


@pytest.mark.parametrize("baseline", ["compile", "library_lost", "compile_some_day"])
def test_what_cannot_be_used_is_said_once_and_is_the_reference_from_then_on(
    package: Import, monkeypatch: pytest.MonkeyPatch, baseline: str
) -> None:
    module, x = made(package(baseline))

    def broken(*_arguments: Any, **_options: Any) -> Any:
        raise RuntimeError("no compiler\nfor miles")

    monkeypatch.setattr(torch, "compile", broken)
    with torch.no_grad():
        with pytest.warns(UserWarning, match=f"on small {baseline} cannot be used here: .* used instead"):
            torch.testing.assert_close(module(x), exact(module, x), rtol=0, atol=0)
        monkeypatch.setattr(torch, "compile", refuse)
        torch.testing.assert_close(module(x), exact(module, x), rtol=0, atol=0)
        said = module.explain(x)
    assert said.startswith(
        f"reference: kernel_cpu_cpp on small: it was not surely faster there: 0.82x over {baseline}, from 0.80; "
        f"{baseline} cannot be used here: "
    )


def test_an_error_of_the_call_itself_costs_the_baseline_nothing(package: Import, compiler: Compiler) -> None:
    line = "return torch.tanh(x"
    used = package(change=(line, f"if FAULTS:\n            raise ValueError(FAULTS[0])\n        {line}"))
    reference = sys.modules[f"{used.__name__}.reference"]
    module, x = made(used)
    reference.FAULTS.append("too large")
    with torch.no_grad():
        with pytest.raises(ValueError, match="too large"):
            module(x)
        reference.FAULTS.clear()
        assert module.explain(x) == SAID.format("compile")
        torch.testing.assert_close(module(x), exact(module, x))


def test_a_baseline_that_the_judge_found_inaccurate_is_not_used(
    package: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, x = made(package(missing={"compile": "output 0 is off"}))
    monkeypatch.setattr(torch, "compile", refuse)
    with torch.no_grad():
        module(x)
        assert module.explain(x).endswith("from 0.80; the judge found compile inaccurate: output 0 is off")


def test_where_eager_mode_is_fastest_it_is_the_reference(package: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = made(package("eager"))
    monkeypatch.setattr(torch, "compile", refuse)
    with torch.no_grad():
        module(x)
        assert module.explain(x).endswith("it was not surely faster there: 0.82x over eager, from 0.80")


def test_of_many_threads_one_compiles(package: Import, compiler: Compiler) -> None:
    module, x = made(package())
    together = threading.Barrier(4)

    def call(_number: int) -> torch.Tensor:
        together.wait()
        with torch.no_grad():
            return module(x)

    with ThreadPoolExecutor(4) as threads:
        outputs = list(threads.map(call, range(4)))
    for output in outputs:
        torch.testing.assert_close(output, exact(module, x).detach())
    assert len(compiler.modes) == len(compiler.shapes) == 1


def test_of_many_threads_one_warns(package: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    used = package()
    module, x = made(used)
    monkeypatch.setattr(torch, "compile", refuse)
    given_up = functools.partial(used.dispatch.baselines._give_up, used.dispatch.ROWS[0], RuntimeError("no"))
    with warnings.catch_warnings(record=True) as seen, torch.no_grad():
        warnings.simplefilter("always")
        module(x)
        given_up()
    assert len(seen) == 1


def test_the_module_is_what_it_was(package: Import, compiler: Compiler) -> None:
    used = package()
    module, x = made(used)
    before = sorted(vars(module)), list(module.state_dict()), list(module.modules())
    with torch.no_grad():
        expected = module(x)
    assert (sorted(vars(module)), list(module.state_dict()), list(module.modules())) == before
    saved = io.BytesIO()
    torch.save(module.state_dict(), saved)
    saved.seek(0)
    restored = used.dispatch.DropIn(16)
    restored.load_state_dict(torch.load(saved, weights_only=True))
    with torch.no_grad():
        for again in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), restored):
            torch.testing.assert_close(again(x), expected)
    assert len(compiler.shapes) == 1
