"""A cluster of eight blocks has a tile of tokens of one adapter. Each block multiplies an eighth of the inputs, the
parts are added up through the blocks' shared memories, and each then makes an eighth of the outputs: one launch, and
what is between the products never leaves the processors. What is read for the second product, base's values as well, is
under way while the first is still computed. Few tokens are looked for by each block among all of them; many are listed
by a launch before. One call of C++, as small workloads wait for the host.

Bound by memory: base, x and result once, and the adapters' own rows of a and b, which come from the L2 cache again for
further tiles. float32, and adapters wider than 64, have a slow way of their own.

On an H200 15 to 105 us, two to ten times as fast as the compiled reference.
"""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

TUNABLES = {"SCAN": [1024, 2048, 4096, 8192], "SPREAD": [1, 2]}
SCAN = 2048
"""Up to so many tokens blocks look through themselves; 8192 at most."""
SPREAD = 2
"""Of an adapter's tiles, if it has so many times the mean number of tokens, each has a cluster to itself."""

INSTRUCTIONS = r"""
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

__device__ __forceinline__ u32 at_shared(const void* at) { return (u32)__cvta_generic_to_shared(at); }
// 16 x 16 by 16 x 8. Lane l holds results of rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next.
template <class T> __device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    #define PRODUCT(KIND) asm volatile( \
        "mma.sync.aligned.m16n8k16.row.col.f32." KIND "." KIND ".f32 " \
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    if constexpr (std::is_same<T, __half>::value) PRODUCT("f16");
    else PRODUCT("bf16");
}
// Four blocks of 8 x 8, whose rows the lanes name, eight each; a lane gets two of a row, or of a column.
__device__ __forceinline__ void four(u32 (&to)[4], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(row) : "memory");
}
__device__ __forceinline__ void four_turned(u32 (&to)[4], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(row) : "memory");
}
// `bytes`: 16, or 0 for zeros.
__device__ __forceinline__ void copy_later(u32 to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void arrived() {
    asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
}
__device__ __forceinline__ void cluster_meets() {
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}
// What lies at the same place in the shared memory of another block of the cluster.
__device__ __forceinline__ u32 place_of(u32 at, int block) {
    u32 place;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"(at), "r"(block));
    return place;
}
__device__ __forceinline__ float2 two_of(u32 at, int block) {
    float2 found;
    asm volatile("ld.shared::cluster.v2.f32 {%0,%1}, [%2];"
        : "=f"(found.x), "=f"(found.y) : "r"(place_of(at, block)) : "memory");
    return found;
}
__device__ __forceinline__ void give(u32 at, int block, u32 word) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(place_of(at, block)), "r"(word) : "memory");
}
// Blocks of the next kernel may begin; and the one before has ended, its writes seen.
__device__ __forceinline__ void next_may_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void previous_ended() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
"""

