"""Programs with reductions over rows in CUDA: whole rows in registers, reduced by warp shuffles."""

from __future__ import annotations

from collections.abc import Sequence

from worker.builtin.cuda.printing import Packs, element_outputs, output_parameters
from worker.builtin.cuda.recipe import Parts, Recipe
from worker.builtin.expressions import ROW_REDUCTIONS, Unmatched
from worker.builtin.families import Match, Rowwise
from worker.builtin.triton.recipe import indented, outputs
from worker.builtin.triton.stream import passes
from worker.builtin.triton.tiles import operand_of

LANES = """\
struct Sum { __device__ static float join(float a, float b) { return a + b; } };
struct Max { __device__ static float join(float a, float b) { return kw_max(a, b); } };
struct Min { __device__ static float join(float a, float b) { return kw_min(a, b); } };

// The LANES threads of a row join their values; all of them get the result, in the same order on every run.
template <class Op> __device__ __forceinline__ float joined(float x) {
    #pragma unroll
    for (int apart = (LANES < 32 ? LANES : 32) / 2; apart > 0; apart /= 2)
        x = Op::join(x, __shfl_xor_sync(0xffffffffu, x, apart));
#if LANES > 32
    __shared__ float parts[LANES / 32];
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = parts[threadIdx.x % (LANES / 32)];
    #pragma unroll
    for (int apart = LANES / 64; apart > 0; apart /= 2) x = Op::join(x, __shfl_xor_sync(0xffffffffu, x, apart));
#endif
    return x;
}
"""

# HELD packs of each operand per thread; 0: the row does not fit, and every pass reads it again, from the cache.
_KERNEL = """\
extern "C" __global__ void __launch_bounds__(LANES * ROWS) over_rows({parameters}, long long rows, long long cols) {{
    const int lane = threadIdx.x % LANES;
    const long long row = (long long)blockIdx.x * ROWS + threadIdx.x / LANES;
    if (row >= rows) return;
#if HELD
{declared}
    #pragma unroll
    for (int i = 0; i < HELD; i++) {{
        const long long col = (long long)(i * LANES + lane) * VEC;
        if (col < cols) {{
{fetches}
        }}
    }}
#define EACH_PACK _Pragma("unroll") for (int i = 0; i < HELD; i++)
#define PICK(name, type, address) const Pack<type>& k##name = h##name[i];
#else
#define EACH_PACK for (long long i = 0; i * LANES * VEC < cols; i++)
#define PICK(name, type, address) const Pack<type> k##name = fetch(address);
#endif
{body}
}}
"""

_PASS = """\
EACH_PACK {{
    const long long col = (long long)(i * LANES + lane) * VEC;
    if (col >= cols) break;
{picked}
{before}
    #pragma unroll
    for (int j = 0; j < VEC; j++) {{
{inside}
    }}
{after}
}}
"""

_START = {"row_sum": "0.0f", "row_mean": "0.0f", "row_max": "-INF", "row_min": "INF"}
_OPS = {"row_sum": "Sum", "row_mean": "Sum", "row_max": "Max", "row_min": "Min"}


class _Writer:
    """Prints the kernel's body, pass by pass."""

    def __init__(self, tiles: Packs) -> None:
        self.tiles = tiles
        self.program = tiles.program
        self.known: set[int] = set()
        self.lines: list[str] = []

    def body(self) -> list[str]:
        for index, step in enumerate(self.program.steps):
            if step.op == "load" and self.tiles.places[operand_of(step)].kind in ("row", "scalar"):
                self._define(index)
        self._row_steps()
        for reductions in passes(self.program, {}):
            self._reduce(reductions)
            self._row_steps()
        self._store()
        return self.lines

    def _define(self, index: int) -> None:
        self.lines.append(self.tiles.statement(index))
        self.known.add(index)

    def _row_steps(self) -> None:
        """The values of one a row that can be computed by now."""
        for index, step in enumerate(self.program.steps):
            ready = step.op != "load" and step.op not in ROW_REDUCTIONS and index not in self.known
            if ready and step.level == "row" and all(arg in self.known for arg in step.args if isinstance(arg, int)):
                self._define(index)

    def _loop(self, wanted: Sequence[int], before: list[str], inside: list[str], after: list[str]) -> None:
        known = frozenset(self.known)
        # A packed operand that all rows share is fetched where it is used: the cache has it.
        picked = [f"PICK({j}, T{j}, {self.tiles.address(j)})" for j in self._held(wanted, known)]
        shared = [j for j in self.tiles.packs_of(wanted, known) if self.tiles.places[j].kind == "column"]
        picked += [f"const Pack<T{j}> k{j} = fetch({self.tiles.address(j)});" for j in shared]
        inside = [*self.tiles.statements(wanted, known), *inside]
        text = _PASS.format(
            picked=indented(picked, 4), before=indented(before, 4), inside=indented(inside, 8), after=indented(after, 4)
        )
        self.lines += [line for line in text.splitlines() if line.strip()]

    def _held(self, wanted: Sequence[int], known: frozenset[int]) -> list[int]:
        return [j for j in self.tiles.packs_of(wanted, known) if self.tiles.places[j].kind == "matrix"]

    def _reduce(self, reductions: list[int]) -> None:
        steps = [(index, self.program.steps[index]) for index in reductions]
        self.lines += [f"float a{index} = {_START[step.op]};" for index, step in steps]
        joins = [f"a{index} = {_OPS[step.op]}::join(a{index}, v{step.args[0]});" for index, step in steps]
        self._loop([arg for _, step in steps if isinstance(arg := step.args[0], int)], [], joins, [])
        for index, step in steps:
            mean = " / (float)cols" if step.op == "row_mean" else ""
            self.lines.append(f"const float v{index} = joined<{_OPS[step.op]}>(a{index}){mean};")
            self.known.add(index)

    def _store(self) -> None:
        results = element_outputs(self.program)
        for k, output in enumerate(self.program.outputs):
            if self.program.steps[output.step].level == "row":
                self.lines.append(f"if (lane == 0) put(o{k}[row], v{output.step});")
        if results:
            before = [f"Pack<{kind}> r{k};" for k, _, kind in results]
            puts = [f"put(r{k}.v[j], v{step});" for k, step, _ in results]
            after = [f"store(o{k} + row * cols + col, r{k});" for k, _, _ in results]
            self._loop([step for _, step, _ in results], before, puts, after)


