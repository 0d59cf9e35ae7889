"""The tokens of all sequences, as many as really count, are cut into equal stretches, so that no length decides how
long it takes: a warp has a stretch of a key head, all of whose query heads share what it reads. It needs no other warp:
keys and values come through a ring of its own in shared memory, and the pages' numbers a step ahead of them. A product
has tokens as its rows and up to eight heads as its columns. What stretches of one sequence have found is merged in
their order by a second kernel, whose blocks are made ready during the first. The host knows no lengths and waits for
none. One call of C++, as small workloads wait for the host.

Bound by memory: keys and values that count are read once. float32, and heads wider than 256, have a slow way of their
own.
"""

from torch import nn
from torch.utils.cpp_extension import load_inline

TUNABLES = {"WARPS": [4, 8], "STAGES": [2, 3], "LEAST": [1, 2, 4]}
WARPS = 8
"""Of a block for heads of 128 elements; of wider ones half as many, of narrower ones twice as many."""
STAGES = 3
"""Of a warp's ring. Each has keys and values of 16 tokens."""
LEAST = 2
"""Of 16 tokens each, so many pieces has a stretch at least."""

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
// A block of 8 x 8, of which each lane has two of a row, becomes one of which it has two of a column.
__device__ __forceinline__ u32 turned(u32 two) {
    u32 found;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(found) : "r"(two));
    return found;
}
// `bytes`: 16, or 0 for zeros.
__device__ __forceinline__ void copy_later(u32 to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void arrived() {
    asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
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

constexpr u32 ALL = 0xffffffffu;
constexpr int PIECE = 16;      // tokens
constexpr int ABREAST = 8;     // heads of a tile
constexpr int MERGERS = 256;   // threads that merge a head, at most
constexpr int PLAIN_WARPS = 4;  // of a block of the slow way
constexpr float LOWEST = -INFINITY;

// A team has a stretch of the tokens: a warp for each of the columns. A column is a key head and a tile of its query
// heads; a key head has `tiles` of them, of `tall` heads at most.
template <class T> struct Call {
    const T *q, *keys, *values;
    const i64 *table, *last;
    T* out;
    // Of a team, a column, and its sequence that began before (0) or ends later (1): for each head of the tile the
    // weighted values, and the highest score and the weights' sum.
    float *sums;
    float2 *stats;
    int* begins;  // where sequences begin, in pieces; and at last a stretch's length
    int batch, heads, kv_heads, group, dim, held, page, pages, longest;
    int tall, tiles, columns, teams, least;
    float scale;
};
template <class T> __device__ __forceinline__ i64 part_of(const Call<T>& c, int team, int column, int late) {
    return (((i64)team * c.columns + column) * 2 + late) * min(c.tall, c.group);
}

template <class T> __device__ __forceinline__ int tokens_of(const Call<T>& c, int sequence) {
    const i64 last = __ldg(c.last + sequence);
    return last < 0 ? 0 : last >= c.longest ? c.longest : (int)last + 1;
}
__device__ __forceinline__ int pieces_of(int tokens) { return (tokens + PIECE - 1) / PIECE; }
__device__ __forceinline__ int sum_of_lanes(int value) {
    #pragma unroll
    for (int step = 16; step; step /= 2) value += __shfl_xor_sync(ALL, value, step);
    return value;
}

// A place in the list of all sequences' pieces.
struct Place {
    int sequence, piece, pieces, tokens;
    template <class T> __device__ __forceinline__ void next(const Call<T>& c) {
        if (++piece < pieces) return;
        do tokens = tokens_of(c, ++sequence); while (!tokens);  // there is one, or nobody asks
        piece = 0, pieces = pieces_of(tokens);
    }
};
// The warp's stretch: how many pieces, and where they begin. `first` is their number among all.
struct Stretch {
    int count, first;
    Place place;
};
template <class T> __device__ __forceinline__ Stretch stretch_of(const Call<T>& c, int team, int column) {
    const int lane = threadIdx.x % 32;
    Stretch found = {};
    int total = 0;
    #pragma unroll 4
    for (int i = lane; i < c.batch; i += 32) total += pieces_of(tokens_of(c, i));
    total = sum_of_lanes(total);
    const int each = max(c.least, (total + c.teams - 1) / c.teams);
    if (team == 0 && column == 0 && lane == 0) c.begins[c.batch] = each;
    found.first = team * each, found.count = min(each, total - found.first);
    if (found.count <= 0) return found;
    int before = 0;
    for (int base = 0;; base += 32) {
        const int tokens = base + lane < c.batch ? tokens_of(c, base + lane) : 0, pieces = pieces_of(tokens);
        int upto = pieces;
        #pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(ALL, upto, step);
            if (lane >= step) upto += other;
        }
        const u32 beyond = __ballot_sync(ALL, before + upto > found.first);
        if (beyond) {
            const int here = __ffs(beyond) - 1;
            found.place.sequence = base + here;
            found.place.piece = found.first - before - __shfl_sync(ALL, upto - pieces, here);
            found.place.pieces = __shfl_sync(ALL, pieces, here);
            found.place.tokens = __shfl_sync(ALL, tokens, here);
            return found;
        }
        before += __shfl_sync(ALL, upto, 31);
    }
}

// Lanes i and i + 16 have the i-th token of a piece: its page's number, on its way, and its place in the page.
struct Ahead {
    i64 number;
    int within;
};
template <class T> __device__ __forceinline__ Ahead look(const Call<T>& c, const Place& place) {
    const int token = place.piece * PIECE + (int)threadIdx.x % PIECE;
    if (token >= place.tokens) return {0, -1};
    const int held = token / c.page;
    return {__ldg(c.table + (i64)place.sequence * c.held + held), token - held * c.page};
}
// The token's line of the cache, or -1. Torch counts negative numbers from the end, and ends the kernel at others
// outside.
template <class T> __device__ __forceinline__ int line_of(const Call<T>& c, const Ahead& ahead) {
    if (ahead.within < 0) return -1;
    const i64 number = ahead.number < 0 ? ahead.number + c.pages : ahead.number;
    if ((u64)number >= (u64)c.pages) __trap();
    return (int)number * c.page + ahead.within;
}

template <class T, int DIM> struct Shape {
    static constexpr int COUNT = WARPS * 128 / DIM;  // warps of a block
    static constexpr int PITCH = DIM * 2, ROWS = PIECE * PITCH, STAGE = 2 * ROWS, RING = STAGES * STAGE;
    static constexpr int BYTES = COUNT * RING;
    // Blocks of a processor, for whose threads there are 128 registers at least.
    static constexpr int RESIDENT = std::min(227 * 1024 / (BYTES + 1024), std::max(1, 16 / COUNT));
    static constexpr int CHUNKS = DIM / 8;  // of 16 bytes, in a row
    static_assert(RESIDENT >= 1 && COUNT >= 1 && COUNT <= 32);
    // Where a chunk is: eight rows in a row have it in different banks.
    static __device__ __forceinline__ u32 place(int row, int chunk) { return row * PITCH + (chunk ^ (row & 7)) * 16; }
};

template <class T, int DIM> __global__ void __launch_bounds__(Shape<T, DIM>::COUNT * 32, Shape<T, DIM>::RESIDENT)
    attend(Call<T> c) {
    typedef Shape<T, DIM> S;
    constexpr int STEPS = DIM / 16;
    extern __shared__ __align__(128) unsigned char memory[];
    next_may_start();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int number = blockIdx.x * S::COUNT + warp, team = number / c.columns, column = number - team * c.columns;
    if (team >= c.teams) return;
    const Stretch stretch = stretch_of(c, team, column);
    if (stretch.count <= 0) return;
    const int kv = column / c.tiles, tile = (column - kv * c.tiles) * c.tall, own = min(c.tall, c.group - tile);
    unsigned char* ring = memory + warp * S::RING;
    const i64 stride = (i64)c.kv_heads * c.dim;
    const T *keys = c.keys + (i64)kv * c.dim, *values = c.values + (i64)kv * c.dim;
    const bool even = ((u64)c.keys | (u64)c.values) % 16 == 0 && c.dim % 8 == 0;

    Place coming = stretch.place;
    Ahead ahead = look(c, coming);
    int left = stretch.count;  // pieces that are not under way
    const auto load = [&](int stage) {
        if (left > 0) {
            const int line = line_of(c, ahead);
            if (--left > 0) coming.next(c), ahead = look(c, coming);
            unsigned char* to = ring + stage * S::STAGE;
            const int chunk = lane % S::CHUNKS;
            #pragma unroll
            for (int i = 0; i < PIECE * S::CHUNKS / 32; i++) {
                const int row = i * (32 / S::CHUNKS) + lane / S::CHUNKS, from = __shfl_sync(ALL, line, row);
                const int bytes = from >= 0 && chunk * 8 < c.dim ? 16 : 0;
                const i64 at = bytes ? from * stride + chunk * 8 : 0;
                unsigned char* there = to + S::place(row, chunk);
                if (even) {
                    copy_later(at_shared(there), bytes ? keys + at : c.keys, bytes);
                    copy_later(at_shared(there + S::ROWS), bytes ? values + at : c.values, bytes);
                    continue;
                }
                #pragma unroll 1
                for (int k = 0; k < 8; k++) {
                    const bool real = bytes && chunk * 8 + k < c.dim;
                    ((T*)there)[k] = real ? keys[at + k] : narrow<T>(0.0f);
                    ((T*)(there + S::ROWS))[k] = real ? values[at + k] : narrow<T>(0.0f);
                }
            }
        }
        commit();  // an empty one, too: they are counted
    };
    #pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++) load(s);

    // A lane has two heads: the highest score, and of the weights' sum what its own tokens bring.
    Place here = stretch.place;
    float top[2], total[2], sum[STEPS][4];
    u32 query[STEPS][2];
    bool begun = false, fresh = true;
    int stage = 0;
    for (int step = 0; step < stretch.count; step++) {
        if (fresh) {
            fresh = false, begun = here.piece == 0;
            const int head = kv * c.group + tile + lane / 4;
            const T* from = c.q + ((i64)here.sequence * c.heads + head) * c.dim;
            #pragma unroll
            for (int k = 0; k < STEPS; k++)
                #pragma unroll
                for (int half = 0; half < 2; half++) {
                    Word<T> two;
                    #pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const int at = k * 16 + half * 8 + lane % 4 * 2 + e;
                        two.pair.at[e] = lane / 4 < own && at < c.dim ? from[at] : narrow<T>(0.0f);
                    }
                    query[k][half] = two.word;
                }
            #pragma unroll
            for (int e = 0; e < 2; e++) top[e] = LOWEST, total[e] = 0.0f;
            #pragma unroll
            for (int k = 0; k < STEPS * 4; k++) sum[k / 4][k % 4] = 0.0f;
            if (begun && column == 0 && lane == 0) c.begins[here.sequence] = stretch.first + step;
        }
        arrived<STAGES - 2>();
        __syncwarp();
        load(stage ? stage - 1 : STAGES - 1);
        const u32 rows = at_shared(ring + stage * S::STAGE);
        stage = stage + 1 < STAGES ? stage + 1 : 0;

        float score[2][4] = {};  // two chains, which do not wait for one another
        #pragma unroll
        for (int k = 0; k < STEPS; k++) {
            u32 key[4];
            four(key, rows + S::place(lane % 16, k * 2 + lane / 16));
            multiply<T>(score[k % 2], key, query[k][0], query[k][1]);
        }
        float weight[4];  // of tokens lane / 4 and 8 more, two heads each
        #pragma unroll
        for (int i = 0; i < 4; i++)
            weight[i] = here.piece * PIECE + lane / 4 + i / 2 * 8 < here.tokens ? score[0][i] + score[1][i] : LOWEST;
        float kept[2], base[2];
        #pragma unroll
        for (int e = 0; e < 2; e++) {
            float most = fmaxf(weight[e], weight[e + 2]);
            #pragma unroll
            for (int apart = 4; apart < 32; apart *= 2) most = fmaxf(most, __shfl_xor_sync(ALL, most, apart));
            most = fmaxf(most, top[e]);
            base[e] = most == LOWEST ? 0.0f : most;
            kept[e] = exp2f((top[e] - base[e]) * c.scale);
            top[e] = most;
        }
        u32 packed[2];
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            Word<T> two;
            #pragma unroll
            for (int e = 0; e < 2; e++)
                two.pair.at[e] = narrow<T>(exp2f((weight[half * 2 + e] - base[e]) * c.scale));
            packed[half] = turned(two.word);
            // Weights are added up as rounded: they share what rounding does to all of them.
            #pragma unroll
            for (int e = 0; e < 2; e++)
                total[e] = (half ? total[e] : total[e] * kept[e]) + wide(two.pair.at[e]);
        }
        #pragma unroll
        for (int k = 0; k < STEPS; k++) {
            #pragma unroll
            for (int i = 0; i < 4; i++) sum[k][i] *= kept[i % 2];
            u32 value[4];
            four_turned(value, rows + S::ROWS + S::place(lane / 16 * 8 + lane % 8, k * 2 + lane / 8 % 2));
            multiply<T>(sum[k], value, packed[0], packed[1]);
        }

        const bool ended = here.piece + 1 == here.pieces;
        if (ended || step + 1 == stretch.count) {
            #pragma unroll
            for (int e = 0; e < 2; e++) {
                float whole = total[e];
                #pragma unroll
                for (int apart = 4; apart < 32; apart *= 2) whole += __shfl_xor_sync(ALL, whole, apart);
                const int head = lane % 4 * 2 + e;
                if (head >= own) continue;
                const i64 part = part_of(c, team, column, begun) + head;
                T* out = c.out + ((i64)here.sequence * c.heads + kv * c.group + tile + head) * c.dim;
                if (!(begun && ended) && lane < 4) c.stats[part] = make_float2(top[e], whole);
                #pragma unroll
                for (int k = 0; k < STEPS; k++)
                    #pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const int at = k * 16 + half * 8 + lane / 4;
                        if (at >= c.dim) continue;
                        if (begun && ended) out[at] = narrow<T>(sum[k][half * 2 + e] / whole);
                        else c.sums[part * c.dim + at] = sum[k][half * 2 + e];
                    }
            }
            fresh = true;
        }
        if (step + 1 < stretch.count) here.next(c);
    }
}

