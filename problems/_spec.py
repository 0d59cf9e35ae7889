"""The SPEC literal of a problem file: its types, and the checks that turn a parsed literal into them.

Every refusal names the line and says what to write, because most SPECs are written by hand (or by a model) once.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

_LIBRARY_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_TYPE_NAMES = {dict: "a dict", list: "a list", str: "a string", bool: "True or False"}

DEVICES = ("cpu", "gpu", "any")
DOMAINS = ("real", "positive", "unit", "index", "ascending", "strictly_ascending", "shuffled", "fixed")
COMPUTE_DTYPES = ("float64", "float32", "float16", "bfloat16")
SEATS = ("embedding_gradient", "layer", "loss", "none")
SPEC_KEYS = ("summary", "op_family", "workloads", "domains", "precision", "backward", "seat", "library")

Param = bool | int | float | str | None | tuple["Param", ...]
"""A value of a workload's `params`: what get_inputs and get_init_inputs are called with."""


class ProblemError(Exception):
    """The problem file cannot be used. The message names the line and says what to write instead."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One configuration of a problem: the keyword arguments for get_inputs and get_init_inputs."""

    name: str
    device: str = "any"
    """Which kind of hardware it is sized for: "cpu", "gpu" or "any" (the SPEC's key is "for")."""
    params: Mapping[str, Param] = field(default_factory=dict)
    backward: bool | None = None
    """Whether its gradients count; None: as the problem says. So one problem may be served on one kind of hardware and
    trained on another."""

    def fits(self, hardware: str) -> bool:
        """Whether this workload is judged on `hardware` ("cpu", or a GPU's id such as "nvidia-h100")."""
        return self.device == "any" or (self.device == "cpu") == (hardware == "cpu")


@dataclass(frozen=True, slots=True)
class Domain:
    """The values that one argument of `forward` may take: what the judge may draw for it."""

    kind: str
    """"real" (any number), "positive" (> 0), "unit" ([0, 1]), "index" (integers), "ascending" (integers or numbers that
    never fall between those where get_inputs' own do: offsets, borders), "strictly_ascending" (no two alike: keys),
    "shuffled" (get_inputs' own in any order: slots), "fixed" (only get_inputs' own)."""
    bound: str | int | None = None
    """For "index": values are below it. A workload parameter's name, a number, or None: get_inputs' own range."""

    def limit(self, params: Mapping[str, Param]) -> int | None:
        """The exclusive upper bound of an index under one workload's `params`; None when only get_inputs knows it."""
        value = params.get(self.bound) if isinstance(self.bound, str) else self.bound
        return value if isinstance(value, int) else None


@dataclass(frozen=True, slots=True)
class Precision:
    """What arithmetic is honest for this problem."""

    compute: str = "float32"
    """The narrowest type that arithmetic may round to. With float32 storage and "bfloat16" or "float16" here, products
    may take their factors in that type: the tolerance is that of 16-bit results, and one precision lower is 8-bit."""
    tf32: bool = False
    """Whether float32 matrix products may run as TF32."""


@dataclass(frozen=True, slots=True)
class SeatSpec:
    """Where the operation sits in a transformer that trains. Left out, the judge infers it from shapes."""

    kind: str
    """"embedding_gradient" (dy, ids, table[, weight] -> dtable[, dweight]), "layer", "loss", or "none": fits none."""
    workload: str | None = None
    """The workload at whose sizes to train; None: the judge chooses."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What a problem says about itself. A file without SPEC has one workload, "default", that takes no parameters."""

    summary: str = ""
    op_family: str = "other"
    workloads: tuple[Workload, ...] = (Workload("default"),)
    domains: Mapping[str, Domain] = field(default_factory=dict)
    """By the name of forward's argument; an argument that is not named is "real", or "index" when it is integer."""
    precision: Precision = Precision()
    backward: bool = False
    seat: SeatSpec | None = None
    library: Mapping[str, str] = field(default_factory=dict)
    """What a user could call in place of the reference, by a name for it: a class of the same file that takes, holds
    and returns what `Model` does. Each is one more baseline, `library_<name>`; it is checked like the others."""

    def trains(self, workload: Workload) -> bool:
        """Whether the backward of this workload counts."""
        return self.backward if workload.backward is None else workload.backward

    def trains_on(self, hardware: str) -> bool:
        """Whether the backward counts in every workload for this hardware. Raises as `workloads_for`."""
        return all(self.trains(workload) for workload in self.workloads_for(hardware))

    def workloads_for(self, hardware: str) -> tuple[Workload, ...]:
        """The workloads judged on `hardware`.

        Raises:
            ProblemError: none is meant for it.
        """
        chosen = tuple(workload for workload in self.workloads if workload.fits(hardware))
        if not chosen:
            kind = "cpu" if hardware == "cpu" else "gpu"
            raise ProblemError(
                f'no workload is for {hardware}: add one to SPEC["workloads"] with "for": "{kind}" or "any"'
            )
        return chosen


