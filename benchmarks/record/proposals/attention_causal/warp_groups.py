"""Flash attention by instructions of four warps (wgmma), for heads of 128 numbers of 16 bits. One thread fetches tiles
of 128 keys or values by descriptors (TMA) into a ring of five; two groups of four warps have 64 queries each, of two
heads that share their keys where there are such. A group begins the scores of the next keys before the softmax of
these, and the groups take turns: while one is at its softmax, the other's products keep the tensor cores busy. Blocks
stay, the longest queries come first, and before it stores what it has a group begins the scores of what comes next.

Bound by tensor cores: 4 L^2 d / 2 a head at 989 TFLOP/s are 139 us for 4 x 32 heads of 2,048. Of 64 queries only the
last 128 keys are masked, or 64 for the values: 5 % more products than needed at 2,048 keys, 19 % at 512. A tile that is
fetched serves 128 queries, which asks 4.7 TB/s of L2 at 600 TFLOP/s. Other widths and types go to a kernel in Triton.
"""

import ctypes
import functools
import math
import struct

import torch
import triton
import triton.language as tl
from kernelwright import load_cuda
from torch import nn

TUNABLES = {"TURNS": [0, 1], "SLOTS": [4, 5], "PINNED": [0, 1], "PROMOTION": [2, 3]}
TURNS = 1
"""Whether the groups wait for their turn at the tensor cores."""
SLOTS = 5
"""Tiles of 32 KB in the ring; beside it lie 64 KB of queries."""
PINNED = 1
"""Whether powers are done before the wait for the last weighted sums, and not behind it."""
PROMOTION = 2
"""What a miss brings to L2: 128 bytes (2) or 256 (3), which is a row."""

BM = 128
BN = 64
WARPS = 8
STAGES = 3
"""Of the kernel in Triton."""


def instruction(name, kind):
    """m64nNk16 with sums [16][4] in registers: `scores` of two operands by descriptors, both with neighbours along what
    is summed over, or `weighted`, of registers and of values whose neighbours are along the result's columns."""
    count = 64
    sums = ",".join(f"%{i}" for i in range(count))
    bound = ",".join(f'"+f"(sum[{i // 4}][{i % 4}])' for i in range(count))
    held = name == "weighted"
    first = "const u32 (&a)[4]" if held else "u64 a"
    given = "{" + ",".join(f"%{count + i}" for i in range(4)) + "}" if held else f"%{count}"
    after = count + (4 if held else 1)
    left = '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])' if held else '"l"(a)'
    return (
        f"template <> __device__ __forceinline__ void {name}<{int(kind == 'f16')}>("
        f"float (&sum)[16][4], {first}, u64 b, int add) {{\n"
        f'    asm volatile("{{.reg .pred p; setp.ne.b32 p, %{after + 1}, 0;'
        f" wgmma.mma_async.sync.aligned.m64n128k16.f32.{kind}.{kind} "
        f'{{{sums}}}, {given}, %{after}, p, 1, 1, {"1" if held else "0, 0"};}}"\n'
        f'        : {bound} : {left}, "l"(b), "r"(add));\n}}\n'
    )


INSTRUCTIONS = r"""
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// What the machine does, and C++ has no word for.
template <bool HALF> __device__ __forceinline__ u32 both(float first, float second) {
    u32 two;
    if (HALF) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(second), "f"(first));
    else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(second), "f"(first));
    return two;
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
// A tensor [heads, length, 128] as the copy engine knows it. It copies boxes of 64 rows and 64 columns; rows beyond the
// length come as zeros. Rows have 128 bytes, their eight pieces of 16 in the order of an exclusive or with the row.
struct __align__(64) Map { u64 words[16]; };
__device__ __forceinline__ void fetch(void* to, const Map* from, int column, int row, int head, u64* barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];"
        :: "r"(at_shared(to)), "l"(from), "r"(column), "r"(row), "r"(head), "r"(at_shared(barrier)) : "memory");
}
__device__ __forceinline__ void known(const Map* map) { asm volatile("prefetch.tensormap [%0];" :: "l"(map)); }
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
__device__ __forceinline__ void settled(float (&sum)[16][4]) {
    #pragma unroll
    for (int i = 0; i < 64; i++) asm volatile("" : "+f"(sum[i / 4][i % 4]) :: "memory");
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
template <bool HALF> __device__ __forceinline__ void scores(float (&sum)[16][4], u64 a, u64 b, int add);
template <bool HALF> __device__ __forceinline__ void weighted(
    float (&sum)[16][4], const u32 (&a)[4], u64 b, int add);
"""
INSTRUCTIONS += "".join(instruction(name, kind) for name in ("scores", "weighted") for kind in ("f16", "bf16"))

