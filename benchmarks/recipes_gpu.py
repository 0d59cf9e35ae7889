"""Time the built-in GPU recipes on the bundled problems, beside eager and torch.compile, on the GPU of this machine.

    python -m benchmarks.recipes_gpu                      # every problem, with the values that candidates start with
    python -m benchmarks.recipes_gpu --problems softmax cumsum --tune 12 --compile --json recipes.json

Each row: microseconds (median of cold-cache calls, launch included), the bandwidth that this means for the bytes that
must be moved, and the speed-up over eager. Every candidate is compared with float64 before it is timed. It is for a
quick look while recipes are written; what counts is the judge's measurement.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from problems.catalog import Outline, Workload, bundled
from search import tunables
from worker.builtin import cuda, triton
from worker.builtin.expressions import Unmatched
from worker.builtin.families import recognise
from worker.builtin.trace import call_accepting, load_source
from worker.runner import kernelwright

HARDWARE = "nvidia-h100"
LANGUAGES = {"triton": triton, "cuda": cuda}
CALLS = 30
CACHE_BYTES = 256 << 20  # several times the second-level cache of any GPU so far

Run = Callable[[], Any]


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def time_us(run: Run) -> float:
    """The median time of a call in microseconds, with the cache emptied before each."""
    spoiled = torch.empty(CACHE_BYTES, dtype=torch.int8, device="cuda")
    for _ in range(3):
        run()
    pairs = [(event(), event()) for _ in range(CALLS)]
    for start, stop in pairs:
        spoiled.zero_()
        start.record()
        run()
        stop.record()
    torch.cuda.synchronize()
    times_ms: list[float] = [start.elapsed_time(stop) for start, stop in pairs]
    return statistics.median(times_ms) * 1e3


class Bench:
    """One problem on one workload: inputs on the GPU, the truth, and the bytes that any kernel must move."""

    def __init__(self, problem: Outline, workload: Workload) -> None:
        params = dict(workload.params)
        namespace = load_source(problem.source)
        torch.manual_seed(0)
        with torch.device("cuda"):
            self.inputs = call_accepting(namespace["get_inputs"], params)
            self.init = call_accepting(namespace["get_init_inputs"], params)
            self.model = namespace["Model"](*self.init)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.normal_()
            found = self.model(*self.inputs)
            double = load_source(problem.source)["Model"](*self.init).cuda()
            double.load_state_dict(self.model.state_dict())
            self.truth = double.double()(*(x.double() if x.is_floating_point() else x for x in self.inputs))
        moved = [*self.inputs, *self.model.parameters(), found]
        self.bytes = sum(each.numel() * each.element_size() for each in moved)
        # A loss is one number, on which eager may be right by chance: some units in the last place are allowed.
        self.limit = max(4 * self.error(found), 2 * torch.finfo(found.dtype).eps)

    def error(self, found: torch.Tensor) -> float:
        """Root mean square of the error over that of the truth."""
        truth = self.truth
        return float((found.double() - truth).square().mean().sqrt() / (truth.square().mean().sqrt() + 1e-30))

    def candidate(self, module: ModuleType) -> Run:
        """A call of the candidate."""
        ours = module.ModelNew(*self.init).cuda()
        ours.load_state_dict(self.model.state_dict())
        return lambda: ours(*self.inputs)


def written(problem: Outline, languages: list[str]) -> Iterator[tuple[str, str]]:
    """(name, source) of every recipe that fits."""
    for match in recognise(problem.source, HARDWARE, problem.name):
        for language in languages:
            for recipe in LANGUAGES[language].RECIPES:
                if recipe.family != match.family:
                    continue
                try:
                    yield (
                        f"{language}:{recipe.name}",
                        LANGUAGES[language].write_candidate(recipe, match, problem.source),
                    )
                except Unmatched:
                    continue


def load(source: str, folder: Path) -> ModuleType:
    path = folder / f"candidate_{abs(hash(source))}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def configurations(source: str, count: int) -> list[dict[str, Any]]:
    """The file's own values first, then some at random."""
    space = tunables.parse_space(source)
    if space is None:
        return [{}]
    rest = [each for each in space.configurations() if each != dict(space.defaults)]
    return [dict(space.defaults), *random.Random(0).sample(rest, min(count, len(rest)))]


