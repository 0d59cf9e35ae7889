"""How a kernel that works on tiles of [rows, columns] reads and writes the operands of a Program.

The domain is split once: its last `row_dims` dimensions flatten to columns, the others to rows. Each operand then is
one of four plain things (a matrix, a vector along the rows or the columns, a scalar) or, when it broadcasts in the
middle, a flat array addressed by divisions. A kernel that uses a `Tiles` has in scope

    row   int64 [ROWS, 1]     row_ok   its mask
    col   [1, BLOCK]          col_ok   its mask          ok = row_ok & col_ok

and prints `tiles.load(j)`, `tiles.step(i)`, `tiles.store(k)`; the Python side prints `tiles.prepare()` and passes
`tiles.arguments()` to the parameters `tiles.parameters()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker.builtin.expressions import Number, Operand, Program, Step, Unmatched
from worker.builtin.triton import steps

ACC = "acc"

PREPARE = '''\
def _matrix(t, shape, rows, cols):
    """`t` as [rows, cols] with neighbouring columns next to each other in memory; a view where that is possible."""
    if t.shape != shape:
        t = t.expand(shape)
    t = t.reshape(rows, cols)
    return t if t.stride(1) == 1 else t.contiguous()
'''

VECTOR = '''\
def _vector(t, size):
    """`t` as a contiguous vector; refuses one of another size."""
    return t.reshape(size).contiguous()
'''


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring dimensions [start, stop) in which an operand moves; the dimensions are those of the domain."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operand lies: "matrix", "row", "column", "scalar", "mixed", or "given" for a value already there."""

    kind: str
    groups: tuple[Group, ...] = ()


def place_of(operand: Operand, rank: int, row_dims: int) -> Place:
    """How the operand is addressed when the last `row_dims` of `rank` dimensions are the columns."""
    if operand.name == ACC and operand.text == ACC:
        return Place("given")
    split = rank - row_dims
    lead, tail = operand.broadcast[:split], operand.broadcast[split:]
    moves_rows, moves_columns = bool(lead) and not any(lead), bool(tail) and not any(tail)
    # A dimension that nobody can tell about (None) goes with the others; the candidate refuses shapes that differ.
    still_rows, still_columns = False not in lead and not moves_rows, False not in tail and not moves_columns
    if moves_columns and (moves_rows or not lead):
        return Place("matrix")
    if still_rows and moves_columns:
        return Place("column")
    if moves_rows and still_columns:
        return Place("row")
    if still_rows and still_columns:
        return Place("scalar")
    return Place("mixed", (*_groups(lead, 0), *_groups(tail, split)))


def _groups(flags: Sequence[bool | None], offset: int) -> list[Group]:
    found: list[Group] = []
    for dim, still in enumerate(flags, offset):
        if still:
            continue
        if found and found[-1].stop == dim:
            found[-1] = Group(found[-1].start, dim + 1)
        else:
            found.append(Group(dim, dim + 1))
    return found


