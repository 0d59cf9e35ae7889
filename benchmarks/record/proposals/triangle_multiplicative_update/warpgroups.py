"""Projections and the product of pairs by instructions of four warps (wgmma). Four warps load and normalise the next
128 pairs into one of two tiles while eight multiply the other by all weights, which come as registers: from shared
memory at 128 channels, from L2 at 384, where they do not fit. Columns are permuted so that a thread stores 8
neighbouring pairs of a channel. Left and right are stored as the product's swizzled tiles, which it fetches whole.

Bound by memory, 3.0 TB/s: at N = 1024 and 384 channels 0.8 ms for the projections (0.7 of tensor cores; L2 brings 1.7
bytes of weights for each that memory moves) and 0.7 for the output; the product is bound by tensor cores and L2, 0.4.
Factors are bf16: products of small activations and closed gates lie below what fp16 resolves (half of a column was lost
at activations of 1e-4), and tensor cores take both at the same speed. Sums over the third node are float32.
"""

import functools

import torch
import triton
import triton.language as tl
from kernelwright import load_cuda
from torch import nn

TUNABLES = {"AHEAD": [0, 2, 4], "EARLY": [0, 1], "STAGES": [3, 4]}
AHEAD = 2
EARLY = 0
STAGES = 4


def instruction(columns, first):
    """m64nNk16 with sums [N / 8][4] in registers; what is multiplied from registers, or by a descriptor."""
    count = columns // 2
    sums = ",".join(f"%{i}" for i in range(count))
    bound = ",".join(f'"+f"(sum[{i // 4}][{i % 4}])' for i in range(count))
    held = first == "const u32 (&a)[4]"
    given = "{" + ",".join(f"%{count + i}" for i in range(4)) + "}" if held else f"%{count}"
    after = count + (4 if held else 1)
    left = '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])' if held else '"l"(a)'
    return (
        f"__device__ __forceinline__ void multiply_{columns}("
        f"float (&sum)[{count // 4}][4], {first}, u64 b, int add) {{\n"
        f'    asm volatile("{{.reg .pred p; setp.ne.b32 p, %{after + 1}, 0;'
        f" wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 "
        f'{{{sums}}}, {given}, %{after}, p, 1, 1{"" if held else ", 0"}, 0;}}"\n'
        f'        : {bound} : {left}, "l"(b), "r"(add));\n}}\n'
    )


INSTRUCTIONS = r"""
#include <cuda_bf16.h>
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef __nv_bfloat16 bf16;

// What the machine does, and C++ has no word for.
__device__ __forceinline__ float low(u32 two) { return __uint_as_float(two << 16); }
__device__ __forceinline__ float high(u32 two) { return __uint_as_float(two & 0xffff0000u); }
// The same in other words: halves that are wanted again later would be kept by the compiler, and spill.
__device__ __forceinline__ float low_again(u32 two) { return __uint_as_float(__byte_perm(two, 0, 0x1044)); }
__device__ __forceinline__ float high_again(u32 two) { return __uint_as_float(__byte_perm(two, 0, 0x3244)); }
__device__ __forceinline__ u32 both(float first, float second) {
    u32 two;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(second), "f"(first));
    return two;
}
__device__ __forceinline__ float most(float a, float b) { return a < b ? b : a; }  // of NaN and b, NaN
__device__ __forceinline__ float sigmoid(float x) {
    float power, share;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.4426950408889634f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(share) : "f"(1.0f + power));
    return share;
}
__device__ __forceinline__ void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
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
// Copies whole multiples of 16 bytes into shared memory; the barrier's phase turns when all that it expects is there.
__device__ __forceinline__ void fetch(void* to, const void* from, u32 bytes, u64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :: "r"(at_shared(to)), "l"(from), "r"(bytes), "r"(at_shared(barrier)) : "memory");
}
__device__ __forceinline__ void await(u64* barrier, u32 phase) {
    u32 done;
    do {
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
            : "=r"(done) : "r"(at_shared(barrier)), "r"(phase) : "memory");
    } while (!done);
}
__device__ __forceinline__ void to_cache(const void* from, u32 bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(from), "r"(bytes));
}
__device__ __forceinline__ void line_to_cache(const void* from) {
    asm volatile("prefetch.global.L2 [%0];" :: "l"(from));
}
// What this thread wrote, wgmma may read: it comes to shared memory by another way.
__device__ __forceinline__ void written() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_batch() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void finished() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory");
}
// What follows stays behind what was waited for.
template <int TILES> __device__ __forceinline__ void settled(float (&sum)[TILES][4]) {
    #pragma unroll
    for (int i = 0; i < TILES * 4; i++) asm volatile("" : "+f"(sum[i / 4][i % 4]) :: "memory");
}
// Rows of 128 bytes, their eight pieces of 16 in the order of an exclusive or with the row; eight rows are 1,024 bytes.
__device__ __forceinline__ u64 described(const void* at) {
    return (u64)(at_shared(at) & 0x3ffff) >> 4 | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62;
}
// Weights, as they are packed; in this order to what else is volatile.
__device__ __forceinline__ void get(u32 (&to)[4], const unsigned char* from) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "l"(from));
}
__device__ __forceinline__ void get(u32 (&to)[4], u32 from) {
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from));
}
"""
INSTRUCTIONS += instruction(128, "const u32 (&a)[4]") + instruction(256, "u64 a")

