"""How a C++ kernel that works on rows of columns reads the operands of a Program.

The domain splits into rows (leading dimensions) and columns (trailing ones). Inside the kernel `r` is the row and
`i` the
column. Each operand is one of: a matrix (moves in both), a column vector (the same for all rows), a row value (the same
along the columns), a scalar, or `mixed`, which moves in some of the row dimensions only and is addressed by divisions,
once a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from worker.builtin.cpp import mathlib
from worker.builtin.cpp.recipe import common_dtype, matrix, vector
from worker.builtin.expressions import Number, Operand, Program, Step, Unmatched

_C_TYPES = {"float": "float", "int": "int64_t", "bool": "unsigned char"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operand lies. `groups` are the runs [start, stop) of row dimensions in which a mixed operand moves."""

    kind: str
    moves: bool
    groups: tuple[tuple[int, int], ...] = ()


def uniform_suffix(program: Program) -> int:
    """How many trailing dimensions can be the columns: every operand moves in all of them, or in none.

    A view is not dense, so only its last dimension is sure to be evenly spaced.
    """
    rank = program.rank
    if any(operand.is_view and not all(operand.broadcast) for operand in program.operands):
        return min(1, rank)
    count = 0
    for size in range(1, rank + 1):
        if all(len({bool(flag) for flag in operand.broadcast[rank - size :]}) == 1 for operand in program.operands):
            count = size
    return count


def _place(operand: Operand, split: int) -> Place:
    flags = [bool(flag) for flag in operand.broadcast]
    lead, tail = flags[:split], flags[split:]
    moves = bool(tail) and not any(tail)
    if any(tail) and not all(tail):
        raise Unmatched("an operand that broadcasts inside a row")
    if not any(lead):
        return Place("matrix" if moves else "row", moves) if lead or moves else Place("scalar", False)
    if all(lead):
        return Place("column" if moves else "scalar", moves)
    groups: list[tuple[int, int]] = []
    for dim, still in enumerate(lead):
        if not still and groups and groups[-1][1] == dim:
            groups[-1] = (groups[-1][0], dim + 1)
        elif not still:
            groups.append((dim, dim + 1))
    return Place("mixed", moves, tuple(groups))