// The slow way, for all types and sizes: a column is a head.
template <class T> __global__ void __launch_bounds__(PLAIN_WARPS * 32) attend_plainly(Call<T> c) {
    extern __shared__ __align__(128) unsigned char memory[];
    next_may_start();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int number = blockIdx.x * PLAIN_WARPS + warp, team = number / c.columns, head = number - team * c.columns;
    if (team >= c.teams) return;
    const Stretch stretch = stretch_of(c, team, head);
    if (stretch.count <= 0) return;
    float* weights = (float*)memory + warp * (PIECE + 2 * c.dim);
    float *query = weights + PIECE, *sum = query + c.dim;
    const i64 stride = (i64)c.kv_heads * c.dim;
    const T *keys = c.keys + (i64)(head / c.group) * c.dim, *values = c.values + (i64)(head / c.group) * c.dim;
    Place here = stretch.place;
    float top = LOWEST, total = 0.0f;
    bool begun = false, fresh = true;
    for (int step = 0; step < stretch.count; step++) {
        const int line = line_of(c, look(c, here)), count = min(PIECE, here.tokens - here.piece * PIECE);
        const i64 row = ((i64)here.sequence * c.heads + head) * c.dim;
        if (fresh) {
            fresh = false, begun = here.piece == 0, top = LOWEST, total = 0.0f;
            for (int i = lane; i < c.dim; i += 32) query[i] = wide(c.q[row + i]), sum[i] = 0.0f;
            if (begun && head == 0 && lane == 0) c.begins[here.sequence] = stretch.first + step;
        }
        float score = LOWEST;
        #pragma unroll 4
        for (int t = 0; t < count; t++) {
            const T* key = keys + __shfl_sync(ALL, line, t) * stride;
            float product = 0.0f;
            for (int i = lane; i < c.dim; i += 32) product += query[i] * wide(key[i]);
            #pragma unroll
            for (int apart = 16; apart; apart /= 2) product += __shfl_xor_sync(ALL, product, apart);
            if (lane == t) score = product;
        }
        float most = score;
        #pragma unroll
        for (int apart = 16; apart; apart /= 2) most = fmaxf(most, __shfl_xor_sync(ALL, most, apart));
        most = fmaxf(most, top);
        const float base = most == LOWEST ? 0.0f : most, kept = exp2f((top - base) * c.scale);
        const float weight = lane < count ? exp2f((score - base) * c.scale) : 0.0f;
        top = most, total = total * kept + weight;
        if (lane < PIECE) weights[lane] = weight;
        __syncwarp();
        for (int i = lane; i < c.dim; i += 32) sum[i] *= kept;
        for (int t = 0; t < count; t++) {
            const T* value = values + __shfl_sync(ALL, line, t) * stride;
            const float share = weights[t];
            for (int i = lane; i < c.dim; i += 32) sum[i] += share * wide(value[i]);
        }
        __syncwarp();
        const bool ended = here.piece + 1 == here.pieces;
        if (ended || step + 1 == stretch.count) {
            float whole = total;
            #pragma unroll
            for (int apart = 16; apart; apart /= 2) whole += __shfl_xor_sync(ALL, whole, apart);
            const i64 part = part_of(c, team, head, begun);
            if (!(begun && ended) && lane == 0) c.stats[part] = make_float2(top, whole);
            for (int i = lane; i < c.dim; i += 32) {
                if (begun && ended) c.out[row + i] = narrow<T>(sum[i] / whole);
                else c.sums[part * c.dim + i] = sum[i];
            }
            fresh = true;
        }
        if (step + 1 < stretch.count) here.next(c);
    }
}

