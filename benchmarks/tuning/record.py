"""Measure every configuration of some built-in C++ recipes on this machine, once.

    python -m benchmarks.tuning.record                    # all that are not there yet; about 3 minutes each
    python -m benchmarks.tuning.record --only cumsum.scan --passes 2 --out somewhere

A configuration's latency on a workload is the shortest of its calls in several passes over the space, each pass in
another random order: what disturbs a busy machine for some seconds then hits some passes of all configurations and not
all passes of some. Calls during which a thread waited for a core are not counted (`worker.judge.runners.quiet`), as far
as calm ones can be had. Caches are warm. Every configuration is built with the candidates' own flags, and its outputs
are compared with the reference's. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
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

from benchmarks.tuning.spaces import FOLDER, Recorded
from problems.catalog import bundled
from search.tunables import Space, parse_space, with_values
from search.types import Params
from worker.builtin.menu import menu
from worker.builtin.trace import call_accepting, load_source
from worker.judge.runners.quiet import waited_s as waited_so_far_s
from worker.runner import kernelwright

RECIPES = (
    "cross_entropy.cross_entropy",
    "cumsum.scan",
    "layernorm.layer_norm",
    "layernorm.rowwise",
    "residual_rmsnorm.rowwise",
    "softmax.rowwise",
    "softmax.softmax",
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
    """One for each CPU workload of a bundled problem."""
    outline = bundled()[problem]
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
    seeds = menu(bundled()[problem].source, problem, "cpu", "cpp")
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


def measure(source: str, space: Space, where: list[Bench], passes: int) -> Iterator[tuple[Params, tuple[float, ...]]]:
    """Every configuration with its latencies, in the order of the space."""
    configurations = list(space.configurations())
    calls = [calls_of(with_values(source, params), where) for params in configurations]
    shortest = [[float("inf")] * len(where) for _ in configurations]
    order = list(range(len(configurations)))
    with torch.no_grad():
        for number in range(passes):
            random.Random(number).shuffle(order)
            for index in order:
                for place, call in enumerate(calls[index]):
                    shortest[index][place] = min(shortest[index][place], shortest_us(call))
    for params, found in zip(configurations, shortest, strict=True):
        yield params, tuple(round(value, 1) for value in found)


def record(recipe: str, passes: int, folder: Path) -> None:
    """Measure one space and write its file."""
    source = source_of(recipe)
    space = parse_space(source)
    assert space is not None, f"{recipe} declares no tunables"
    where = list(benches(recipe.split(".")[0]))
    began_s = time.monotonic()
    names = list(space.values)
    rows = {tuple(params[name] for name in names): found for params, found in measure(source, space, where, passes)}
    found = Recorded(recipe, space, rows, tuple(bench.name for bench in where))
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"cores": os.cpu_count(), "machine": platform.machine(), "passes": passes, "calls_a_pass": CALLS_A_PASS}
    (folder / f"{recipe}.json").write_text(found.to_json(**facts), encoding="utf-8")
    say(f"{recipe}: {len(rows)} configurations, best {found.best:.2f}, {time.monotonic() - began_s:.0f} s")


def main() -> None:
    """Record what is asked for and not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=RECIPES, help="PROBLEM.RECIPE ...")
    parser.add_argument("--passes", type=int, default=6)
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    sys.modules.setdefault("kernelwright", kernelwright)
    for recipe in options.only:
        if not (options.out / f"{recipe}.json").exists():
            record(recipe, options.passes, options.out)


if __name__ == "__main__":
    main()
