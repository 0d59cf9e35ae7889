"""The kernel that streams rows of any length in blocks, in as few passes as the reductions allow.

Reductions that depend on one another need a pass each, except two pairs that have an online form: a maximum with the
sum of exponentials below it (softmax), and a mean with the squares around it (Welford). The passes after the first find
the row in the cache.
"""

from __future__ import annotations

from worker.builtin.expressions import ROW_REDUCTIONS, Program, Step
from worker.builtin.triton.recipe import indented, levels, stores
from worker.builtin.triton.tiles import Tiles, needed, operand_of

_STREAM = """\
@triton.jit
def _stream({parameters}, rows, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) + tl.zeros([1, 1], tl.int64)
    row_ok = row < rows
{body}
"""

_LOOP = """\
for start in range(0, cols, BLOCK):
    col = start + tl.arange(0, BLOCK)[None, :]
    col_ok = col < cols
    ok = col_ok
{inside}
"""

_FULL = {"row_sum": "0.0", "row_mean": "0.0", "row_max": 'float("-inf")', "row_min": 'float("inf")'}
_JOIN = {
    "row_sum": "a{i} = a{i} + tl.where(col_ok, {v}, 0.0)",
    "row_mean": "a{i} = a{i} + tl.where(col_ok, {v}, 0.0)",
    "row_max": 'a{i} = _nan_max(a{i}, tl.where(col_ok, {v}, float("-inf")))',
    "row_min": 'a{i} = _nan_min(a{i}, tl.where(col_ok, {v}, float("inf")))',
}
_CLOSE = {
    "row_sum": "v{i} = tl.sum(a{i}, axis=1, keep_dims=True)",
    "row_mean": "v{i} = tl.sum(a{i}, axis=1, keep_dims=True) / cols",
    "row_max": "v{i} = tl.reduce(a{i}, 1, _nan_max, keep_dims=True)",
    "row_min": "v{i} = tl.reduce(a{i}, 1, _nan_min, keep_dims=True)",
}

# A row's maximum so far is one number, so that a block costs one exponential an element and not two. Where nothing but
# -inf was seen, exponentials are taken around 0: -inf - -inf would be NaN.
_ONLINE_SOFTMAX = """\
e{i} = tl.where(col_ok, {v}, float("-inf"))
b{i} = _nan_max(m{i}, tl.reduce(e{i}, 1, _nan_max, keep_dims=True))
c{i} = tl.where(b{i} == float("-inf"), 0.0, b{i})
a{i} = a{i} * tl.exp(m{i} - c{i}) + tl.exp(e{i} - c{i})
m{i} = b{i}"""

_WELFORD = """\
c{i} = c{i} + tl.where(col_ok, 1.0, 0.0)
e{i} = tl.where(col_ok, {v}, m{i})
d{i} = e{i} - m{i}
m{i} = m{i} + d{i} / tl.maximum(c{i}, 1.0)
a{i} = a{i} + d{i} * (e{i} - m{i})"""


def online_pairs(program: Program) -> dict[int, int]:
    """Reductions that can share the pass of another: {second: first}."""
    pairs: dict[int, int] = {}
    for index, step in enumerate(program.steps):
        first = _softmax_sum(program, step)
        if first is None:
            first = _squares_around_mean(program, step)
        if first is not None and first not in pairs.values():
            pairs[index] = first
    return pairs


def _argument(program: Program, step: Step, place: int) -> tuple[int, Step] | None:
    if step.op == "load" or place >= len(step.args):
        return None
    index = step.args[place]
    return (index, program.steps[index]) if isinstance(index, int) else None


def _softmax_sum(program: Program, step: Step) -> int | None:
    """The `row_max(x)` of a `row_sum(exp(x - row_max(x)))`."""
    powers = _argument(program, step, 0) if step.op == "row_sum" else None
    shifted = _argument(program, powers[1], 0) if powers and powers[1].op == "exp" else None
    if shifted is None or shifted[1].op != "sub":
        return None
    top = _argument(program, shifted[1], 1)
    if top is None or top[1].op != "row_max" or top[1].args[0] != shifted[1].args[0]:
        return None
    return top[0]


def _squares_around_mean(program: Program, step: Step) -> int | None:
    """The `row_mean(x)` of a sum or mean of `(x - row_mean(x))^2`."""
    squares = _argument(program, step, 0) if step.op in ("row_sum", "row_mean") else None
    if squares is None or not _is_square(squares[1]):
        return None
    centred = _argument(program, squares[1], 0)
    if centred is None or centred[1].op != "sub":
        return None
    mean = _argument(program, centred[1], 1)
    if mean is None or mean[1].op != "row_mean" or mean[1].args[0] != centred[1].args[0]:
        return None
    return mean[0]


def _is_square(step: Step) -> bool:
    return step.op == "square" or (step.op == "mul" and step.args[0] == step.args[1])