class _Literal:
    """A literal with the line of each of its parts: `values` is plain Python, `line(path)` says where a part stands."""

    def __init__(self, node: ast.expr) -> None:
        self._lines: dict[tuple[object, ...], int] = {}
        self.value = self._read(node, ())

    def line(self, path: tuple[object, ...]) -> int:
        while path not in self._lines:  # a missing key is reported where its container stands
            path = path[:-1]
        return self._lines[path]

    def _read(self, node: ast.expr, path: tuple[object, ...]) -> object:
        self._lines[path] = node.lineno
        if isinstance(node, ast.Dict):
            return dict(self._items(node, path))
        if isinstance(node, ast.List | ast.Tuple):
            return [self._read(item, (*path, place)) for place, item in enumerate(node.elts)]
        try:
            value: object = ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
            raise ProblemError(
                f"line {node.lineno}: SPEC is read and never run, so it must be a literal: "
                f"write the value itself in place of `{ast.unparse(node)[:60]}`"
            ) from error
        return value

    def _items(self, node: ast.Dict, path: tuple[object, ...]) -> Iterator[tuple[str, object]]:
        seen: set[str] = set()
        for key, value in zip(node.keys, node.values, strict=True):
            if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
                raise ProblemError(
                    f'line {value.lineno}: SPEC\'s keys are strings: write "name": value, no ** and no numbers'
                )
            if key.value in seen:
                raise ProblemError(f'line {key.lineno}: SPEC says "{key.value}" twice: keep one')
            seen.add(key.value)
            yield key.value, self._read(value, (*path, key.value))


class _Reader:
    """Checks a `_Literal` piece by piece; every method takes the path of the piece that it reads."""

    def __init__(self, literal: _Literal) -> None:
        self._literal = literal

    def refuse(self, path: tuple[object, ...], message: str) -> ProblemError:
        return ProblemError(f"line {self._literal.line(path)}: {message}")

    def at(self, path: tuple[object, ...]) -> object:
        value = self._literal.value
        for step in path:
            value = value[step]  # type: ignore[index]
        return value

    def typed(self, path: tuple[object, ...], kind: type) -> object:
        value = self.at(path)
        if type(value) is not kind:
            raise self.refuse(path, f"{self.name(path)} is {_TYPE_NAMES[kind]}, not {value!r:.60}")
        return value

    def text(self, path: tuple[object, ...], *, empty: bool = False) -> str:
        value = str(self.typed(path, str))
        if not value.strip() and not empty:
            raise self.refuse(path, f"{self.name(path)} is empty: write at least a word")
        return value

    def flag(self, path: tuple[object, ...]) -> bool:
        return bool(self.typed(path, bool))

    def choice(self, path: tuple[object, ...], choices: Iterable[str]) -> str:
        value = self.at(path)
        if value not in tuple(choices):
            raise self.refuse(path, f"{self.name(path)} is {value!r:.60}: write one of {', '.join(choices)}")
        return str(value)

    def keys(self, path: tuple[object, ...], known: Iterable[str]) -> list[str]:
        found: list[str] = list(self.typed(path, dict))  # type: ignore[call-overload]  # a dict, says typed
        for key in found:
            if key not in known:
                raise self.refuse((*path, key), f'{self.name(path)} has no key "{key}": it knows {", ".join(known)}')
        return found

    @staticmethod
    def name(path: tuple[object, ...]) -> str:
        return "SPEC" + "".join(f'["{step}"]' if isinstance(step, str) else f"[{step}]" for step in path)


def read_spec(node: ast.expr) -> tuple[Spec, dict[str, int]]:
    """The Spec that a SPEC literal says, and the lines of its domains and workloads by "domains.x" and "workloads.0".

    Raises:
        ProblemError: it is no literal, or says something that this version does not know.
    """
    literal = _Literal(node)
    reader = _Reader(literal)
    found = reader.keys((), SPEC_KEYS)
    default = Spec()
    spec = Spec(
        summary=reader.text(("summary",), empty=True) if "summary" in found else default.summary,
        op_family=reader.text(("op_family",)) if "op_family" in found else default.op_family,
        workloads=_workloads(reader) if "workloads" in found else default.workloads,
        domains=_domains(reader) if "domains" in found else default.domains,
        precision=_precision(reader) if "precision" in found else default.precision,
        backward=reader.flag(("backward",)) if "backward" in found else default.backward,
        seat=_seat(reader) if "seat" in found else None,
        library=_library(reader) if "library" in found else {},
    )
    _check_seat(reader, spec)
    lines = {f"domains.{name}": literal.line(("domains", name)) for name in spec.domains}
    lines |= {f"library.{name}": literal.line(("library", name)) for name in spec.library}
    lines |= {f"workloads.{place}": literal.line(("workloads", place)) for place in range(len(spec.workloads))}
    return spec, lines


