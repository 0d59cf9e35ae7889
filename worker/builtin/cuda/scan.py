"""Cumulative sums in CUDA: a block a row, packs scanned in registers, totals by shuffles."""

from __future__ import annotations

from worker.builtin.cuda.recipe import Parts, Recipe
from worker.builtin.expressions import Unmatched
from worker.builtin.families import Match, Scan
from worker.builtin.triton.tiles import PREPARE

# The next pack is fetched before this one is scanned: the carry makes the scans wait for each other, not the loads.
_KERNEL = """\
extern "C" __global__ void __launch_bounds__(LANES) scan(
    const T0* __restrict__ x, T0* __restrict__ out, long long stride, long long cols
) {
    __shared__ float totals[2][LANES / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long row = blockIdx.x;
    const T0* from = x + row * stride;
    T0* to = out + row * cols;
    float carry = 0.0f;
    Pack<T0> ahead;
    long long col = threadIdx.x * VEC;
    if (col < cols) ahead = fetch(from + col);
    for (long long start = 0, turn = 0; start < cols; start += LANES * VEC, col += LANES * VEC, turn ^= 1) {
        const Pack<T0> pack = ahead;
        if (col + LANES * VEC < cols) ahead = fetch(from + col + LANES * VEC);
        float sums[VEC], sum = 0.0f;
        #pragma unroll
        for (int j = 0; j < VEC; j++) sums[j] = sum += col < cols ? value(pack.v[j]) : 0.0f;
        float before = sum;
        #pragma unroll
        for (int apart = 1; apart < 32; apart *= 2) {
            const float other = __shfl_up_sync(0xffffffffu, before, apart);
            if (lane >= apart) before += other;
        }
        if (lane == 31) totals[turn][warp] = before;
        // What the lanes before this one hold, without subtracting: infinities must not meet themselves.
        before = __shfl_up_sync(0xffffffffu, before, 1);
        before = lane ? before : 0.0f;
        __syncthreads();
        float all = 0.0f;
        #pragma unroll
        for (int w = 0; w < LANES / 32; w++) {
            if (w == warp) before += all;
            all += totals[turn][w];
        }
        if (col < cols) {
            Pack<T0> result;
            #pragma unroll
            for (int j = 0; j < VEC; j++) put(result.v[j], carry + (before + sums[j]));
            store(to + col, result);
        }
        carry += all;
    }
}
"""


def _write(match: Match) -> Parts:
    bindings = match.bindings
    if not isinstance(bindings, Scan) or bindings.op != "sum" or bindings.reverse or bindings.factor is not None:
        raise Unmatched("not a plain cumulative sum")
    body = [
        "shape, cols = x.shape, x.shape[-1]",
        "rows = math.prod(shape[:-1])",
        "out = torch.empty(shape, dtype=x.dtype, device=x.device)",
        "x = _matrix(x, shape, rows, cols)",
        "vec = _vectors(cols, x, out)",
        "lanes = THREADS",
        "while lanes > 32 and lanes * vec >= 2 * cols:",
        "    lanes //= 2",
        'library = _library(("T0", _TYPES[x.dtype]), ("VEC", vec), ("LANES", lanes))',
        "if rows:",
        "    library.scan[(rows,), (lanes,)](x, out, x.stride(0), cols)",
        "return out",
    ]
    return Parts(
        kernels=_KERNEL,
        inputs=[("x", bindings.x.text)],
        body=body,
        tunables={"THREADS": [64, 128, 256, 512, 1024]},
        defaults={"THREADS": 256},
        helpers=[PREPARE],
    )


RECIPES = (
    Recipe(
        "scan_block",
        "scan",
        "A block a row: each thread scans a pack in registers, warps by shuffles, the block through shared memory with "
        "one barrier a step, and the next packs are fetched meanwhile.",
        _write,
    ),
)