KERNEL_CODE = r"""
extern __shared__ __align__(1024) unsigned char memory[];
constexpr int BOX = 64 * 128, QUERIES = 2 * BOX, TILE = 4 * BOX;  // bytes

#define NOTHING __uint_as_float(0xff800000u)  // -inf, a score that has no weight

struct Maps { Map q, k, v; };
// `units` are heads, or pairs of them that share their keys; `tiles` of 128 queries, or of 64 of each of a pair.
struct Sizes { int length, groups, units, tiles, paired; float scale; };

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
        scores<HALF>(s, queries + i / 4 * 512 + i % 4 * 2, keys + i / 4 * 1024 + i % 4 * 2, i);
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

// Four lanes hold a word of each of four columns of eight numbers; each gets all four words of one.
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
// Rows of 128 numbers, of which `left` are there from the thread's first row.
template <bool HALF> __device__ __forceinline__ void store(
    const float (&o)[16][4], const float (&total)[2], unsigned short* to, int left) {
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = total[h];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const float share = inverse(sum);
        #pragma unroll
        for (int j = 0; j < 16; j += 4) {
            u32 word[4];
            #pragma unroll
            for (int i = 0; i < 4; i++)
                word[i] = both<HALF>(o[j + i][2 * h] * share, o[j + i][2 * h + 1] * share);
            exchange(word, lane);
            if (8 * h < left)
                *(uint4*)(to + h * 8 * 128 + (j + lane % 4) * 8) = uint4{word[0], word[1], word[2], word[3]};
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
        auto put = [&](const Map* from, int tile) {
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

template <bool HALF> __device__ __forceinline__ void attend(
    const Maps& maps, const Sizes& n, unsigned short* out) {
    u64 *full = (u64*)(memory + SLOTS * TILE + 4 * QUERIES), *empty = full + SLOTS;
    u64 *full_queries = empty + SLOTS, *empty_queries = full_queries + 4;
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++) ready(full + i, 1), ready(empty + i, 8);
        for (int i = 0; i < 4; i++) ready(full_queries + i, 1), ready(empty_queries + i, 4);
        all_ready();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        give_registers<40>();
        if (threadIdx.x == 0) fetch_all(maps, n, full, empty);
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
    auto take_turn = [&] {
        if (TURNS) wait_for_turn(group);
    };
    auto pass_turn = [&] {
        if (TURNS) pass_turn_to(group ^ 1);
    };

    float s[16][4], o[16][4], top[2], total[2], shrink[2];
    u32 p[8][4];
    Work work = work_of(0, n);  // there is always a first
    int block = block_of(work);
    await(full_queries + group, 0);
    int key = next(), value;
    u64 queries = described(memory + SLOTS * TILE + group * QUERIES);
    if (group) pass_turn();
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
            take_turn();
            begin_scores<HALF>(s, queries, described(memory + key * TILE));
            begin_sums<HALF, 128>(o, p, described_across(memory + value * TILE), tile > 1);
            pass_turn();
            finished<1>();
            settled(s);
            release(empty + key);
            if (tile == tiles) mask(s, behind);
            soften(s, top, total, shrink, n.scale);
            if (PINNED) done_before(total, memory);
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
        take_turn();
        if (wide) begin_sums<HALF, 128>(o, p, described_across(memory + value * TILE), tiles > 0);
        else begin_sums<HALF, 64>(o, p, described_across(memory + value * TILE), tiles > 0);
        begin_scores<HALF>(s, queries, described(memory + key * TILE));
        pass_turn();
        finished<1>();
        settled(o), settled(p);
        release(empty + value);
        const int first = block * 64 + row;
        const i64 head = n.paired ? 2 * work.unit + group : work.unit;
        store<HALF>(o, total, out + (head * n.length + first) * 128, n.length - first);
        if (!then.there) break;
        work = then, block = block_of(work);
    }
    finished<0>();
    settled(s);
    if (group == 0) take_turn();  // the last that was passed
}
extern "C" __global__ void __launch_bounds__(384, 1) attend_half(
    const __grid_constant__ Maps maps, unsigned short* out, const __grid_constant__ Sizes n) {
    attend<true>(maps, n, out);
}
extern "C" __global__ void __launch_bounds__(384, 1) attend_brain(
    const __grid_constant__ Maps maps, unsigned short* out, const __grid_constant__ Sizes n) {
    attend<false>(maps, n, out);
}
"""
SOURCE = INSTRUCTIONS + KERNEL_CODE
KERNELS = load_cuda(SOURCE, flags=[f"-DTURNS={TURNS}", f"-DSLOTS={SLOTS}", f"-DPINNED={PINNED}"])
SHARED = (SLOTS * 128 + 4 * 64) * 256 + (2 * SLOTS + 8) * 8
DIM = 128


@functools.lru_cache(maxsize=1)
def encoder():
    encode = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    encode.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_uint32,
        *[ctypes.c_void_p] * 5,
        *[ctypes.c_int] * 4,
    ]
    return encode


