"""The second half of a Llama block by instructions of four warps (wgmma) on tiles that one thread fetches by
descriptors (TMA), for heads of 128 numbers of 16 bits; five launches from C++ that overlap.

* Attention as in attention_causal's `warp_groups`, stored with the residual in x's layout; when its last tiles are on
  their way, it has the cache fetch what the next product begins with. Then RMSNorm, a row a block.
* Gate and up in one product: 112 rows of each are one operand of 224, so that a thread has both sums of its numbers,
  and 14,336 are 128 tiles. Blocks are pairs of 128 rows: each fetches half of the weights for both, which halves what
  the cache has to bring of them. Of the two groups of four warps one is SKEW steps ahead: they finish one by one.
* Down in tiles of 128 x 256 with the residual; few tiles are split along the sums, whose parts another launch adds in
  their order. Both products fetch their first weights before what is multiplied with them is there.

Bound by the tensor cores: 1.44 TFLOP of products at 4,096 rows; at 256 rows as much by memory, 352 MB of weights. Other
heads and types, and hidden numbers that are not whole 16 bytes, go to kernels in Triton.
"""

import math

import torch
import triton
import triton.language as tl
from torch import nn
from torch.utils.cpp_extension import load_inline

TUNABLES = {"BAND": [4, 8, 16], "SKEW": [0, 2, 3], "EARLY": [0, 1], "PROMOTION": [2, 3], "AHEAD": [0, 8, 16, 24]}
BAND = 8
"""Pairs of tiles in rows that are taken together, so that neighbours share what the cache holds."""
SKEW = 2
"""Steps that the second group of a gated tile begins behind the first."""
EARLY = 1
"""Whether a launch may begin before the last one ends."""
PROMOTION = 3
"""What a miss brings to L2: 128 bytes (2) or 256 (3)."""
AHEAD = 16
"""MB of weights that attention has the cache fetch, for up to 1,024 rows."""
# These two are built in, which takes half a minute.
GATED = 224
"""Rows of gate and up together in a tile, a multiple of 32."""
PAIR = 2
"""Blocks that share their weights: 2, or 1."""

DUAL_ROWS = 128
DEPTH = 64
STAGES = 4
DOWN_COLS = 128
BN = 64
"""Of the kernels in Triton."""


def instruction(name, columns, kind):
    """m64nNk16 with sums [N / 8][4] in registers: `multiply` of two operands by descriptors, both with neighbours along
    what is summed over, or `weighted`, of registers and of values whose neighbours are along the result's columns."""
    count = columns // 2
    sums = ",".join(f"%{i}" for i in range(count))
    bound = ",".join(f'"+f"(sum[{i // 4}][{i % 4}])' for i in range(count))
    held, half = name == "weighted", "true" if kind == "f16" else "false"
    which = half if held else f"{half}, {columns}"
    first = "const u32 (&a)[4]" if held else "u64 a"
    given = "{" + ",".join(f"%{count + i}" for i in range(4)) + "}" if held else f"%{count}"
    after = count + (4 if held else 1)
    left = '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])' if held else '"l"(a)'
    return (
        f"template <> __device__ __forceinline__ void {name}<{which}>("
        f"float (&sum)[{columns // 8}][4], {first}, u64 b, int add) {{\n"
        f'    asm volatile("{{.reg .pred p; setp.ne.b32 p, %{after + 1}, 0;'
        f" wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} "
        f'{{{sums}}}, {given}, %{after}, p, 1, 1, {"1" if held else "0, 0"};}}"\n'
        f'        : {bound} : {left}, "l"(b), "r"(add));\n}}\n'
    )


CALL = r"""
#include <cuda_runtime.h>
struct Call {
    const void *q, *k, *v, *x, *norm, *gate, *up, *down;
    void *stream, *normed, *gated, *sums, *out;
    int batch, heads, shared, length, hidden, splits, half, device;
    float scale, eps;
    int band, skew, early, promotion, ahead;
    cudaStream_t queue;
};
cudaError_t launch_block(const Call& call);
"""
INSTRUCTIONS = r"""
#include <cstdint>
#include <cuda.h>
#include <cuda_runtime.h>
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t i64;

// What the machine does, and C++ has no word for. Two numbers of 16 bits are a word; HALF: float16, else bfloat16.
template <bool HALF> __device__ __forceinline__ u32 both(float first, float second) {
    u32 two;
    if (HALF) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(second), "f"(first));
    else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(second), "f"(first));
    return two;
}
template <bool HALF> __device__ __forceinline__ float low(u32 two) {
    if (!HALF) return __uint_as_float(two << 16);
    float wide;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(wide) : "r"(two));
    return wide;
}
template <bool HALF> __device__ __forceinline__ float high(u32 two) {
    if (!HALF) return __uint_as_float(two & 0xffff0000u);
    float wide;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(wide) : "r"(two));
    return wide;
}
__device__ __forceinline__ float power(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}
__device__ __forceinline__ float inverse(float x) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}
__device__ __forceinline__ u32 at_shared(const void* at) { return (u32)__cvta_generic_to_shared(at); }
__device__ __forceinline__ void ready(u64* barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at_shared(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void all_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at_shared(barrier)) : "memory");
}
// At the barrier that lies at the same place in one of the pair's blocks. Who waits there fetches over what was read,
// and reads nothing: so nothing has to be released to it, which would wait for all memory.
__device__ __forceinline__ void arrive_in(u64* barrier, u32 block) {
    asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];}" :: "r"(at_shared(barrier)), "r"(block) : "memory");
}
__device__ __forceinline__ void expect(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
        :: "r"(at_shared(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void await(u64* barrier, u32 phase) {
    u32 done;
    do {
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
            : "=r"(done) : "r"(at_shared(barrier)), "r"(phase) : "memory");
    } while (!done);
}
// All threads of a pair's blocks.
__device__ __forceinline__ void meet() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// Boxes of 64 columns, whose rows of 128 bytes are swizzled: their eight pieces of 16 in the order of an exclusive or
// with the row. Rows and columns beyond the end come as zeros.
__device__ __forceinline__ void fetch(void* to, const CUtensorMap* from, int column, int row, u64* barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];"
        :: "r"(at_shared(to)), "l"(from), "r"(column), "r"(row), "r"(at_shared(barrier)) : "memory");
}
__device__ __forceinline__ void fetch(void* to, const CUtensorMap* from, int column, int row, int head, u64* barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];"
        :: "r"(at_shared(to)), "l"(from), "r"(column), "r"(row), "r"(head), "r"(at_shared(barrier)) : "memory");
}
// To the same place in both blocks of a pair, which is told to the barrier at the same place in each.
__device__ __forceinline__ void fetch_for_both(void* to, const CUtensorMap* from, int column, int row, u64* barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;"
        :: "r"(at_shared(to)), "l"(from), "r"(column), "r"(row), "r"(at_shared(barrier)), "h"((u16)3) : "memory");
}
__device__ __forceinline__ void known(const CUtensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
}
__device__ __forceinline__ void to_cache(const void* from, u32 bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(from), "r"(bytes));
}
// Launches overlap: from here on the next one's blocks may begin; and what the last one wrote is there.
__device__ __forceinline__ void next_may_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void last_is_done() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// Registers a thread, of all four warps.
template <int COUNT> __device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT));
}
// The turn of one of two groups of 128 threads: it goes on when the other has passed the turn to it.
__device__ __forceinline__ void wait_for_turn(int group) {
    asm volatile("bar.sync %0, 256;" :: "r"(1 + group) : "memory");
}
__device__ __forceinline__ void pass_turn_to(int group) {
    asm volatile("bar.arrive %0, 256;" :: "r"(1 + group) : "memory");
}
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_batch() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void finished() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory");
}
// What follows stays behind what was waited for; operands keep their registers until then.
template <int TILES> __device__ __forceinline__ void settled(float (&sum)[TILES][4]) {
    #pragma unroll
    for (int i = 0; i < TILES * 4; i++) asm volatile("" : "+f"(sum[i / 4][i % 4]) :: "memory");
}
__device__ __forceinline__ void settled(u32 (&operand)[8][4]) {
    #pragma unroll
    for (int i = 0; i < 32; i++) asm volatile("" : "+r"(operand[i / 4][i % 4]) :: "memory");
}
// The assembler would move the powers behind the wait that follows. This stores nothing, as sums of powers are never
// negative, but it does not know that: they come first.
__device__ __forceinline__ void done_before(const float (&total)[2], const void* anywhere) {
    asm volatile("{.reg .pred p; setp.lt.f32 p, %0, 0f00000000; @p st.shared.f32 [%1], %0;}"
        :: "f"(fminf(total[0], total[1])), "r"(at_shared(anywhere)) : "memory");
}
// Eight rows are 1,024 bytes. Where neighbours are along what is summed over, that is all.
__device__ __forceinline__ u64 described(const void* at) {
    return (u64)(at_shared(at) & 0x3ffff) >> 4 | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62;
}
// Where they are along the result's columns: the next 64 columns lie 16,384 bytes further, the next eight rows 1,024.
__device__ __forceinline__ u64 described_across(const void* at) {
    return (u64)(at_shared(at) & 0x3ffff) >> 4 | (u64)1024 << 16 | (u64)64 << 32 | (u64)1 << 62;
}
template <bool HALF, int COLS> __device__ __forceinline__ void multiply(
    float (&sum)[COLS / 8][4], u64 a, u64 b, int add);
template <bool HALF> __device__ __forceinline__ void weighted(
    float (&sum)[16][4], const u32 (&a)[4], u64 b, int add);
"""
for kind in ("f16", "bf16"):
    INSTRUCTIONS += "".join(instruction("multiply", columns, kind) for columns in sorted({128, GATED, 256}))
    INSTRUCTIONS += instruction("weighted", 128, kind)

