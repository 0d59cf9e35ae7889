"""The gradient of a row is linear in dy and all tokens of a row share its norm: so dy is summed by id first, in
float32, and the norm's backward is applied once a row. Three launches by one call from C++: tokens are put in order of
their rows while rows without tokens are set to zero; blocks add up equal shares of the tokens and finish rows of few;
rows of many are finished from the sums of pieces, as is the weight's gradient. No atomics: a fixed order of additions.
Bound by memory: dy read once, the table's gradient written once, and less than 1 % of it twice for ids by Zipf's law.
"""

from torch import nn
from torch.utils.cpp_extension import load_inline

TUNABLES = {"BLIND": [0, 1, 2], "RESIDENT": [512, 768], "FINISHERS": [256, 512, 1024], "EARLY": [0, 1]}
BLIND = 1
"""Rows that a warp sets to zero, before it is known which have tokens, for 8,192 tokens that its block counts."""
RESIDENT = 768
"""Threads of a processor that add up tokens."""
FINISHERS = 1024
"""Threads of a block that finishes rows of many tokens."""
EARLY = 1
"""Whether a kernel's blocks may wait on the processors for the end of the one before."""

KERNELS = r"""
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <algorithm>
#include <atomic>
#include <stdexcept>
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

__device__ __forceinline__ float wide(float value) { return value; }
__device__ __forceinline__ float wide(__half value) { return __half2float(value); }
__device__ __forceinline__ float wide(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ void narrow(float value, float* to) { *to = value; }
__device__ __forceinline__ void narrow(float value, __half* to) { *to = __float2half_rn(value); }
__device__ __forceinline__ void narrow(float value, __nv_bfloat16* to) { *to = __float2bfloat16_rn(value); }

// LANES: 16 bytes of elements, or one where rows begin anywhere.
template <class T, int LANES> struct alignas(LANES * sizeof(T)) Vector { T at[LANES]; };

// Nobody reads the results again: they leave the cache first.
template <class T, int LANES> __device__ __forceinline__ void leave(T* to, const float (&value)[LANES]) {
    Vector<T, LANES> made;
    #pragma unroll
    for (int l = 0; l < LANES; l++) narrow(value[l], made.at + l);
    if constexpr (sizeof(made) == 16) __stcs((uint4*)to, *(const uint4*)&made);
    else *(Vector<T, LANES>*)to = made;
}
template <int SIZE> __device__ __forceinline__ void copy_later(void* to, const void* from) {
    const u32 place = (u32)__cvta_generic_to_shared(to);
    if constexpr (SIZE == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(place), "l"(from));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(place), "l"(from));
}
__device__ __forceinline__ void committed() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void arrived() {
    asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
}
// Launches of the next kernel may begin; and the one before has ended, its writes seen. What it wrote is not read by
// __restrict__ pointers: the compiler might read it too early.
__device__ __forceinline__ void next_may_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void previous_ended() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ __forceinline__ float over_warp(float value) {
    #pragma unroll
    for (int step = 16; step; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}
// Two sums over the block. The next one needs other room, the one after it may use the same again.
__device__ __forceinline__ float2 over_block(float first, float second, float2* room) {
    first = over_warp(first), second = over_warp(second);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = make_float2(first, second);
    __syncthreads();
    float2 sum = make_float2(0.0f, 0.0f);
    #pragma unroll 4
    for (int w = 0; w < (int)blockDim.x / 32; w++) sum.x += room[w].x, sum.y += room[w].y;
    return sum;
}

// Row r is block r % 2^shift's: frequent ids are neighbours, and each gets a block of its own. Tokens come in the order
// of blocks, of a block's rows, and within a row of warps: each warp counts and places for itself, so the order is the
// same whenever the ids are. A block counts what comes before its own tokens, too: every block reads all ids (128 KB of
// 16,384, from the second cache), and none waits for another.
constexpr int SORTERS = 1024, SORTING = SORTERS / 32, AHEAD = 8, SPAN = SORTERS * AHEAD;
constexpr int MOST_ROWS = 1024;  // of a block: 136 KB of counts

// 16 bytes a thread, or elements at the ends of a row that begins anywhere.
template <class Word> __device__ __forceinline__ void clear_row(unsigned char* table, int row, i64 bytes) {
    unsigned char *begin = table + row * bytes, *end = begin + bytes;
    unsigned char* at = begin - ((u64)begin & 15) + threadIdx.x % 32 * 16;
    #pragma unroll 1  // here and below: code is fetched from memory, too, as nothing is in the caches
    for (; at < end; at += 512) {
        if (at >= begin && at + 16 <= end) {
            __stcs((uint4*)at, uint4{0, 0, 0, 0});
        } else {
            #pragma unroll 1
            for (int i = 0; i < 16; i += sizeof(Word))
                if (at + i >= begin && at + i < end) *(Word*)(at + i) = 0;
        }
    }
}

// An entry: the token, its row, where the row's entries begin and how many they are.
template <class Word> __global__ void __launch_bounds__(SORTERS) sort_tokens(
    const i64* __restrict__ ids, int4* __restrict__ entries, unsigned char* __restrict__ dtable, int tokens, int vocab,
    int shift, int pitch, i64 bytes, int blind) {
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ int warp_counts[SORTING], warp_below[SORTING];
    const int blocks = 1 << shift, mine = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int rows = mine < vocab ? (vocab - mine + blocks - 1) >> shift : 0;
    const u32 lower = (1u << lane) - 1;
    int* counts = (int*)memory;  // [warp][row], then where the warp's next token of a row goes, from the row's start
    int *starts = counts + SORTING * pitch, *totals = starts + pitch, *own = counts + warp * pitch;
    const u32* low = (const u32*)ids;  // of each id the half that matters
    next_may_start();
    #pragma unroll 4
    for (int i = threadIdx.x; i < SORTING * pitch; i += SORTERS) counts[i] = 0;
    __syncthreads();

    u32 held[AHEAD];
    auto read = [&](int base) {
        #pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int token = base + k * SORTERS + (int)threadIdx.x;
            held[k] = token < tokens ? low[2 * (i64)token] : 0xffffffffu;
        }
    };
    // A warp's rows are every 32nd of the block's; the rare ids at the end are set to zero first.
    int uncleared = rows > warp ? (rows - warp + SORTING - 1) / SORTING : 0;
    auto clear = [&](int many, bool known) {
        #pragma unroll 1
        for (; many > 0 && uncleared > 0; many--) {
            const int local = warp + --uncleared * SORTING;
            if (!known || totals[local] == 0) clear_row<Word>(dtable, (local << shift) + mine, bytes);
        }
    };

    int below = 0;
    for (int base = 0; base < tokens; base += SPAN) {
        read(base);
        clear(blind, false);  // the memory has something to do while ids are counted
        #pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const u32 id = held[k], local = id >> shift;
            const int owner = (int)(id & (blocks - 1));
            const bool valid = id < (u32)vocab, hit = valid && owner == mine;
            below += valid && owner < mine;
            const u32 hits = __ballot_sync(0xffffffffu, hit);
            if (!hits) continue;
            if (hit) {
                const u32 peers = __match_any_sync(hits, local);
                if (!(peers & lower)) own[local] += __popc(peers);
            }
            __syncwarp();
        }
    }
    __syncthreads();

    int total = 0;
    if ((int)threadIdx.x < rows) {
        #pragma unroll 8
        for (int w = 0; w < SORTING; w++) {
            const int count = counts[w * pitch + threadIdx.x];
            counts[w * pitch + threadIdx.x] = total;
            total += count;
        }
    }
    int until = total;
    #pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int more = __shfl_up_sync(0xffffffffu, until, step);
        if (lane >= step) until += more;
    }
    #pragma unroll
    for (int step = 16; step; step /= 2) below += __shfl_xor_sync(0xffffffffu, below, step);
    if (lane == 31) warp_counts[warp] = until, warp_below[warp] = below;
    __syncthreads();
    int start = until - total;
    #pragma unroll 8
    for (int w = 0; w < SORTING; w++) start += warp_below[w] + (w < warp ? warp_counts[w] : 0);
    if ((int)threadIdx.x < rows) starts[threadIdx.x] = start, totals[threadIdx.x] = total;
    __syncthreads();

    const int rounds = tokens > SPAN ? (tokens + SPAN - 1) / SPAN : 1, quota = (uncleared + rounds - 1) / rounds;
    for (int round = 0; round < rounds; round++) {
        read(round * SPAN);
        clear(quota, true);
        #pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const u32 id = held[k], local = id >> shift;
            const bool hit = id < (u32)vocab && (int)(id & (blocks - 1)) == mine;
            const u32 hits = __ballot_sync(0xffffffffu, hit);
            if (!hits) continue;
            u32 peers = 0;
            if (hit) {
                peers = __match_any_sync(hits, local);
                const int from = starts[local], at = from + own[local] + __popc(peers & lower);
                entries[at] = make_int4(
                    round * SPAN + k * SORTERS + (int)threadIdx.x, (int)id, from, totals[local]);
            }
            __syncwarp();
            if (hit && !(peers & lower)) own[local] += __popc(peers);
            __syncwarp();
        }
    }
    // What is not in the table ends the kernel, as torch's own indexing does. Each block looks at a part.
    for (i64 token = mine * SORTERS + (int)threadIdx.x; token < tokens; token += (i64)blocks * SORTERS)
        if ((u64)ids[token] >= (u64)vocab) __trap();
}

// A block's share is `chunk` entries, moved to the borders of rows that have no more than that. A row of more is cut at
// multiples of `chunk`: so a chunk has at most two pieces, of a row that began before it and of one that goes on.
constexpr int MOST_CHUNK = 64;

// Each thread copies its own columns of the rows to come into shared memory, a ring of DEPTH rows of dy and of the
// table, so that nothing but the sums of a finished row waits for other threads.
template <class T, int LANES, int PIECES, int DEPTH, int MOST>
__global__ void __launch_bounds__(MOST, MOST == 256 ? 3 : 1) add_tokens(
    const T* __restrict__ dy, const T* __restrict__ table, const T* __restrict__ weight,
    const int4* entries, T* __restrict__ dtable, float* pieces, float* shares, int tokens, int chunk, int chunks,
    int hidden, int pitch, float inverse, float eps) {
    constexpr int SIZE = LANES * sizeof(T);
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ float2 room[2][MOST / 32];
    __shared__ int4 known[2 * MOST_CHUNK];
    const int walkers = blockDim.x, lane = threadIdx.x * LANES, span = walkers * LANES, width = span * PIECES;
    T *factors = (T*)memory + lane, *ring = factors + width;  // the weight; [stage][dy, table][column]
    auto copy = [&](T* to, const T* from) {
        #pragma unroll
        for (int p = 0; p < PIECES; p++) {
            if (p * span + lane >= hidden) continue;
            if constexpr (SIZE >= 4) copy_later<SIZE>(to + p * span, from + p * span);
            else to[p * span] = from[p * span];
        }
    };
    next_may_start();
    copy(factors, weight + lane);  // comes with the first row
    float acc[PIECES][LANES], dw[PIECES][LANES];
    #pragma unroll
    for (int p = 0; p < PIECES; p++)
        #pragma unroll
        for (int l = 0; l < LANES; l++) acc[p][l] = dw[p][l] = 0.0f;
    previous_ended();
    int turn = 0;
    for (int c = blockIdx.x; c < chunks; c += gridDim.x) {
        const int first = c * chunk, seen = min(2 * chunk, tokens - first);
        __syncthreads();
        for (int i = threadIdx.x; i < seen; i += walkers) known[i] = entries[first + i];
        __syncthreads();
        int begin = 0, end = min(chunk, tokens - first);
        const int4 head = known[0], tail = known[end - 1];
        if (head.w <= chunk && head.z < first) begin = head.z + head.w - first;
        if (tail.w <= chunk) end = tail.z + tail.w - first;
        auto is_last = [&](int i, const int4& entry) { return first + i == entry.z + entry.w - 1 || i == end - 1; };
        auto ahead = [&](int i, int stage) {
            if (i < end) {
                const int4 entry = known[i];
                T* to = ring + stage * 2 * width;
                copy(to, dy + (i64)entry.x * hidden + lane);
                if (is_last(i, entry)) copy(to + width, table + (i64)entry.y * hidden + lane);
            }
            committed();
        };
        #pragma unroll 1
        for (int s = 0; s < DEPTH - 1; s++) ahead(begin + s, s);
        for (int i = begin, stage = 0; i < end; i++, stage = stage == DEPTH - 1 ? 0 : stage + 1) {
            ahead(i + DEPTH - 1, stage == 0 ? DEPTH - 1 : stage - 1);
            arrived<DEPTH - 1>();
            const T* here = ring + stage * 2 * width;
            #pragma unroll
            for (int p = 0; p < PIECES; p++) {
                if (p * span + lane >= hidden) continue;
                const Vector<T, LANES> g = *(const Vector<T, LANES>*)(here + p * span);
                #pragma unroll
                for (int l = 0; l < LANES; l++) acc[p][l] += wide(g.at[l]);
            }
            const int4 entry = known[i];
            if (!is_last(i, entry)) continue;

            here += width;
            Vector<T, LANES> x[PIECES], w[PIECES];
            float squares = 0.0f, along = 0.0f;
            #pragma unroll
            for (int p = 0; p < PIECES; p++) {
                if (p * span + lane >= hidden) continue;
                x[p] = *(const Vector<T, LANES>*)(here + p * span);
                w[p] = *(const Vector<T, LANES>*)(factors + p * span);
                #pragma unroll
                for (int l = 0; l < LANES; l++) {
                    const float value = wide(x[p].at[l]);
                    squares += value * value;
                    along += acc[p][l] * wide(w[p].at[l]) * value;
                }
            }
            const float2 sum = over_block(squares, along, room[turn]);
            turn ^= 1;
            const float scale = rsqrtf(sum.x * inverse + eps);
            const bool whole = entry.w <= chunk;
            float mean = sum.y * scale * inverse;
            if (whole && !(fabsf(mean) <= 3e38f)) {
                // The squares may have been too large for float32, and the norm then is 0: 0 times infinity is no sum.
                along = 0.0f;
                #pragma unroll
                for (int p = 0; p < PIECES; p++)
                    if (p * span + lane < hidden)
                        #pragma unroll
                        for (int l = 0; l < LANES; l++)
                            along += acc[p][l] * wide(w[p].at[l]) * (wide(x[p].at[l]) * scale);
                mean = over_block(along, 0.0f, room[turn]).x * inverse;
                turn ^= 1;
            }
            T* to = dtable + (i64)entry.y * hidden + lane;
            float* piece = pieces + ((i64)2 * c + (entry.z >= first)) * pitch + lane;
            #pragma unroll
            for (int p = 0; p < PIECES; p++) {
                // A piece is written as far as its pitch, where columns beyond the row are zeros.
                if (!whole && p * span + lane < pitch)
                    #pragma unroll
                    for (int l = 0; l < LANES; l += LANES < 4 ? 1 : 4) {
                        if constexpr (LANES < 4) piece[p * span + l] = acc[p][l];
                        else *(float4*)(piece + p * span + l) = *(const float4*)&acc[p][l];
                    }
                if (p * span + lane < hidden) {
                    float value[LANES];
                    #pragma unroll
                    for (int l = 0; l < LANES; l++) {
                        const float normed = wide(x[p].at[l]) * scale;
                        dw[p][l] += acc[p][l] * normed;
                        value[l] = scale * (acc[p][l] * wide(w[p].at[l]) - normed * mean);
                    }
                    if (whole) leave<T, LANES>(to + p * span, value);
                }
                #pragma unroll
                for (int l = 0; l < LANES; l++) acc[p][l] = 0.0f;
            }
        }
    }
    float* share = shares + (i64)blockIdx.x * pitch + lane;
    #pragma unroll
    for (int p = 0; p < PIECES; p++)
        if (p * span + lane < hidden)
            #pragma unroll
            for (int l = 0; l < LANES; l += LANES < 4 ? 1 : 4) {
                if constexpr (LANES < 4) share[p * span + l] = dw[p][l];
                else *(float4*)(share + p * span + l) = *(const float4*)&dw[p][l];
            }
}

// The sum of every `step`-th of what `get` gives, eight of them on their way at a time.
template <class Value, class Get, class Add>
__device__ __forceinline__ Value summed(int from, int to, int step, Value none, Get get, Add add) {
    Value sum = none;
    #pragma unroll 1
    for (; from < to; from += 8 * step) {
        Value more[8];
        #pragma unroll
        for (int j = 0; j < 8; j++) more[j] = from + j * step < to ? get(from + j * step) : none;
        #pragma unroll
        for (int j = 0; j < 8; j++) add(sum, more[j]);
    }
    return sum;
}

// The first blocks add up the weight's gradient, 32 columns each. Every other block finds the rows that were cut, each
// in the chunk where it begins and whose last entry is its own, and takes every so many-th of them.
template <class T> __global__ void __launch_bounds__(1024) finish_rows(
    const T* __restrict__ table, const T* __restrict__ weight, const int4* entries, T* __restrict__ dtable,
    T* __restrict__ dweight, const float* pieces, const float* shares, int tokens, int chunk, int chunks, int adders,
    int hidden, int pitch, float inverse, float eps) {
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ float found[32][32];
    __shared__ float2 room[2][32];
    __shared__ int rows[1024], counts[32];
    const int columns = (hidden + 31) / 32, lane = threadIdx.x % 32, warp = threadIdx.x / 32, deep = blockDim.x / 32;
    previous_ended();
    if ((int)blockIdx.x < columns) {
        const int column = blockIdx.x * 32 + lane;
        float sum = 0.0f;
        if (column < hidden)
            sum = summed(
                warp, adders, deep, 0.0f, [&](int i) { return shares[(i64)i * pitch + column]; },
                [](float& to, float more) { to += more; });
        found[warp][lane] = sum;
        __syncthreads();
        if (warp || column >= hidden) return;
        #pragma unroll 4
        for (int k = 1; k < deep; k++) sum += found[k][lane];
        narrow(sum, dweight + column);
        return;
    }
    // The sums of a row's pieces: threads for four columns each, and as many slices of them as the block has room for.
    const int quads = pitch / 4, slices = max(1, (int)blockDim.x / quads);
    const int step = gridDim.x - columns, mine = blockIdx.x - columns;
    float* sums = (float*)memory;  // [slice][column]
    int before = 0;
    for (int base = 0; base < chunks; base += blockDim.x) {
        const i64 c = base + (int)threadIdx.x;
        int is = -1;
        if (c < chunks) {
            const int last = (int)min((i64)tokens, (c + 1) * chunk) - 1;
            const int4 entry = entries[last];
            if (entry.w > chunk && entry.z >= c * chunk) is = last;
        }
        const u32 hits = __ballot_sync(0xffffffffu, is >= 0);
        if (lane == 0) counts[warp] = __popc(hits);
        __syncthreads();
        int rank = before + __popc(hits & ((1u << lane) - 1)), total = 0;
        #pragma unroll 4
        for (int w = 0; w < deep; w++) rank += w < warp ? counts[w] : 0, total += counts[w];
        const int first = before + (mine + step - before % step) % step;
        if (is >= 0 && rank % step == mine) rows[(rank - first) / step] = is;
        before += total;
        __syncthreads();
        for (int k = 0; first + k * step < before; k++) {
            const int4 entry = entries[rows[k]];
            const int from = entry.z / chunk, to = (entry.z + entry.w - 1) / chunk + 1;
            for (int item = threadIdx.x; item < slices * quads; item += blockDim.x) {
                const int slice = item / quads, quad = item % quads;
                *(float4*)(sums + slice * pitch + quad * 4) = summed(
                    from + slice, to, slices, make_float4(0.0f, 0.0f, 0.0f, 0.0f),
                    [&](int c) { return *(const float4*)(pieces + ((i64)2 * c + (c == from)) * pitch + quad * 4); },
                    [](float4& to, const float4& more) {
                        to.x += more.x, to.y += more.y, to.z += more.z, to.w += more.w;
                    });
            }
            __syncthreads();
            const T* x = table + (i64)entry.y * hidden;
            float squares = 0.0f, along = 0.0f;
            #pragma unroll 2
            for (int column = threadIdx.x; column < hidden; column += blockDim.x) {
                const float value = wide(x[column]), factor = wide(weight[column]);
                float sum = sums[column];
                #pragma unroll 4
                for (int s = 1; s < slices; s++) sum += sums[s * pitch + column];
                sum *= factor;
                sums[column] = sum;  // nobody but this thread reads it again
                squares += value * value;
                along += sum * value;
            }
            const float2 sum = over_block(squares, along, room[0]);
            const float scale = rsqrtf(sum.x * inverse + eps);
            float mean = sum.y * scale * inverse;
            if (!(fabsf(mean) <= 3e38f)) {
                along = 0.0f;
                #pragma unroll 1
                for (int column = threadIdx.x; column < hidden; column += blockDim.x)
                    along += sums[column] * (wide(x[column]) * scale);
                mean = over_block(along, 0.0f, room[1]).x * inverse;
            }
            #pragma unroll 2
            for (int column = threadIdx.x; column < hidden; column += blockDim.x) {
                const float normed = wide(x[column]) * scale;
                narrow(scale * (sums[column] - normed * mean), dtable + (i64)entry.y * hidden + column);
            }
            __syncthreads();
        }
    }
}

static void check(cudaError_t code) {
    if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}
static int over(i64 value, int by) { return (int)((value + by - 1) / by); }
static int device() {
    int current = 0;
    check(cudaGetDevice(&current));
    return current;
}
static int processors() {
    static std::atomic<int> known[64];
    const int at = device();
    int count = known[at % 64];
    if (!count) {
        check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, at));
        known[at % 64] = count;
    }
    return count;
}

struct Launch { int grid, block, shared, early; cudaStream_t stream; };
template <class... Kinds, class... Args> static void start(const Launch& to, void (*kernel)(Kinds...), Args... args) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(to.grid), config.blockDim = dim3(to.block);
    config.dynamicSmemBytes = to.shared, config.stream = to.stream;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute, config.numAttrs = to.early ? 1 : 0;
    check(cudaLaunchKernelEx(&config, kernel, Kinds(args)...));
}
// More than 48 KB of shared memory need consent, once for a kernel and a device.
template <class Kernel> static void allow(Kernel kernel, int shared, std::atomic<int>* allowed) {
    if (shared <= 40 << 10) return;  // with the static part
    const int at = device() % 64;
    if (allowed[at] >= shared) return;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    allowed[at] = shared;
}

struct Call {
    const void *dy, *ids, *table, *weight;
    void *dtable, *dweight, *scratch;
    int tokens, vocab, hidden;
    bool even;  // rows begin at multiples of 16 bytes
    float eps;
    int blind, resident, finishers, early;
    cudaStream_t stream;
};
// How tokens are shared. Scratch: an entry for each, two pieces of a row for each chunk, and the blocks' weights.
struct Plan { int threads, shared, chunk, chunks, blocks, pitch; i64 pieces, shares, bytes; };
// What a thread has of a row, and how many rows are on their way.
template <class T, bool EVEN, bool LARGE> struct Shape {
    static constexpr int LANES = EVEN ? 16 / sizeof(T) : 1;
    static constexpr int PIECES = EVEN ? sizeof(T) / (LARGE ? 1 : 2) : LARGE ? 12 : sizeof(T) == 2 ? 8 : 5;
    static constexpr int DEPTH = (LARGE ? 8 : PIECES == 5 ? 24 : 16) / sizeof(T), MOST = LARGE ? 512 : 256;
    static constexpr int HELD = LANES * PIECES, LONGEST = HELD * MOST;
};
template <class T, class F> static void with_shape(const Call& call, F use) {
    if (call.even && call.hidden <= Shape<T, true, false>::LONGEST) use(Shape<T, true, false>());
    else if (call.even) use(Shape<T, true, true>());
    else if (call.hidden <= Shape<T, false, false>::LONGEST) use(Shape<T, false, false>());
    else use(Shape<T, false, true>());
}
template <class T, class S> static Plan plan_of(const Call& call, S) {
    Plan plan;
    plan.threads = over(call.hidden, 32 * S::HELD) * 32;
    plan.shared = (S::DEPTH * 2 + 1) * plan.threads * S::HELD * (int)sizeof(T);
    const int fit = std::min(call.resident / plan.threads, (228 << 10) / (plan.shared + 3328));
    const int places = processors() * std::max(1, std::min(fit, 16));
    plan.chunk = std::min(std::max(over(call.tokens, places), 4), MOST_CHUNK);
    plan.chunks = over(call.tokens, plan.chunk);
    plan.blocks = std::min(plan.chunks, places);
    plan.pitch = over(call.hidden, 4) * 4;
    plan.pieces = (i64)call.tokens * sizeof(int4);
    plan.shares = plan.pieces + (i64)2 * plan.chunks * plan.pitch * sizeof(float);
    plan.bytes = plan.shares + (i64)plan.blocks * plan.pitch * sizeof(float);
    return plan;
}

template <class T> static void sorted(const Call& call) {
    typedef typename std::conditional<sizeof(T) == 2, unsigned short, u32>::type Word;
    static std::atomic<int> allowed[64];
    int shift = 7;  // 128 blocks, as good as one for each processor
    while ((call.vocab - 1) >> shift >= MOST_ROWS) shift++;
    const int pitch = ((call.vocab - 1) >> shift) + 1, shared = (SORTING + 2) * pitch * (int)sizeof(int);
    allow(sort_tokens<Word>, shared, allowed);
    start({1 << shift, SORTERS, shared, 0, call.stream}, sort_tokens<Word>, (const i64*)call.ids, (int4*)call.scratch,
          (unsigned char*)call.dtable, call.tokens, call.vocab, shift, pitch, (i64)call.hidden * (i64)sizeof(T),
          call.blind);
}
template <class T, class S> static void added(const Call& call, const Plan& plan, S) {
    constexpr auto kernel = add_tokens<T, S::LANES, S::PIECES, S::DEPTH, S::MOST>;
    static std::atomic<int> allowed[64];
    allow(kernel, plan.shared, allowed);
    char* scratch = (char*)call.scratch;
    start({plan.blocks, plan.threads, plan.shared, call.early, call.stream}, kernel, (const T*)call.dy,
          (const T*)call.table, (const T*)call.weight, (const int4*)scratch, (T*)call.dtable,
          (float*)(scratch + plan.pieces), (float*)(scratch + plan.shares), call.tokens, plan.chunk, plan.chunks,
          call.hidden, plan.pitch, 1.0f / call.hidden, call.eps);
}
template <class T> static void finished(const Call& call, const Plan& plan) {
    const int slices = std::max(1, call.finishers / (plan.pitch / 4));
    // All of them at a time, beside the blocks that add up the weight's gradient.
    const int places = processors() * std::max(1, 1024 / call.finishers), columns = over(call.hidden, 32);
    const int seekers = std::min(plan.chunks, std::max(places - columns, (places + 1) / 2));
    const char* scratch = (const char*)call.scratch;
    start({columns + seekers, call.finishers, slices * plan.pitch * (int)sizeof(float), call.early,
           call.stream},
          finish_rows<T>, (const T*)call.table, (const T*)call.weight, (const int4*)scratch, (T*)call.dtable,
          (T*)call.dweight, (const float*)(scratch + plan.pieces), (const float*)(scratch + plan.shares), call.tokens,
          plan.chunk, plan.chunks, plan.blocks, call.hidden, plan.pitch, 1.0f / call.hidden, call.eps);
}
template <class T> static void all(const Call& call) {
    if (call.vocab) sorted<T>(call);
    with_shape<T>(call, [&](auto shape) {
        const Plan plan = plan_of<T>(call, shape);
        if (plan.blocks) added<T>(call, plan, shape);
        finished<T>(call, plan);
    });
}

// `type`: f, h, b.
i64 scratch_of(char type, const Call& call) {
    i64 bytes = 0;
    auto plan = [&](auto sample) {
        with_shape<decltype(sample)>(
            call, [&](auto shape) { bytes = plan_of<decltype(sample)>(call, shape).bytes; });
    };
    if (type == 'h') plan(__half());
    else if (type == 'b') plan(__nv_bfloat16());
    else plan(0.0f);
    return bytes;
}
void launch_all(char type, const Call& call) {
    if (type == 'h') all<__half>(call);
    else if (type == 'b') all<__nv_bfloat16>(call);
    else all<float>(call);
}
"""

