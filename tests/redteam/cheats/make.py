"""The shorthand in which the cheats are written: an honest candidate with a body, a swap or a module of its own."""

from __future__ import annotations

from tests.redteam.entry import INCORRECT, WRONG, Entry
from tests.redteam.kernels import candidate

REAL = "return self.real($arguments)"


def cheat(
    name: str,
    catalogue: int,
    problem: str,
    layer: str,
    title: str,
    body: str = REAL,
    *,
    expected: frozenset[str] = WRONG,
    top: str = "",
    init: str = "",
    flags: tuple[str, ...] = (),
    defused: bool = False,
) -> Entry:
    """A C++ candidate whose `forward` is `body`; `self.real(...)` in it is the honest result. See `candidate`."""
    source = candidate(problem, body, top=top, init=init, flags=flags)
    return Entry(name, catalogue, title, problem, "cpp", source, expected, layer, defused=defused)


def flaw(
    name: str,
    catalogue: int,
    problem: str,
    layer: str,
    title: str,
    *swap: tuple[str, str],
    expected: frozenset[str] = INCORRECT,
    top: str = "",
    flags: tuple[str, ...] = (),
) -> Entry:
    """The honest candidate with texts of its kernel replaced: a bug and not a scheme."""
    source = candidate(problem, REAL, top=top, swap=swap, flags=flags)
    return Entry(name, catalogue, title, problem, "cpp", source, expected, layer)