ATTENTION = r"""
extern __shared__ __align__(1024) unsigned char memory[];

// Four lanes hold a word of each of four columns of eight numbers; each gets all four words of one. Twice is nothing.
__device__ __forceinline__ void exchange(u32 (&word)[4], int lane) {
    const bool odd = lane & 1, high = lane & 2;
    u32 a = __shfl_xor_sync(0xffffffffu, odd ? word[0] : word[1], 1);
    u32 b = __shfl_xor_sync(0xffffffffu, odd ? word[2] : word[3], 1);
    word[0] = odd ? a : word[0], word[1] = odd ? word[1] : a, word[2] = odd ? b : word[2], word[3] = odd ? word[3] : b;
    a = __shfl_xor_sync(0xffffffffu, high ? word[0] : word[2], 2);
    b = __shfl_xor_sync(0xffffffffu, high ? word[1] : word[3], 2);
    word[0] = high ? a : word[0], word[1] = high ? b : word[1];
    word[2] = high ? word[2] : a, word[3] = high ? word[3] : b;
}
__device__ __forceinline__ void load(u32 (&word)[4], const u16* from, bool there) {
    const uint4 v = there ? *(const uint4*)from : uint4{0, 0, 0, 0};
    word[0] = v.x, word[1] = v.y, word[2] = v.z, word[3] = v.w;
}
__device__ __forceinline__ void store(u16* to, const u32 (&word)[4], bool there) {
    if (there) *(uint4*)to = uint4{word[0], word[1], word[2], word[3]};
}

constexpr int SLOTS = 5, BOX = 64 * 128, QUERIES = 2 * BOX, TILE = 4 * BOX;  // bytes, but for the slots

#define NOTHING __uint_as_float(0xff800000u)  // -inf, a score that has no weight

struct Maps { CUtensorMap q, k, v; };
// `units` are heads, or pairs of them that share their keys; `tiles` of 128 queries, or of 64 of each of a pair.
struct Sizes { int length, heads, groups, units, tiles, paired; float scale; };
// Rows of two matrices that the cache is to fetch: so many bytes of each row's `pitch`.
struct Soon { const unsigned char *first, *second; int rows, bytes; i64 pitch; };

// What a block does in its rounds: the longest first, and those that had longer ones before have shorter ones next.
struct Work { int unit, tile; bool there; };
__device__ __forceinline__ Work work_of(int round, const Sizes& n) {
    const int own = round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x, at = round * gridDim.x + own;
    return {at % n.units, n.tiles - 1 - at / n.units, at < n.units * n.tiles};
}

// Batches of products: of 64 queries with 128 keys, and of 128 or 64 weights with the values. Where only 64 keys were
// fetched, the others are what lay in their place; all of them are masked.
template <bool HALF> __device__ __forceinline__ void begin_scores(float (&s)[16][4], u64 queries, u64 keys) {
    begin_products();
    #pragma unroll
    for (int i = 0; i < 8; i++)  // 64 of 128 numbers in a box, 32 bytes an instruction
        multiply<HALF, 128>(s, queries + i / 4 * 512 + i % 4 * 2, keys + i / 4 * 1024 + i % 4 * 2, i);
    end_batch();
}
template <bool HALF, int KEYS> __device__ __forceinline__ void begin_sums(
    float (&o)[16][4], const u32 (&p)[8][4], u64 values, bool add) {
    begin_products();
    #pragma unroll
    for (int i = 0; i < KEYS / 16; i++) weighted<HALF>(o, p[i], values + i * 128, i || add);
    end_batch();
}

// A thread has rows `lane / 4` and 8 more of its warp's 16, of every 8 columns those from 2 (lane % 4). The largest is
// taken off before scaling: of s * scale - top the compiler makes one rounding, and for scores of 10^9 it is not 0
// where s is the largest. What lies beyond a NaN or an infinity is as it is in exact softmax: NaN.
__device__ __forceinline__ void soften(
    float (&s)[16][4], float (&top)[2], float (&total)[2], float (&shrink)[2], float scale) {
    #pragma unroll
    for (int h = 0; h < 2; h++) {
        float most[2] = {top[h], s[0][2 * h]};
        #pragma unroll
        for (int j = 0; j < 16; j++)
            #pragma unroll
            for (int e = 0; e < 2; e++) most[e] = fmaxf(most[e], s[j][2 * h + e]);
        float best = fmaxf(most[0], most[1]);
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
        const float safe = best == NOTHING ? 0.0f : best;  // nothing but -inf so far: no NaN from their difference
        shrink[h] = power((top[h] - safe) * scale);
        top[h] = best;
        float sum[2] = {total[h] * shrink[h], 0.0f};
        #pragma unroll
        for (int j = 0; j < 16; j++)
            #pragma unroll
            for (int e = 0; e < 2; e++) {
                s[j][2 * h + e] = power((s[j][2 * h + e] - safe) * scale);
                sum[e] += s[j][2 * h + e];
            }
        total[h] = sum[0] + sum[1];
    }
}
// Sums of two tiles of 8 columns are, in their places, an operand of 16.
template <bool HALF> __device__ __forceinline__ void pack(u32 (&p)[8][4], const float (&s)[16][4]) {
    #pragma unroll
    for (int i = 0; i < 32; i++) {
        const float (&tile)[4] = s[i / 2];
        p[i / 4][i % 4] = both<HALF>(tile[i % 2 * 2], tile[i % 2 * 2 + 1]);
    }
}
// Keys after the query: of 128 from the tile's first, of which the query is number `place` (and place + 8).
__device__ __forceinline__ void mask(float (&s)[16][4], int place) {
    #pragma unroll
    for (int i = 0; i < 64; i++)
        if (i / 4 * 8 + i % 2 > place + i % 4 / 2 * 8) s[i / 4][i % 4] = NOTHING;
}
__device__ __forceinline__ void rescale(float (&o)[16][4], const float (&shrink)[2]) {
    #pragma unroll
    for (int i = 0; i < 64; i++) o[i / 4][i % 4] *= shrink[i % 4 / 2];
}
// Adds x to rows of 128 numbers, `pitch` apart, of which `left` are there from the thread's first row.
template <bool HALF> __device__ __forceinline__ void store_rows(
    const float (&o)[16][4], const float (&total)[2], const u16* x, u16* to, i64 pitch, int left) {
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int h = 0; h < 2; h++) {
        const bool there = 8 * h < left;
        u32 word[4][4];
        #pragma unroll
        for (int j = 0; j < 4; j++) load(word[j], x + h * 8 * pitch + (j * 4 + lane % 4) * 8, there);
        float sum = total[h];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const float share = inverse(sum);
        #pragma unroll
        for (int j = 0; j < 4; j++) {
            exchange(word[j], lane);
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                const float (&tile)[4] = o[j * 4 + i];
                word[j][i] = both<HALF>(tile[2 * h] * share + low<HALF>(word[j][i]),
                                        tile[2 * h + 1] * share + high<HALF>(word[j][i]));
            }
            exchange(word[j], lane);
            store(to + h * 8 * pitch + (j * 4 + lane % 4) * 8, word[j], there);
        }
    }
}

// The first four warps give up their registers; one thread of them fetches.
__device__ __forceinline__ void fetch_all(const Maps& maps, const Sizes& n, u64* full, u64* empty) {
    u64 *full_queries = full + 2 * SLOTS, *empty_queries = full_queries + 4;
    unsigned char* queries = memory + SLOTS * TILE;
    int slot = 0;
    u32 phase = 0;
    known(&maps.q), known(&maps.k), known(&maps.v);
    for (int round = 0;; round++) {
        const Work work = work_of(round, n);
        if (!work.there) return;
        const int head = n.paired ? 2 * work.unit : work.unit, last = n.paired ? work.tile : 2 * work.tile + 1;
        const int shared = head / n.groups, tiles = last / 2;  // whole ones, before the last that is masked
        auto put = [&](const CUtensorMap* from, int tile) {
            const int parts = tile < tiles ? 2 : last % 2 + 1;
            await(empty + slot, phase ^ 1);
            expect(full + slot, parts * 2 * BOX);
            for (int part = 0; part < parts; part++)
                for (int side = 0; side < 2; side++)
                    fetch(memory + slot * TILE + (side * 2 + part) * BOX, from, side * 64, tile * 128 + part * 64,
                          shared, full + slot);
            if (++slot == SLOTS) slot = 0, phase ^= 1;
        };
        for (int group = 0; group < 2; group++) {
            const int place = round % 2 * 2 + group, row = (n.paired ? last : last - 1 + group) * 64;
            await(empty_queries + place, round / 2 % 2 ^ 1);
            expect(full_queries + place, 2 * BOX);
            for (int side = 0; side < 2; side++)
                fetch(queries + place * QUERIES + side * BOX, &maps.q, side * 64, row, n.paired ? head + group : head,
                      full_queries + place);
            if (group == 0) put(&maps.k, 0);
        }
        for (int tile = 0; tile < tiles; tile++) put(&maps.k, tile + 1), put(&maps.v, tile);
        put(&maps.v, tiles);
    }
}

// x and attention, [batch, length, heads * 128].
template <bool HALF> __global__ void __launch_bounds__(384, 1) attend(
    const __grid_constant__ Maps maps, const u16* x, u16* out, const __grid_constant__ Sizes n,
    const __grid_constant__ Soon soon) {
    u64 *full = (u64*)(memory + SLOTS * TILE + 4 * QUERIES), *empty = full + SLOTS;
    u64 *full_queries = empty + SLOTS, *empty_queries = full_queries + 4;
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++) ready(full + i, 1), ready(empty + i, 8);
        for (int i = 0; i < 4; i++) ready(full_queries + i, 1), ready(empty_queries + i, 4);
        all_ready();
    }
    __syncthreads();
    next_may_begin();
    if (threadIdx.x < 128) {
        give_registers<40>();
        if (threadIdx.x == 0) fetch_all(maps, n, full, empty);
        if (threadIdx.x >= 32) return;
        __syncwarp();  // attention's own come first
        for (int i = blockIdx.x * 32 + threadIdx.x; i < 2 * soon.rows; i += gridDim.x * 32)
            to_cache((i % 2 ? soon.second : soon.first) + i / 2 * soon.pitch, soon.bytes);
        return;
    }
    take_registers<232>();
    const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    int slot = 0;
    u32 phase = 0;
    auto next = [&] {  // the next tile, when it is there
        await(full + slot, phase);
        const int taken = slot;
        if (++slot == SLOTS) slot = 0, phase ^= 1;
        return taken;
    };
    auto release = [&](u64* barrier) {
        if (lane == 0) arrive(barrier);
    };
    auto block_of = [&](const Work& work) { return n.paired ? work.tile : 2 * work.tile + group; };

    float s[16][4], o[16][4], top[2], total[2], shrink[2];
    u32 p[8][4];
    Work work = work_of(0, n);  // there is always a first
    int block = block_of(work);
    await(full_queries + group, 0);
    int key = next(), value;
    u64 queries = described(memory + SLOTS * TILE + group * QUERIES);
    if (group) pass_turn_to(0);
    begin_scores<HALF>(s, queries, described(memory + key * TILE));
    for (int round = 0;; round++) {
        const int tiles = block / 2;
        const bool wide = block % 2;
        const int place = round % 2 * 2 + group, behind = wide * 64 + row - lane % 4 * 2;
        top[0] = top[1] = NOTHING, total[0] = total[1] = 0.0f;
        finished<0>();
        settled(s);
        release(empty + key);
        if (tiles == 0) mask(s, behind);
        soften(s, top, total, shrink, n.scale);
        pack<HALF>(p, s);
        #pragma unroll 1
        for (int tile = 1; tile <= tiles; tile++) {
            key = next(), value = next();
            wait_for_turn(group);
            begin_scores<HALF>(s, queries, described(memory + key * TILE));
            begin_sums<HALF, 128>(o, p, described_across(memory + value * TILE), tile > 1);
            pass_turn_to(group ^ 1);
            finished<1>();
            settled(s);
            release(empty + key);
            if (tile == tiles) mask(s, behind);
            soften(s, top, total, shrink, n.scale);
            done_before(total, memory);
            finished<0>();
            settled(o), settled(p), settled(s);
            release(empty + value);
            rescale(o, shrink);
            pack<HALF>(p, s);
        }
        release(empty_queries + place);

        // The last sums, and the first scores of what comes next; or of anything, which nobody reads.
        value = next();
        const Work then = work_of(round + 1, n);
        if (then.there) {
            const int other = (round + 1) % 2 * 2 + group;
            queries = described(memory + SLOTS * TILE + other * QUERIES);
            await(full_queries + other, (round + 1) / 2 % 2);
            key = next();
        }
        wait_for_turn(group);
        if (wide) begin_sums<HALF, 128>(o, p, described_across(memory + value * TILE), tiles > 0);
        else begin_sums<HALF, 64>(o, p, described_across(memory + value * TILE), tiles > 0);
        begin_scores<HALF>(s, queries, described(memory + key * TILE));
        pass_turn_to(group ^ 1);
        finished<1>();
        settled(o), settled(p);
        release(empty + value);
        const int first = block * 64 + row, head = n.paired ? 2 * work.unit + group : work.unit;
        const i64 at = (((i64)(head / n.heads) * n.length + first) * n.heads + head % n.heads) * 128;
        store_rows<HALF>(o, total, x + at, out + at, (i64)n.heads * 128, n.length - first);
        if (!then.there) break;
        work = then, block = block_of(work);
    }
    finished<0>();
    settled(s);
    if (group == 0) wait_for_turn(group);  // the last that was passed
}

// Rows of `pieces` of eight numbers, a block each; a thread keeps its first two pieces.
template <bool HALF> __global__ void __launch_bounds__(256) normalise(
    const u16* x, const u16* weight, u16* out, int pieces, float eps) {
    __shared__ float parts[8];
    next_may_begin();
    const i64 row = (i64)blockIdx.x * pieces;
    u32 value[2][4], scale[2][4];
    float sum = 0.0f;
    auto add = [&](const u32 (&word)[4]) {
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const float one = low<HALF>(word[i]), other = high<HALF>(word[i]);
            sum += one * one, sum += other * other;
        }
    };
    #pragma unroll
    for (int e = 0; e < 2; e++) {
        const int at = e * 256 + threadIdx.x;
        load(scale[e], weight + at * 8, at < pieces);
    }
    last_is_done();
    #pragma unroll
    for (int e = 0; e < 2; e++) {
        const int at = e * 256 + threadIdx.x;
        load(value[e], x + (row + at) * 8, at < pieces);
    }
    add(value[0]), add(value[1]);
    for (int at = 512 + threadIdx.x; at < pieces; at += 256) {
        u32 word[4];
        load(word, x + (row + at) * 8, true);
        add(word);
    }
    #pragma unroll
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = parts[0];
    #pragma unroll
    for (int i = 1; i < 8; i++) sum += parts[i];
    const float share = rsqrtf(sum / (pieces * 8) + eps);
    auto put = [&](u32 (&word)[4], const u32 (&times)[4], int at) {
        #pragma unroll
        for (int i = 0; i < 4; i++)
            word[i] = both<HALF>(low<HALF>(word[i]) * share * low<HALF>(times[i]),
                                 high<HALF>(word[i]) * share * high<HALF>(times[i]));
        store(out + (row + at) * 8, word, at < pieces);
    };
    put(value[0], scale[0], threadIdx.x), put(value[1], scale[1], 256 + threadIdx.x);
    for (int at = 512 + threadIdx.x; at < pieces; at += 256) {
        u32 word[4], times[4];
        load(word, x + (row + at) * 8, true), load(times, weight + at * 8, true);
        put(word, times, at);
    }
}
"""

