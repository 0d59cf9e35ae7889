"""Measure every configuration of some built-in C++ recipes on this machine, once.

    python -m benchmarks.tuning.record                    # some minutes each; goes on where it was interrupted
    python -m benchmarks.tuning.record --only cumsum.scan --passes 2 --out somewhere

A configuration's latency on a workload is the shortest of its calls in several passes over the space, each pass in
another random order: what disturbs a busy machine for some seconds then hits some passes of all configurations and not
all passes of some. Calls during which a thread waited for a core are not counted (`worker.judge.runners.quiet`), as far
as calm ones can be had. Caches are warm. Every configuration is built with the candidates' own flags, and its outputs
are compared with the reference's. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.tuning.problems import problem as outline_of
from benchmarks.tuning.spaces import FOLDER, Recorded, read
from search.tunables import parse_space, with_values
from worker.builtin.menu import menu
from worker.builtin.trace import call_accepting, load_source
from worker.judge.runners.quiet import waited_s as waited_so_far_s
from worker.runner import kernelwright

RECIPES = (
    "cross_entropy.cross_entropy",
    "cross_entropy_ignoring.cross_entropy",
    "cumsum.scan",
    "cumsum_reversed.scan",
    "layernorm.layer_norm",
    "layernorm_plain.layer_norm",
    "log_softmax.rowwise",
    "rmsnorm_residual.rms_norm",
    "rmsnorm.rms_norm",
    "softmax.rowwise",
)
"""PROBLEM.RECIPE: spaces of 48 to 288 configurations. The products' have thousands."""

CALLS_A_PASS, TRIES = 5, 25
"""So many calm calls are wanted of each configuration in each pass, and so many are made to get them."""
CALM_SHARE = 0.05
"""A call is calm when its threads waited for cores for less than this share of it."""


def say(text: str) -> None:
    """One line on standard output, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class Bench:
    """The reference on one workload: its constructor arguments, its inputs, and what it answers."""

    name: str
    init: list[Any]
    inputs: list[Any]
    state: dict[str, torch.Tensor]
    truth: torch.Tensor


def benches(problem: str) -> Iterator[Bench]:
    """One for each CPU workload of a problem."""
    outline = outline_of(problem)
    names = load_source(outline.source, problem)
    for workload in outline.spec.workloads_for("cpu"):
        torch.manual_seed(0)
        init = call_accepting(names["get_init_inputs"], workload.params)
        inputs = call_accepting(names["get_inputs"], workload.params)
        model = names["Model"](*init)
        with torch.no_grad():
            yield Bench(workload.name, init, inputs, model.state_dict(), model(*inputs))


def source_of(recipe: str) -> str:
    """The candidate that the built-in proposer writes for PROBLEM.RECIPE."""
    problem, name = recipe.split(".")
    seeds = menu(outline_of(problem).source, problem, "cpu", "cpp")
    return next(seed for seed in seeds if seed.name == name).make()


def load(source: str, name: str) -> Any:
    """The class ModelNew of a source, built here."""
    module = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
    return module.ModelNew


def calls_of(source: str, where: list[Bench]) -> list[Callable[[], torch.Tensor]]:
    """What is timed: one call for each workload. Raises AssertionError where a result is wrong."""
    made = load(source, "candidate")
    calls: list[Callable[[], torch.Tensor]] = []
    for bench in where:
        model = made(*bench.init)
        model.load_state_dict(bench.state)
        calls.append(lambda model=model, bench=bench: model(*bench.inputs))  # type: ignore[misc]
        torch.testing.assert_close(calls[-1](), bench.truth, rtol=1e-3, atol=1e-4)
    return calls


def shortest_us(call: Callable[[], torch.Tensor]) -> float:
    """The shortest of some calm calls; of all calls where none was calm."""
    calm: list[float] = []
    all_us: list[float] = []
    call()
    while len(calm) < CALLS_A_PASS and len(all_us) < TRIES:
        waited_s, start_s = waited_so_far_s(os.getpid()), time.perf_counter()
        call()
        took_s = time.perf_counter() - start_s
        all_us.append(took_s * 1e6)
        if waited_so_far_s(os.getpid()) - waited_s < CALM_SHARE * took_s:
            calm.append(all_us[-1])
    return min(calm or all_us)


def one_pass(number: int, calls: list[list[Callable[[], torch.Tensor]]], shortest: list[list[float]]) -> None:
    """Once over the space in an order of its own; keeps what is shorter than before."""
    order = list(range(len(calls)))
    random.Random(number).shuffle(order)
    with torch.no_grad():
        for index in order:
            for place, call in enumerate(calls[index]):
                shortest[index][place] = min(shortest[index][place], round(shortest_us(call), 1))


def record(recipe: str, passes: int, folder: Path) -> None:
    """Measure one space; goes on from the passes that its file holds, and writes it after each."""
    source, path = source_of(recipe), folder / f"{recipe}.json"
    space = parse_space(source)
    assert space is not None, f"{recipe} declares no tunables"
    where = list(benches(recipe.split(".")[0]))
    configurations = list(space.configurations())
    keys = [tuple(params[name] for name in space.values) for params in configurations]
    done = json.loads(path.read_text(encoding="utf-8"))["passes"] if path.exists() else 0
    before = read(path).latency_us if done else {}
    shortest = [list(before.get(key) or [float("inf")] * len(where)) for key in keys]
    if done >= passes:
        return
    began_s = time.monotonic()
    calls = [calls_of(with_values(source, params), where) for params in configurations]
    for number in range(done, passes):
        one_pass(number, calls, shortest)
        rows = {key: tuple(found) for key, found in zip(keys, shortest, strict=True)}
        found = Recorded(recipe, space, rows, tuple(bench.name for bench in where))
        facts = {"cores": os.cpu_count(), "machine": platform.machine(), "passes": number + 1}
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(found.to_json(**facts), encoding="utf-8")
        say(f"{recipe}: pass {number + 1}, best {found.best:.2f}, {time.monotonic() - began_s:.0f} s")


def main() -> None:
    """Record what is asked for, as far as it is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=RECIPES, help="PROBLEM.RECIPE ...")
    parser.add_argument("--passes", type=int, default=6)
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    sys.modules.setdefault("kernelwright", kernelwright)
    for recipe in options.only:
        record(recipe, options.passes, options.out)


if __name__ == "__main__":
    main()
