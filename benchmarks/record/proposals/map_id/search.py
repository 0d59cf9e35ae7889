"""Cells of 8 bytes over the range of keys: how many keys lie before the cell, and 32 bits that tell where in it they
are. Where a cell is 32 ids wide, its bits say whether an id is known and which row is its own: a million keys of four
million ids are a megabyte of cells; most ids take one sector of the second cache, and those that are known another one.
Where keys are further apart, a bit is a stretch of ids; one that is set has its key compared, or, where keys crowd
together, searched for in the cell. Any distribution of keys is right.

Few ids have one launch instead, without cells: a block has 1024 of the keys in shared memory and finds the stretch of
each id there, and the table is on its way to the second cache meanwhile.

Bound by the second cache: an id in, a row out, one or two sectors between.
"""

import torch
from kernelwright import load_cuda
from torch import nn

TUNABLES = {"THREADS": [128, 256, 512], "PAIRS": [1, 2, 4], "SAMPLES": [512, 1024, 2048], "FEW": [2**16, 2**17, 2**18]}
THREADS = 256
PAIRS = 2
"""Pairs of ids that a thread has under way."""
SAMPLES = 1024
"""Keys in shared memory where ids are few: each block of 512 threads reads them, from a sector each."""
FEW = 2**17
"""Ids up to which cells are not worth a launch and room of their own."""

SOURCE = r"""
typedef long long i64;
typedef unsigned long long u64;
typedef unsigned int u32;
constexpr u32 CROWDED = 1u << 31;  // of a cell's first number: two keys have one bit

// A cell is 2^shift ids wide: 32, or as many as leave 2^log cells at most.
__device__ __forceinline__ int shift_of(u64 span, int log) { return max(5, 64 - __clzll((i64)span) - log); }
// The first of the keys low .. high - 1 that is not below id, or high.
__device__ __forceinline__ int lower_bound(const i64* keys, int low, int high, i64 id) {
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (__ldg(keys + middle) < id) low = middle + 1;
        else high = middle;
    }
    return low;
}

// A key's thread writes the key's cell where it is the first in it, and the empty ones before.
extern "C" __global__ void __launch_bounds__(256) make_cells(const i64* keys, uint2* cells, int n, int log) {
    __shared__ int gaps, gap_begin[256], gap_end[256], gap_first[256];
    if (threadIdx.x == 0) gaps = 0;
    __syncthreads();
    const u64 first = keys[0];
    const int shift = shift_of((u64)keys[n - 1] - first, log), i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) {
        const int cell = (int)(((u64)keys[i] - first) >> shift);
        const int before = i ? (int)(((u64)keys[i - 1] - first) >> shift) : -1;
        if (cell != before) {
            u32 bits = 0, crowded = 0;
            for (int j = i; j < n && !crowded; j++) {
                const u64 offset = (u64)keys[j] - first;
                if ((int)(offset >> shift) != cell) break;
                const u32 bit = 1u << (offset >> (shift - 5) & 31);
                if (bits & bit) crowded = CROWDED, bits = ~0u;  // which others there are is not counted
                bits |= bit;
            }
            cells[cell] = make_uint2(i | crowded, bits);
        }
        if (i == n - 1) cells[cell + 1] = make_uint2(n, 0);
        if (cell - before > 16) {  // a wide gap is the block's
            const int place = atomicAdd(&gaps, 1);
            gap_begin[place] = before + 1, gap_end[place] = cell, gap_first[place] = i;
        } else {
            for (int empty = before + 1; empty < cell; empty++) cells[empty] = make_uint2(i, 0);
        }
    }
    __syncthreads();
    for (int place = 0; place < gaps; place++)
        for (int empty = gap_begin[place] + threadIdx.x; empty < gap_end[place]; empty += 256)
            cells[empty] = make_uint2(gap_first[place], 0);
}

extern "C" __global__ void __launch_bounds__(THREADS) look_up(
    const i64* ids, const i64* keys, const i64* rows, const uint2* cells, i64* out, i64 count, int n, int log,
    i64 missing) {
    const i64 first = keys[0];
    const u64 span = (u64)keys[n - 1] - first;
    const int shift = shift_of(span, log);
    const bool even = (i64)ids % 16 == 0;
    const i64 begin = ((i64)blockIdx.x * PAIRS * THREADS + threadIdx.x) * 2;
    u64 offset[PAIRS][2];
    uint2 cell[PAIRS][2];
    int place[PAIRS][2];
    #pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        const i64 at = begin + p * 2 * THREADS;
        longlong2 id = make_longlong2(first, first);
        if (even && at + 1 < count) {
            id = __ldcs((const longlong2*)(ids + at));
        } else {
            if (at < count) id.x = __ldcs(ids + at);
            if (at + 1 < count) id.y = __ldcs(ids + at + 1);
        }
        offset[p][0] = (u64)id.x - first, offset[p][1] = (u64)id.y - first;
    }
    #pragma unroll
    for (int p = 0; p < PAIRS; p++)
        #pragma unroll
        for (int k = 0; k < 2; k++) {  // ids below the first key are above the span, too
            cell[p][k] = make_uint2(0, 0);
            if (offset[p][k] <= span) cell[p][k] = __ldg(cells + (int)(offset[p][k] >> shift));
        }
    bool unsure = false;
    #pragma unroll
    for (int p = 0; p < PAIRS; p++)
        #pragma unroll
        for (int k = 0; k < 2; k++) {
            const u32 got = cell[p][k].x, bits = cell[p][k].y, bit = 1u << (offset[p][k] >> (shift - 5) & 31);
            place[p][k] = bits & bit ? (int)(got & ~CROWDED) + __popc(bits & (bit - 1)) : -1;
            unsure |= place[p][k] >= 0 && (shift > 5 || got & CROWDED);
        }
    if (unsure) {
        #pragma unroll
        for (int p = 0; p < PAIRS; p++)
            #pragma unroll
            for (int k = 0; k < 2; k++) {
                if (place[p][k] < 0) continue;
                const i64 id = (i64)(first + offset[p][k]);
                if (cell[p][k].x & CROWDED) {
                    const int end = (int)(__ldg(cells + (int)(offset[p][k] >> shift) + 1).x & ~CROWDED);
                    place[p][k] = lower_bound(keys, (int)(cell[p][k].x & ~CROWDED), end, id);
                }
                if (place[p][k] >= n || __ldg(keys + place[p][k]) != id) place[p][k] = -1;
            }
    }
    longlong2 row[PAIRS];
    #pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        row[p] = make_longlong2(missing, missing);
        if (place[p][0] >= 0) row[p].x = __ldg(rows + place[p][0]);
        if (place[p][1] >= 0) row[p].y = __ldg(rows + place[p][1]);
    }
    #pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        const i64 at = begin + p * 2 * THREADS;
        if (at + 1 < count) __stcs((longlong2*)(out + at), row[p]);
        else if (at < count) out[at] = row[p].x;
    }
}

// Stretches of `width` keys, the last keys of which are in shared memory.
extern "C" __global__ void __launch_bounds__(512) search_few(
    const i64* ids, const i64* keys, const i64* rows, i64* out, i64 count, int n, int width, int stretches,
    i64 missing) {
    __shared__ i64 last[SAMPLES];
    const i64 at = (i64)blockIdx.x * 512 + threadIdx.x;
    if (n <= 4 * count && at * 16 < n) {  // a line of 128 bytes each
        asm volatile("prefetch.global.L2 [%0];" :: "l"(keys + at * 16));
        asm volatile("prefetch.global.L2 [%0];" :: "l"(rows + at * 16));
    }
    const i64 id = at < count ? ids[at] : 0;
    for (int s = threadIdx.x; s < stretches; s += 512) last[s] = __ldg(keys + min((s + 1) * width, n) - 1);
    __syncthreads();
    if (at >= count) return;
    int stretch = 0;
    #pragma unroll
    for (int step = SAMPLES; step; step /= 2)
        if (stretch + step <= stretches && last[stretch + step - 1] < id) stretch += step;
    const int found = lower_bound(keys, stretch * width, min((stretch + 1) * width, n), id);
    out[at] = found < n && __ldg(keys + found) == id ? __ldg(rows + found) : missing;
}
"""
kernels = load_cuda(SOURCE, flags=[f"-DTHREADS={THREADS}", f"-DPAIRS={PAIRS}", f"-DSAMPLES={SAMPLES}"])