class Tiles:
    """The operands of one Program, as a tile kernel sees them."""

    def __init__(self, program: Program, row_dims: int) -> None:
        self.program = program
        self.split = program.rank - row_dims
        self.places = tuple(place_of(operand, program.rank, row_dims) for operand in program.operands)
        self.numbers = {number: f"n{index}" for index, number in enumerate(program.numbers)}
        if any(output.kind == "int" for output in program.outputs):
            raise Unmatched("an integer result")

    # -- the Python side ----------------------------------------------------------------------------------------------

    def operands(self) -> list[tuple[int, Operand, Place]]:
        """The operands that are read from memory."""
        numbered = zip(range(len(self.places)), self.program.operands, self.places, strict=True)
        return [(index, operand, place) for index, operand, place in numbered if place.kind != "given"]

    def full(self) -> int | None:
        """The first operand that has the domain's whole shape."""
        whole = [i for i, o, _ in self.operands() if len(o.broadcast) == o.rank and not any(o.broadcast)]
        return whole[0] if whole else None

    def inputs(self) -> list[tuple[str, str]]:
        """The parameters of the candidate's `_run` and what forward passes: tensors x0, x1, ..., then numbers."""
        tensors = [(f"x{index}", operand.text) for index, operand, _ in self.operands()]
        return [*tensors, *((name, number.text) for number, name in self.numbers.items())]

    def shape(self) -> list[str]:
        """Statements that set `shape`, `rows` and `cols`."""
        full = self.full()
        shapes = ", ".join(f"x{index}.shape" for index, _, _ in self.operands())
        lines = [f"shape = x{full}.shape" if full is not None else f"shape = torch.broadcast_shapes({shapes})"]
        rows = {0: "1", 1: "shape[0]"}.get(self.split, f"math.prod(shape[:{self.split}])")
        cols = "shape[-1]" if self.split == self.program.rank - 1 else f"math.prod(shape[{self.split}:])"
        return [*lines, f"rows, cols = {rows}, {cols}"]

    def prepare(self) -> list[str]:
        """Statements that turn x0, x1, ... into what `arguments` passes."""
        lines = []
        for index, _, place in self.operands():
            if place.kind == "matrix":
                lines.append(f"x{index} = _matrix(x{index}, shape, rows, cols)")
            elif place.kind in ("row", "column", "scalar"):
                size = {"row": "rows", "column": "cols", "scalar": "1"}[place.kind]
                lines.append(f"x{index} = _vector(x{index}, {size})")
            else:
                sizes = [self._extent(group.start, group.stop) for group in place.groups]
                lines += [f"g{index}_{k} = {size}" for k, size in enumerate(sizes)]
                lines.append(f"x{index} = _vector(x{index}, {' * '.join(f'g{index}_{k}' for k in range(len(sizes)))})")
        return lines

    def _extent(self, start: int, stop: int) -> str:
        return f"shape[{start}]" if stop == start + 1 else f"math.prod(shape[{start}:{stop}])"

    def arguments(self) -> list[str]:
        """What to pass to the kernel, as Python expressions, in the order of `parameters`."""
        found = [f"x{index}" for index, _, _ in self.operands()]
        for index, _, place in self.operands():
            if place.kind == "matrix":
                found.append(f"x{index}.stride(0)")
            for k, group in enumerate(place.groups):
                end = self.split if group.stop <= self.split else self.program.rank
                found += [f"g{index}_{k}", self._extent(group.stop, end) if group.stop < end else "1"]
        return [*found, *self.numbers.values()]

    def parameters(self) -> list[str]:
        """The kernel's parameters for the operands."""
        found = [f"p{index}" for index, _, _ in self.operands()]
        for index, _, place in self.operands():
            if place.kind == "matrix":
                found.append(f"s{index}")
            for k in range(len(place.groups)):
                found += [f"g{index}_{k}", f"a{index}_{k}"]
        return [*found, *self.numbers.values()]

    def dtype(self) -> str:
        """The result's dtype as a Python expression: torch's promotion of the floating operands (0-d ones yield)."""
        floats = [i for i, o, _ in self.operands() if o.kind == "float" and o.rank]
        floats = floats or [i for i, o, _ in self.operands() if o.kind == "float"]
        if not floats:
            return "torch.get_default_dtype()"
        text = f"x{floats[0]}.dtype"
        for index in floats[1:]:
            text = f"torch.promote_types({text}, x{index}.dtype)"
        return text

    def python_helpers(self) -> list[str]:
        """The functions that `prepare` calls."""
        kinds = {place.kind for _, _, place in self.operands()}
        return [PREPARE] * ("matrix" in kinds) + [VECTOR] * bool(kinds - {"matrix"})

    # -- the kernel's side --------------------------------------------------------------------------------------------

    def load(self, index: int) -> str:
        """An operand's value on the tile, in float32 (or as a truth value)."""
        place, operand = self.places[index], self.program.operands[index]
        if place.kind == "given":
            return ACC
        address, mask = self._address(index, place)
        value = f"tl.load(p{index}{address}{f', mask={mask}, other=0' if mask else ''})"
        return f"({value} != 0)" if operand.kind == "bool" else f"{value}.to(tl.float32)"

    def _address(self, index: int, place: Place) -> tuple[str, str]:
        if place.kind == "matrix":
            return f" + row * s{index} + col", "ok"
        if place.kind == "column":
            return " + col", "col_ok"
        if place.kind == "row":
            return " + row", "row_ok"
        if place.kind == "mixed":
            in_rows = {group.stop <= self.split for group in place.groups}
            return self._mixed(index, place), "ok" if len(in_rows) == 2 else "row_ok" if True in in_rows else "col_ok"
        return "", ""

    def _mixed(self, index: int, place: Place) -> str:
        """The sum over the groups of (position // extent after it % its extent) * the operand's stride."""
        text = ""
        for k, group in enumerate(place.groups):
            in_rows = group.stop <= self.split
            first, last = (0, self.split) if in_rows else (self.split, self.program.rank)
            term = "row" if in_rows else "col"
            if group.stop < last:
                term = f"({term} // a{index}_{k})"
            if group.start > first:
                term = f"({term} % g{index}_{k})"
            later = [f"g{index}_{j}" for j in range(k + 1, len(place.groups))]
            text += f" + {' * '.join([term, *later])}"
        return text

    def invariant(self, index: int) -> bool:
        """Whether the operand's tile is the same for every row, so that it can be loaded before a loop over rows."""
        return self.places[index].kind in ("column", "scalar")

    def value(self, index: int) -> str:
        """A step that is no reduction, as an expression: an operand's load, or an operation on v0, v1, ..."""
        step = self.program.steps[index]
        if step.op == "load":
            return self.load(operand_of(step))
        return steps.expression(step.op, self.arguments_of(step))

    def statements(self, wanted: Sequence[int], known: frozenset[int] = frozenset()) -> list[str]:
        """The statements that compute the wanted steps and what they need, none of it a reduction, as v0, v1, ..."""
        return [f"v{index} = {self.value(index)}" for index in needed(self.program, wanted, known)]

    def arguments_of(self, step: Step) -> list[str]:
        """The names of a step's arguments inside the kernel."""
        return [steps.number(arg, self.numbers) if isinstance(arg, Number) else f"v{arg}" for arg in step.args]


def operand_of(step: Step) -> int:
    """Which operand a load reads."""
    index = step.args[0]
    assert isinstance(index, int)
    return index


def needed(program: Program, wanted: Sequence[int], known: frozenset[int] = frozenset()) -> list[int]:
    """The steps to compute, in order, for the wanted ones, when the known ones are there already."""
    live: set[int] = set()
    pending = list(wanted)
    while pending:
        index = pending.pop()
        if index in live or index in known:
            continue
        live.add(index)
        step = program.steps[index]
        if step.op != "load":
            pending += [arg for arg in step.args if isinstance(arg, int)]
    return sorted(live)