KERNEL_CODE = r"""
extern __shared__ __align__(1024) unsigned char memory[];
constexpr int WARPS = 8, LOAD = 512;  // bytes of an operand of 16 x 16: 16 of each lane

__device__ __forceinline__ void load(u32 (&words)[4], const bf16* from) {
    const uint4 v = __ldcs((const uint4*)from);
    words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
}
// The sum over the four or eight lanes that share a pair.
__device__ __forceinline__ float of_four(float value) {
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value + __shfl_xor_sync(0xffffffffu, value, 2);
}
__device__ __forceinline__ float of_eight(float value) {
    value = of_four(value);
    return value + __shfl_xor_sync(0xffffffffu, value, 4);
}

// Operands have their own order of input channels, in which a lane's are neighbours: of 16, lane l has the four from
// 4 (l % 4). Weights follow it. One warp packs one row of 16 in a block of 16 x 16; row, channel -> its place.
__device__ __forceinline__ i64 place_of(i64 block, int line, int k, int word) {
    return (block * 32 + line * 4 + k % 16 / 4) * 8 + word * 2 + k % 2;
}
// Of tiles in shared memory: of 64 channels, the four from 4 u and the four from 32 + 4 u are a piece, u = 0, .. 7.
__device__ __forceinline__ i64 place_in_tile(i64 block, int steps, int line, int c) {
    const int k = c % 32 / 4 * 8 + c % 64 / 32 * 4 + c % 4;
    const int step = c / 64 * 4 + k / 16, word = line / 8 + k % 16 / 8 * 2;
    return ((block * steps + step) * 32 + line % 8 * 4 + k % 8 / 2) * 8 + word * 2 + k % 2;
}

// The blocks: `groups` of 8 channels of left, as many of right, each with their gates; then out_gate's, 16 in a block.
extern "C" __global__ void __launch_bounds__(256) pack(
    const float* left, const float* left_gate, const float* right, const float* right_gate, const float* out_gate,
    const float* scale, const float* shift, const float* last, bf16* made, i64 weights, i64 biases, i64 lasts,
    int width, int hidden, int steps, int last_steps, int blocks, int last_blocks, int tiles) {
    const int lane = threadIdx.x % 32, row = blockIdx.x * WARPS + threadIdx.x / 32, block = row / 16, line = row % 16;
    if (block < blocks) {
        const int groups = (hidden + 7) / 8, side = block / groups;
        const float* from = left;
        int d;
        if (side < 2) {
            from = side ? (line < 8 ? right : right_gate) : (line < 8 ? left : left_gate);
            d = (block - side * groups) * 8 + line % 8;
        } else {
            from = out_gate;
            d = (block - 2 * groups) * 16 + line;
        }
        float bias = 0.0f;
        for (int c = lane; c < steps * 16; c += 32) {
            const bool real = d < hidden && c < width;
            const float w = real ? from[(i64)d * width + c] : 0.0f;
            if (real) bias += w * shift[c];
            const i64 place = tiles
                ? place_in_tile(block, steps, line, c)
                : place_of((i64)block * steps + c / 16, line % 8, c, line / 8 + c % 4 / 2 * 2);
            made[weights + place] = __float2bfloat16_rn(real ? w * scale[c] : 0.0f);
        }
        for (int step = 16; step; step /= 2) bias += __shfl_xor_sync(0xffffffffu, bias, step);
        if (lane == 0) ((float*)(made + biases))[row] = bias;
    } else if (block < blocks + last_blocks) {
        // Column g of tile j is the output's channel 4 (g / 2) + 2 j + g % 2: a lane's of two tiles are neighbours.
        const int c = (block - blocks) * 16 + line, g = line / 4 * 2 + line % 2, j = line % 4 / 2;
        for (int d = lane; d < last_steps * 16; d += 32)
            made[lasts + place_of((i64)(block - blocks) * last_steps + d / 16, g, d, j * 2 + d % 4 / 2)] =
                __float2bfloat16_rn(c < width && d < hidden ? last[(i64)c * hidden + d] : 0.0f);
    }
}

struct Sizes { int square, batch, hidden, groups; };

// Eight neighbouring pairs of a channel, of which `left` are there.
__device__ __forceinline__ void store(bf16* to, const float (&v)[8]) {
    *(uint4*)to = uint4{both(v[0], v[1]), both(v[2], v[3]), both(v[4], v[5]), both(v[6], v[7])};
}
__device__ __forceinline__ void store_some(bf16* to, const float (&v)[8], int left, int even) {
    if (even) {
        if (left > 0) store(to, v);
    } else {
        #pragma unroll
        for (int k = 0; k < 8; k++)
            if (k < left) to[k] = __float2bfloat16_rn(v[k]);
    }
}

// The pair that column `lane / 4` of tile j is: a thread's columns of four tiles are eight neighbours.
__device__ __forceinline__ int pair_of(int j, int lane) { return j / 4 * 32 + lane / 8 * 8 + j % 4 * 2 + lane / 4 % 2; }
// And the column of pair m.
__device__ __forceinline__ int column_of(int m) { return (m & ~31) + m % 8 / 2 * 8 + m % 32 / 8 * 2 + m % 2; }

// What a block of 16 rows gave for 8 TILES pairs: values (rows 0 to 7) and their gates, or out_gate's. `put` stores the
// thread's eight pairs of every 32: h, the plane of its channel, whose it is (left's is side 0), the channel, values.
template <int TILES, class Put> __device__ __forceinline__ void keep(
    const float (&acc)[TILES][4], float bias, float more_bias, const float* masks, bf16* made, const Sizes& n, i64 b,
    int block, Put put) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const bool paired = block < 2 * n.groups;
    const int side = paired ? block >= n.groups : 2, d = (block - side * n.groups) * (paired ? 8 : 16) + g;
    bf16* plane = made + (((i64)side * n.batch + b) * n.hidden + d) * n.square;
    if (paired) {
        #pragma unroll
        for (int h = 0; h < TILES / 4; h++) {
            float v[8];
            #pragma unroll
            for (int k = 0; k < 8; k++) {
                const float (&tile)[4] = acc[4 * h + k / 2];
                v[k] = (tile[k % 2] + bias) * masks[32 * h + 8 * t + k] * sigmoid(tile[2 + k % 2] + more_bias);
            }
            put(h, plane, side, d, v);
        }
    } else {
        #pragma unroll
        for (int h = 0; h < TILES / 2; h++) {
            float v[8];
            #pragma unroll
            for (int k = 0; k < 8; k++)
                v[k] = sigmoid(acc[h / 2 * 4 + k / 2][h % 2 * 2 + k % 2] + (h % 2 ? more_bias : bias));
            put(h / 2, plane + 8 * (h % 2) * (i64)n.square, side, d + 8 * (h % 2), v);
        }
    }
}

// The last four warps make tiles of 128 pairs, one after the other in two places: rows of 64 channels of a pair, as
// wgmma wants its second operand, the pair of column n as `pair_of` says. Each other four multiply every second 64 of
// 640 rows of weights by it, each warp with its 16 rows in registers, fetched one or two batches of 64 channels ahead;
// while one four finish theirs, the others keep the tensor cores busy. HELD: weights stay in shared memory. TILED: left
// and right are [k / 64][row][64] for `multiply_pairs`, in which 64 pairs are of one row.
template <int WIDTH, bool HELD, bool TILED> __device__ __forceinline__ void normalise_and_multiply(
    const float* x, const float* mask, bf16* made, i64 weights, i64 biases, int nodes, int square, int batch, int even,
    float eps) {
    constexpr int STEPS = WIDTH / 16, BATCHES = WIDTH / 64, BUFFERS = BATCHES == 2 ? 2 : 3;
    constexpr int HIDDEN = 128, CHUNKS = 10, CHUNK = 4 * STEPS * LOAD;  // 64 rows each, of 16 in a block
    constexpr int PART = 128 * 128, TILE = BATCHES * PART;  // bytes
    static_assert(BATCHES % BUFFERS == 0, "a batch always has the same registers");
    unsigned char* own_weights = memory + 2 * TILE;
    float* masks = (float*)(own_weights + (HELD ? CHUNKS * CHUNK : 0));  // of four tiles
    u64 *full = (u64*)(masks + 4 * 128), *empty = full + 2, *here = empty + 2;
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, group = threadIdx.x / 128;
    const int each = (square + 127) / 128, tiles = batch * each;
    const unsigned char* source = (const unsigned char*)(made + weights);

    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) ready(full + i, 128), ready(empty + i, 32 * WARPS);
        if (HELD)
            for (int c = 0; c < CHUNKS; c++) ready(here + c, 1);
        all_ready();
    }
    __syncthreads();
    if (group == 2) {
        constexpr int SETS = WIDTH == 128 ? 4 : 2, LOADS = WIDTH / 32, PAIRS = 4 * SETS, TIMES = 32 / PAIRS;
        const int u = lane % 8, r = lane / 8;  // eight lanes have a pair
        if (HELD && threadIdx.x == 256) {
            for (int c = 0; c < CHUNKS; c++) {
                expect(here + c, CHUNK);
                fetch(own_weights + c * CHUNK, source + c * CHUNK, CHUNK, here + c);
            }
        }
        int round = 0;
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, round++) {
            const i64 b = tile / each;
            const int first = tile % each * 128 + 32 * warp, buffer = round % 2;
            #pragma unroll 1
            for (int time = 0; time < TIMES; time++) {
                float4 v[SETS][LOADS];
                #pragma unroll
                for (int i = 0; i < SETS; i++) {
                    // What is not stored may be anything.
                    const int m = min(first + time * PAIRS + 4 * i + r, square - 1);
                    const float* from = x + (b * square + m) * WIDTH + 4 * u;
                    #pragma unroll
                    for (int s = 0; s < LOADS; s++) v[i][s] = __ldcs((const float4*)(from + 32 * s));
                }
                if (AHEAD && lane == 0) {
                    const int coming = tile + (time + AHEAD) / TIMES * gridDim.x;
                    const int m = coming % each * 128 + 32 * warp + (time + AHEAD) % TIMES * PAIRS;
                    if (coming < tiles && m < square)
                        to_cache(x + ((i64)(coming / each) * square + m) * WIDTH, min(PAIRS, square - m) * WIDTH * 4);
                }
                if (time == 0) {
                    await(empty + buffer, (round / 2 & 1) ^ 1);
                    const int m = first + lane;
                    masks[round % 4 * 128 + 32 * warp + lane] = m < square ? mask[b * square + m] : 0.0f;
                }
                #pragma unroll
                for (int i = 0; i < SETS; i++) {
                    float4 (&now)[LOADS] = v[i];
                    float sum = 0.0f, more = 0.0f, square_sum = 0.0f, square_more = 0.0f;
                    #pragma unroll
                    for (int s = 0; s < LOADS; s++) sum += now[s].x + now[s].y, more += now[s].z + now[s].w;
                    const float mean = of_eight(sum + more) * (1.0f / WIDTH);
                    #pragma unroll
                    for (int s = 0; s < LOADS; s++) {
                        now[s].x -= mean, now[s].y -= mean, now[s].z -= mean, now[s].w -= mean;
                        square_sum += now[s].x * now[s].x + now[s].y * now[s].y;
                        square_more += now[s].z * now[s].z + now[s].w * now[s].w;
                    }
                    const float scale = rsqrtf(of_eight(square_sum + square_more) * (1.0f / WIDTH) + eps);
                    const int column = column_of(32 * warp + time * PAIRS + 4 * i + r);
                    unsigned char* to = memory + buffer * TILE + column * 128 + (u ^ column % 8) * 16;
                    #pragma unroll
                    for (int s = 0; s < LOADS; s += 2) {
                        const float4 one = now[s], two = now[s + 1];
                        *(uint4*)(to + s / 2 * PART) = uint4{
                            both(one.x * scale, one.y * scale), both(one.z * scale, one.w * scale),
                            both(two.x * scale, two.y * scale), both(two.z * scale, two.w * scale)};
                    }
                }
            }
            written();
            arrive(full + buffer);
        }
        return;
    }

    const int t = lane % 4, g = lane / 4;
    const Sizes n = {square, batch, HIDDEN, HIDDEN / 8};
    const float* bias = (const float*)(made + biases) + warp * 16 + g;
    u32 w[BUFFERS][4][4];
    auto get_batch = [&](u32 (&to)[4][4], int chunk, int k) {
        const u32 at = chunk * CHUNK + (warp * STEPS + 4 * k) * LOAD + lane * 16;
        #pragma unroll
        for (int s = 0; s < 4; s++) {
            if constexpr (HELD) get(to[s], at_shared(own_weights) + at + s * LOAD);
            else get(to[s], source + at + s * LOAD);
        }
    };
    if (HELD) await(here + group, 0);
    #pragma unroll
    for (int k = 0; k < BUFFERS - 1; k++) get_batch(w[k], group, k);
    int round = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, round++) {
        const i64 b = tile / each;
        const int first = tile % each * 128, buffer = round % 2;
        const int row[2] = {first / nodes, (first + 64) / nodes}, col[2] = {first % nodes, (first + 64) % nodes};
        auto put = [&](int h, bf16* plane, int side, int, const float (&v)[8]) {
            const int m = first + 32 * h + 8 * t;
            if constexpr (TILED) {
                const int line = side ? column_of(row[h / 2]) : row[h / 2], piece = (h % 2 * 4 + t) ^ line % 8;
                store(plane + (side == 2 ? m : (col[h / 2] / 64 * nodes + line) * 64 + piece * 8), v);
            } else {
                store_some(plane + m, v, square - m, even);
            }
        };
        await(full + buffer, round / 2 & 1);
        const u64 operand = described(memory + buffer * TILE);
        #pragma unroll 1
        for (int chunk = group; chunk < CHUNKS; chunk += 2) {
            const int next = chunk + 2 < CHUNKS ? chunk + 2 : group;
            const float one_bias = __ldg(bias + chunk * 64), more_bias = __ldg(bias + chunk * 64 + 8);
            float acc[16][4];
            #pragma unroll
            for (int k = 0; k < BATCHES; k++) {
                begin_products();
                #pragma unroll
                for (int s = 0; s < 4; s++)  // 32 bytes further
                    multiply_128(acc, w[k % BUFFERS][s], operand + k * (PART / 16) + 2 * s, k || s);
                end_batch();
                finished<1>();
                constexpr int MORE = BUFFERS - 1;
                if (HELD && k + MORE == BATCHES) await(here + next, 0);
                get_batch(w[(k + MORE) % BUFFERS], k + MORE < BATCHES ? chunk : next, (k + MORE) % BATCHES);
            }
            finished<0>();
            settled(acc);
            if (chunk + 2 >= CHUNKS) arrive(empty + buffer);  // each lane: it has read the masks of the tile before
            keep(acc, one_bias, more_bias, masks + round % 4 * 128, made, n, b, chunk * 4 + warp, put);
        }
    }
}

extern "C" __global__ void __launch_bounds__(384, 1) project_128(
    const float* x, const float* mask, bf16* made, i64 weights, i64 biases, int nodes, int square, int batch, int even,
    float eps) {
    normalise_and_multiply<128, true, false>(x, mask, made, weights, biases, nodes, square, batch, even, eps);
}
extern "C" __global__ void __launch_bounds__(384, 1) project_384(
    const float* x, const float* mask, bf16* made, i64 weights, i64 biases, int nodes, int square, int batch, int even,
    float eps) {
    normalise_and_multiply<384, false, false>(x, mask, made, weights, biases, nodes, square, batch, even, eps);
}
extern "C" __global__ void __launch_bounds__(384, 1) project_128_tiled(
    const float* x, const float* mask, bf16* made, i64 weights, i64 biases, int nodes, int square, int batch, int even,
    float eps) {
    normalise_and_multiply<128, true, true>(x, mask, made, weights, biases, nodes, square, batch, even, eps);
}
extern "C" __global__ void __launch_bounds__(384, 1) project_384_tiled(
    const float* x, const float* mask, bf16* made, i64 weights, i64 biases, int nodes, int square, int batch, int even,
    float eps) {
    normalise_and_multiply<384, false, true>(x, mask, made, weights, biases, nodes, square, batch, even, eps);
}
// Inputs of any width that begin anywhere: operands are made again for every block of weights.
extern "C" __global__ void __launch_bounds__(256) project_any(
    const float* x, const float* mask, bf16* made, i64 weights, i64 biases, int square, int batch, int width,
    int hidden, int blocks, int steps, int even, float eps) {
    __shared__ __align__(16) float masks[WARPS][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const Sizes n = {square, batch, hidden, (hidden + 7) / 8};
    const int each = (square + 31) / 32, tile = blockIdx.x * WARPS + warp;
    if (tile >= batch * each) return;
    const i64 b = tile / each;
    const int first = tile % each * 32;
    masks[warp][lane] = first + lane < square ? mask[b * square + first + lane] : 0.0f;
    __syncwarp();
    float mean[4], scale[4];
    for (int j = 0; j < 4; j++) {
        const int m = first + pair_of(j, lane), real = m < square ? width : 0;
        const float* from = x + (b * square + m) * width;
        float sum = 0.0f, square_sum = 0.0f;
        for (int c = t; c < real; c += 4) sum += from[c];
        mean[j] = of_four(sum) / width;
        for (int c = t; c < real; c += 4) square_sum += (from[c] - mean[j]) * (from[c] - mean[j]);
        scale[j] = rsqrtf(of_four(square_sum) / width + eps);
    }
    const uint4* packed = (const uint4*)(made + weights) + lane;
    const float* bias = (const float*)(made + biases);
    for (int block = 0; block < blocks; block++) {
        float acc[4][4] = {};
        for (int s = 0; s < steps; s++) {
            const uint4 w = packed[((i64)block * steps + s) * 32];
            #pragma unroll
            for (int j = 0; j < 4; j++) {
                const int m = first + pair_of(j, lane);
                const float* from = x + (b * square + m) * width;
                float v[4];
                #pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int c = 16 * s + 4 * t + e;
                    v[e] = m < square && c < width ? (from[c] - mean[j]) * scale[j] : 0.0f;
                }
                multiply(acc[j], w.x, w.y, w.z, w.w, both(v[0], v[1]), both(v[2], v[3]));
            }
        }
        keep(acc, bias[block * 16 + g], bias[block * 16 + 8 + g], masks[warp], made, n, b, block,
             [&](int, bf16* plane, int, int d, const float (&v)[8]) {
                 if (d < hidden) store_some(plane + first + 8 * t, v, square - first - 8 * t, even);
             });
    }
}

// The fourth plane: of each channel, out[i, j] = sum over k of left[i, k] * right[j, k], in tiles of 128 x 256. Left
// and right are [k / 64][row][64], rows of 128 bytes swizzled; right's have the order of columns, so that a thread
// stores eight neighbours. A thread of the ninth warp fetches ahead, also while the eight store. The last batch comes
// first: L2 still has some of it, and the output begins with the first batch.
extern "C" __global__ void __launch_bounds__(288, 1) multiply_pairs(bf16* made, int nodes, int channels) {
    constexpr int COLS = 256, LEFT = 128 * 128, STAGE = LEFT + COLS * 128;  // bytes
    u64 *full = (u64*)(memory + STAGES * STAGE), *empty = full + STAGES;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int across = nodes / COLS, each = nodes / 128 * across, tiles = each * channels, steps = nodes / 64;
    const i64 square = (i64)nodes * nodes, plane = channels * square;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) ready(full + s, 1), ready(empty + s, WARPS);
        all_ready();
    }
    __syncthreads();
    int slot = 0;
    u32 turn = 0;
    if (warp == WARPS) {
        if (lane) return;
        for (int tile = tiles - 1 - blockIdx.x; tile >= 0; tile -= gridDim.x) {
            const bf16* a = made + tile / each * square + tile % each / across * (128 * 64);
            const bf16* b = made + plane + tile / each * square + tile % each % across * (COLS * 64);
            for (int step = 0; step < steps; step++, a += nodes * 64, b += nodes * 64) {
                await(empty + slot, turn ^ 1);
                expect(full + slot, STAGE);
                fetch(memory + slot * STAGE, a, LEFT, full + slot);
                fetch(memory + slot * STAGE + LEFT, b, COLS * 128, full + slot);
                if (++slot == STAGES) slot = 0, turn ^= 1;
            }
        }
        return;
    }
    const int half = warp / 4 * 64;
    for (int tile = tiles - 1 - blockIdx.x; tile >= 0; tile -= gridDim.x) {
        float acc[COLS / 8][4];
        int last = 0;
        #pragma unroll 1
        for (int step = 0; step < steps; step++) {
            await(full + slot, turn);
            const unsigned char* at = memory + slot * STAGE;
            const u64 a = described(at + half * 128), b = described(at + LEFT);
            begin_products();
            #pragma unroll
            for (int k = 0; k < 4; k++) multiply_256(acc, a + 2 * k, b + 2 * k, step || k);  // 32 bytes further
            end_batch();
            finished<1>();
            if (step && lane == 0) arrive(empty + last);
            last = slot;
            if (++slot == STAGES) slot = 0, turn ^= 1;
        }
        finished<0>();
        settled(acc);
        if (lane == 0) arrive(empty + last);
        const int i = tile % each / across * 128 + half + warp % 4 * 16 + lane / 4;
        const int j = tile % each % across * COLS + lane % 4 * 8;
        bf16* to = made + 3 * plane + tile / each * square + (i64)i * nodes + j;
        #pragma unroll
        for (int h = 0; h < COLS / 32; h++) {
            #pragma unroll
            for (int more = 0; more < 2; more++) {
                u32 word[4];
                #pragma unroll
                for (int k = 0; k < 4; k++) word[k] = both(acc[4 * h + k][2 * more], acc[4 * h + k][2 * more + 1]);
                *(uint4*)(to + (i64)(8 * more) * nodes + 32 * h) = uint4{word[0], word[1], word[2], word[3]};
            }
        }
    }
}

// A warp has 64 pairs with all channels in registers (16, 32, .. 128), eight neighbouring pairs of 32 channels a lane:
// they come channel by channel, and two channels make an operand of a pair. Weights stay in shared memory.
extern "C" __global__ void __launch_bounds__(256, 1) finish_128(
    const bf16* made, const float* gamma, const float* beta, float* out, i64 lasts, int square, int batch, int width,
    int hidden, int last_blocks, int whole, float eps) {
    constexpr int STEPS = 8;
    uint4* weights = (uint4*)memory;
    float* gammas = (float*)(memory + last_blocks * STEPS * LOAD);
    float* betas = gammas + STEPS * 16;
    u64* full = (u64*)(betas + STEPS * 16);
    const int steps = hidden / 16;
    const float share = 1.0f / hidden;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int each = (square + 63) / 64, tiles = batch * each, all = gridDim.x * WARPS;
    const bf16* gates = made + (i64)2 * batch * hidden * square;
    const bf16* pairs = made + (i64)3 * batch * hidden * square;

    auto lines_to_cache = [&](const bf16* plane, int tile) {
        const bf16* from = plane + (i64)(tile / each) * hidden * square + tile % each * 64;
        for (int d = lane; d < hidden; d += 32) line_to_cache(from + (i64)d * square);
    };
    if (threadIdx.x == 0) {
        ready(full, 1);
        all_ready();
        expect(full, last_blocks * STEPS * LOAD);
        fetch(weights, made + lasts, last_blocks * STEPS * LOAD, full);
    }
    for (int i = threadIdx.x; i < hidden; i += 32 * WARPS) gammas[i] = gamma[i], betas[i] = beta[i];
    __syncthreads();
    for (int tile = blockIdx.x * WARPS + warp; tile < tiles; tile += all) {
        if (!EARLY) lines_to_cache(gates, tile);  // while there are no registers for them
        const i64 b = tile / each;
        const int first = tile % each * 64 + 8 * g, m = min(first, square - 8);  // what is not stored may be anything
        const i64 at = (b * hidden + 4 * t) * square + m;
        u32 a[STEPS][4][4] = {};  // by channel and two pairs; then by two pairs, as operands
        #pragma unroll
        for (int s = 0; s < STEPS; s++)
            #pragma unroll
            for (int e = 0; e < 4; e++)
                if (s < steps) load(a[s][e], pairs + at + (i64)(16 * s + e) * square);
        // Sums around the first channel's value, which is within 11.3 standard deviations of the mean of 128: no more
        // than 7 of 24 bits cancel.
        float about[8], mean[8] = {}, scale[8] = {};
        #pragma unroll
        for (int k = 0; k < 4; k++) {
            const u32 two = __shfl_sync(0xffffffffu, a[0][0][k], lane & ~3);
            about[2 * k] = low(two), about[2 * k + 1] = high(two);
        }
        #pragma unroll
        for (int s = 0; s < STEPS; s++) {
            if (s >= steps) continue;
            #pragma unroll
            for (int e = 0; e < 4; e++)
                #pragma unroll
                for (int k = 0; k < 4; k++) {
                    const float one = low(a[s][e][k]) - about[2 * k], other = high(a[s][e][k]) - about[2 * k + 1];
                    mean[2 * k] += one, mean[2 * k + 1] += other;
                    scale[2 * k] += one * one, scale[2 * k + 1] += other * other;
                }
        }
        #pragma unroll
        for (int k = 0; k < 8; k++) {
            mean[k] = of_four(mean[k]) * share;
            scale[k] = rsqrtf(most(of_four(scale[k]) * share - mean[k] * mean[k], 0.0f) + eps);
            mean[k] += about[k];
        }
        u32 next[2][4][4] = {};  // gates, two steps ahead
        #pragma unroll
        for (int s = 0; s < 2; s++)
            #pragma unroll
            for (int e = 0; e < 4; e++)
                if (s < steps) load(next[s][e], gates + at + (i64)(16 * s + e) * square);
        #pragma unroll
        for (int s = 0; s < STEPS; s++) {
            if (s >= steps) continue;
            const float4 up = *(const float4*)(gammas + 16 * s + 4 * t), add = *(const float4*)(betas + 16 * s + 4 * t);
            const float ups[4] = {up.x, up.y, up.z, up.w}, adds[4] = {add.x, add.y, add.z, add.w};
            u32 operand[4][4];
            #pragma unroll
            for (int k = 0; k < 4; k++) {
                float one[4], other[4];
                #pragma unroll
                for (int e = 0; e < 4; e++) {
                    one[e] = (low_again(a[s][e][k]) - mean[2 * k]) * scale[2 * k] * ups[e] + adds[e];
                    other[e] = (high_again(a[s][e][k]) - mean[2 * k + 1]) * scale[2 * k + 1] * ups[e] + adds[e];
                    one[e] *= low(next[s % 2][e][k]), other[e] *= high(next[s % 2][e][k]);
                }
                operand[k][0] = both(one[0], one[1]), operand[k][1] = both(other[0], other[1]);
                operand[k][2] = both(one[2], one[3]), operand[k][3] = both(other[2], other[3]);
            }
            #pragma unroll
            for (int k = 0; k < 4; k++)
                #pragma unroll
                for (int e = 0; e < 4; e++) a[s][k][e] = operand[k][e];
            if (s + 2 < STEPS && s + 2 < steps) {
                #pragma unroll
                for (int e = 0; e < 4; e++) load(next[s % 2][e], gates + at + (i64)(16 * s + 32 + e) * square);
            }
        }
        if (EARLY && tile + all < tiles) {
            lines_to_cache(pairs, tile + all);
            lines_to_cache(gates, tile + all);
        }
        await(full, 0);
        const uint4* own = weights + lane;
        float* to = out + (b * square + first) * width + 4 * t;
        #pragma unroll 1
        for (int q = 0; q < last_blocks; q++, own += STEPS * 32, to += 16) {
            float acc[4][2][4] = {};
            #pragma unroll
            for (int s = 0; s < STEPS; s++) {
                const uint4 w = own[s * 32];
                #pragma unroll
                for (int k = 0; k < 4; k++) {
                    multiply(acc[k][0], a[s][k][0], a[s][k][1], a[s][k][2], a[s][k][3], w.x, w.y);
                    multiply(acc[k][1], a[s][k][0], a[s][k][1], a[s][k][2], a[s][k][3], w.z, w.w);
                }
            }
            if (first >= square) continue;
            const int left = width - 16 * q - 4 * t;
            auto result = [&](int p, int e) { return acc[p / 2][e / 2][p % 2 * 2 + e % 2]; };
            if (!whole) {
                #pragma unroll
                for (int k = 0; k < 32; k++)
                    if (k % 4 < left) to[(i64)(k / 4) * width + k % 4] = result(k / 4, k % 4);
            } else if (left > 0) {
                #pragma unroll
                for (int p = 0; p < 8; p++)
                    __stcs((float4*)(to + (i64)p * width),
                           float4{result(p, 0), result(p, 1), result(p, 2), result(p, 3)});
            }
        }
    }
}
// Any number of pairs and of channels: operands are made again for every block of weights.
extern "C" __global__ void __launch_bounds__(256) finish_any(
    const bf16* made, const float* gamma, const float* beta, float* out, i64 lasts, int square, int batch, int width,
    int hidden, int last_blocks, int steps, float eps) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int each = (square + 15) / 16, tile = blockIdx.x * WARPS + threadIdx.x / 32;
    if (tile >= batch * each) return;
    const i64 b = tile / each, plane = (i64)batch * hidden * square;
    const int first = tile % each * 16;
    const unsigned short* gates = (const unsigned short*)(made + 2 * plane + b * hidden * square);
    const unsigned short* pairs = (const unsigned short*)(made + 3 * plane + b * hidden * square);
    float mean[2], scale[2];
    for (int half = 0; half < 2; half++) {
        const int m = first + g + 8 * half, real = m < square ? hidden : 0;
        float sum = 0.0f, square_sum = 0.0f;
        for (int d = t; d < real; d += 4) sum += low(pairs[(i64)d * square + m]);
        mean[half] = of_four(sum) / hidden;
        for (int d = t; d < real; d += 4) {
            const float apart = low(pairs[(i64)d * square + m]) - mean[half];
            square_sum += apart * apart;
        }
        scale[half] = rsqrtf(of_four(square_sum) / hidden + eps);
    }
    const uint4* packed = (const uint4*)(made + lasts) + lane;
    for (int q = 0; q < last_blocks; q++) {
        float acc[2][4] = {};
        for (int s = 0; s < steps; s++) {
            u32 a[2][2];
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                const int m = first + g + 8 * half;
                float v[4];
                #pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int d = 16 * s + 4 * t + e;
                    const i64 at = (i64)d * square + m;
                    v[e] = m < square && d < hidden
                        ? ((low(pairs[at]) - mean[half]) * scale[half] * gamma[d] + beta[d]) * low(gates[at]) : 0.0f;
                }
                a[half][0] = both(v[0], v[1]), a[half][1] = both(v[2], v[3]);
            }
            const uint4 w = packed[((i64)q * steps + s) * 32];
            multiply(acc[0], a[0][0], a[1][0], a[0][1], a[1][1], w.x, w.y);
            multiply(acc[1], a[0][0], a[1][0], a[0][1], a[1][1], w.z, w.w);
        }
        #pragma unroll
        for (int k = 0; k < 8; k++) {
            const int m = first + g + k / 4 * 8, c = 16 * q + 4 * t + k % 4;
            if (m < square && c < width) out[(b * square + m) * width + c] = acc[k % 4 / 2][k / 4 * 2 + k % 2];
        }
    }
}
"""
SOURCE = INSTRUCTIONS + KERNEL_CODE
KERNELS = load_cuda(SOURCE, flags=[f"-DAHEAD={AHEAD}", f"-DEARLY={EARLY}", f"-DSTAGES={STAGES}"])
SHARED = 227 * 1024