class ModelNew(nn.Module):
    def __init__(self, default=-1):
        super().__init__()
        self.default = default

    def forward(self, ids, keys, rows):
        if keys.dim() != 1 or rows.shape != keys.shape or not ids.dtype == keys.dtype == rows.dtype == torch.int64:
            raise ValueError("int64 ids, a sorted vector of keys, and a row for each are needed")
        n, count = keys.numel(), ids.numel()
        if not 0 < n < 2**30:
            raise ValueError("a table of at least one and less than 2^30 keys is needed")
        ids, keys, rows = ids.contiguous(), keys.contiguous(), rows.contiguous()
        out = torch.empty_like(ids)
        if not count:
            return out
        if count <= FEW or count * 16 < n:
            width = -(-n // SAMPLES)
            launch = kernels.search_few[(-(-count // 512),), (512,)]
            launch(ids, keys, rows, out, count, n, width, -(-n // width), self.default)
            return out
        log = max(5, (n - 1).bit_length())
        cells = torch.empty(2**log + 1, dtype=torch.int64, device=ids.device)
        kernels.make_cells[(-(-n // 256),), (256,)](keys, cells, n, log)
        launch = kernels.look_up[(-(-count // (2 * PAIRS * THREADS)),), (THREADS,)]
        launch(ids, keys, rows, cells, out, count, n, log, self.default)
        return out
