"""Known flawed public problems, recognised by what is wrong with them and not by their text.

KernelBench's problems are copied, renumbered and resized, so that a hash of a file recognises nothing. What makes them
flawed can be seen in any copy: the output is always zero, the inputs do not matter, all inputs are positive. The
numbers (level/problem) are those of KernelBench problems in which the mechanism was reported or measured.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flaw:
    """One way in which published problems are flawed."""

    sign: str
    """What the admission test sees, by name."""
    what: str
    examples: tuple[str, ...]
    """KernelBench problems that have it."""
    answer: str
    """What this judge does about it, or what the problem's author must."""


FLAWS = (
    Flaw(
        "constant output",
        "the output is the same number whatever the inputs and parameters are",
        ("L2/23", "L2/80", "L2/83"),
        "nothing can be judged by it: return the value before the step that cancels it",
    ),
    Flaw(
        "zeros pass a fixed tolerance",
        "the outputs are so small that zeros pass an absolute tolerance",
        ("L1/23", "L1/37", "L1/39", "L1/53"),
        "errors are judged relative to the output's own size here",
    ),
    Flaw(
        "no variation",
        "another seed of get_inputs gives the same output within a fixed tolerance",
        ("L1/94", "L1/96", "L1/98", "L2/9", "L2/13", "L2/27", "L2/41", "L2/44", "L2/48", "L2/49", "L2/66", "L2/84"),
        "the judge draws families that differ, and redraws the parameters",
    ),
    Flaw(
        "input without effect",
        "an input does not change the output",
        ("L2/23", "L2/36", "L2/80", "L2/83", "L2/91"),
        "a kernel may ignore it: take it out, or use it",
    ),
    Flaw(
        "statistical shortcut",
        "on get_inputs' own values a constant or 1 % of the data passes a fixed tolerance",
        ("L1/48", "L1/49", "L1/90", "L1/94", "L1/95", "L1/97", "L1/100"),
        "the judge draws families in which every element matters",
    ),
    Flaw(
        "sign shortcut",
        "get_inputs makes only positive values, for which returning the input is right",
        ("L1/19", "L1/20", "L1/31", "L1/32"),
        "the judge draws negative values too",
    ),
    Flaw(
        "identity parameters",
        "parameters start as all ones or all zeros, so that a kernel can leave them out",
        ("L2/38", "L2/84", "L2/85", "L3/20", "L3/30", "L3/32"),
        "the judge moves every parameter off its initial value",
    ),
    Flaw(
        "random reference",
        "the reference draws random numbers, as dropout does while eval() is not called",
        ("L2/66", "L2/83", "L3/35"),
        "there is no right answer to compare with: take the draw out of forward",
    ),
)
"""By mechanism; the examples are known to the field, the answer is this judge's."""
HARMLESS = frozenset(
    {"zeros pass a fixed tolerance", "no variation", "statistical shortcut", "sign shortcut", "identity parameters"}
)
"""Flaws that this judge makes good: worth a note, no warning."""


def recognise(signs: Collection[str]) -> tuple[Flaw, ...]:
    """The known flaws among the signs that an admission test saw."""
    return tuple(flaw for flaw in FLAWS if flaw.sign in signs)


def sentence(flaw: Flaw) -> str:
    """The flaw in words for the user, with the public problems that are known for it."""
    return f"{flaw.what} (known from KernelBench {', '.join(flaw.examples)}); {flaw.answer}"