@triton.jit
def pair_products(made, N, TILE: tl.constexpr, DEPTH: tl.constexpr, EVEN: tl.constexpr):
    """The same as `multiply_pairs` for any number of nodes, of planes that lie row by row."""
    channel = tl.program_id(1).to(tl.int64) * N * N
    plane = tl.num_programs(1).to(tl.int64) * N * N
    tiles = tl.cdiv(N, TILE)
    i = (tl.program_id(0) // tiles) * TILE + tl.arange(0, TILE)
    j = (tl.program_id(0) % tiles) * TILE + tl.arange(0, TILE)
    k = tl.arange(0, DEPTH)
    a = made + channel + i[:, None] * N + k[None, :]
    b = made + plane + channel + j[None, :] * N + k[:, None]
    acc = tl.zeros((TILE, TILE), tl.float32)
    for start in range(0, N, DEPTH):
        if EVEN:
            acc = tl.dot(tl.load(a + start), tl.load(b + start), acc)
        else:
            real = k < N - start
            x = tl.load(a + start, mask=(i < N)[:, None] & real[None, :], other=0.0)
            acc = tl.dot(x, tl.load(b + start, mask=(j < N)[None, :] & real[:, None], other=0.0), acc)
    at = made + 3 * plane + channel + i[:, None] * N + j[None, :]
    if EVEN:
        tl.store(at, acc.to(tl.bfloat16))
    else:
        tl.store(at, acc.to(tl.bfloat16), mask=(i < N)[:, None] & (j < N)[None, :])


@functools.lru_cache(maxsize=8)
def processors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.lru_cache(maxsize=64)
def plan(batch, nodes, width, hidden, aligned, device):
    """The launches for these sizes, each with the numbers that follow its tensors; and the elements of what is made."""
    square, most = nodes * nodes, processors(device)
    even, blocks, last_blocks = square % 8 == 0, 2 * -(-hidden // 8) + -(-hidden // 16), -(-width // 16)
    steps, last_steps = -(-width // 16), -(-hidden // 16)
    fast = aligned and width in (128, 384) and hidden == 128
    tiled = fast and nodes % 256 == 0
    last_shared = last_blocks * 8 * 512 + 1024 + 8
    last_fast = even and hidden % 16 == 0 and hidden <= 128 and last_shared <= SHARED
    if last_fast:
        last_steps = 8
    # Four planes of hidden channels (left, right, out_gate, pairs), and behind them the weights.
    weights = -(-4 * batch * hidden * square // 64) * 64
    lasts = weights + blocks * steps * 256
    biases = lasts + last_blocks * last_steps * 256
    made = biases + blocks * 32
    pack = KERNELS.pack[(2 * (blocks + last_blocks),), (256,), 0]
    pack_numbers = (weights, biases, lasts, width, hidden, steps, last_steps, blocks, last_blocks, int(fast))
    if fast:
        kernel = getattr(KERNELS, f"project_{width}{'_tiled' if tiled else ''}")
        grid, held = min(most, batch * -(-square // 128)), 640 * 128 * 2 if width == 128 else 0
        project = kernel[(grid,), (384,), 2 * 128 * width * 2 + held + 4 * 128 * 4 + 14 * 8]
        project_numbers = (weights, biases, nodes, square, batch, int(even))
    else:
        project = KERNELS.project_any[(-(-batch * -(-square // 32) // 8),), (256,), 0]
        project_numbers = (weights, biases, square, batch, width, hidden, blocks, steps, int(even))
    numbers = (lasts, square, batch, width)
    if last_fast:
        finish = KERNELS.finish_128[(min(most, -(-batch * -(-square // 64) // 8)),), (256,), last_shared]
        finish_numbers = (*numbers, hidden, last_blocks, int(width % 4 == 0))
    else:
        finish = KERNELS.finish_any[(-(-batch * -(-square // 16) // 8),), (256,), 0]
        finish_numbers = (*numbers, hidden, last_blocks, last_steps)
    if tiled:
        grid = min(most, nodes // 128 * (nodes // 256) * batch * hidden)
        kernel = KERNELS.multiply_pairs[(grid,), (288,), STAGES * (128 + 256) * 128 + STAGES * 16]
        products = functools.partial(_products_of_tiles, kernel, nodes, batch * hidden)
    else:
        tile = min(128, max(16, triton.next_power_of_2(nodes)))
        kernel = pair_products[triton.cdiv(nodes, tile) ** 2, batch * hidden]
        options = {"num_warps": 8 if tile == 128 else 4, "num_stages": 4}
        even_tiles = nodes % tile == 0 and nodes % 64 == 0
        products = functools.partial(_products_of_rows, kernel, nodes, tile, even_tiles, options)
    return made, pack, pack_numbers, project, project_numbers, products, finish, finish_numbers


def _products_of_tiles(kernel, nodes, channels, made):
    kernel(made, nodes, channels)


def _products_of_rows(kernel, nodes, tile, even, options, made):
    kernel(made, nodes, TILE=tile, DEPTH=64, EVEN=even, **options)


def update(model, x, mask):
    x, mask = x.contiguous(), mask.contiguous()
    batch, nodes, other, width = x.shape
    left = model.left.weight.contiguous()
    hidden = left.shape[0]
    if nodes != other or mask.shape != x.shape[:3] or x.dtype != torch.float32 or mask.dtype != torch.float32:
        raise ValueError("a float32 tensor [batch, nodes, nodes, channels] and its mask are needed")
    out = torch.empty_like(x)
    if not x.numel():
        return out
    elements, pack, pack_numbers, project, project_numbers, products, finish, finish_numbers = plan(
        batch, nodes, width, hidden, x.data_ptr() % 16 == 0, x.device
    )
    made = torch.empty(elements, dtype=torch.bfloat16, device=x.device)
    norm, out_norm = model.norm, model.out_norm
    pack(
        left, model.left_gate.weight.contiguous(), model.right.weight.contiguous(),
        model.right_gate.weight.contiguous(), model.out_gate.weight.contiguous(), norm.weight, norm.bias,
        model.out.weight.contiguous(), made, *pack_numbers,
    )  # fmt: skip
    project(x, mask, made, *project_numbers, norm.eps)
    products(made)
    finish(made, out_norm.weight, out_norm.bias, out, *finish_numbers, out_norm.eps)
    return out


class ModelNew(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.left = nn.Linear(dim, hidden, bias=False)
        self.right = nn.Linear(dim, hidden, bias=False)
        self.left_gate = nn.Linear(dim, hidden, bias=False)
        self.right_gate = nn.Linear(dim, hidden, bias=False)
        self.out_gate = nn.Linear(dim, hidden, bias=False)
        self.out_norm = nn.LayerNorm(hidden)
        self.out = nn.Linear(hidden, dim, bias=False)

    def forward(self, x, mask):
        return update(self, x, mask)
