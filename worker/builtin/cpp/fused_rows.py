"""Any mix of elementwise steps and reductions over rows, and reductions of everything (losses).

The Program is cut into walks along a row: one for each reduction, one for each output. A walk recomputes what it needs
from the operands, which by then are in the cache, except for expensive steps, which are kept in a buffer.
"""

from __future__ import annotations

from collections.abc import Sequence

from worker.builtin.cpp import mathlib, rows
from worker.builtin.cpp.layout import Layout, needed, uniform_suffix
from worker.builtin.cpp.recipe import Parts, Recipe, indent, rounded
from worker.builtin.expressions import FULL_REDUCTIONS, ROW_REDUCTIONS, Number, Output, Program, Step, Unmatched
from worker.builtin.families import FullReduction, Match, Rowwise

_EXPENSIVE = frozenset(
    [
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log1p",
        "sigmoid",
        "tanh",
        "erf",
        "sin",
        "cos",
        "pow",
        "div",
        "reciprocal",
        "sqrt",
        "rsqrt",
    ]
)


class Walks:
    """Prints the walks of one Program. Row and scalar values are named w0, w1, ..., values in a walk v0, v1, ..."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.program = layout.program
        self.kept: dict[int, int] = {}
        self.targets = self._targets()

    def _targets(self) -> list[int]:
        """The element steps that walks compute, in order."""
        found = []
        for step in self.program.steps:
            source = step.args[0]
            if step.op in ROW_REDUCTIONS | FULL_REDUCTIONS and isinstance(source, int):
                found.append(source)
        found += [output.step for output in self.program.outputs]
        return [index for index in found if self.program.steps[index].level == "element"]

    def _reduced(self) -> frozenset[int]:
        return frozenset(i for i, step in enumerate(self.program.steps) if step.level != "element")

    def walk(self, target: int) -> str:
        """The body of a generic lambda over places `k` that returns the value of an element step."""
        known = self._reduced() | frozenset(self.kept)
        self.targets.remove(target)
        later = {i for t in self.targets for i in needed(self.program, [t], known)}
        lines = ["typedef typename decltype(k)::F F;", "typedef typename Truth<F>::M M; (void)sizeof(M);"]
        order = needed(self.program, [target], self._reduced())
        live = self._live(target)
        for index in order:
            if index in self.kept and index in live:
                lines.append(f"const F v{index} = at(keep + {self.kept[index]} * cols, k);")
            elif index in live:
                lines.append(self._element(index))
                if self.program.steps[index].op in _EXPENSIVE and index in later and index not in self.kept:
                    self.kept[index] = len(self.kept)
                    lines.append(f"put(keep + {self.kept[index]} * cols, k, v{index});")
        return "\n".join([*lines, f"return v{target};"])

    def _live(self, target: int) -> set[int]:
        """The steps that a walk touches: computed ones, and kept ones that those read."""
        known = self._reduced() | frozenset(self.kept)
        computed = needed(self.program, [target], known)
        read = {a for i in computed for a in self.program.steps[i].args if isinstance(a, int)}
        return {*computed, *(i for i in self.kept if i in read or i == target)}

    def _element(self, index: int) -> str:
        step = self.program.steps[index]
        if step.op == "load":
            return self.layout.statement(index)
        ctype = "M" if step.truth else "F"
        return f"const {ctype} v{index} = {self._expression(index, step)};"

    def _expression(self, index: int, step: Step) -> str:
        text = mathlib.expression(step.op, [self._name(step, i) for i in range(len(step.args))])
        summed = any(s.op in ("row_sum", "row_mean") and s.args[0] == index for s in self.program.steps)
        return text.replace("kw_exp(", "kw_exp_flushed(") if step.op == "exp" and summed else text

    def _name(self, step: Step, position: int) -> str:
        arg = step.args[position]
        if isinstance(arg, Number):
            return self.layout.number(arg, step, position)
        if self.program.steps[arg].level == "element":
            return f"v{arg}"
        return f"splat<F>(w{arg} ? 1.0f : 0.0f) != 0.0f" if self.program.steps[arg].truth else f"splat<F>(w{arg})"

    def plain(self, index: int) -> str:
        """A row or scalar step that is not a reduction."""
        step = self.program.steps[index]
        names = [self.layout.number(a, step, i) if isinstance(a, Number) else f"w{a}" for i, a in enumerate(step.args)]
        return f"const {'bool' if step.truth else 'float'} w{index} = {mathlib.expression(step.op, names)};"

    def reduction(self, index: int) -> list[str]:
        """A row reduction: the walk and its result."""
        step = self.program.steps[index]
        source = step.args[0]
        assert isinstance(source, int)
        sign = "-" if step.op == "row_min" else ""
        body = self.walk(source).replace(f"return v{source};", f"return {sign}v{source};").splitlines()
        call = "row_max" if step.op in ("row_max", "row_min") else "row_sum"
        divisor = " / (double)cols" if step.op == "row_mean" else ""
        head = f"const float w{index} = {sign}(float)({call}(0, cols, [&](auto k) {{"
        return [head, *(f"    {line}" for line in body), f"}}){divisor});"]

    def row(self) -> list[str]:
        """Everything of a row that comes before its outputs."""
        lines = self.layout.row_start()
        for index, step in enumerate(self.program.steps):
            if step.op in ROW_REDUCTIONS:
                lines += self.reduction(index)
            elif step.level == "row":
                lines.append(self.plain(index))
        return lines

    def output(self, k: int, output: Output) -> list[str]:
        if self.program.steps[output.step].level == "row":
            return [f"o{k}[r] = w{output.step};"]
        body = self.walk(output.step).splitlines()
        return [f"write_row(o{k} + r * cols, cols, [&](auto k) {{", *(f"    {line}" for line in body), "});"]


_ROWS = """\
typedef float F;
{toolkit}
extern "C" void kernel({parameters}, int64_t rows, int64_t cols) {{
    #pragma omp parallel num_threads(THREADS) if (rows * cols >= GRAIN)
    {{
        {keep}
        #pragma omp for schedule(static) nowait
        for (int64_t r = 0; r < rows; r++) {{
            {row}
        }}
        FENCE
    }}
}}
"""


def _keep(walks: Walks) -> str:
    return f"float* __restrict keep = scratch_row({len(walks.kept)} * cols);" if walks.kept else ""


def write_rows(match: Match) -> Parts:
    if not isinstance(match.bindings, Rowwise):
        raise Unmatched("no reduction over rows")
    program = match.bindings.program
    layout = Layout(program, program.row_dims, mode="walk")
    if any(output.kind != "float" for output in program.outputs):
        raise Unmatched("an output that is not of floats")
    walks = Walks(layout)
    lines = walks.row()
    for k, output in enumerate(program.outputs):
        lines += walks.output(k, output)
    outputs = [f"o{k}" for k in range(len(program.outputs))]
    parameters = [*(f"float* __restrict {o}" for o in outputs), *layout.parameters()]
    returned = ", ".join(rounded(o) for o in outputs)
    return Parts(
        cpp=_ROWS.format(
            toolkit=rows.WALK + rows.SUM + rows.NAN_MAX + rows.WRITE + rows.SCRATCH,
            parameters=", ".join(parameters),
            keep=_keep(walks),
            row=indent(lines, 12),
        ),
        inputs=layout.inputs(),
        body=[
            *layout.shape(),
            *layout.prepare(),
            *(
                f"o{k} = torch.empty({_shape(program, output)}, dtype=torch.float32)"
                for k, output in enumerate(program.outputs)
            ),
            f"_LIB.kernel({', '.join([*outputs, *layout.arguments()])}, rows, cols)",
            f"return ({returned},)" if program.returns_tuple else f"return {returned}",
        ],
        tunables={**rows.TUNABLES, "STREAM": [0, 1]},
        defaults={**rows.DEFAULTS, "STREAM": 1},
    )


def _shape(program: Program, output: Output) -> str:
    if program.steps[output.step].level == "element":
        return "shape"
    kept = "1, " * program.row_dims if output.keepdim else ""
    split = program.rank - program.row_dims
    return f"(*shape[:{split}], {kept})" if split else f"({kept})"


# Every task leaves a sum in double; they are added in order, so the result does not depend on timing.
_EVERYTHING = """\
typedef float F;
{toolkit}
extern "C" void kernel(float* __restrict o0, {parameters}int64_t rows, int64_t cols) {{
    {split}
    static thread_local Room kept;
    double* const found = kept.of<double>(tasks);
    #pragma omp parallel num_threads(THREADS) if (rows * cols >= GRAIN)
    {{
        {keep}
        #pragma omp for schedule(static)
        for (int64_t task = 0; task < tasks; task++) {{
            double total = 0.0;
            {task}
            found[task] = total;
        }}
    }}
    double total = 0.0;
    for (int64_t task = 0; task < tasks; task++) total += found[task];
    {finish}
}}
"""

# Rows in runs, whole rows each; or, when nothing is reduced along rows, pieces of rows.
_BY_ROWS = """\
const int64_t run = cols < PIECE ? PIECE / (cols > 0 ? cols : 1) : 1, tasks = (rows + run - 1) / run;"""
_BY_PIECES = """\
const int64_t pieces = (cols + PIECE - 1) / PIECE, run = cols < PIECE ? PIECE / (cols > 0 ? cols : 1) : 1;
    const int64_t tasks = pieces > 1 ? rows * pieces : (rows + run - 1) / run;"""


def write_everything(match: Match) -> Parts:
    if not isinstance(match.bindings, FullReduction):
        raise Unmatched("not a full reduction")
    program = match.bindings.program
    by_rows = program.has(ROW_REDUCTIONS)
    layout = Layout(program, program.row_dims if by_rows else uniform_suffix(program), mode="walk")
    walks = Walks(layout)
    reduction = next(i for i, step in enumerate(program.steps) if step.op in FULL_REDUCTIONS)
    task = _task_by_rows(walks, reduction) if by_rows else _task_by_pieces(walks, reduction)
    output = program.outputs[0]
    parameters = "".join(f"{p}, " for p in layout.parameters())
    shape = f"({'1, ' * program.rank})" if output.keepdim else "()"
    return Parts(
        cpp=_EVERYTHING.format(
            toolkit=rows.WALK + rows.SUM + rows.NAN_MAX + rows.SCRATCH,
            parameters=parameters,
            split=_BY_ROWS if by_rows else _BY_PIECES,
            keep=_keep(walks),
            task=indent(task, 12),
            finish=indent(_finish(walks, reduction), 4),
        ),
        inputs=layout.inputs(),
        body=[
            *layout.shape(),
            *layout.prepare(),
            f"o0 = torch.empty({shape}, dtype=torch.float32)",
            f"_LIB.kernel(o0, {', '.join(layout.arguments())}, rows, cols)",
            f"return {rounded('o0')}",
        ],
        tunables={**rows.TUNABLES, "PIECE": [4096, 16384, 65536]},
        defaults={**rows.DEFAULTS, "PIECE": 16384},
    )


def _source(program: Program, reduction: int) -> int:
    source = program.steps[reduction].args[0]
    assert isinstance(source, int)
    return source


def _sum_walk(walks: Walks, source: int, start: str, stop: str) -> list[str]:
    body = walks.walk(source).splitlines()
    return [f"total += row_sum({start}, {stop}, [&](auto k) {{", *(f"    {line}" for line in body), "});"]


def _task_by_rows(walks: Walks, reduction: int) -> list[str]:
    source = _source(walks.program, reduction)
    lines = walks.row()
    if walks.program.steps[source].level == "row":
        lines.append(f"total += w{source};")
    else:
        lines += _sum_walk(walks, source, "0", "cols")
    loop = "for (int64_t r = task * run; r < (task + 1) * run && r < rows; r++) {"
    return [loop, *(f"    {line}" for line in lines), "}"]


def _task_by_pieces(walks: Walks, reduction: int) -> list[str]:
    source = _source(walks.program, reduction)
    head = [
        "const int64_t first = pieces > 1 ? task / pieces : task * run;",
        "const int64_t last = pieces > 1 ? first + 1 : (first + run < rows ? first + run : rows);",
        "const int64_t start = pieces > 1 ? task % pieces * PIECE : 0;",
        "const int64_t stop = start + PIECE < cols ? start + PIECE : cols;",
        "for (int64_t r = first; r < last; r++) {",
    ]
    body = [*walks.layout.row_start(), *_sum_walk(walks, source, "start", "stop")]
    return [*head, *(f"    {line}" for line in body), "}"]


def _finish(walks: Walks, reduction: int) -> Sequence[str]:
    """The scalar steps after the reduction."""
    program = walks.program
    element = program.steps[_source(program, reduction)].level == "element"
    count = "((double)rows * (double)cols)" if element else "(double)rows"
    divisor = f" / {count}" if program.steps[reduction].op == "all_mean" else ""
    lines = [f"const float w{reduction} = (float)(total{divisor});"]
    for index, step in enumerate(program.steps):
        if step.level == "scalar" and index != reduction:
            lines.append(walks.plain(index))
    return [*lines, f"*o0 = w{program.outputs[0].step};"]


RECIPES = (
    Recipe(
        "rowwise",
        "rowwise",
        "One walk along a cached row for each reduction and output, expensive values kept between walks, the rest "
        "recomputed in registers.",
        write_rows,
    ),
    Recipe(
        "full_reduction",
        "full_reduction",
        "One pass over memory that computes and adds: lanes over chunks, double over chunks, pieces added in order.",
        write_everything,
    ),
)