def _kernel(tiles: Packs) -> str:
    program = tiles.program
    matrices = [index for index, _, place in tiles.operands() if place.kind == "matrix"]
    if not matrices:
        raise Unmatched("no operand fills the rows")
    kernel = _KERNEL.format(
        parameters=", ".join([*tiles.declared(), *output_parameters(program)]),
        declared=indented([f"Pack<T{j}> h{j}[HELD];" for j in matrices], 4),
        fetches=indented([f"h{j}[i] = fetch({tiles.address(j)});" for j in matrices], 12),
        body=indented(_Writer(tiles).body(), 4),
    )
    return f"{LANES}\n{kernel}"


def _parts(match: Match, size: Sequence[str], tunables: dict[str, list[int]], defaults: dict[str, int]) -> Parts:
    """`size` are the statements that set `lanes` (threads a row), `size` (rows a block) and `held` (packs a thread)."""
    if not isinstance(match.bindings, Rowwise):
        raise Unmatched("no reduction over rows")
    program = match.bindings.program
    tiles = Packs(program, program.row_dims)
    allocate, names, returned = outputs(tiles)
    packed = [f"o{k}" for k, _, _ in element_outputs(program)]
    body = [
        *tiles.shape(),
        *allocate,
        *tiles.prepare(),
        "if rows == 0:",
        f"    {returned}",
        f"vec = _vectors(cols, {', '.join([tiles.vectors(), *packed])})",
        *size,
        f"library = _library({tiles.types()}",
        '    ("TO", _TYPES[dtype]), ("VEC", vec), ("LANES", lanes), ("ROWS", size), ("HELD", held)',
        ")",
        "grid = -(-rows // size)",
        f"library.over_rows[(grid,), (lanes * size,)]({', '.join([*tiles.arguments(), *names])}, rows, cols)",
        returned,
    ]
    return Parts(
        kernels=_kernel(tiles),
        inputs=tiles.inputs(),
        body=body,
        tunables=tunables,
        defaults=defaults,
        helpers=tiles.python_helpers(),
    )


def write_block(match: Match) -> Parts:
    size = [
        "lanes, size = THREADS, 1",
        "while lanes > 32 and lanes * vec >= 2 * cols:",
        "    lanes //= 2",
        "while lanes < 1024 and lanes * PER_THREAD < cols:",
        "    lanes *= 2",
        "held = -(-cols // (lanes * vec))",
        "# 65536 registers are shared by a block's threads; half of them may hold the row.",
        "held = held if held * vec <= min(PER_THREAD, 32768 // lanes) else 0",
    ]
    tunables = {"THREADS": [128, 256, 512, 1024], "PER_THREAD": [16, 32, 64]}
    return _parts(match, size, tunables, {"THREADS": 256, "PER_THREAD": 64})


def write_warp(match: Match) -> Parts:
    size = [
        "lanes, size = 32, WARPS",
        "held = -(-cols // (lanes * vec))",
        "held = held if held * vec <= PER_THREAD else 0",
    ]
    tunables = {"WARPS": [2, 4, 8, 16], "PER_THREAD": [16, 32, 64]}
    return _parts(match, size, tunables, {"WARPS": 4, "PER_THREAD": 64})


RECIPES = (
    Recipe(
        "rows_block",
        "rowwise",
        "A block a row: each operand is fetched once, in packs of 16 bytes, and stays in registers; reductions go by "
        "warp shuffles and one exchange through shared memory.",
        write_block,
    ),
    Recipe(
        "rows_warp",
        "rowwise",
        "A warp a row, several rows a block: short rows are reduced by shuffles alone, with no barrier at all.",
        write_warp,
    ),
)