KERNELS = r"""
__device__ __forceinline__ float wide(float value) { return value; }
__device__ __forceinline__ float wide(__half value) { return __half2float(value); }
__device__ __forceinline__ float wide(__nv_bfloat16 value) { return __bfloat162float(value); }
template <class T> __device__ __forceinline__ T narrow(float value) {
    if constexpr (std::is_same<T, float>::value) return value;
    else if constexpr (std::is_same<T, __half>::value) return __float2half_rn(value);
    else return __float2bfloat16_rn(value);
}
template <class T> struct alignas(4) Pair { T at[2]; };
template <class T> union Word { Pair<T> pair; u32 word; };
template <class T> __device__ __forceinline__ u32 packed(float low, float high) {
    Word<T> made;
    made.pair.at[0] = narrow<T>(low), made.pair.at[1] = narrow<T>(high);
    return made.word;
}

constexpr u32 ALL = 0xffffffffu;
constexpr int THREADS = 256, LISTERS = 1024, CLUSTER = 8;
constexpr int WIDE = 64;    // of an adapter, at most, and columns of a step
constexpr int PITCH = 72;   // floats from row to row of what is added up: eight rows' are in different banks
constexpr int MOST_EACH = 32;  // tokens that a thread looks through

// Tokens whose adapter is none have the number after the last, of rank 0: eager gives them base.
__device__ __forceinline__ int number_of(i64 adapter, int adapters) {
    return (u64)adapter < (u64)adapters ? (int)adapter : adapters;
}
__device__ __forceinline__ int rank_of(const i64* ranks, int number, int adapters, int rank) {
    if (number >= adapters) return 0;
    const i64 own = ranks[number];
    return own < 0 ? 0 : own < rank ? (int)own : rank;
}
__device__ __forceinline__ int up_to_lane(int value, int lane) {
    #pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(ALL, value, step);
        if (lane >= step) value += other;
    }
    return value;
}

// One block for each adapter, which lists its tokens and writes its tiles: adapter, where in the list they begin and
// end, and the adapter's rank, which would be one more access to wait for. An adapter whose tokens begin at `begin` has
// the tiles from begin / TALL + adapter on, which are enough for any number of tokens; what is left before the next
// adapter's are tiles without tokens.
template <int TALL> __global__ void __launch_bounds__(LISTERS) list_tokens(
    const i64* adapter, const i64* ranks, int* order, int4* tiles, int tokens, int adapters, int rank) {
    __shared__ int owned[LISTERS / 32], lesser[LISTERS / 32];
    next_may_start();
    const int own = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int each = (tokens + LISTERS - 1) / LISTERS;
    const int from = min((int)threadIdx.x * each, tokens), to = min(from + each, tokens);
    const int used = rank_of(ranks, own, adapters, rank);
    int less = 0, mine = 0;
    #pragma unroll 8
    for (int i = from; i < to; i++) {
        const int number = number_of(adapter[i], adapters);
        less += number < own, mine += number == own;
    }
    const int upto = up_to_lane(mine, lane);
    less = up_to_lane(less, lane);
    if (lane == 31) owned[warp] = upto, lesser[warp] = less;
    __syncthreads();
    int begin = 0, before = 0, count = 0;
    for (int w = 0; w < LISTERS / 32; w++) {
        begin += lesser[w];
        if (w < warp) before += owned[w];
        count += owned[w];
    }
    int place = begin + before + upto - mine;
    if (mine) {
        for (int i = from; i < to; i++)
            if (number_of(adapter[i], adapters) == own) order[place++] = i;
    }
    const int first = begin / TALL + own, next = (begin + count) / TALL + own + 1;
    for (int t = threadIdx.x; first + t < next; t += LISTERS)
        tiles[first + t] = int4{own, begin + t * TALL, min(begin + (t + 1) * TALL, begin + count), used};
}

template <class T> struct Call {
    const T *base, *x, *a, *b;
    const i64 *adapter, *ranks;
    T* out;
    int* order;
    int4* tiles;  // null where blocks look for tokens themselves
    float* low;   // of the slow way only
    int tokens, adapters, rank, inner, outer;
    int share;  // clusters of an adapter
};

// Shared memory, in bytes. A step has TALL rows of x or base, then WIDE rows of a or b, of 128 bytes each.
template <class T, int TALL, int STAGES> struct Layout {
    static constexpr int ROWS = TALL * 128, STEP = ROWS + WIDE * 128;
    static constexpr int PARTS = STAGES * STEP, LOW = PARTS + TALL * PITCH * 4, REST = LOW + ROWS;
    static constexpr int FACTORS = REST + (std::is_same<T, __half>::value ? ROWS : 0);
    static constexpr int TOKENS = FACTORS + TALL * 4, COUNTS = TOKENS + TALL * 4, BYTES = COUNTS + THREADS / 32 * 4;
};
// Where a chunk of 16 bytes is: eight rows in a row have it in different banks.
__device__ __forceinline__ u32 place(int row, int chunk) { return (row * 8 + (chunk ^ (row & 7))) * 16; }

// `from` is where a thread's row begins, null where there is none: zeros. `even`: rows begin at multiples of 16 bytes
// and have a multiple of 8 columns.
template <class T> __device__ __forceinline__ void fetch(
    unsigned char* tile, int row, int chunk, const T* from, int columns, bool even, const T* tensor) {
    unsigned char* to = tile + place(row, chunk);
    if (even) {
        const bool real = from && chunk * 8 < columns;
        copy_later(at_shared(to), real ? from + chunk * 8 : tensor, real ? 16 : 0);
        return;
    }
    #pragma unroll 1
    for (int k = 0; k < 8; k++)
        ((T*)to)[k] = from && chunk * 8 + k < columns ? from[chunk * 8 + k] : narrow<T>(0.0f);
}
template <class T> __device__ __forceinline__ bool starts_even(const T* tensor, int columns) {
    return (u64)tensor % 16 == 0 && columns % 8 == 0;
}

template <class T, int TALL, int STAGES, bool LISTED> __global__ void __launch_bounds__(THREADS, 2) adapt(Call<T> c) {
    typedef Layout<T, TALL, STAGES> L;
    constexpr bool SPLIT = std::is_same<T, __half>::value;
    constexpr int DOWN = TALL / 16, ACROSS = THREADS / 32 / DOWN, PAIRS = WIDE / ACROSS / 16, CHUNKS = PAIRS * 2;
    extern __shared__ __align__(128) unsigned char memory[];
    int* token = (int*)(memory + L::TOKENS);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = blockIdx.x % CLUSTER;
    // A warp has 16 of a tile's rows, and of 64 columns those from `right` on.
    const int down = warp % DOWN * 16, right = warp / DOWN * PAIRS * 16;
    const int line = threadIdx.x / 8, chunk = threadIdx.x % 8;
    const bool even_x = starts_even(c.x, c.inner), even_a = starts_even(c.a, c.inner);
    const bool even_b = starts_even(c.b, c.outer), even_base = starts_even(c.base, c.outer);
    const bool even_out = starts_even(c.out, c.outer);

    int own, used, first, total;  // the adapter, its rank, of its tokens which the tile begins with, and where they end
    int stride = TALL;
    u32 found = 0;  // of the tokens that this thread looks through
    int each = 0, before = 0;
    if (LISTED) {
        previous_ended();
        const int4 tile = c.tiles[blockIdx.x / CLUSTER];
        own = tile.x, first = tile.y, total = tile.z, used = tile.w;
    } else {
        const int number = blockIdx.x / CLUSTER;
        int* counts = (int*)(memory + L::COUNTS);
        own = number % (c.adapters + 1), first = number / (c.adapters + 1) * TALL, stride = c.share * TALL;
        used = rank_of(c.ranks, own, c.adapters, c.rank);
        each = (c.tokens + THREADS - 1) / THREADS;
        #pragma unroll 8
        for (int k = 0; k < each; k++) {
            const int i = threadIdx.x * each + k;
            if (i < c.tokens && number_of(__ldg(c.adapter + i), c.adapters) == own) found |= 1u << k;
        }
        const int upto = up_to_lane(__popc(found), lane);
        if (lane == 31) counts[warp] = upto;
        __syncthreads();
        before = upto - __popc(found), total = 0;
        for (int w = 0; w < THREADS / 32; w++) {
            if (w < warp) before += counts[w];
            total += counts[w];
        }
    }
    if (first >= total) return;  // all of the cluster
    const int high = (used + 15) / 16 * 16;
    const T* own_a = c.a + (i64)own * c.rank * c.inner;
    const T* own_b = c.b + (i64)own * c.rank * c.outer;
    // Steps of 64 columns: blocks of the cluster have neighbouring ones.
    const int all_down = used ? (c.inner + 63) / 64 : 0, all_up = (c.outer + 63) / 64;
    const int downs = (all_down - part + CLUSTER - 1) / CLUSTER;
    const int steps = downs + (all_up - part + CLUSTER - 1) / CLUSTER;

    for (; first < total; first += stride) {
        const int count = min(TALL, total - first), tall = (count + 15) / 16 * 16;
        if (LISTED) {
            if (threadIdx.x < count) token[threadIdx.x] = c.order[first + threadIdx.x];
        } else {
            int at = before - first;
            for (u32 left = found; left; left &= left - 1, at++)
                if (at >= 0 && at < count) token[at] = threadIdx.x * each + __ffs(left) - 1;
        }
        __syncthreads();
        int mine[TALL / 32];
        #pragma unroll
        for (int i = 0; i < TALL / 32; i++) mine[i] = line + i * 32 < count ? token[line + i * 32] : -1;

        const auto load = [&](int step) {
            if (step < steps) {
                unsigned char* tile = memory + step % STAGES * L::STEP;
                const bool up = step >= downs;
                const int size = up ? c.outer : c.inner, column = ((up ? step - downs : step) * CLUSTER + part) * 64;
                const T *rows = up ? c.base : c.x, *others = up ? own_b : own_a;
                const bool even_rows = up ? even_base : even_x, even_others = up ? even_b : even_a;
                #pragma unroll
                for (int i = 0; i < TALL / 32; i++)
                    if (line + i * 32 < tall)
                        fetch(tile, line + i * 32, chunk, mine[i] < 0 ? nullptr : rows + (i64)mine[i] * size + column,
                              size - column, even_rows, rows);
                #pragma unroll
                for (int i = 0; i < WIDE / 32; i++)
                    if (line + i * 32 < high)
                        fetch(tile + L::ROWS, line + i * 32, chunk,
                              line + i * 32 < used ? others + (i64)(line + i * 32) * size + column : nullptr,
                              size - column, even_others, others);
            }
            commit();  // an empty one, too: they are counted
        };
        #pragma unroll 1
        for (int s = 0; s < STAGES - 1; s++) load(s);

        float sum[CHUNKS][4];
        #pragma unroll
        for (int k = 0; k < CHUNKS * 4; k++) sum[k / 4][k % 4] = 0.0f;
        int step = 0;
        for (; step < downs; step++) {
            arrived<STAGES - 2>();
            __syncthreads();
            load(step + STAGES - 1);
            if (down >= tall || right >= high) continue;
            const u32 rows = at_shared(memory + step % STAGES * L::STEP), others = rows + L::ROWS;
            #pragma unroll
            for (int k = 0; k < 4; k++) {
                u32 left[4], top[4];
                four(left, rows + place(down + lane % 16, k * 2 + lane / 16));
                #pragma unroll
                for (int p = 0; p < PAIRS; p++) {
                    if (right + p * 16 >= high) continue;
                    four(top, others + place(right + p * 16 + lane / 16 * 8 + lane % 8, k * 2 + lane / 8 % 2));
                    multiply<T>(sum[p * 2], left, top[0], top[1]);
                    multiply<T>(sum[p * 2 + 1], left, top[2], top[3]);
                }
            }
        }

        // Each block adds up an eighth of the rows, and gives all of the cluster what comes of it.
        float* parts = (float*)(memory + L::PARTS);
        if (down < tall) {
            #pragma unroll
            for (int t = 0; t < CHUNKS; t++)
                #pragma unroll
                for (int half = 0; half < 2; half++)
                    *(float2*)(parts + (down + lane / 4 + half * 8) * PITCH + right + t * 8 + lane % 4 * 2) =
                        make_float2(sum[t][half * 2], sum[t][half * 2 + 1]);
        }
        cluster_meets();
        const int row = part * (TALL / CLUSTER) + warp;
        if (warp < TALL / CLUSTER && row < tall) {
            const int column = lane * 2;
            float low[2] = {0.0f, 0.0f};
            #pragma unroll
            for (int block = 0; block < CLUSTER; block++) {
                const float2 of = two_of(at_shared(parts + row * PITCH + column), block);
                low[0] += of.x, low[1] += of.y;
            }
            #pragma unroll
            for (int e = 0; e < 2; e++)
                if (column + e >= used) low[e] = 0.0f;  // afterwards: zero times an infinity is none
            const u32 to = at_shared(memory + L::LOW) + place(row, lane / 4) + lane % 4 * 4;
            if (SPLIT) {
                // A row's largest number is brought to 2^14 and what fp16 leaves of each goes through the product too:
                // sums beyond 65,504 do not overflow on the way (in eager infinities decide the sign), and of a row of
                // mixed sizes the small ones are not lost.
                u32 exponent = max(__float_as_uint(fabsf(low[0])), __float_as_uint(fabsf(low[1])));
                exponent = max(__reduce_max_sync(ALL, exponent) >> 23, 87u);
                const float up = __uint_as_float((268 - exponent) << 23);
                float kept[2], rest[2];
                #pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float scaled = low[e] * up;
                    kept[e] = wide(narrow<T>(scaled));
                    rest[e] = fabsf(kept[e]) < INFINITY ? scaled - kept[e] : 0.0f;
                }
                #pragma unroll
                for (int block = 0; block < CLUSTER; block++) {
                    give(to, block, packed<T>(kept[0], kept[1]));
                    give(to + (L::REST - L::LOW), block, packed<T>(rest[0], rest[1]));
                }
                if (lane < CLUSTER) give(at_shared(memory + L::FACTORS + row * 4), lane, (exponent - 14) << 23);
            } else {
                #pragma unroll
                for (int block = 0; block < CLUSTER; block++) give(to, block, packed<T>(low[0], low[1]));
            }
        }
        __syncwarp();
        cluster_meets();  // none reads or writes another's memory after this

        u32 low[4][4], rest[SPLIT ? 4 : 1][4];
        float factor[2] = {1.0f, 1.0f};
        if (down < tall) {
            const u32 from = at_shared(memory + L::LOW);
            #pragma unroll
            for (int k = 0; k < 4; k++) {
                if (k * 16 >= high) continue;
                four(low[k], from + place(down + lane % 16, k * 2 + lane / 16));
                if (SPLIT) four(rest[SPLIT ? k : 0], from + L::ROWS + place(down + lane % 16, k * 2 + lane / 16));
            }
            if (SPLIT) {
                #pragma unroll
                for (int half = 0; half < 2; half++)
                    factor[half] = ((const float*)(memory + L::FACTORS))[down + lane / 4 + half * 8];
            }
        }
        for (; step < steps; step++) {
            arrived<STAGES - 2>();
            __syncthreads();
            load(step + STAGES - 1);
            if (down >= tall) continue;
            unsigned char* tile = memory + step % STAGES * L::STEP;
            const u32 others = at_shared(tile) + L::ROWS;
            float small[CHUNKS][4];
            #pragma unroll
            for (int k = 0; k < CHUNKS * 4; k++) sum[k / 4][k % 4] = small[k / 4][k % 4] = 0.0f;
            #pragma unroll
            for (int k = 0; k < 4; k++) {
                if (k * 16 >= high) continue;
                #pragma unroll
                for (int p = 0; p < PAIRS; p++) {
                    u32 top[4];
                    four_turned(top, others + place(k * 16 + lane % 16, right / 8 + p * 2 + lane / 16));
                    multiply<T>(sum[p * 2], low[k], top[0], top[1]);
                    multiply<T>(sum[p * 2 + 1], low[k], top[2], top[3]);
                    if (SPLIT) {
                        multiply<T>(small[p * 2], rest[SPLIT ? k : 0], top[0], top[1]);
                        multiply<T>(small[p * 2 + 1], rest[SPLIT ? k : 0], top[2], top[3]);
                    }
                }
            }
            #pragma unroll
            for (int t = 0; t < CHUNKS; t++)
                #pragma unroll
                for (int half = 0; half < 2; half++) {
                    Word<T>* at = (Word<T>*)(tile + place(down + lane / 4 + half * 8, right / 8 + t) + lane % 4 * 4);
                    const Word<T> base = *at;
                    float made[2];
                    #pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float value = sum[t][half * 2 + e];
                        if (SPLIT) {
                            // The rest, often zero and of either sign, has no part where b is not finite: 0 times
                            // infinity is NaN.
                            const float more = small[t][half * 2 + e];
                            value = (value + (fabsf(more) < INFINITY ? more : 0.0f)) * factor[half];
                        }
                        made[e] = wide(base.pair.at[e]) + value;
                    }
                    at->word = packed<T>(made[0], made[1]);
                }
            __syncwarp();
            const int column = ((step - downs) * CLUSTER + part) * 64 + right;
            #pragma unroll
            for (int i = lane; i < 16 * CHUNKS; i += 32) {
                const int row = down + i / CHUNKS, at = column + i % CHUNKS * 8;
                if (row >= count || at >= c.outer) continue;
                const unsigned char* from = tile + place(row, right / 8 + i % CHUNKS);
                T* to = c.out + (i64)token[row] * c.outer + at;
                if (even_out) {
                    __stcs((uint4*)to, *(const uint4*)from);
                } else {
                    #pragma unroll
                    for (int k = 0; k < 8; k++)
                        if (at + k < c.outer) to[k] = ((const T*)from)[k];
                }
            }
        }
        if (LISTED) break;
        __syncthreads();  // the next tile's steps and tokens take the places of these
    }
}

// The slow way, for all types and ranks. A warp has eight lines of a token's adapter.
constexpr int LINES = 8;
template <class T> __global__ void __launch_bounds__(THREADS) go_down(Call<T> c) {
    const int lane = threadIdx.x % 32, groups = (c.rank + LINES - 1) / LINES;
    const i64 many = (i64)c.tokens * groups;
    for (i64 item = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32; item < many;
         item += (i64)gridDim.x * (THREADS / 32)) {
        const int token = (int)(item / groups), line = (int)(item % groups) * LINES;
        const int own = number_of(c.adapter[token], c.adapters), used = rank_of(c.ranks, own, c.adapters, c.rank);
        if (line >= used) continue;
        const T* x = c.x + (i64)token * c.inner;
        const T* a = c.a + ((i64)own * c.rank + line) * c.inner;
        float sum[LINES] = {};
        for (int i = lane; i < c.inner; i += 32) {
            const float value = wide(x[i]);
            #pragma unroll
            for (int r = 0; r < LINES; r++)
                if (line + r < used) sum[r] += value * wide(a[(i64)r * c.inner + i]);
        }
        #pragma unroll
        for (int r = 0; r < LINES; r++) {
            #pragma unroll
            for (int step = 16; step; step /= 2) sum[r] += __shfl_xor_sync(ALL, sum[r], step);
            if (lane == 0 && line + r < used) c.low[(i64)token * c.rank + line + r] = sum[r];
        }
    }
}
template <class T> __global__ void __launch_bounds__(THREADS) go_up(Call<T> c) {
    const i64 many = (i64)c.tokens * c.outer;
    for (i64 item = (i64)blockIdx.x * THREADS + threadIdx.x; item < many; item += (i64)gridDim.x * THREADS) {
        const int token = (int)(item / c.outer), column = (int)(item % c.outer);
        const int own = number_of(c.adapter[token], c.adapters), used = rank_of(c.ranks, own, c.adapters, c.rank);
        const float* low = c.low + (i64)token * c.rank;
        const T* b = c.b + (i64)own * c.rank * c.outer + column;
        float sum = 0.0f;
        #pragma unroll 8
        for (int r = 0; r < used; r++) sum += low[r] * wide(b[(i64)r * c.outer]);
        c.out[item] = narrow<T>(wide(c.base[item]) + sum);
    }
}

constexpr int TALL_FEW = 32, STAGES_FEW = 7, TALL_MANY = 64, STAGES_MANY = 4, MOST_DEVICES = 128;
template <class T, int TALL, int STAGES, bool LISTED> static cudaError_t launch(
    const Call<T>& call, i64 clusters, int device, cudaStream_t stream) {
    static bool roomy[MOST_DEVICES];
    constexpr auto kernel = adapt<T, TALL, STAGES, LISTED>;
    constexpr int bytes = Layout<T, TALL, STAGES>::BYTES;
    if (!roomy[device]) {
        const cudaError_t failed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        if (failed != cudaSuccess) return failed;
        // Room for two blocks; no more than a wish, so what it answers does not matter.
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
        roomy[device] = true;
    }
    cudaLaunchAttribute wish[2];
    wish[0].id = cudaLaunchAttributeClusterDimension;
    wish[0].val.clusterDim.x = CLUSTER, wish[0].val.clusterDim.y = 1, wish[0].val.clusterDim.z = 1;
    wish[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    wish[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((u32)(clusters * CLUSTER)), config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = bytes, config.stream = stream;
    config.attrs = wish, config.numAttrs = LISTED ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, call);
}
template <class T> static cudaError_t launch_slow(const Call<T>& call, cudaStream_t stream) {
    constexpr i64 most = 1 << 16;
    const i64 warps = (i64)call.tokens * ((call.rank + LINES - 1) / LINES), many = (i64)call.tokens * call.outer;
    cudaLaunchConfig_t config = {};
    config.blockDim = dim3(THREADS), config.stream = stream;
    if (warps) {
        config.gridDim = dim3((u32)std::min(most, (warps + THREADS / 32 - 1) / (THREADS / 32)));
        const cudaError_t failed = cudaLaunchKernelEx(&config, go_down<T>, call);
        if (failed != cudaSuccess) return failed;
    }
    config.gridDim = dim3((u32)std::min(most, (many + THREADS - 1) / THREADS));
    return cudaLaunchKernelEx(&config, go_up<T>, call);
}
template <class T> static cudaError_t launch_fast(Call<T> call, int spread, int device, cudaStream_t stream) {
    if (!call.tiles) {
        const bool few = call.tokens <= (i64)call.adapters * TALL_FEW;
        const i64 room = std::max<i64>(1, (i64)call.adapters * (few ? TALL_FEW : TALL_MANY));
        call.share = (int)std::max<i64>(1, ((i64)spread * call.tokens + room - 1) / room);
        const i64 clusters = (call.adapters + 1LL) * call.share;
        if (few) return launch<T, TALL_FEW, STAGES_FEW, false>(call, clusters, device, stream);
        return launch<T, TALL_MANY, STAGES_MANY, false>(call, clusters, device, stream);
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(call.adapters + 1), config.blockDim = dim3(LISTERS), config.stream = stream;
    const cudaError_t failed = cudaLaunchKernelEx(
        &config, list_tokens<TALL_MANY>, call.adapter, call.ranks, call.order, call.tiles, call.tokens, call.adapters,
        call.rank);
    if (failed != cudaSuccess) return failed;
    return launch<T, TALL_MANY, STAGES_MANY, true>(call, call.tokens / TALL_MANY + call.adapters + 1LL, device, stream);
}

// Bytes of scratch memory: the tiles and the list, or what is between the products.
i64 scratch_for(char type, int tokens, int adapters, int rank, int scan) {
    if (type == 'f' || rank > WIDE) return (i64)tokens * rank * 4;
    if (tokens <= std::min(scan, THREADS * MOST_EACH)) return 0;
    return (tokens / TALL_MANY + adapters + 1LL) * 16 + tokens * 4LL;
}
// `from`: base, x, a, b. `sizes`: tokens, adapters, rank, inner, outer.
cudaError_t adapt_launch(
    char type, const void* const* from, void* out, const i64* adapter, const i64* ranks, void* scratch,
    const int* sizes, int spread, int device, cudaStream_t stream) {
    const auto with = [&](auto sample) {
        typedef decltype(sample) T;
        Call<T> call = {};
        call.base = (const T*)from[0], call.x = (const T*)from[1], call.a = (const T*)from[2];
        call.b = (const T*)from[3], call.out = (T*)out, call.adapter = adapter, call.ranks = ranks;
        call.tokens = sizes[0], call.adapters = sizes[1], call.rank = sizes[2];
        call.inner = sizes[3], call.outer = sizes[4];
        if constexpr (!std::is_same<T, float>::value) {
            if (call.rank <= WIDE) {
                call.tiles = (int4*)scratch;
                if (scratch) call.order = (int*)(call.tiles + (call.tokens / TALL_MANY + call.adapters + 1LL));
                return launch_fast<T>(call, spread, device, stream);
            }
        }
        call.low = (float*)scratch;
        return launch_slow<T>(call, stream);
    };
    if (type == 'h') return with(__half());
    if (type == 'b') return with(__nv_bfloat16());
    return with(0.0f);
}
"""