@functools.lru_cache(maxsize=1024)
def described(at, heads, length, half):
    """How the copy engine reads [heads, length, 128] at an address, by boxes of 64 x 64 in rows of 128 swizzled bytes;
    zeros beyond the length. It depends on these arguments alone, and takes longer to make than a kernel to launch."""
    room = ctypes.create_string_buffer(128 + 64)
    place = ctypes.addressof(room) + -ctypes.addressof(room) % 64
    size, stride = (
        (ctypes.c_uint64 * 3)(DIM, length, heads),
        (ctypes.c_uint64 * 2)(2 * DIM, 2 * DIM * length),
    )
    box, every = (ctypes.c_uint32 * 3)(64, 64, 1), (ctypes.c_uint32 * 3)(1, 1, 1)
    # FLOAT16 or BFLOAT16, no interleaving, SWIZZLE_128B, zeros.
    code = encoder()(place, 6 if half else 9, 3, at, size, stride, box, every, 0, 3, PROMOTION, 0)
    if code:
        raise RuntimeError(f"cuTensorMapEncodeTiled: {code} for {heads} heads of {length}")
    return ctypes.string_at(place, 128)


@functools.lru_cache(maxsize=64)
def plan(batch, heads, shared, length, half, device):
    """The launch for these sizes, and what the kernel is told of them."""
    groups = heads // shared
    paired = groups % 2 == 0
    units = batch * heads // (2 if paired else 1)
    tiles = -(-length // (64 if paired else 128))
    blocks = min(units * tiles, torch.cuda.get_device_properties(device).multi_processor_count)
    kernel = KERNELS.attend_half if half else KERNELS.attend_brain
    scale = math.log2(math.e) / math.sqrt(DIM)
    return kernel[(blocks,), (384,), SHARED], struct.pack("<5if", length, groups, units, tiles, paired, scale)


def by_warp_groups(q, k, v):
    q, k, v = (each if each.data_ptr() % 16 == 0 else each.clone() for each in (q, k, v))
    batch, heads, length, _ = q.shape
    shared, half = k.shape[1], q.dtype == torch.float16
    launch, sizes = plan(batch, heads, shared, length, half, q.device)
    maps = described(q.data_ptr(), batch * heads, length, half)
    maps += described(k.data_ptr(), batch * shared, length, half)
    maps += described(v.data_ptr(), batch * shared, length, half)
    out = torch.empty_like(q)
    launch(maps, out, sizes)
    return out


@triton.jit
def attend_blocks(
    acc, top, total, query, k, v, m, low, high, D, scale,
    BN: tl.constexpr, BD: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Keys `low` to `high` for one block of queries, with a running softmax in powers of two, scaled as in `soften`."""
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
    q, k, v, out, heads, groups, L, D, scale, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr
):  # fmt: skip
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    shared = (head // heads) * (heads // groups) + (head % heads) // groups
    m = block * BM + tl.arange(0, BM)
    d = tl.arange(0, BD)
    real = (m < L)[:, None] & (d < D)[None, :]
    at = (head * L + m)[:, None] * D + d[None, :]
    query = tl.load(q + at, mask=real, other=0.0)
    k += shared * L * D
    v += shared * L * D
    acc = tl.zeros((BM, BD), tl.float32)
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    edge, end = block * BM, tl.minimum(block * BM + BM, L)
    acc, top, total = attend_blocks(acc, top, total, query, k, v, m, 0, edge, D, scale, BN, BD, False)
    acc, top, total = attend_blocks(acc, top, total, query, k, v, m, edge, end, D, scale, BN, BD, True)
    tl.store(out + at, (acc / total[:, None]).to(out.dtype.element_ty), mask=real)


def by_blocks(q, k, v):
    batch, heads, length, dim = q.shape
    out = torch.empty_like(q)
    wide = q.element_size() == 4 or dim > 128
    bm = 64 if wide else min(BM, max(16, triton.next_power_of_2(length)))
    bn = min(BN, 32) if wide else min(BN, bm)
    attend[(triton.cdiv(length, bm), batch * heads)](
        q, k, v, out, heads, heads // k.shape[1], length, dim, math.log2(math.e) / math.sqrt(dim),
        BM=bm, BN=bn, BD=max(16, triton.next_power_of_2(dim)),
        num_warps=WARPS if bm == 128 else 4, num_stages=2 if wide else STAGES,
    )  # fmt: skip
    return out


def checked(q, k, v):
    batch, heads, length, dim = q.shape
    shared = k.shape[1]
    if v.shape != k.shape or k.shape != (batch, shared, length, dim) or heads % max(1, shared) or dim > 256:
        raise ValueError("queries, keys and values of one length are needed, with at most 256 numbers a head")
    if q.dtype == torch.float64 or not q.dtype == k.dtype == v.dtype:
        raise ValueError("one type for all is needed, and not float64")
    return q.contiguous(), k.contiguous(), v.contiguous()


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        q, k, v = checked(q, k, v)
        if not q.numel():
            return torch.empty_like(q)
        return (by_warp_groups if q.shape[3] == DIM and q.element_size() == 2 else by_blocks)(q, k, v)