def attempt(bench: Bench, source: str, folder: Path) -> tuple[float | None, str]:
    """(microseconds, what went wrong) of one configuration; a bad one must not end the table."""
    try:
        run = bench.candidate(load(source, folder))
        error = bench.error(run())
        if not error <= bench.limit:
            return None, f"error {error:.1e} above {bench.limit:.1e}"
        return time_us(run), ""
    except (RuntimeError, kernelwright.BuildError, ValueError, AssertionError, TypeError) as error:
        return None, f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
    except Exception as error:  # noqa: BLE001 - Triton's own errors have no common base; the table must go on
        return None, f"{type(error).__name__}: {str(error)[:120]}"


def measure(
    problem: Outline, workload: Workload, options: argparse.Namespace, folder: Path
) -> Iterator[dict[str, Any]]:
    """The rows of one workload."""
    bench = Bench(problem, workload)
    eager_us = time_us(lambda: bench.model(*bench.inputs))
    common = {"problem": problem.name, "workload": workload.name, "bytes": bench.bytes}
    yield {**common, "name": "eager", "us": eager_us, "speedup": 1.0, "params": {}, "note": ""}
    if options.compile:
        torch.compiler.reset()
        compiled: Callable[..., Any] = torch.compile(bench.model, dynamic=False)
        us = time_us(lambda: compiled(*bench.inputs))
        yield {**common, "name": "torch.compile", "us": us, "speedup": eager_us / us, "params": {}, "note": ""}
    for name, source in written(problem, options.languages):
        for place, params in enumerate(configurations(source, options.tune)):
            text = tunables.with_values(source, params) if params else source
            found_us, note = attempt(bench, text, folder)
            speedup = eager_us / found_us if found_us else None
            label = name if place == 0 else f"{name}*"
            yield {**common, "name": label, "us": found_us, "speedup": speedup, "params": params, "note": note}


def show(row: dict[str, Any]) -> None:
    us, bandwidth = row["us"], row["bytes"] / row["us"] / 1e3 if row["us"] else 0.0
    head = f"{row['problem'][:20]:20} {row['workload'][:12]:12} {row['name'][:32]:32}"
    if us is None:
        say(f"{head} failed: {row['note']}")
    else:
        say(f"{head} {us:10.1f} us {bandwidth:7.0f} GB/s {row['speedup']:6.2f}x")


def report(rows: list[dict[str, Any]], tuned: bool) -> None:
    """Every row as it is, or the best of each recipe."""
    if not tuned:
        return
    best: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in rows:
        key = (row["problem"], row["workload"], row["name"].rstrip("*"))
        if row["us"] and (key not in best or row["us"] < best[key]["us"]):
            best[key] = row
    say("best of each:")
    for row in best.values():
        show(row)
        if row["params"]:
            say(f"    {row['params']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="*", default=list(bundled()), choices=list(bundled()))
    parser.add_argument("--workloads", nargs="*", default=[], help="names of workloads; all when left out")
    parser.add_argument("--languages", nargs="*", default=list(LANGUAGES), choices=list(LANGUAGES))
    parser.add_argument("--tune", type=int, default=0, help="how many random configurations to try besides")
    parser.add_argument("--compile", action="store_true", help="time torch.compile too")
    parser.add_argument("--json", type=Path, help="write all rows there")
    options = parser.parse_args()
    sys.modules.setdefault("kernelwright", kernelwright)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for problem in (bundled()[name] for name in options.problems):
            for workload in problem.spec.workloads_for(HARDWARE):
                if options.workloads and workload.name not in options.workloads:
                    continue
                for row in measure(problem, workload, options, Path(folder)):
                    rows.append(row)
                    if "*" not in row["name"]:
                        show(row)
                torch.cuda.empty_cache()
    report(rows, bool(options.tune))
    if options.json:
        options.json.write_text(json.dumps({"device": torch.cuda.get_device_name(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
