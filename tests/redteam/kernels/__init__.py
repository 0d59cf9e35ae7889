"""Honest C++ kernels for the corpus's problems, from which candidates are made: as they are, or with one flaw."""

from __future__ import annotations

from tests.redteam.kernels.lists import LISTS
from tests.redteam.kernels.products import PRODUCTS
from tests.redteam.kernels.rows import ROWS
from tests.redteam.kernels.template import Kernel, render
from tests.redteam.kernels.training import TRAINING

KERNELS: dict[str, Kernel] = {**ROWS, **PRODUCTS, **TRAINING, **LISTS}
"""The honest kernel of every problem that has one."""


def candidate(
    problem: str,
    body: str = "return self.real($arguments)",
    *,
    top: str = "",
    init: str = "",
    swap: tuple[tuple[str, str], ...] = (),
    flags: tuple[str, ...] = (),
) -> str:
    """A candidate file for `problem` that computes with its honest kernel.

    `body`: the statements of forward; `self.real(...)` is the honest result. `top`: statements of the module, before
    the class. `init`: further statements of the constructor. `swap`: (old, new) texts of kernel or `real` to replace,
    everywhere they occur; one that occurs nowhere raises ValueError, so that no mutant is honest by a typo.
    """
    return render(KERNELS[problem], body, top=top, init=init, swap=swap, flags=flags)