class Layout:
    """The operands of one Program as rows of columns; `columns` trailing dimensions are the columns.

    The statements are in terms of F and M, the types of a value and of a truth value. In mode `vector` they load whole
    vectors from the pointers q0, q1, ... (F is vf); in mode `walk` they sit in a generic lambda of a place `k` (see
    `rows`).
    """

    def __init__(self, program: Program, columns: int, *, mode: Literal["vector", "walk"]) -> None:
        self.program = program
        self.mode = mode
        self.split = program.rank - columns
        self.places = [_place(operand, self.split) for operand in program.operands]
        self.numbers = {number: f"n{index}" for index, number in enumerate(program.numbers)}

    # -- Python
    # ---------------------------------------------------------------------------------------------------------

    def read(self) -> list[tuple[int, Operand, Place]]:
        """The operands that come from memory (all but the accumulator of a product)."""
        numbered = zip(range(len(self.places)), self.program.operands, self.places, strict=True)
        return [(j, operand, place) for j, operand, place in numbered if operand.name != "acc"]

    def inputs(self) -> list[tuple[str, str]]:
        """Parameters of `_run` with what forward passes: tensors x0, x1, ... and numbers n0, n1, ..."""
        tensors = [(f"x{j}", operand.text) for j, operand, _ in self.read()]
        return tensors + [(name, number.text) for number, name in self.numbers.items()]

    def shape(self) -> list[str]:
        """Statements that set `shape`, `rows`, `cols` and `dtype`."""
        whole = [j for j, o, _ in self.read() if len(o.broadcast) == o.rank and not any(o.broadcast)]
        shapes = ", ".join(f"x{j}.shape" for j, _, _ in self.read())
        first = f"x{whole[0]}.shape" if whole else f"torch.broadcast_shapes({shapes})"
        return [f"shape = {first}", f"dtype = {self.dtype()}", *self.extents()]

    def extents(self) -> list[str]:
        """Statements that set `rows` and `cols` from `shape`."""
        rows, cols = (
            _product("shape", 0, self.split, self.program.rank),
            _product("shape", self.split, self.program.rank, self.program.rank),
        )
        return [f"rows, cols = {rows}, {cols}"]

    def dtype(self) -> str:
        """The result's dtype: torch's promotion of the float operands."""
        return common_dtype(self.typed()) if self.typed() else "torch.get_default_dtype()"

    def typed(self) -> list[str]:
        """The operands that decide the result's dtype: floats, those without dimensions yielding to the others."""
        floats = [(f"x{j}", operand.rank) for j, operand, _ in self.read() if operand.kind == "float"]
        return [name for name, rank in floats if rank] or [name for name, _ in floats]

    def prepare(self) -> list[str]:
        """Statements that make x0, x1, ... what the kernel expects: float32 (int64, bytes), dense where it assumes
        so."""
        lines = []
        for j, operand, place in self.read():
            for k, (start, stop) in enumerate(place.groups):
                lines.append(f"g{j}_{k} = {_product('shape', start, stop, self.program.rank)}")
            lines.append(self._dense(f"x{j}", operand, place))
        return lines

    def _dense(self, name: str, operand: Operand, place: Place) -> str:
        value = {"float": f"_f32({name})", "int": f"{name}.to(torch.int64)", "bool": name}[operand.kind]
        sizes = [f"g{name[1:]}_{k}" for k in range(len(place.groups))] + ["cols"] * place.moves
        size = {"column": "cols", "row": "rows", "scalar": "1", "mixed": " * ".join(sizes)}.get(place.kind, "")
        if self._is_strided(operand, place):
            return f"{name} = _strided({value}, shape)"
        if place.kind == "matrix":
            return matrix(name) if operand.kind == "float" else f"{name} = _matrix({value}, shape)"
        return vector(name, size) if operand.kind == "float" else f"{name} = _vector({value}, {size})"

    def _is_strided(self, operand: Operand, place: Place) -> bool:
        return place.kind == "matrix" and operand.is_view and self.split == self.program.rank - 1 and self.split > 0

    def arguments(self) -> list[str]:
        """What to pass for the operands, in the order of `parameters`."""
        found = []
        for j, operand, place in self.read():
            found.append(f"x{j}")
            if self._is_strided(operand, place):
                found.append(f"x{j}.stride(0)")
            for k, (_, stop) in enumerate(place.groups):
                later = [f"g{j}_{m}" for m in range(k + 1, len(place.groups))] + (["cols"] if place.moves else [])
                after = _product("shape", stop, self.split, self.program.rank)
                found += [f"g{j}_{k}", after, " * ".join(later) or "1"]
        return [*found, *self.numbers.values()]

    # -- C++
    # ------------------------------------------------------------------------------------------------------------

    def parameters(self) -> list[str]:
        """The kernel's parameters for the operands and run-time numbers."""
        found = []
        for j, operand, place in self.read():
            found.append(f"const {_C_TYPES[operand.kind]}* __restrict p{j}")
            if self._is_strided(operand, place):
                found.append(f"int64_t s{j}")
            for k in range(len(place.groups)):
                found += [f"int64_t g{j}_{k}", f"int64_t a{j}_{k}", f"int64_t t{j}_{k}"]
        return [*found, *(f"double {name}" for name in self.numbers.values())]

    def row_start(self) -> list[str]:
        """Statements at the start of row `r`: pointers q0, q1, ... and values c0, c1, ... that hold along the
        columns."""
        lines = []
        for j, operand, place in self.read():
            ctype = _C_TYPES[operand.kind]
            pointer = f"p{j}{self._row_offset(j, operand, place)}"
            if place.moves:
                lines.append(f"const {ctype}* __restrict q{j} = {pointer};")
            else:
                value = f"*({pointer}) ? 1.0f : 0.0f" if operand.kind == "bool" else f"(float)*({pointer})"
                lines.append(f"const float c{j} = {value};")
        return lines

    def _row_offset(self, j: int, operand: Operand, place: Place) -> str:
        if place.kind == "matrix":
            return f" + r * {f's{j}' if self._is_strided(operand, place) else 'cols'}"
        if place.kind == "row":
            return " + r"
        return "".join(f" + (r / a{j}_{k} % g{j}_{k}) * t{j}_{k}" for k in range(len(place.groups)))

    def moving(self) -> list[tuple[str, str]]:
        """(C type, number) of the operands that move along the columns, the accumulator left out."""
        return [(_C_TYPES[o.kind], str(j)) for j, o, place in self.read() if place.moves]

    def matrices(self) -> list[int]:
        """The operands whose every element is read once."""
        return [j for j, _, place in self.read() if place.kind == "matrix"]

    def load(self, j: int) -> str:
        """The operand's value at column i."""
        operand, place = self.program.operands[j], self.places[j]
        if operand.name == "acc":
            return "acc"
        if not place.moves:
            return f"splat<F>(c{j}) != 0.0f" if operand.kind == "bool" else f"splat<F>(c{j})"
        return f"load(q{j})" if self.mode == "vector" else f"at(q{j}, k)"

    def statement(self, index: int) -> str:
        """The declaration of step `index` as v{index}; not for reductions."""
        step = self.program.steps[index]
        ctype = "M" if step.truth else "F"
        if step.op == "load":
            operand = step.args[0]
            assert isinstance(operand, int)
            return f"const {ctype} v{index} = {self.load(operand)};"
        return f"const {ctype} v{index} = {mathlib.expression(step.op, self.names(step))};"

    def names(self, step: Step) -> list[str]:
        """The arguments of a step in C++."""
        return [self.number(a, step, i) if isinstance(a, Number) else f"v{a}" for i, a in enumerate(step.args)]

    def number(self, number: Number, step: Step, position: int) -> str:
        """A constant as an argument of a step: in float, but for an exponent, whose rounding would be magnified."""
        if number in self.numbers:
            name = self.numbers[number]
            return name if (step.op, position) == ("pow", 1) else f"splat<F>((float){name})"
        if (step.op, position) == ("pow", 1):
            return mathlib.literal(number.value).removesuffix("f")
        return f"splat<F>({mathlib.literal(number.value)})"


