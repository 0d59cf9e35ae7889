"""How a kernel becomes a candidate file."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from string import Template

_FILE = Template('''import torch
from torch import nn
from kernelwright import load_cpp

SOURCE = r"""
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
$cpp
"""
lib = load_cpp(SOURCE, flags=$flags)
$top

class ModelNew(nn.Module):
    def __init__(self$init_arguments):
        super().__init__()
$init

    def real(self, $arguments):
$real

    def forward(self, $arguments):
$body
''')


@dataclass(frozen=True, slots=True)
class Kernel:
    """An honest kernel: C++ source, and the statements that call it and return the outputs."""

    cpp: str
    real: str
    arguments: str = "x"
    init_arguments: str = ""
    """Like ", cols"."""
    init: str = ""
    top: str = ""


def render(
    kernel: Kernel, body: str, *, top: str, init: str, swap: tuple[tuple[str, str], ...], flags: tuple[str, ...]
) -> str:
    """The file. Raises ValueError for a swap that changes nothing."""
    cpp, real, own = kernel.cpp, kernel.real, kernel.top
    for old, new in swap:
        if old not in cpp + real + own:
            raise ValueError(f"nothing to replace: {old!r}")
        cpp, real, own = cpp.replace(old, new), real.replace(old, new), own.replace(old, new)
    return _FILE.substitute(
        cpp=cpp.strip(),
        flags=list(flags),
        top=textwrap.dedent(own).strip() + "\n\n" + textwrap.dedent(top).strip() + "\n",
        init_arguments=kernel.init_arguments,
        init=_block(f"{textwrap.dedent(kernel.init).strip()}\n{textwrap.dedent(init).strip()}\npass"),
        arguments=kernel.arguments,
        real=_block(real),
        body=_block(textwrap.dedent(body).replace("$arguments", kernel.arguments)),
    )


def _block(statements: str) -> str:
    return textwrap.indent(textwrap.dedent(statements).strip(), " " * 8)
