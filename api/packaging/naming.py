"""What a package and its parts are called, from the name of the problem."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Names:
    """A package's names."""

    distribution: str
    """What pip calls it."""
    module: str
    """What is imported."""
    function: str
    class_name: str


def names_of(problem_name: str) -> Names:
    """The names for a problem: `softmax` gives softmax-kernel, softmax_kernel, softmax and Softmax."""
    base = module_name(problem_name)
    words = [word for word in base.split("_") if word]
    class_name = "".join(word[:1].upper() + word[1:] for word in words)
    function = f"{base}_" if keyword.iskeyword(base) or base == "use" else base
    if class_name in ("True", "False", "None", "DropIn", "NotCovered") or class_name == function:
        class_name += "Module"
    return Names(f"{base.replace('_', '-')}-kernel", f"{base}_kernel", function, class_name)


def module_name(text: str) -> str:
    """`text` as a lower-case identifier of ASCII."""
    plain = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    return plain if plain and not plain[0].isdigit() else f"op_{plain}".rstrip("_")