// A block has a head of a sequence. Its warps take turns at the parts, lanes have every 32nd element.
template <class T> __global__ void __launch_bounds__(MERGERS, 4) merge(Call<T> c) {
    constexpr int AT_ONCE = 4, ACROSS = 32 * AT_ONCE;
    __shared__ float found[MERGERS / 32][ACROSS], tops[MERGERS / 32], totals[MERGERS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, threads = blockDim.x, warps = threads / 32;
    const int sequence = blockIdx.x / c.heads, head = blockIdx.x - sequence * c.heads;
    const int kv = head / c.group, member = head - kv * c.group, tile = member / c.tall;
    const int column = kv * c.tiles + tile;
    T* out = c.out + (i64)blockIdx.x * c.dim;
    const int pieces = pieces_of(tokens_of(c, sequence));
    previous_ended();
    if (!pieces) {  // all of its tokens are hidden
        for (int i = threadIdx.x; i < c.dim; i += threads) out[i] = narrow<T>(NAN);
        return;
    }
    const int each = __ldcg(c.begins + c.batch), begin = __ldcg(c.begins + sequence);
    const int first = begin / each, parts = (begin + pieces - 1) / each - first + 1;
    if (parts == 1) return;  // it is written already
    // The first team has it as what ends later, the others as what began before.
    const i64 early = part_of(c, first, column, 0) + member - tile * c.tall;
    const i64 late = part_of(c, first, column, 1) - part_of(c, first, column, 0);
    const i64 team = part_of(c, 1, 0, 0);
    float top = LOWEST;
    for (int i = threadIdx.x; i < parts; i += threads)
        top = fmaxf(top, __ldcg(c.stats + early + (i ? i * team : late)).x);
    #pragma unroll
    for (int apart = 16; apart; apart /= 2) top = fmaxf(top, __shfl_xor_sync(ALL, top, apart));
    if (lane == 0) tops[warp] = top;
    __syncthreads();
    for (int w = 0; w < warps; w++) top = fmaxf(top, tops[w]);
    const float base = top == LOWEST ? 0.0f : top;
    for (int start = 0; start < c.dim; start += ACROSS) {
        float sum[AT_ONCE] = {}, total = 0.0f;
        #pragma unroll 4
        for (int i = warp; i < parts; i += warps) {
            const i64 from = early + (i ? i * team : late);
            const float2 stats = __ldcg(c.stats + from);
            const float* sums = c.sums + from * c.dim + start + lane;
            const float share = exp2f((stats.x - base) * c.scale);
            total += share * stats.y;
            #pragma unroll
            for (int k = 0; k < AT_ONCE; k++)
                if (start + k * 32 + lane < c.dim) sum[k] += share * __ldcg(sums + k * 32);
        }
        #pragma unroll
        for (int k = 0; k < AT_ONCE; k++) found[warp][k * 32 + lane] = sum[k];
        if (lane == 0) totals[warp] = total;
        __syncthreads();
        for (int i = threadIdx.x; i < ACROSS && start + i < c.dim; i += threads) {
            float all = 0.0f, whole = 0.0f;
            for (int w = 0; w < warps; w++) all += found[w][i], whole += totals[w];
            out[start + i] = narrow<T>(all / whole);
        }
        __syncthreads();
    }
}

constexpr int MOST_DEVICES = 128;
static i64 over(i64 value, i64 by) { return (value + by - 1) / by; }
static int processors_of(int device) {
    static int found[MOST_DEVICES];
    if (!found[device] && cudaDeviceGetAttribute(&found[device], cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
        return 1;
    return found[device];
}

// How it is cut, and the bytes of scratch memory: sums, stats, begins.
struct Plan {
    int warps, tall, tiles, columns, teams;
    i64 parts, bytes;
};
template <class T, int DIM> static int warps_at_once(int processors) {
    return processors * Shape<T, DIM>::RESIDENT * Shape<T, DIM>::COUNT;
}
template <class T> static Plan plan_for(
    bool plain, int batch, int heads, int kv_heads, int dim, int longest, int least, int device) {
    Plan plan = {};
    const int processors = processors_of(device), group = heads / kv_heads;
    int at_once = processors * 32;
    plan.warps = PLAIN_WARPS;
    if (!plain) {
        const auto take = [&](auto size) {
            constexpr int DIM = decltype(size)::value;
            plan.warps = Shape<T, DIM>::COUNT, at_once = warps_at_once<T, DIM>(processors);
        };
        if (dim <= 64) take(std::integral_constant<int, 64>());
        else if (dim <= 128) take(std::integral_constant<int, 128>());
        else take(std::integral_constant<int, 256>());
    }
    plan.tall = plain ? 1 : ABREAST, plan.tiles = (int)over(group, plan.tall), plan.columns = kv_heads * plan.tiles;
    const i64 most = over((i64)batch * over(longest, PIECE), least);
    plan.teams = (int)std::max<i64>(1, std::min<i64>(most, at_once / plan.columns));
    plan.parts = (i64)plan.teams * plan.columns * 2 * std::min(plan.tall, group);
    plan.bytes = plan.parts * 8 + plan.parts * dim * 4 + (batch + 1LL) * 4;
    return plan;
}
template <class T, class F> static cudaError_t run(
    F kernel, const Call<T>& call, int warps, int bytes, bool& roomy, cudaStream_t stream) {
    if (!roomy) {
        const cudaError_t failed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        if (failed != cudaSuccess) return failed;
        // No more than a wish, so what it answers does not matter.
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
        roomy = true;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((u32)over((i64)call.teams * call.columns, warps)), config.blockDim = dim3(warps * 32);
    config.dynamicSmemBytes = bytes, config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, call);
}
template <class T, int DIM> static cudaError_t run_wide(const Call<T>& call, int device, cudaStream_t stream) {
    static bool roomy[MOST_DEVICES];
    return run(attend<T, DIM>, call, Shape<T, DIM>::COUNT, Shape<T, DIM>::BYTES, roomy[device], stream);
}

constexpr int WIDEST = 256;
static bool is_plain(char type, int dim) { return type == 'f' || dim > WIDEST; }
// `sizes`: batch, heads, key heads, dim, pages held by a sequence, tokens of a page, pages.
template <class F> static auto with_type(char type, F body) {
    if (type == 'h') return body(__half());
    if (type == 'b') return body(__nv_bfloat16());
    return body(0.0f);
}
i64 scratch_for(char type, const int* sizes, int least, int device) {
    return with_type(type, [&](auto sample) {
        return plan_for<decltype(sample)>(
            is_plain(type, sizes[3]), sizes[0], sizes[1], sizes[2], sizes[3], sizes[4] * sizes[5], least, device).bytes;
    });
}
// `from`: q, keys, values.
cudaError_t attend_launch(
    char type, const void* const* from, const i64* table, const i64* last, void* out, void* scratch, const int* sizes,
    float scale, int least, int device, cudaStream_t stream) {
    return with_type(type, [&](auto sample) {
        typedef decltype(sample) T;
        const bool plain = is_plain(type, sizes[3]);
        Call<T> call = {};
        call.q = (const T*)from[0], call.keys = (const T*)from[1], call.values = (const T*)from[2];
        call.table = table, call.last = last, call.out = (T*)out;
        call.batch = sizes[0], call.heads = sizes[1], call.kv_heads = sizes[2], call.dim = sizes[3];
        call.held = sizes[4], call.page = sizes[5], call.pages = sizes[6];
        call.longest = sizes[4] * sizes[5], call.group = sizes[1] / sizes[2];
        const Plan plan = plan_for<T>(
            plain, call.batch, call.heads, call.kv_heads, call.dim, call.longest, least, device);
        call.tall = plan.tall, call.tiles = plan.tiles, call.columns = plan.columns, call.teams = plan.teams;
        call.least = least, call.scale = scale;
        call.stats = (float2*)scratch, call.sums = (float*)(call.stats + plan.parts);
        call.begins = (int*)(call.sums + plan.parts * call.dim);
        cudaError_t failed = cudaSuccess;
        if (plain) {
            bool roomy = false;  // the size differs from call to call
            failed = run(
                attend_plainly<T>, call, PLAIN_WARPS, PLAIN_WARPS * (PIECE + 2 * call.dim) * 4, roomy, stream);
        } else if constexpr (!std::is_same<T, float>::value) {
            failed = call.dim <= 64    ? run_wide<T, 64>(call, device, stream)
                     : call.dim <= 128 ? run_wide<T, 128>(call, device, stream)
                                       : run_wide<T, 256>(call, device, stream);
        }
        if (failed != cudaSuccess) return failed;
        cudaLaunchAttribute early;
        early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        early.val.programmaticStreamSerializationAllowed = 1;
        cudaLaunchConfig_t config = {};
        // Where sequences have few parts each, a block needs few warps, and all blocks find room at once.
        const int parts = call.teams / call.batch + 2, warps = parts <= 4 ? 2 : parts <= 8 ? 4 : MERGERS / 32;
        config.gridDim = dim3((u32)call.batch * (u32)call.heads), config.blockDim = dim3(warps * 32);
        config.stream = stream, config.attrs = &early, config.numAttrs = 1;
        return cudaLaunchKernelEx(&config, merge<T>, call);
    });
}
"""

GLUE = r"""
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <algorithm>
#include <cmath>

using at::Tensor;
typedef long long i64;

i64 scratch_for(char type, const int* sizes, int least, int device);
cudaError_t attend_launch(
    char type, const void* const* from, const i64* table, const i64* last, void* out, void* scratch, const int* sizes,
    float scale, int least, int device, cudaStream_t stream);

Tensor attend(
    const Tensor& of_q, const Tensor& of_keys, const Tensor& of_values, const Tensor& of_table, const Tensor& of_last,
    int64_t least) {
    const auto type = of_q.scalar_type();
    TORCH_CHECK(of_q.is_cuda(), "tensors of a GPU, not of ", of_q.device());
    TORCH_CHECK(type == at::kHalf || type == at::kBFloat16 || type == at::kFloat,
                "float16, bfloat16 or float32 are needed, not ", type);
    for (const Tensor* each : {&of_keys, &of_values})
        TORCH_CHECK(each->scalar_type() == type && each->device() == of_q.device(), "queries are of ", type, " on ",
                    of_q.device(), ", something else of ", each->scalar_type(), " on ", each->device());
    for (const Tensor* each : {&of_table, &of_last})
        TORCH_CHECK((each->scalar_type() == at::kLong || each->scalar_type() == at::kInt) &&
                        each->device() == of_q.device(),
                    "pages and last tokens are int64 on the queries' GPU, not ", each->scalar_type(), " on ",
                    each->device());
    TORCH_CHECK(of_q.dim() == 3 && of_keys.dim() == 4 && of_values.sizes() == of_keys.sizes() &&
                    of_keys.size(3) == of_q.size(2) && of_table.dim() == 2 && of_table.size(0) == of_q.size(0) &&
                    of_last.dim() == 1 && of_last.size(0) == of_q.size(0),
                "queries ", of_q.sizes(), ", keys ", of_keys.sizes(), ", values ", of_values.sizes(), ", pages ",
                of_table.sizes(), " and last tokens ", of_last.sizes(), " do not fit one another");
    const i64 batch = of_q.size(0), heads = of_q.size(1), dim = of_q.size(2), held = of_table.size(1);
    const i64 pages = of_keys.size(0), page = of_keys.size(1), kv_heads = of_keys.size(2);
    TORCH_CHECK(!heads || (kv_heads && heads % kv_heads == 0), heads, " heads over ", kv_heads);
    constexpr i64 most = 1LL << 31;
    TORCH_CHECK(std::max({batch, heads, pages, held, page}) < most && dim <= 4096, "too large: queries ", of_q.sizes(),
                ", keys ", of_keys.sizes(), ", pages ", of_table.sizes());
    TORCH_CHECK(batch * heads < most && pages * page < most && held * page < most &&
                    batch * ((held * page + 15) / 16) < most / 2,
                "too large: queries ", of_q.sizes(), ", keys ", of_keys.sizes(), ", pages ", of_table.sizes());
    const c10::cuda::CUDAGuard guard(of_q.device());
    if (!of_q.numel()) return at::empty(of_q.sizes(), of_q.options());
    if (held * page == 0) return at::zeros(of_q.sizes(), of_q.options());  // as of a product over nothing
    TORCH_CHECK(pages, "sequences hold pages, and there are none");
    const Tensor out = at::empty(of_q.sizes(), of_q.options());
    const Tensor q = of_q.contiguous(), keys = of_keys.contiguous(), values = of_values.contiguous();
    const auto as_long = [](const Tensor& given) {
        return (given.scalar_type() == at::kLong ? given : given.to(at::kLong)).contiguous();
    };
    const Tensor table = as_long(of_table), last = as_long(of_last);
    const char name = type == at::kHalf ? 'h' : type == at::kBFloat16 ? 'b' : 'f';
    const int sizes[] = {(int)batch, (int)heads, (int)kv_heads, (int)dim, (int)held, (int)page, (int)pages};
    const int device = of_q.device().index();
    const Tensor scratch =
        at::empty({scratch_for(name, sizes, (int)least, device)}, of_q.options().dtype(at::kByte));
    const void* const from[] = {q.const_data_ptr(), keys.const_data_ptr(), values.const_data_ptr()};
    C10_CUDA_CHECK(attend_launch(
        name, from, (const i64*)table.const_data_ptr(), (const i64*)last.const_data_ptr(), out.mutable_data_ptr(),
        scratch.mutable_data_ptr(), sizes, (float)(1.4426950408889634 / std::sqrt((double)dim)), (int)least, device,
        c10::cuda::getCurrentCUDAStream()));
    return out;
}
"""
attend = load_inline(
    name="decode_attention_paged_gqa",
    cpp_sources=[GLUE],
    cuda_sources=[INSTRUCTIONS, KERNELS],
    functions=["attend"],
    extra_cflags=["-O2"],
    extra_cuda_cflags=["-O3", f"-DWARPS={WARPS}", f"-DSTAGES={STAGES}"],
    no_implicit_headers=True,
).attend


class ModelNew(nn.Module):
    def forward(self, q, keys, values, table, last):
        return attend(q, keys, values, table, last, LEAST)
