"""Other constants than those that a file makes its model with, or calls it with: rates, epsilons, a temperature."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from typing import Any

from worker.judge.reference.problem import Instance

_EPSILON = 1e-4
"""What is smaller guards a division, and shows when it is 1,000 times as large."""


def other_constants(instance: Instance) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """The name of a constructor's argument, another value for it, and all that a model with it is made with."""
    given = list(instance.init)
    for place, item in enumerate(inspect.signature(type(instance.model)).parameters.values()):
        if item.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            return
        if place == len(given):
            given.append(item.default)
        value = _another_constant(given[place])
        if value is not None:
            yield item.name, value, (*given[:place], value, *given[place + 1 :])


def other_arguments(instance: Instance) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """The name of an argument of forward that is a number, another value for it, and the inputs with that."""
    for place, name in enumerate(instance.arguments[: instance.forward_inputs]):
        value = _another_number(instance.like[place])
        if value is not None:
            yield name, value, (*instance.like[:place], value, *instance.like[place + 1 :])


def _another_number(value: Any) -> Any:
    """Of a whole number the next one, of a bool the other one, else as of a constant."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else _another_constant(value)


def _another_constant(value: Any) -> Any:
    """Of a float or a tuple of them: a rate stays below 1, an epsilon is large enough to be seen. None of others."""
    if isinstance(value, tuple) and value:
        others = tuple(map(_another_constant, value))
        return None if None in others else others
    if not isinstance(value, float) or not math.isfinite(value):
        return None
    if value < 0:
        return -_another_constant(-value)
    if value < _EPSILON:
        return 1000 * value or 0.125
    return value - (1 - value) / 2 if 0.5 <= value < 1 else 2 * value
