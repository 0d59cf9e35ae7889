"""Which inputs a piece of Inductor's code is for: the test that a candidate makes before it calls it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from worker.builtin.compiler_capture import Argument, Capture

# Names that Inductor's code binds itself, and those of the candidate's module.
_TAKEN = re.compile(r"(buf|s|u|z|ps|ks|arg|primals|stream|raw_stream|workspace)_?\d+(_1)?(_size)?|_.*|[A-Z_0-9]+")
_RESERVED = frozenset(["device", "torch", "math", "nn", "triton", "tl", "libdevice", "load_cpp", "self"])


def local_names(keys: Iterable[str]) -> dict[str, str]:
    """A variable's name for each state dict key and each argument of forward: `norm_weight` for `norm.weight`."""
    names: dict[str, str] = {}
    for key in keys:
        name = key.replace(".", "_")
        if not name.isidentifier() or _TAKEN.fullmatch(name) or name in _RESERVED:
            name = f"t_{name}"
        while name in names.values():
            name += "_"
        names[key] = name
    return names


def state_expression(key: str) -> str:
    """`self.net.weight` for the state dict key `net.weight`; a child with a number for a name needs getattr."""
    text = "self"
    for part in key.split("."):
        text = f"{text}.{part}" if part.isidentifier() else f'getattr({text}, "{part}")'
    return text


@dataclass(frozen=True, slots=True)
class Test:
    """Tells whether some code is for given inputs, as the statements of a function that returns a bool."""

    parameters: tuple[str, ...]
    body: tuple[str, ...]

    def function(self, name: str) -> str:
        """The function as source."""
        return "\n    ".join([f"def {name}({', '.join(self.parameters)}):", *self.body]) + "\n"

    def accepts(self, values: Mapping[str, object]) -> bool:
        """What the function says of these values, by local name."""
        scope: dict[str, Any] = {"torch": torch}
        exec(self.function("fits"), scope)
        return bool(scope["fits"](*(values[parameter] for parameter in self.parameters)))


def test_of(capture: Capture, names: Mapping[str, str], used: frozenset[str]) -> Test:
    """The test for a capture. Of the state only what its code uses (by local name) is looked at."""
    described = [(names[a.key], a) for a in capture.arguments if not a.is_state or names[a.key] in used]
    first = [f"{name}.dtype is torch.{a.dtype} and {name}.dim() == {len(a.shape)}" for name, a in described]
    first += [f"{names[key]} == {value!r}" for key, value in capture.numbers]
    body = [f"if not ({' and '.join(first)}):", "    return False"] if first else []
    places: dict[str, str] = {}
    for name, argument in described:
        for position, size in enumerate(argument.shape):
            if size in capture.symbols:
                places.setdefault(size, f"{name}.shape[{position}]")
    body += [f"{symbol} = {place}" for symbol, place in places.items()]
    checks = [check for name, argument in described for check in _layout(name, argument, places)]
    checks += [text for text, symbols in capture.conditions if symbols <= places.keys()]
    body.append(f"return {' and '.join(dict.fromkeys(checks)) or 'True'}")
    parameters = [name for name, _ in described] + [names[key] for key, _ in capture.numbers]
    return Test(tuple(parameters), tuple(body))


def _layout(name: str, argument: Argument, places: Mapping[str, str]) -> list[str]:
    """Conditions on shape and strides, less those that hold since a symbol was read from there."""
    checks = []
    if any(places.get(size) != f"{name}.shape[{position}]" for position, size in enumerate(argument.shape)):
        checks.append(f"{name}.shape == {_tuple(argument.shape)}")
    if not argument.contiguous:
        checks.append(f"{name}.stride() == {_tuple(argument.strides)}")
    return checks


def _tuple(items: tuple[str, ...]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
