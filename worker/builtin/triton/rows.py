"""Programs with reductions over rows, while whole rows fit in registers; longer rows are streamed (`stream`)."""

from __future__ import annotations

from worker.builtin.expressions import ROW_REDUCTIONS, Program, Unmatched
from worker.builtin.families import Match, Rowwise
from worker.builtin.triton.recipe import Parts, Recipe, indented, outputs, stores
from worker.builtin.triton.stream import stream_kernel
from worker.builtin.triton.tiles import Tiles, needed, operand_of

PROCESSORS = '''\
@functools.cache
def _processors(device):
    """How many blocks can run side by side at least: the number of multiprocessors."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
'''

_ONCE = """\
@triton.jit
def _once({parameters}, rows, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    col = tl.arange(0, BLOCK)[None, :]
    col_ok = col < cols
{before}
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
        row_ok = row < rows
        ok = row_ok & col_ok
{inside}
"""

REDUCTIONS = {
    "row_sum": "tl.sum(tl.where(col_ok, {0}, 0.0), axis=1, keep_dims=True)",
    "row_mean": "tl.sum(tl.where(col_ok, {0}, 0.0), axis=1, keep_dims=True) / cols",
    "row_max": 'tl.reduce(tl.where(col_ok, {0}, float("-inf")), 1, _nan_max, keep_dims=True)',
    "row_min": 'tl.reduce(tl.where(col_ok, {0}, float("inf")), 1, _nan_min, keep_dims=True)',
}


def once_kernel(tiles: Tiles, results: list[str]) -> str:
    """The kernel that holds whole rows in registers: every operand is read once, whatever the reductions."""
    program = tiles.program
    before: list[str] = []
    inside: list[str] = []
    for index in needed(program, [output.step for output in program.outputs]):
        step = program.steps[index]
        if step.op in ROW_REDUCTIONS:
            inside.append(f"v{index} = {REDUCTIONS[step.op].format(*tiles.arguments_of(step))}")
        else:
            early = step.op == "load" and tiles.invariant(operand_of(step))
            (before if early else inside).append(f"v{index} = {tiles.value(index)}")
    inside += stores(tiles, "row") + stores(tiles, "element")
    parameters = ", ".join([*tiles.parameters(), *results])
    return _ONCE.format(parameters=parameters, before=indented(before, 4), inside=indented(inside, 8))


def once_launch(arguments: str) -> list[str]:
    """Statements that launch `_once` for `rows` and a power of two `block` that covers a row."""
    return [
        "size = max(1, TILE // block)",
        "warps = min(max(size * block // (32 * PER_THREAD), 1), 32)",
        "tiles = triton.cdiv(rows, size)",
        "programs = min(tiles, PROGRAMS * _processors(x0.device)) if PROGRAMS else tiles",
        f"_once[(programs,)]({arguments}, rows, cols, size, block, STAGES, num_warps=warps)",
    ]


def stream_launch(arguments: str) -> list[str]:
    """Statements that launch `_stream`."""
    return [
        "block = min(BLOCK, block)",
        "warps = min(max(block // 128, 1), WARPS)",
        f"_stream[(rows,)]({arguments}, rows, cols, block, num_warps=warps)",
    ]


ONCE_TUNABLES = {
    "TILE": [1024, 2048, 4096, 8192, 16384],
    "PER_THREAD": [8, 16, 32, 64],
    "PROGRAMS": [0, 2, 4, 8],
    "STAGES": [1, 2, 3],
    "ONE_PASS": [8192, 16384, 32768, 65536],
}
ONCE_DEFAULTS = {"TILE": 4096, "PER_THREAD": 16, "PROGRAMS": 0, "STAGES": 1}
STREAM_TUNABLES = {"BLOCK": [1024, 2048, 4096, 8192, 16384], "WARPS": [4, 8, 16, 32]}
STREAM_DEFAULTS = {"BLOCK": 8192, "WARPS": 16}
STREAM_CONSTRAINTS = ["BLOCK <= WARPS * 2048"]
COVER = "block = triton.next_power_of_2(max(cols, 1))"