GLUE = r"""
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <algorithm>

using at::Tensor;
typedef long long i64;

i64 scratch_for(char type, int tokens, int adapters, int rank, int scan);
cudaError_t adapt_launch(
    char type, const void* const* from, void* out, const i64* adapter, const i64* ranks, void* scratch,
    const int* sizes, int spread, int device, cudaStream_t stream);

Tensor adapt(
    const Tensor& of_base, const Tensor& of_x, const Tensor& of_a, const Tensor& of_b, const Tensor& of_adapter,
    const Tensor& of_ranks, int64_t scan, int64_t spread) {
    const auto type = of_base.scalar_type();
    TORCH_CHECK(of_base.is_cuda(), "tensors of a GPU, not of ", of_base.device());
    TORCH_CHECK(type == at::kHalf || type == at::kBFloat16 || type == at::kFloat,
                "float16, bfloat16 or float32 are needed, not ", type);
    for (const Tensor* each : {&of_x, &of_a, &of_b})
        TORCH_CHECK(each->scalar_type() == type && each->device() == of_base.device(), "base is of ", type, " on ",
                    of_base.device(), ", something else of ", each->scalar_type(), " on ", each->device());
    const auto kind = of_adapter.scalar_type();
    TORCH_CHECK((kind == at::kLong || kind == at::kInt) && of_ranks.scalar_type() == at::kLong &&
                    of_adapter.device() == of_base.device() && of_ranks.device() == of_base.device(),
                "adapters' numbers and ranks are int64 on base's GPU, not ", kind, " and ", of_ranks.scalar_type());
    TORCH_CHECK(of_base.dim() == 2 && of_x.dim() == 2 && of_a.dim() == 3 && of_b.dim() == 3 &&
                    of_x.size(0) == of_base.size(0) && of_a.size(2) == of_x.size(1) &&
                    of_b.size(0) == of_a.size(0) && of_b.size(1) == of_a.size(1) && of_b.size(2) == of_base.size(1),
                "base ", of_base.sizes(), ", x ", of_x.sizes(), ", a ", of_a.sizes(), " and b ", of_b.sizes(),
                " do not fit one another");
    const i64 tokens = of_base.size(0), outer = of_base.size(1), inner = of_x.size(1);
    const i64 adapters = of_a.size(0), rank = of_a.size(1);
    TORCH_CHECK(of_adapter.dim() == 1 && of_adapter.size(0) == tokens && of_ranks.dim() == 1 &&
                    of_ranks.size(0) == adapters,
                "numbers ", of_adapter.sizes(), " and ranks ", of_ranks.sizes(), " do not fit ", tokens, " tokens and ",
                adapters, " adapters");
    TORCH_CHECK(std::max({tokens, adapters, rank, inner, outer}) <= 1 << 26, "too large: base ", of_base.sizes(),
                ", x ", of_x.sizes(), ", a ", of_a.sizes());
    const c10::cuda::CUDAGuard guard(of_base.device());
    const Tensor out = at::empty(of_base.sizes(), of_base.options());
    if (!out.numel()) return out;
    const Tensor base = of_base.contiguous(), x = of_x.contiguous(), a = of_a.contiguous(), b = of_b.contiguous();
    const Tensor adapter = (kind == at::kLong ? of_adapter : of_adapter.to(at::kLong)).contiguous();
    const Tensor ranks = of_ranks.contiguous();
    const char name = type == at::kHalf ? 'h' : type == at::kBFloat16 ? 'b' : 'f';
    const i64 needed = scratch_for(name, (int)tokens, (int)adapters, (int)rank, (int)scan);
    Tensor scratch;
    if (needed) scratch = at::empty({needed}, base.options().dtype(at::kByte));
    const void* const from[] = {base.const_data_ptr(), x.const_data_ptr(), a.const_data_ptr(), b.const_data_ptr()};
    const int sizes[] = {(int)tokens, (int)adapters, (int)rank, (int)inner, (int)outer};
    const int device = of_base.device().index();
    C10_CUDA_CHECK(adapt_launch(
        name, from, out.mutable_data_ptr(), (const i64*)adapter.const_data_ptr(), (const i64*)ranks.const_data_ptr(),
        needed ? scratch.mutable_data_ptr() : nullptr, sizes, (int)spread, device,
        c10::cuda::getCurrentCUDAStream()));
    return out;
}
"""
adapt = load_inline(
    name="lora_batched",
    cpp_sources=[GLUE],
    cuda_sources=[INSTRUCTIONS, KERNELS],
    functions=["adapt"],
    extra_cflags=["-O2"],
    extra_cuda_cflags=["-O3"],
    no_implicit_headers=True,
).adapt


class ModelNew(nn.Module):
    def __init__(self, adapters, rank):
        super().__init__()
        self.register_buffer("ranks", torch.tensor([max(1, rank >> (place % 4)) for place in range(adapters)]))

    def forward(self, base, x, a, b, adapter):
        # Out of the dictionary: a buffer by attribute costs 2 us.
        return adapt(base, x, a, b, adapter, self._buffers["ranks"], SCAN, SPREAD)
