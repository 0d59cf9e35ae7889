"""The realistic mix: 40 candidates of a few problems, 60 % of them bad.

On a GPU: built-in Triton and CUDA recipes for two bundled problems at their full sizes (up to 400 MB a call), and
honest kernels of the adversarial corpus for two small problems; the bad ones are faults put into those recipes and
cheats of the corpus. On a CPU: C++ candidates of the corpus on its small problems, with the same faults.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.judge.faults import FAULTS
from problems.catalog import bundled
from tests.redteam import corpus
from tests.redteam.entry import Entry
from tests.redteam.problems import source_of
from worker.builtin.menu import menu

COUNT, QUICK_COUNT = 40, 10
BAD_SHARE = 0.6
_RECIPES = ("softmax", "rmsnorm_residual")
_GPU_PROBLEMS = ("row_sum", "embedding_grad")
_CPU_PROBLEMS = ("softmax", "rmsnorm", "row_sum")
_QUICK_PROBLEMS = ("full_rmsnorm_residual", "softmax", "row_sum")
"""Two on either kind of machine."""
_FULL = "full_"
_SAME_SHAPE = ("softmax", "rmsnorm")
_GPU_CHEATS = (
    "gpu-atomics-bf16", "gpu-scatter-without-atomics", "gpu-missing-syncthreads", "gpu-unset-shared-memory",
    "gpu-library-by-ctypes",
)  # fmt: skip
_CPU_CHEATS = ("row-sum-bf16", "sum-of-every-other", "adds-to-what-lies-there", "norm-without-eps", "uniform-softmax")
_FULL_ONLY = ("hangs-on-the-second-call",)
"""Takes the judge 20 s and the other protocol its whole limit: more than a quick run has."""


@dataclass(frozen=True, slots=True)
class Item:
    """One candidate of the mix."""

    id: str
    problem: str
    problem_source: str
    language: str
    source: str
    bad: bool
    own_kernel_share: float = 0.9


def mix(hardware: str, count: int, *, quick: bool) -> list[Item]:
    """`count` candidates in an order in which every beginning has about the same share of bad ones."""
    good = _honest(hardware)
    bad = _faulty(good, quick=quick) + _cheats(_CPU_CHEATS if hardware == "cpu" else _GPU_CHEATS)
    if quick:  # two problems are warmed sooner than four
        good, bad = ([item for item in items if item.problem in _QUICK_PROBLEMS] for items in (good, bad))
    order = random.Random(7)  # the same mix whenever it is measured
    order.shuffle(good)
    order.shuffle(bad)
    wanted = round(BAD_SHARE * count)
    return interleaved(bad[:wanted], good[: count - wanted])


def interleaved(bad: Sequence[Item], good: Sequence[Item]) -> list[Item]:
    """Both in their orders, spread evenly over each other."""
    placed = [((index + 0.5) / len(items), item) for items in (bad, good) for index, item in enumerate(items)]
    return [item for _place, item in sorted(placed, key=lambda each: each[0])]


def problems_of(items: Iterable[Item]) -> dict[str, str]:
    """Source by name."""
    return {item.problem: item.problem_source for item in items}


def apart(items: Sequence[Item]) -> list[list[Item]]:
    """The candidates in groups, each in its order, with at most one problem of full size in a group: two judges of such
    problems do not fit into a GPU together, and a worker does not keep them alive together."""
    large = list(dict.fromkeys(item.problem for item in items if item.problem.startswith(_FULL)))
    groups: list[list[Item]] = [[] for _ in large or [""]]
    for item in items:
        groups[large.index(item.problem) if item.problem in large else 0].append(item)
    return groups


def _honest(hardware: str) -> list[Item]:
    if hardware == "cpu":
        entries = [entry for entry in corpus.honest_ones() if entry.needs == "cpu" and entry.own_kernel_share > 0]
        return [item for problem in _CPU_PROBLEMS for item in _some(entries, problem, 6)]
    entries = [entry for entry in corpus.honest_ones() if entry.needs == "gpu"]
    small = [item for problem in _GPU_PROBLEMS for item in _some(entries, problem, 5)]
    return _recipes(hardware) + small


def _some(entries: Iterable[Entry], problem: str, count: int) -> list[Item]:
    """The first of every language in turn."""
    mine = [entry for entry in entries if entry.problem == problem]
    turns = {entry.id: sum(e.language == entry.language for e in mine[:place]) for place, entry in enumerate(mine)}
    return [_item(entry) for entry in sorted(mine, key=lambda entry: turns[entry.id])[:count]]


def _item(entry: Entry) -> Item:
    return Item(
        entry.id,
        entry.problem,
        source_of(entry.problem),
        entry.language,
        entry.source,
        not entry.honest,
        entry.own_kernel_share,
    )


def _recipes(hardware: str) -> list[Item]:
    """`full_` sets these problems apart from the corpus's small ones of the same name."""
    found = []
    for problem in _RECIPES:
        source = bundled()[problem].source.replace('"backward": True', '"backward": False')  # recipes have none
        for language in ("triton", "cuda"):
            seeds = [seed for seed in menu(source, problem, hardware, language) if seed.kind == "recipe"]
            found += [
                Item(f"{problem}-{language}-{seed.name}", f"{_FULL}{problem}", source, language, seed.make(), False)
                for seed in seeds
            ]
    return found


def _faulty(good: Sequence[Item], *, quick: bool) -> list[Item]:
    """Every fault once, in candidates of the fitting problems and of their languages in turn."""
    hosts = [item for item in good if item.problem.startswith(_FULL) or item.problem in _SAME_SHAPE]
    names = [name for name in FAULTS if not (quick and name in _FULL_ONLY)]
    found = []
    for place, name in enumerate(names):
        host = hosts[place * 3 % len(hosts)]  # 3 has no common divisor with 8 recipes: all of them come up
        source = FAULTS[name](host.source, host.problem_source)
        found.append(Item(f"{name}-in-{host.id}", host.problem, host.problem_source, host.language, source, True))
    return found


def _cheats(ids: Sequence[str]) -> list[Item]:
    """Raises KeyError when the corpus no longer has one of them."""
    entries = {entry.id: entry for entry in corpus.cheating()}
    return [_item(entries[name]) for name in ids]