def once_defaults(tiles: Tiles) -> dict[str, int]:
    """The values that `_once` starts with: the longest row of which nothing spills.

    A multiprocessor has 65,536 registers. With three quarters of them holding the row nothing spilled on Hopper (three
    values of each of 16,384 elements, one of 32,768); with all of them 64 to 392 bytes a thread did. On an H200,
    streaming rows of 32,000 was 1.4 to 1.9 times as fast as spilling for three values (a layer norm), and 0.73 to 0.88
    times for two (an RMS norm with a residual, a KL divergence): there tuning may find its way back.
    """
    fitting = [length for length in (16384, 32768) if length * held(tiles) <= 49152]
    return ONCE_DEFAULTS | {"ONE_PASS": max(fitting, default=8192)}


def held(tiles: Tiles) -> int:
    """How many values of each element `_once` holds at most while it reduces a row."""
    program = tiles.program
    order = needed(program, [output.step for output in program.outputs])
    last = {output.step: len(program.steps) for output in program.outputs}
    for index in order:
        if program.steps[index].op != "load":
            last |= {arg: max(index, last.get(arg, 0)) for arg in program.steps[index].args if isinstance(arg, int)}
    vectors = [index for index in order if _kind(tiles, index) == "column"]  # stay for all rows
    moving = [index for index in order if _kind(tiles, index) in ("matrix", "mixed")]
    reductions = [index for index in order if program.steps[index].op in ROW_REDUCTIONS]
    return len(vectors) + max((sum(index < r < last[index] for index in moving) for r in reductions), default=1)


def _kind(tiles: Tiles, index: int) -> str:
    """How a step's value moves: as its operand does, or like a matrix."""
    step = tiles.program.steps[index]
    if step.level != "element":
        return step.level
    return tiles.places[operand_of(step)].kind if step.op == "load" else "matrix"


def rowwise_program(match: Match) -> Program:
    """The bindings' Program."""
    if not isinstance(match.bindings, Rowwise):
        raise Unmatched("no reduction over rows")
    return match.bindings.program


def write_once(match: Match) -> Parts:
    program = rowwise_program(match)
    tiles = Tiles(program, program.row_dims)
    allocate, results, returned = outputs(tiles)
    arguments = ", ".join([*tiles.arguments(), *results])
    body = [
        *tiles.shape(),
        *allocate,
        *tiles.prepare(),
        COVER,
        "if block <= ONE_PASS:",
        *("    " + line for line in once_launch(arguments)),
        "else:",
        *("    " + line for line in stream_launch(arguments)),
        returned,
    ]
    return Parts(
        kernels="\n\n".join([once_kernel(tiles, results), stream_kernel(tiles, results)]),
        inputs=tiles.inputs(),
        body=body,
        tunables=ONCE_TUNABLES | STREAM_TUNABLES,
        defaults=once_defaults(tiles) | STREAM_DEFAULTS,
        constraints=[*STREAM_CONSTRAINTS, "STAGES == 1 or PROGRAMS > 0"],
        helpers=[*tiles.python_helpers(), PROCESSORS],
    )


def write_stream(match: Match) -> Parts:
    program = rowwise_program(match)
    tiles = Tiles(program, program.row_dims)
    allocate, results, returned = outputs(tiles)
    arguments = ", ".join([*tiles.arguments(), *results])
    return Parts(
        kernels=stream_kernel(tiles, results),
        inputs=tiles.inputs(),
        body=[*tiles.shape(), *allocate, *tiles.prepare(), COVER, *stream_launch(arguments), returned],
        tunables=STREAM_TUNABLES,
        defaults=STREAM_DEFAULTS,
        constraints=STREAM_CONSTRAINTS,
        helpers=tiles.python_helpers(),
    )


RECIPES = (
    Recipe(
        "rows_once",
        "rowwise",
        "Whole rows in registers: each operand is read once and each result written once, with every reduction in "
        "between done in float32 without going back to memory; rows too long for that are streamed.",
        write_once,
    ),
    Recipe(
        "rows_stream",
        "rowwise",
        "Rows streamed in blocks: as few passes as the reductions allow (maximum and sum of exponentials in one online "
        "pass, mean and variance in one Welford pass), the later passes served by the cache.",
        write_stream,
    ),
)