def _workloads(reader: _Reader) -> tuple[Workload, ...]:
    path = ("workloads",)
    count = len(reader.typed(path, list))  # type: ignore[arg-type]
    if not count:
        raise reader.refuse(path, 'SPEC["workloads"] is empty: give one, or leave the key out')
    workloads: list[Workload] = []
    for place in range(count):
        workload = _workload(reader, (*path, place))
        if workload.name in {other.name for other in workloads}:
            raise reader.refuse((*path, place), f'two workloads are called "{workload.name}": each needs its own name')
        workloads.append(workload)
    return tuple(workloads)


def _workload(reader: _Reader, path: tuple[object, ...]) -> Workload:
    found = reader.keys(path, ("name", "for", "params", "backward"))
    if "name" not in found:
        raise reader.refuse(path, f'{reader.name(path)} has no name: write "name": "small"')
    params: dict[str, Param] = {}
    if "params" in found:
        given: dict[str, object] = reader.typed((*path, "params"), dict)  # type: ignore[assignment]
        params = {key: _param(reader, (*path, "params", key), value) for key, value in given.items()}
    return Workload(
        name=reader.text((*path, "name")),
        device=reader.choice((*path, "for"), DEVICES) if "for" in found else "any",
        params=params,
        backward=reader.flag((*path, "backward")) if "backward" in found else None,
    )


def _param(reader: _Reader, path: tuple[object, ...], value: object) -> Param:
    if isinstance(value, list):
        return tuple(_param(reader, (*path, place), item) for place, item in enumerate(value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise reader.refuse(
        path, f"{reader.name(path)} is {value!r:.60}: parameters are numbers, strings, flags and lists of them"
    )


def _domains(reader: _Reader) -> dict[str, Domain]:
    names: list[str] = list(reader.typed(("domains",), dict))  # type: ignore[call-overload]  # a dict, says typed
    return {name: _domain(reader, ("domains", name)) for name in names}


def _domain(reader: _Reader, path: tuple[object, ...]) -> Domain:
    if not isinstance(reader.at(path), dict):
        return Domain(reader.choice(path, DOMAINS))
    if not reader.keys(path, ("index",)):
        raise reader.refuse(
            path,
            f'{reader.name(path)} is empty: write {{"index": "classes"}} (a workload parameter) or {{"index": 1000}}',
        )
    bound = reader.at((*path, "index"))
    if isinstance(bound, str) or (type(bound) is int and bound > 0):
        return Domain("index", bound)
    raise reader.refuse(
        path, f"{reader.name(path)} is {bound!r:.60}: an index is bounded by a workload parameter's name or a number"
    )


def _precision(reader: _Reader) -> Precision:
    path = ("precision",)
    found = reader.keys(path, ("compute", "tf32"))
    return Precision(
        compute=reader.choice((*path, "compute"), COMPUTE_DTYPES) if "compute" in found else "float32",
        tf32=reader.flag((*path, "tf32")) if "tf32" in found else False,
    )


def _seat(reader: _Reader) -> SeatSpec:
    path = ("seat",)
    found = reader.keys(path, ("kind", "workload"))
    if "kind" not in found:
        raise reader.refuse(path, f'SPEC["seat"] has no kind: write "kind": one of {", ".join(SEATS)}')
    return SeatSpec(
        kind=reader.choice((*path, "kind"), SEATS),
        workload=reader.text((*path, "workload")) if "workload" in found else None,
    )


def _library(reader: _Reader) -> dict[str, str]:
    path = ("library",)
    names: list[str] = list(reader.typed(path, dict))  # type: ignore[call-overload]  # a dict, says typed
    for name in names:
        if not _LIBRARY_NAME.fullmatch(name):
            raise reader.refuse((*path, name), f'the library op "{name}": a name is small letters, digits and _')
    return {name: reader.text((*path, name)) for name in names}


def _check_seat(reader: _Reader, spec: Spec) -> None:
    if spec.seat is None:
        return
    names = [workload.name for workload in spec.workloads]
    if spec.seat.workload is not None and spec.seat.workload not in names:
        raise reader.refuse(
            ("seat", "workload"),
            f'the seat names the workload "{spec.seat.workload}", which is not one of {", ".join(names)}',
        )
    if spec.seat.kind == "loss" and not spec.backward:
        raise reader.refuse(
            ("seat", "kind"), 'a loss trains through its gradient: add "backward": True, or use "kind": "none"'
        )
    if spec.seat.kind == "embedding_gradient" and spec.backward:
        raise reader.refuse(
            ("seat", "kind"),
            'an embedding gradient is a backward already: write "backward": False, or "kind": "layer" for a layer',
        )