PRODUCTS = r"""
// `across` tiles in columns, `down` pairs of 128 rows; each `splits` times, for parts of the `steps` of 64 that are
// summed. The second group begins `skew` steps behind, if that is not 0.
struct Plan { int rows, outer, steps, down, across, splits, band, skew; };
struct Place { int part, begin, end, row, col; };

// Bands of a few pairs of rows. `width` columns of the result a tile.
__device__ __forceinline__ Place place_of(int item, const Plan& n, int block, int width) {
    const int tiles = n.down * n.across, part = item / tiles, tile = item % tiles;
    const int before = tile / (n.band * n.across) * n.band, within = tile % (n.band * n.across);
    const int height = min(n.down - before, n.band);
    return {part, (int)((i64)n.steps * part / n.splits), (int)((i64)n.steps * (part + 1) / n.splits),
            ((before + within % height) * PAIR + block) * 128, within / height * width};
}

// An exponential that overflows makes a share of 0.
__device__ __forceinline__ float gated(float gate, float up) {
    return gate * inverse(1.0f + power(gate * -1.4426950408889634f)) * up;
}

// A thread has rows `row` and `row` + 8, of every 8 columns the two that its place among four lanes says. Of 16 columns
// these are four words: of two times 8 columns, the two rows each. After an exchange it has one of those for itself.
struct Corner { int row, col; bool there; };
__device__ __forceinline__ Corner corner_of(int row, int col, const Plan& n) {
    const int mine = threadIdx.x % 4, at = row + mine % 2 * 8, from = col + mine / 2 * 8;
    return {at, from, at < n.rows && from < n.outer};
}
template <bool HALF> __device__ __forceinline__ void add_and_store(
    const float (&first)[4], const float (&second)[4], u32 (&word)[4], u16* out, const Corner& corner, const Plan& n) {
    const int lane = threadIdx.x % 32;
    exchange(word, lane);
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const float (&tile)[4] = i / 2 ? second : first;
        word[i] = both<HALF>(tile[i % 2 * 2] + low<HALF>(word[i]), tile[i % 2 * 2 + 1] + high<HALF>(word[i]));
    }
    exchange(word, lane);
    store(out + (i64)corner.row * n.outer + corner.col, word, corner.there);
}

// Columns of gate, and as many of up.
template <bool HALF, int COLS> __device__ __forceinline__ void finish_gated(
    const float (&sum)[COLS / 8][4], u16* out, int row, int col, const Plan& n) {
    #pragma unroll
    for (int g = 0; g < COLS / 32; g++) {
        u32 word[4];
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const float (&gate)[4] = sum[2 * g + i / 2], (&up)[4] = sum[COLS / 16 + 2 * g + i / 2];
            const int e = i % 2 * 2;
            word[i] = both<HALF>(gated(gate[e], up[e]), gated(gate[e + 1], up[e + 1]));
        }
        exchange(word, threadIdx.x % 32);
        const Corner corner = corner_of(row, col + g * 16, n);
        store(out + (i64)corner.row * n.outer + corner.col, word, corner.there);
    }
}
template <bool HALF, int COLS> __device__ __forceinline__ void finish_plain(
    const float (&sum)[COLS / 8][4], const u16* residual, u16* out, int row, int col, const Plan& n) {
    #pragma unroll
    for (int from = 0; from < COLS / 16; from += 4) {
        u32 word[4][4];
        #pragma unroll
        for (int g = 0; g < 4; g++) {
            const Corner corner = corner_of(row, col + (from + g) * 16, n);
            load(word[g], residual + (i64)corner.row * n.outer + corner.col, corner.there);
        }
        #pragma unroll
        for (int g = 0; g < 4; g++)
            add_and_store<HALF>(sum[2 * (from + g)], sum[2 * (from + g) + 1], word[g], out,
                                corner_of(row, col + (from + g) * 16, n), n);
    }
}
// Where sums of a part lie as their threads have them: of a block's two groups, by 8 columns, four of each thread.
template <int COLS> __device__ __forceinline__ i64 place_of_sums(int item, int block, int group) {
    return (((i64)item * PAIR + block) * 2 + group) * (COLS / 8) * 128;
}

// The first four warps fetch, by one thread; each next four multiply 64 rows. Both blocks of a pair have the same
// columns: each fetches one half of their weights for both, as soon as all warps of both are done with what lay there.
template <bool HALF, bool GATE, int COLS> __global__ void __launch_bounds__(384, 1) product(
    const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap first,
    const __grid_constant__ CUtensorMap second, const u16* residual, u16* out, float4* sums,
    const __grid_constant__ Plan n) {
    constexpr int LEFT = 128 * 128, PART = COLS * 64, STAGE = LEFT + 2 * PART;  // bytes
    constexpr int STAGES = 232000 / STAGE, WIDTH = GATE ? COLS / 2 : COLS;
    static_assert(PART % 1024 == 0 && COLS % 32 == 0, "halves are whole groups of eight rows, and of 16 columns");
    u64 *full = (u64*)(memory + STAGES * STAGE), *empty = full + STAGES;
    const int group = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    const int block = blockIdx.x % PAIR, pairs = gridDim.x / PAIR, items = n.down * n.across * n.splits;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) ready(full + s, 1), ready(empty + s, 8 * PAIR);
        all_ready();
    }
    if (PAIR == 2) meet();
    else __syncthreads();
    next_may_begin();
    int slot = 0;
    u32 turn = 0;
    if (group == 0) {
        if (threadIdx.x == 0) {
            auto weights = [&](int to, int step, int col) {
                expect(full + to, STAGE);
                unsigned char* at = memory + to * STAGE + LEFT;
                const int row = GATE ? col : col + PART / 128;
                if (PAIR == 2) {
                    if (block) fetch_for_both(at + PART, &second, step * 64, row, full + to);
                    else fetch_for_both(at, &first, step * 64, col, full + to);
                } else {
                    fetch(at, &first, step * 64, col, full + to);
                    fetch(at + PART, &second, step * 64, row, full + to);
                }
            };
            known(&x), known(&first), known(&second);
            int ahead = 0, item = blockIdx.x / PAIR;
            if (item < items) {  // the first weights, which no launch made
                const Place place = place_of(item, n, block, WIDTH);
                for (; ahead < STAGES && place.begin + ahead < place.end; ahead++)
                    weights(ahead, place.begin + ahead, place.col);
            }
            last_is_done();
            for (; item < items; item += pairs) {
                const Place place = place_of(item, n, block, WIDTH);
                for (int step = place.begin; step < place.end; step++) {
                    if (ahead) {
                        ahead--;
                    } else {
                        await(empty + slot, turn ^ 1);
                        weights(slot, step, place.col);
                    }
                    fetch(memory + slot * STAGE, &x, step * 64, place.row, full + slot);
                    if (++slot == STAGES) slot = 0, turn ^= 1;
                }
            }
        }
        __syncwarp();
    } else {
        last_is_done();
        for (int item = blockIdx.x / PAIR; item < items; item += pairs) {
            const Place place = place_of(item, n, block, WIDTH);
            const int row = place.row + (group - 1) * 64 + warp * 16 + lane / 4;
            // With so many steps none is a whole tile ahead, and every turn that is passed is taken.
            const bool skewed = n.skew && place.end - place.begin > 2 * STAGES;
            float sum[COLS / 8][4];
            int last = 0;
            auto release = [&] {  // for the threads that fetch in both blocks
                if (PAIR == 2) {
                    if (lane < 2) arrive_in(empty + last, lane);
                } else if (lane == 0) {
                    arrive(empty + last);
                }
            };
            if (skewed && group == 2) wait_for_turn(0);
            for (int step = place.begin; step < place.end; step++) {
                if (skewed && group == 1 && step == place.begin + n.skew) pass_turn_to(0);
                await(full + slot, turn);
                const unsigned char* at = memory + slot * STAGE;
                const u64 a = described(at + (group - 1) * 64 * 128), b = described(at + LEFT);
                begin_products();
                #pragma unroll
                for (int k = 0; k < 4; k++)  // 32 bytes further
                    multiply<HALF, COLS>(sum, a + 2 * k, b + 2 * k, step > place.begin || k);
                end_batch();
                finished<1>();
                if (step > place.begin) release();
                last = slot;
                if (++slot == STAGES) slot = 0, turn ^= 1;
            }
            finished<0>();
            settled(sum);
            release();
            if (GATE) {
                finish_gated<HALF, COLS>(sum, out, row, place.col, n);
            } else if (n.splits == 1) {
                finish_plain<HALF, COLS>(sum, residual, out, row, place.col, n);
            } else {
                float4* to = sums + place_of_sums<COLS>(item, block, group - 1) + threadIdx.x % 128;
                #pragma unroll
                for (int j = 0; j < COLS / 8; j++) to[j * 128] = float4{sum[j][0], sum[j][1], sum[j][2], sum[j][3]};
            }
        }
    }
    if (PAIR == 2) meet();  // nobody arrives in a block that is gone
}

// The parts' sums in their order, and the residual: 16 columns a thread, as `product` has them.
template <bool HALF, int COLS> __global__ void __launch_bounds__(256) add_up(
    const float4* sums, const u16* residual, u16* out, const __grid_constant__ Plan n) {
    next_may_begin();
    last_is_done();
    constexpr int EACH = COLS / 16;
    const int at = blockIdx.x * 2 + threadIdx.x / 128, thread = threadIdx.x % 128, tiles = n.down * n.across;
    const int g = at % EACH, group = at / EACH % 2, block = at / EACH / 2 % PAIR, tile = at / EACH / 2 / PAIR;
    const Place place = place_of(tile, n, block, COLS);
    const int row = place.row + group * 64 + thread / 32 * 16 + thread % 32 / 4;
    const Corner corner = corner_of(row, place.col + g * 16, n);
    u32 word[4];
    load(word, residual + (i64)corner.row * n.outer + corner.col, corner.there);
    float first[4] = {}, second[4] = {};
    #pragma unroll 4
    for (int part = 0; part < n.splits; part++) {
        const float4* from = sums + place_of_sums<COLS>(part * tiles + tile, block, group) + g * 256 + thread;
        const float4 one = from[0], other = from[128];
        first[0] += one.x, first[1] += one.y, first[2] += one.z, first[3] += one.w;
        second[0] += other.x, second[1] += other.y, second[2] += other.z, second[3] += other.w;
    }
    add_and_store<HALF>(first, second, word, out, corner, n);
}
"""
HOST = r"""
typedef CUresult (*Encode)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
    const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
    CUtensorMapFloatOOBfill);
static Encode encoder() {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result)
        != cudaSuccess || result != cudaDriverEntryPointSuccess) return nullptr;
    return (Encode)found;
}
// [planes, rows, inner] without gaps, by boxes of 64 columns and `box` rows of a plane; two dimensions if there are no
// planes (0).
static bool describe(
    CUtensorMap* map, bool half, int promotion, const void* from, i64 planes, i64 rows, i64 inner, int box) {
    static const Encode encode = encoder();
    const cuuint64_t size[3] = {(cuuint64_t)inner, (cuuint64_t)rows, (cuuint64_t)planes};
    const cuuint64_t stride[2] = {(cuuint64_t)inner * 2, (cuuint64_t)(inner * rows * 2)};
    const cuuint32_t part[3] = {64, (cuuint32_t)box, 1}, every[3] = {1, 1, 1};
    return encode && encode(
        map, half ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, planes ? 3 : 2, (void*)from,
        size, stride, part, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        (CUtensorMapL2promotion)promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

struct Launcher {
    cudaStream_t stream;
    int processors;
    bool early;

    template <class... P, class... A> cudaError_t operator()(
        void (*kernel)(P...), i64 blocks, int threads, int shared, int pair, bool waits, A... arguments) const {
        if (shared > 48 * 1024) {
            const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
            if (error != cudaSuccess) return error;
        }
        cudaLaunchAttribute attributes[2];
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3((unsigned)blocks), config.blockDim = dim3((unsigned)threads);
        config.dynamicSmemBytes = (size_t)shared, config.stream = stream, config.attrs = attributes;
        if (pair > 1) {
            cudaLaunchAttribute& added = attributes[config.numAttrs++];
            added.id = cudaLaunchAttributeClusterDimension;
            added.val.clusterDim.x = (unsigned)pair, added.val.clusterDim.y = added.val.clusterDim.z = 1;
        }
        if (early && waits) {
            cudaLaunchAttribute& added = attributes[config.numAttrs++];
            added.id = cudaLaunchAttributeProgrammaticStreamSerialization;
            added.val.programmaticStreamSerializationAllowed = 1;
        }
        return cudaLaunchKernelEx(&config, kernel, P(arguments)...);
    }
};

template <bool HALF, bool GATE, int COLS> cudaError_t multiply_by(
    const Launcher& launch, int promotion, const void* x, const void* first, const void* second, const void* residual,
    void* out, void* sums, const Plan& n, i64 inner) {
    CUtensorMap left, one, other;
    if (!describe(&left, HALF, promotion, x, 0, n.rows, inner, 128) ||
        !describe(&one, HALF, promotion, first, 0, n.outer, inner, COLS / 2) ||
        !describe(&other, HALF, promotion, second, 0, n.outer, inner, COLS / 2)) return cudaErrorInvalidValue;
    constexpr int STAGE = 128 * 128 + COLS * 128, STAGES = 232000 / STAGE;
    const i64 items = (i64)n.down * n.across * n.splits, pairs = launch.processors / PAIR;
    return launch(product<HALF, GATE, COLS>, (items < pairs ? items : pairs) * PAIR, 384, STAGES * (STAGE + 16), PAIR,
                  true, left, one, other, (const u16*)residual, (u16*)out, (float4*)sums, n);
}

constexpr int DOWN = 256;
static int divided(i64 number, i64 by) { return (int)((number + by - 1) / by); }

// In how many parts the last product is summed, so that all processors have some: by what rounds of them take, in
// steps, and what it takes to write and add up the parts.
int splits_of(i64 rows, i64 width, i64 hidden, int device) {
    int processors = 0;
    if (cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 1;
    const i64 tiles = (i64)divided(rows, 128 * PAIR) * divided(width, DOWN), steps = divided(hidden, 64);
    const i64 pairs = processors / PAIR;
    int best = 1;
    double least = 0.0;
    for (int splits = 1; splits <= 8 && splits * 8 <= (steps > 8 ? steps : 8); splits++) {
        const double rounds = divided(tiles * splits, pairs), each = divided(steps, splits) + 4;
        const double cost = rounds * each + (splits > 1 ? 4 + 0.1 * splits * tiles : 0.0);
        if (splits == 1 || cost < least) best = splits, least = cost;
    }
    return best;
}
i64 floats_of(i64 rows, i64 width, int splits) {
    return splits > 1 ? (i64)splits * divided(rows, 128 * PAIR) * divided(width, DOWN) * PAIR * 128 * DOWN : 0;
}

template <bool HALF> cudaError_t launch_all(const Call& call, const Launcher& launch) {
    const int width = call.heads * 128, rows = call.batch * call.length, across = divided(call.hidden, GATED / 2);
    const int pairs_down = divided(rows, 128 * PAIR), promotion = call.promotion, band = call.band;
    const CUtensorMapL2promotion least = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
    Maps maps;
    if (!describe(&maps.q, HALF, least, call.q, (i64)call.batch * call.heads, call.length, 128, 64) ||
        !describe(&maps.k, HALF, least, call.k, (i64)call.batch * call.shared, call.length, 128, 64) ||
        !describe(&maps.v, HALF, least, call.v, (i64)call.batch * call.shared, call.length, 128, 64))
        return cudaErrorInvalidValue;
    const int groups = call.heads / call.shared, paired = groups % 2 == 0;
    const Sizes sizes = {call.length, call.heads, groups, call.batch * call.heads / (paired ? 2 : 1),
                         divided(call.length, paired ? 64 : 128), paired, call.scale};
    // What the first tiles of all pairs multiply first; of many rows it would be gone by then.
    Soon soon = {(const unsigned char*)call.gate, (const unsigned char*)call.up, 0, 0, (i64)width * 2};
    if (call.ahead && rows <= 1024) {
        const int tiles = divided(launch.processors / PAIR, pairs_down < band ? pairs_down : band);
        soon.rows = tiles < across ? tiles * (GATED / 2) : call.hidden;
        const i64 bytes = ((i64)call.ahead << 20) / (2 * soon.rows) / 128 * 128;
        soon.bytes = (int)(bytes < soon.pitch ? bytes : soon.pitch);
        if (!soon.bytes) soon.rows = 0;
    }
    const i64 work = (i64)sizes.units * sizes.tiles;
    cudaError_t error = launch(attend<HALF>, work < launch.processors ? work : launch.processors, 384,
                               SLOTS * TILE + 4 * QUERIES + (2 * SLOTS + 8) * 8, 1, false, maps, (const u16*)call.x,
                               (u16*)call.stream, sizes, soon);
    if (error != cudaSuccess) return error;
    error = launch(normalise<HALF>, rows, 256, 0, 1, true, (const u16*)call.stream, (const u16*)call.norm,
                   (u16*)call.normed, width / 8, call.eps);
    if (error != cudaSuccess) return error;
    const Plan gate_and_up = {rows, call.hidden, divided(width, 64), pairs_down, across, 1, band, call.skew};
    error = multiply_by<HALF, true, GATED>(
        launch, promotion, call.normed, call.gate, call.up, nullptr, call.gated, nullptr, gate_and_up, width);
    if (error != cudaSuccess) return error;
    const Plan last = {
        rows, width, divided(call.hidden, 64), pairs_down, divided(width, DOWN), call.splits, band, 0};
    error = multiply_by<HALF, false, DOWN>(
        launch, promotion, call.gated, call.down, call.down, call.stream, call.out, call.sums, last, call.hidden);
    if (error != cudaSuccess || call.splits == 1) return error;
    return launch(add_up<HALF, DOWN>, (i64)last.down * last.across * PAIR * (DOWN / 16), 256, 0, 1, true,
                  (const float4*)call.sums, (const u16*)call.stream, (u16*)call.out, last);
}
cudaError_t launch_block(const Call& call) {
    int processors = 0;
    const cudaError_t error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, call.device);
    if (error != cudaSuccess) return error;
    const Launcher launch = {call.queue, processors, call.early != 0};
    return call.half ? launch_all<true>(call, launch) : launch_all<false>(call, launch);
}
"""
SOURCE = INSTRUCTIONS + CALL + ATTENTION + PRODUCTS + HOST

