"""The menu: every candidate that the built-in proposer can offer for a problem on a target, in the order to try them.

Recipes come first (a trace of 2 s, then a candidate in milliseconds), the compiler seed last (Inductor takes 20 s on
two cores). What won before in the problem's family goes before all of them. The order is fixed by problem, target and
those winners, so that seed number k is the same whenever it is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from problems.catalog import ProblemError, outline
from search.tunables import read_space, with_values
from search.types import Params
from worker.builtin.compiler import NoCompilerSeed, compiler_seed
from worker.builtin.expressions import Unmatched
from worker.builtin.families import Match, recognise
from worker.builtin.trace import TraceError

LANGUAGES = ("cpp", "triton", "cuda")


@dataclass(frozen=True, slots=True)
class Seed:
    """One offer. `make` writes the candidate's source; it raises NotOffered when it turns out not to be possible."""

    kind: str
    """`recipe` or `compiler`."""
    name: str
    plan: str
    make: Callable[[], str]


class NotOffered(Exception):
    """This seed cannot be made for this problem after all. Go on to the next."""


def menu(problem_source: str, problem_name: str, hardware: str, language: str) -> list[Seed]:
    """All seeds for a problem and target. An unrecognised problem has the compiler seed only, and one whose gradients
    count has none: recipes and the compiler's kernels are forward passes, and each took 20 s to be refused (H200)."""
    if _trains(problem_source, problem_name, hardware):
        return []
    seeds = [
        Seed("recipe", recipe.name, recipe.plan, partial(_write, language, recipe, match, problem_source))
        for match in _matches(problem_source, problem_name, hardware)
        for recipe in _recipes(language)
        if recipe.family == match.family and _fits(recipe, match)
    ]
    if language != "cuda":  # Inductor writes C++ and Triton
        plan = "Inductor's own kernels for the reference, made to stand alone"
        make = partial(_compile, problem_source, problem_name, hardware, language)
        seeds.append(Seed("compiler", "inductor", plan, make))
    return seeds


def _trains(source: str, name: str, hardware: str) -> bool:
    """Whether a backward counts in any workload for this hardware."""
    try:
        spec = outline(source, name).spec
        return any(spec.trains(workload) for workload in spec.workloads_for(hardware))
    except ProblemError:  # a reference without a spec of ours
        return False


def begun_with(seeds: Sequence[Seed], winners: Sequence[Params]) -> list[Seed]:
    """The menu behind its first recipe that takes one of these configurations, with that configuration. A recipe takes
    those of kernels that declare the same tunables; the winners are tried in their order."""
    recipes = [seed for seed in seeds if seed.kind == "recipe"]
    for winner in winners:
        for recipe in recipes:
            source = _configured(recipe, winner)
            if source is not None:
                values = ", ".join(f"{name}={value!r}" for name, value in winner.items())
                plan = f"{recipe.plan} Begins with what won in its family before: {values}."
                front = replace(recipe, plan=plan, make=partial(str, source))
                return [front, *(seed for seed in seeds if seed is not recipe or source != recipe.make())]
    return list(seeds)


def _configured(recipe: Seed, winner: Params) -> str | None:
    """The recipe's source with the configuration, or None where it does not take it."""
    try:
        source = recipe.make()
    except NotOffered:
        return None
    space = read_space(source)
    if space is None or set(space.values) != set(winner) or not space.allows(winner):
        return None
    return with_values(source, winner)


def _matches(source: str, name: str, hardware: str) -> Sequence[Match]:
    try:
        return recognise(source, hardware, name)
    except TraceError:
        return ()


def _recipes(language: str) -> Sequence[Any]:
    recipes: Sequence[Any] = importlib.import_module(f"worker.builtin.{language}").RECIPES
    return recipes


def _fits(recipe: Any, match: Match) -> bool:
    try:
        recipe.write(match)
    except Unmatched:
        return False
    return True


def _write(language: str, recipe: Any, match: Match, source: str) -> str:
    try:
        written: str = importlib.import_module(f"worker.builtin.{language}").write_candidate(recipe, match, source)
    except Unmatched as unmatched:
        raise NotOffered(str(unmatched)) from unmatched
    return written


def _compile(source: str, name: str, hardware: str, language: str) -> str:
    try:
        return compiler_seed(source, name, hardware, language)
    except NoCompilerSeed as refused:
        raise NotOffered(str(refused)) from refused