GLUE = r"""
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <limits>
#include <tuple>

struct Call {
    const void *dy, *ids, *table, *weight;
    void *dtable, *dweight, *scratch;
    int tokens, vocab, hidden;
    bool even;
    float eps;
    int blind, resident, finishers, early;
    cudaStream_t stream;
};
long long scratch_of(char type, const Call& call);
void launch_all(char type, const Call& call);

using at::Tensor;

std::tuple<Tensor, Tensor> gradients(
    const Tensor& of_dy, const Tensor& of_ids, const Tensor& of_table, const Tensor& of_weight, double eps,
    int64_t blind, int64_t resident, int64_t finishers, int64_t early) {
    const auto type = of_table.scalar_type();
    TORCH_CHECK(of_table.is_cuda(), "tensors of a GPU, not of ", of_table.device());
    TORCH_CHECK(type == at::kFloat || type == at::kHalf || type == at::kBFloat16,
                "float32, float16 or bfloat16, not ", type);
    for (const Tensor* each : {&of_dy, &of_weight})
        TORCH_CHECK(each->scalar_type() == type && each->device() == of_table.device(), "the table is of ", type,
                    " on ", of_table.device(), ", something else of ", each->scalar_type(), " on ", each->device());
    TORCH_CHECK(of_ids.device() == of_table.device() && (of_ids.scalar_type() == at::kLong ||
                of_ids.scalar_type() == at::kInt), "ids are integers on the table's GPU");
    TORCH_CHECK(of_table.dim() == 2 && of_dy.dim() == 2 && of_ids.dim() == 1 && of_weight.dim() == 1 &&
                    of_dy.size(0) == of_ids.size(0) && of_dy.size(1) == of_table.size(1) &&
                    of_weight.size(0) == of_table.size(1),
                "dy ", of_dy.sizes(), ", ids ", of_ids.sizes(), ", table ", of_table.sizes(), " and weight ",
                of_weight.sizes(), " do not fit one another");
    const int64_t tokens = of_ids.size(0), vocab = of_table.size(0), hidden = of_table.size(1);
    TORCH_CHECK(std::max(tokens, vocab) <= std::numeric_limits<int>::max() / 2, "too many: ", tokens, ", ", vocab);
    TORCH_CHECK(vocab || !tokens, "tokens are not in an empty table");
    const c10::cuda::CUDAGuard guard(of_table.device());
    const Tensor dy = of_dy.contiguous(), table = of_table.contiguous(), weight = of_weight.contiguous();
    const Tensor ids = of_ids.scalar_type() == at::kLong ? of_ids.contiguous() : of_ids.to(at::kLong).contiguous();
    const Tensor dtable = at::empty(table.sizes(), table.options());
    const Tensor dweight = at::empty(weight.sizes(), weight.options());
    if (!hidden) return {dtable, dweight};
    Call call = {};
    call.dy = dy.const_data_ptr(), call.ids = ids.const_data_ptr();
    call.table = table.const_data_ptr(), call.weight = weight.const_data_ptr();
    call.dtable = dtable.mutable_data_ptr(), call.dweight = dweight.mutable_data_ptr();
    call.tokens = (int)tokens, call.vocab = (int)vocab, call.hidden = (int)hidden, call.eps = (float)eps;
    call.even = ((uintptr_t)call.dy | (uintptr_t)call.table | (uintptr_t)call.weight |
                 (uintptr_t)(hidden * table.element_size())) % 16 == 0;
    TORCH_CHECK(hidden <= (call.even ? 8192 : 6144), "rows of ", hidden, " do not stay in registers");
    call.blind = (int)blind, call.resident = (int)resident, call.finishers = (int)finishers, call.early = (int)early;
    call.stream = c10::cuda::getCurrentCUDAStream();
    const char name = type == at::kHalf ? 'h' : type == at::kBFloat16 ? 'b' : 'f';
    const Tensor scratch = at::empty({scratch_of(name, call)}, table.options().dtype(at::kByte));
    call.scratch = scratch.mutable_data_ptr();
    launch_all(name, call);
    return {dtable, dweight};
}
"""
gradients = load_inline(
    name="embedding_grad_rmsnorm",
    cpp_sources=[GLUE],
    cuda_sources=[KERNELS],
    functions=["gradients"],
    extra_cflags=["-O2"],
    extra_cuda_cflags=["-O3"],
    no_implicit_headers=True,
).gradients


class ModelNew(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, dy, ids, table, weight):
        return gradients(dy, ids, table, weight, self.eps, BLIND, RESIDENT, FINISHERS, EARLY)