GLUE = r"""
#include <cmath>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <limits>

using at::Tensor;
int splits_of(int64_t rows, int64_t width, int64_t hidden, int device);
int64_t floats_of(int64_t rows, int64_t width, int splits);

static Tensor whole(const Tensor& given) {
    const Tensor each = given.contiguous();
    return (uintptr_t)each.const_data_ptr() % 16 ? each.clone() : each;
}
// q [batch, heads, length, 128], k and v [batch, fewer heads, length, 128], x [batch, length, width], norm [width],
// gate and up [hidden, width], down [width, hidden]; none is empty.
Tensor block(
    const Tensor& queries, const Tensor& keys, const Tensor& values, const Tensor& given, const Tensor& scale,
    const Tensor& gates, const Tensor& ups, const Tensor& downs, double eps, int64_t band, int64_t skew, int64_t early,
    int64_t promotion, int64_t ahead) {
    const auto type = given.scalar_type();
    TORCH_CHECK(type == at::kHalf || type == at::kBFloat16, "float16 or bfloat16 is needed, not ", type);
    for (const Tensor* each : {&queries, &keys, &values, &given, &scale, &gates, &ups, &downs})
        TORCH_CHECK(each->scalar_type() == type && each->is_cuda() && each->device() == given.device() &&
                    each->numel() > 0, "tensors of one type and GPU are needed, not empty");
    TORCH_CHECK(queries.dim() == 4 && keys.dim() == 4 && given.dim() == 3 && gates.dim() == 2 && downs.dim() == 2,
                "4, 4, 4, 3, 1, 2, 2 and 2 dimensions are needed");
    const int64_t batch = queries.size(0), heads = queries.size(1), length = queries.size(2), shared = keys.size(1);
    const int64_t width = heads * 128, hidden = gates.size(0), rows = batch * length;
    TORCH_CHECK(queries.size(3) == 128 && keys.sizes() == values.sizes() && heads % shared == 0 &&
                keys.sizes() == at::IntArrayRef({batch, shared, length, 128}) &&
                given.sizes() == at::IntArrayRef({batch, length, width}) && scale.numel() == width &&
                gates.size(1) == width && ups.sizes() == gates.sizes() && hidden % 8 == 0 &&
                downs.sizes() == at::IntArrayRef({width, hidden}), "sizes do not fit: ", queries.sizes(), ", ",
                keys.sizes(), ", ", given.sizes(), ", ", gates.sizes(), ", ", downs.sizes());
    const int64_t most = std::numeric_limits<int>::max() / 64;
    TORCH_CHECK(rows < most && width < most && hidden < most && batch * heads < most &&
                (rows / 128 + 2) * (hidden / 96 + 2) < most && (rows / 128 + 2) * (width / 128 + 2) < most &&
                batch * heads * (length / 64 + 1) < most, "too large: ", queries.sizes(), ", ", gates.sizes());
    TORCH_CHECK(band > 0 && band < 1024 && skew >= 0 && skew < 4 && promotion >= 0 && promotion < 4 && ahead >= 0 &&
                ahead < 1024, "no such tunables");
    const c10::cuda::CUDAGuard guard(given.device());
    const Tensor q = whole(queries), k = whole(keys), v = whole(values), x = whole(given), norm = whole(scale);
    const Tensor gate = whole(gates), up = whole(ups), down = whole(downs);
    const int device = given.device().index(), splits = splits_of(rows, width, hidden, device);
    const Tensor stream = at::empty_like(x), normed = at::empty_like(x), out = at::empty_like(x);
    const Tensor gated = at::empty({rows, hidden}, x.options());
    const Tensor sums = at::empty({floats_of(rows, width, splits)}, x.options().dtype(at::kFloat));
    C10_CUDA_CHECK(launch_block({
        q.const_data_ptr(), k.const_data_ptr(), v.const_data_ptr(), x.const_data_ptr(), norm.const_data_ptr(),
        gate.const_data_ptr(), up.const_data_ptr(), down.const_data_ptr(), stream.mutable_data_ptr(),
        normed.mutable_data_ptr(), gated.mutable_data_ptr(), sums.mutable_data_ptr(), out.mutable_data_ptr(),
        (int)batch, (int)heads, (int)shared, (int)length, (int)hidden, splits, type == at::kHalf, device,
        (float)(1.4426950408889634 / std::sqrt(128.0)), (float)eps, (int)band, (int)skew, (int)early, (int)promotion,
        (int)ahead, c10::cuda::getCurrentCUDAStream(device).stream()}));
    return out;
}
"""
block = load_inline(
    name="sdpa_mlp_warp_groups",
    cpp_sources=[CALL + GLUE],
    cuda_sources=[SOURCE],
    functions=["block"],
    extra_cflags=["-O2"],
    extra_cuda_cflags=["-O3", f"-DGATED={GATED}", f"-DPAIR={PAIR}"],
    no_implicit_headers=True,
).block