def passes(program: Program, pairs: dict[int, int]) -> list[list[int]]:
    """The reductions of each pass, in order."""
    stage: list[int] = []
    for index, step in enumerate(program.steps):
        below = [stage[arg] for arg in step.args if isinstance(arg, int)] if step.op != "load" else []
        depth = max(below, default=0)
        if index in pairs:
            stage.append(stage[pairs[index]])
        else:
            stage.append(depth + 1 if step.op in ROW_REDUCTIONS else depth)
    live = needed(program, [output.step for output in program.outputs])
    found = [index for index in live if program.steps[index].op in ROW_REDUCTIONS]
    return [[i for i in found if stage[i] == p] for p in range(1, max((stage[i] for i in found), default=0) + 1)]


class _Writer:
    """Prints the body of the kernel, pass by pass."""

    def __init__(self, tiles: Tiles) -> None:
        self.tiles = tiles
        self.program = tiles.program
        self.pairs = online_pairs(self.program)
        self.known: set[int] = set()
        self.lines: list[str] = []

    def body(self) -> list[str]:
        for index, step in enumerate(self.program.steps):
            if step.op == "load" and self.tiles.places[operand_of(step)].kind in ("row", "scalar"):
                self.lines.append(f"v{index} = {self.tiles.value(index)}")
                self.known.add(index)
        self._row_steps()
        for reductions in passes(self.program, self.pairs):
            self._pass(reductions)
            self._row_steps()
        self.lines += stores(self.tiles, "row")
        if "element" in levels(self.program):
            wanted = [o.step for o in self.program.outputs if self.program.steps[o.step].level == "element"]
            self._loop([*self._values(wanted), *stores(self.tiles, "element")])
        return self.lines

    def _row_steps(self) -> None:
        """The values of one a row that can be computed by now."""
        for index, step in enumerate(self.program.steps):
            ready = step.op != "load" and step.op not in ROW_REDUCTIONS and index not in self.known
            if ready and step.level == "row" and all(arg in self.known for arg in step.args if isinstance(arg, int)):
                self.lines.append(f"v{index} = {self.tiles.value(index)}")
                self.known.add(index)

    def _values(self, wanted: list[int]) -> list[str]:
        return self.tiles.statements(wanted, frozenset(self.known))

    def _loop(self, inside: list[str]) -> None:
        self.lines += _LOOP.format(inside=indented(inside, 4)).splitlines()

    def _pass(self, reductions: list[int]) -> None:
        leaders = [index for index in reductions if index not in self.pairs]
        seconds = {first: second for second, first in self.pairs.items() if second in reductions}
        sources = [arg for index in leaders if isinstance(arg := self.program.steps[index].args[0], int)]
        joins: list[str] = []
        closes: list[str] = []
        for index in leaders:
            opened, joined, closed = self._reduction(index, seconds.get(index))
            self.lines += opened
            joins += joined
            closes += closed
        self._loop([*self._values(sources), *joins])
        self.lines += closes
        self.known |= set(reductions)

    def _reduction(self, index: int, second: int | None) -> tuple[list[str], list[str], list[str]]:
        """What stands before the loop, inside it, and after it."""
        step = self.program.steps[index]
        value = f"v{step.args[0]}"
        if second is None:
            opened = [f"a{index} = tl.full([1, BLOCK], {_FULL[step.op]}, tl.float32)"]
            return opened, [_JOIN[step.op].format(i=index, v=value)], [_CLOSE[step.op].format(i=index)]
        if step.op == "row_max":
            return self._online_softmax(index, second, value)
        return self._welford(index, second, value)

    def _online_softmax(self, index: int, second: int, value: str) -> tuple[list[str], list[str], list[str]]:
        opened = [
            f'm{index} = tl.full([1, 1], float("-inf"), tl.float32)',
            f"a{index} = tl.full([1, BLOCK], 0.0, tl.float32)",
        ]
        closed = [f"v{index} = m{index}", f"v{second} = tl.sum(a{index}, axis=1, keep_dims=True)"]
        return opened, _ONLINE_SOFTMAX.format(i=index, v=value).splitlines(), closed

    def _welford(self, index: int, second: int, value: str) -> tuple[list[str], list[str], list[str]]:
        opened = [f"{name}{index} = tl.full([1, BLOCK], 0.0, tl.float32)" for name in "acm"]
        # The lanes' means are merged around one of them: merging them pair by pair would round at every level.
        closed = [
            f"q{index} = tl.sum(tl.where(tl.arange(0, BLOCK)[None, :] == 0, m{index}, 0.0), axis=1, keep_dims=True)",
            f"v{index} = q{index} + tl.sum(c{index} * (m{index} - q{index}), axis=1, keep_dims=True) / cols",
            f"a{index} = a{index} + c{index} * (m{index} - v{index}) * (m{index} - v{index})",
            f"v{second} = tl.sum(a{index}, axis=1, keep_dims=True)"
            + (" / cols" if self.program.steps[second].op == "row_mean" else ""),
        ]
        return opened, _WELFORD.format(i=index, v=value).splitlines(), closed


def stream_kernel(tiles: Tiles, results: list[str]) -> str:
    """The streaming kernel of a Program with reductions over rows: one program a row."""
    body = _Writer(tiles).body()
    return _STREAM.format(parameters=", ".join([*tiles.parameters(), *results]), body=indented(body, 4))