def _product(name: str, start: int, stop: int, rank: int) -> str:
    """The product of some extents of a shape, as Python."""
    if stop <= start:
        return "1"
    if stop == start + 1:
        return f"{name}[{start - rank if start == rank - 1 else start}]"
    if stop - start <= 4:
        return " * ".join(f"{name}[{d}]" for d in range(start, stop))
    return f"math.prod({name}[{start}:{stop}])"


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
            pending += [a for a in step.args if isinstance(a, int)]
    return sorted(live)


def epilogue_code(layout: Layout, base: str) -> list[str]:
    """Statements that define the lambda `finish(k, acc)`: the epilogue's value at column `base + k` of row r."""
    program = layout.program
    wanted = program.outputs[0].step
    moved = [f"const auto* e{j} = q{j} + {base};" for _, j in layout.moving()]
    body = [layout.statement(index) for index in needed(program, [wanted])]
    for _, j in layout.moving():
        body = [line.replace(f"at(q{j}, k)", f"at(e{j}, k)") for line in body]
    lines = [*layout.row_start(), *moved, "auto finish = [&](auto k, auto acc) {", "    typedef decltype(acc) F;"]
    lines += ["    typedef typename Truth<F>::M M;", *(f"    {line}" for line in body), f"    return v{wanted};", "};"]
    return lines