@triton.jit
def attend_blocks(
    acc, top, total, query, k, v, m, low, high, D, scale,
    BN: tl.constexpr, BD: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Keys `low` to `high` for one block of queries, with a running softmax in powers of two. Scores are scaled after
    the largest is taken off: of s * scale - top the compiler makes one rounding, and the largest, of 10^9, is then not
    exactly top, nor its power exactly 1."""
    d = tl.arange(0, BD)
    for start in range(low, high, BN):
        n = start + tl.arange(0, BN)
        known = (n < high)[:, None] & (d < D)[None, :]
        at = n.to(tl.int64)[:, None] * D + d[None, :]
        keys = tl.load(k + at, mask=known, other=0.0)
        s = tl.dot(query, tl.trans(keys), input_precision="ieee")
        if MASKED:
            s = tl.where((m[:, None] >= n[None, :]) & (n < high)[None, :], s, float("-inf"))
        new = tl.maximum(top, tl.max(s, 1))
        safe = tl.where(new == float("-inf"), 0.0, new)  # nothing but -inf so far: no NaN from a difference of two
        p = tl.exp2((s - safe[:, None]) * scale)
        shrink = tl.exp2((top - safe) * scale)
        values = tl.load(v + at, mask=known, other=0.0)
        total = total * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(values.dtype), values, acc * shrink[:, None], input_precision="ieee")
        top = new
    return acc, top, total


@triton.jit
def attend(
    q, k, v, x, out, heads, groups, L, D, scale, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr
):  # fmt: skip
    """x plus attention, in x's layout [batch, length, heads * D]."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    shared = (head // heads) * (heads // groups) + (head % heads) // groups
    m = block * BM + tl.arange(0, BM)
    d = tl.arange(0, BD)
    real = (m < L)[:, None] & (d < D)[None, :]
    query = tl.load(q + (head * L + m)[:, None] * D + d[None, :], mask=real, other=0.0)
    k += shared * L * D
    v += shared * L * D
    acc = tl.zeros((BM, BD), tl.float32)
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    edge, end = block * BM, tl.minimum(block * BM + BM, L)
    acc, top, total = attend_blocks(acc, top, total, query, k, v, m, 0, edge, D, scale, BN, BD, False)
    acc, top, total = attend_blocks(acc, top, total, query, k, v, m, edge, end, D, scale, BN, BD, True)
    at = ((head // heads * L + m) * heads + head % heads)[:, None] * D + d[None, :]
    result = acc / total[:, None] + tl.load(x + at, mask=real, other=0.0).to(tl.float32)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=real)


@triton.jit
def normalise(x, weight, out, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * N
    n = tl.arange(0, BLOCK)
    v = tl.load(x + row + n, mask=n < N, other=0.0).to(tl.float32)
    w = tl.load(weight + n, mask=n < N, other=0.0).to(tl.float32)
    v *= 1.0 / tl.sqrt(tl.sum(v * v, 0) / N + eps)
    tl.store(out + row + n, (v * w).to(out.dtype.element_ty), mask=n < N)


@triton.jit
def tile_of(M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """Tiles of GROUP rows of blocks one after the other, so that a column of weights is read by neighbours."""
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = tl.program_id(0) // (GROUP * columns) * GROUP
    height = tl.minimum(rows - first, GROUP)
    within = tl.program_id(0) % (GROUP * columns)
    return first + within % height, within // height


@triton.jit
def gated_products(
    x, gate, up, out, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """silu(x gate^T) * (x up^T)."""
    row, column = tile_of(M, N, BM, BN, 16)
    m, n, k = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN), tl.arange(0, BK)
    # Rows and columns beyond the end are read again from the start, and not stored.
    left = x + (m % M).to(tl.int64)[:, None] * K + k[None, :]
    there = (n % N).to(tl.int64)[None, :] * K + k[:, None]
    g = tl.zeros((BM, BN), tl.float32)
    u = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        if EVEN:
            a = tl.load(left + start)
            g = tl.dot(a, tl.load(gate + there + start), g, input_precision="ieee")
            u = tl.dot(a, tl.load(up + there + start), u, input_precision="ieee")
        else:
            known = k < K - start
            a = tl.load(left + start, mask=known[None, :], other=0.0)
            g = tl.dot(a, tl.load(gate + there + start, mask=known[:, None], other=0.0), g, input_precision="ieee")
            u = tl.dot(a, tl.load(up + there + start, mask=known[:, None], other=0.0), u, input_precision="ieee")
    result = g * tl.sigmoid(g) * u
    at = out + m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(at, result.to(out.dtype.element_ty), mask=(m < M)[:, None] & (n < N)[None, :])


@triton.jit
def last_product(
    x, weight, residual, out, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """residual + x weight^T."""
    row, column = tile_of(M, N, BM, BN, 8)
    m, n, k = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN), tl.arange(0, BK)
    left = x + (m % M).to(tl.int64)[:, None] * K + k[None, :]
    right = weight + (n % N).to(tl.int64)[None, :] * K + k[:, None]
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        if EVEN:
            acc = tl.dot(tl.load(left + start), tl.load(right + start), acc, input_precision="ieee")
        else:
            known = k < K - start
            a = tl.load(left + start, mask=known[None, :], other=0.0)
            acc = tl.dot(a, tl.load(right + start, mask=known[:, None], other=0.0), acc, input_precision="ieee")
    real = (m < M)[:, None] & (n < N)[None, :]
    at = m.to(tl.int64)[:, None] * N + n[None, :]
    acc += tl.load(residual + at, mask=real, other=0.0).to(tl.float32)
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=real)


def by_blocks(q, k, v, x, norm, gate, up, down, eps):
    batch, heads, length, dim = q.shape
    shared, width, hidden = k.shape[1], heads * dim, gate.shape[0]
    stream, normed, out = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
    narrow = x.element_size() == 4 or dim > 128
    bm = min(64 if narrow else 128, max(16, triton.next_power_of_2(length)))
    attend[(triton.cdiv(length, bm), batch * heads)](
        q, k, v, x, stream, heads, heads // shared, length, dim, math.log2(math.e) / math.sqrt(dim),
        BM=bm, BN=min(bm, 32 if narrow else BN), BD=max(16, triton.next_power_of_2(dim)),
        num_warps=8 if bm == 128 else 4, num_stages=2,
    )  # fmt: skip
    rows = batch * length
    normalise[(rows,)](stream, norm, normed, width, eps, BLOCK=triton.next_power_of_2(width), num_warps=8)
    gated = torch.empty((rows, hidden), dtype=x.dtype, device=x.device)
    gate, up, down = gate.contiguous(), up.contiguous(), down.contiguous()
    depth = 32 if narrow else DEPTH
    tall, broad = (64, 64) if narrow else (DUAL_ROWS if rows > 64 else 64, 128)
    gated_products[(triton.cdiv(rows, tall) * triton.cdiv(hidden, broad),)](
        normed, gate, up, gated, rows, hidden, width, BM=tall, BN=broad, BK=depth, EVEN=width % depth == 0,
        num_warps=8 if tall == 128 else 4, num_stages=2 if narrow else STAGES,
    )  # fmt: skip
    # Few rows make few tiles of the narrow output: then tiles are small, so that most processors have one.
    if narrow or rows <= 512:
        tall, broad = 64, 64 if narrow or rows <= 128 else 128
    else:
        tall, broad = 128, DOWN_COLS if rows >= 4096 else 128
    last_product[(triton.cdiv(rows, tall) * triton.cdiv(width, broad),)](
        gated, down, stream, out, rows, width, hidden, BM=tall, BN=broad, BK=depth, EVEN=hidden % depth == 0,
        num_warps=8 if tall * broad >= 16384 else 4, num_stages=2 if narrow else STAGES,
    )  # fmt: skip
    return out


def checked(q, k, v, x, norm):
    batch, heads, length, dim = q.shape
    shared, width = k.shape[1], heads * dim
    if v.shape != k.shape or k.shape != (batch, shared, length, dim) or heads % max(1, shared) or dim > 256:
        raise ValueError("queries, keys and values of one length are needed, with at most 256 numbers a head")
    if x.shape != (batch, length, width) or norm.numel() != width or width > 16384:
        raise ValueError("a residual stream [batch, length, heads * dim] of the weights' width is needed")
    if len({each.dtype for each in (q, k, v, x, norm)}) > 1 or x.dtype == torch.float64:
        raise ValueError("one type for all is needed, and not float64")
    return q.contiguous(), k.contiguous(), v.contiguous(), x.contiguous()


class ModelNew(nn.Module):
    def __init__(self, heads, dim, hidden, dtype="float32", eps=1e-5):
        super().__init__()
        width, kind = heads * dim, getattr(torch, dtype)
        self.eps = eps
        self.norm = nn.Parameter(torch.ones(width, dtype=kind))
        self.gate = nn.Linear(width, hidden, bias=False, dtype=kind)
        self.up = nn.Linear(width, hidden, bias=False, dtype=kind)
        self.down = nn.Linear(hidden, width, bias=False, dtype=kind)

    def forward(self, q, k, v, x):
        q, k, v, x = checked(q, k, v, x, self.norm)
        if not x.numel():
            return torch.empty_like(x)
        weights = (self.norm, self.gate.weight, self.up.weight, self.down.weight)
        hidden = self.gate.weight.shape[0]
        if q.shape[3] == 128 and x.element_size() == 2 and hidden and hidden % 8 == 0:
            return block(q, k, v, x, *weights, self.eps, BAND, SKEW, EARLY, PROMOTION, AHEAD)
        return by_blocks(q, k, v, x, *weights, self.eps)
