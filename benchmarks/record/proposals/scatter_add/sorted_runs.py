"""Edges are counted by node and put in order of their nodes, then each node's rows are summed in registers and written
once: float additions in memory run at some 100 G a second, a read of the rows alone would take a seventh of that time.

A block counts its edges in a table in shared memory first, so that a hub costs one addition a block; what the counter
held is the edge's rank, and with a place for each node (no order among nodes is needed) all edges find theirs without
a second addition. Nodes of many edges are split into pieces, which blocks draw; the last block adds up their sums.
Few edges take one launch: each block looks through all ids and sums the rows of its own nodes, by warp.
Bound by memory: rows, base and result once, some 40 bytes an edge and 24 a node for the order, mostly in the L2 cache.
"""

from torch import nn
from torch.utils.cpp_extension import load_inline

TUNABLES = {"AHEAD": [4, 8], "LIGHT": [64, 128, 256], "PIECE": [256, 512, 1024]}
AHEAD = 4
"""Rows that a thread has under way."""
LIGHT = 128
"""Edges of a node that one group of lanes sums up alone."""
PIECE = 512
"""Edges of a heavier node that one block sums up at most."""

KERNELS = r"""
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <string.h>
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

__device__ __forceinline__ float wide(float value) { return value; }
__device__ __forceinline__ float wide(__half value) { return __half2float(value); }
__device__ __forceinline__ float wide(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ void narrow(float value, float& to) { to = value; }
__device__ __forceinline__ void narrow(float value, __half& to) { to = __float2half_rn(value); }
__device__ __forceinline__ void narrow(float value, __nv_bfloat16& to) { to = __float2bfloat16_rn(value); }

// A word holds one float or two 16-bit numbers.
__device__ __forceinline__ void add_word(u32 word, float* sum, float) { sum[0] += __uint_as_float(word); }
__device__ __forceinline__ void add_word(u32 word, float* sum, __nv_bfloat16) {
    sum[0] += __uint_as_float(word << 16), sum[1] += __uint_as_float(word & 0xffff0000u);
}
__device__ __forceinline__ void add_word(u32 word, float* sum, __half) {
    const float2 pair = __half22float2(*(const __half2*)&word);
    sum[0] += pair.x, sum[1] += pair.y;
}
template <int N> struct alignas(4 * N) Vector { u32 at[N]; };
// N elements: one, two in words, or 16 bytes of them. What is read once leaves room in the L2 cache for the order.
template <class T, int N> struct Elements {
    uint4 words;
    __device__ __forceinline__ void load(const T* from) { words = __ldcs((const uint4*)from); }
    __device__ __forceinline__ void clear() { words = uint4{0, 0, 0, 0}; }
    __device__ __forceinline__ void add_to(float* sum) const {
        const u32 word[4] = {words.x, words.y, words.z, words.w};
        #pragma unroll
        for (int w = 0; w < 4; w++) add_word(word[w], sum + w * (N / 4), T());
    }
    static __device__ __forceinline__ void store(T* to, const float* sum) {
        T made[N];
        #pragma unroll
        for (int k = 0; k < N; k++) narrow(sum[k], made[k]);
        uint4 packed;
        memcpy(&packed, made, 16);
        __stcs((uint4*)to, packed);
    }
};
template <class T> struct Elements<T, 2> {
    Vector<sizeof(T) / 2> words;
    __device__ __forceinline__ void load(const T* from) { words = *(const Vector<sizeof(T) / 2>*)from; }
    __device__ __forceinline__ void add_to(float* sum) const {
        #pragma unroll
        for (int w = 0; w < sizeof(T) / 2; w++) add_word(words.at[w], sum + w, T());
    }
};
template <class T> struct Elements<T, 1> {
    T value;
    __device__ __forceinline__ void load(const T* from) { value = __ldcs(from); }
    __device__ __forceinline__ void clear() { narrow(0.0f, value); }
    __device__ __forceinline__ void add_to(float* sum) const { *sum += wide(value); }
    static __device__ __forceinline__ void store(T* to, const float* sum) { narrow(*sum, *to); }
};

constexpr int THREADS = 256, TILE = 4096, COUNTERS = 512, SLOTS = 4096, HEAD = 4;
constexpr u32 NONE = 0xffffffffu;
struct alignas(16) Piece { u32 node, begin, count, first; };  // `first`: the node's first piece
struct Run { u32 begin, count; };
// `head`: edges placed, pieces made, pieces drawn. Behind it lie the counts, which are cleared with it.
struct Space {
    u32 *head, *counts, *ranks, *order, *arrived;
    Run* runs;
    Piece* pieces;
    float* partial;
};

// PyTorch's kernel stops at such an index, too.
__device__ __forceinline__ u32 checked(i64 id, int nodes) {
    if ((u64)id >= (u64)nodes) __trap();
    return (u32)id;
}

__global__ void __launch_bounds__(THREADS) clear(uint4* at, int vectors) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < vectors) at[i] = uint4{0, 0, 0, 0};
}

// A slot belongs to the node that comes first; a node that finds another in its slot counts in global memory at once,
// which the hubs, seen early in a tile, hardly ever do.
__global__ void __launch_bounds__(COUNTERS) count_edges(const i64* ids, Space space, int edges, int nodes) {
    __shared__ u32 owner[SLOTS], held[SLOTS];
    constexpr int EACH = TILE / COUNTERS;
    const int first = blockIdx.x * TILE + threadIdx.x;
    i64 id[EACH];
    #pragma unroll
    for (int k = 0; k < EACH; k++) id[k] = edges - first > k * COUNTERS ? ids[first + k * COUNTERS] : 0;
    for (int i = threadIdx.x; i < SLOTS; i += COUNTERS) owner[i] = NONE, held[i] = 0;
    __syncthreads();
    u32 rank[EACH], slot[EACH];
    #pragma unroll
    for (int k = 0; k < EACH; k++) {
        slot[k] = NONE;
        if (edges - first <= k * COUNTERS) continue;
        const u32 node = checked(id[k], nodes), place = (node ^ node / SLOTS) % SLOTS;
        u32 found = *(volatile u32*)(owner + place);
        if (found == NONE) found = atomicCAS(owner + place, NONE, node);
        if (found == NONE || found == node) slot[k] = place, rank[k] = atomicAdd(held + place, 1u);
        else rank[k] = atomicAdd(space.counts + node, 1u);
    }
    __syncthreads();
    u32 before[SLOTS / COUNTERS];
    #pragma unroll
    for (int k = 0; k < SLOTS / COUNTERS; k++) {
        const u32 node = owner[threadIdx.x + k * COUNTERS];
        if (node != NONE) before[k] = atomicAdd(space.counts + node, held[threadIdx.x + k * COUNTERS]);
    }
    #pragma unroll
    for (int k = 0; k < SLOTS / COUNTERS; k++) held[threadIdx.x + k * COUNTERS] = before[k];
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < EACH; k++)
        if (edges - first > k * COUNTERS)
            space.ranks[first + k * COUNTERS] = rank[k] + (slot[k] == NONE ? 0 : held[slot[k]]);
}

// Four nodes a thread. Blocks take their places in whatever order they come.
__global__ void __launch_bounds__(THREADS) place_nodes(Space space, int nodes, u32 light, u32 most) {
    __shared__ u32 totals[THREADS / 32], begin;
    const int first = (blockIdx.x * THREADS + threadIdx.x) * 4, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint4 got = {0, 0, 0, 0};
    if (first < nodes) got = *(const uint4*)(space.counts + first);  // cleared up to a multiple of four
    const u32 count[4] = {got.x, got.y, got.z, got.w}, own = got.x + got.y + got.z + got.w;
    u32 upto = own;
    #pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
        const u32 other = __shfl_up_sync(NONE, upto, apart);
        if (lane >= apart) upto += other;
    }
    if (lane == 31) totals[warp] = upto;
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 all = 0;
        #pragma unroll
        for (int w = 0; w < THREADS / 32; w++) {
            const u32 total = totals[w];
            totals[w] = all, all += total;
        }
        begin = atomicAdd(space.head, all);
    }
    __syncthreads();
    if (first >= nodes) return;
    u32 start[4] = {begin + totals[warp] + upto - own};
    #pragma unroll
    for (int k = 1; k < 4; k++) start[k] = start[k - 1] + count[k - 1];
    uint4* runs = (uint4*)(space.runs + first);
    runs[0] = uint4{start[0], count[0], start[1], count[1]}, runs[1] = uint4{start[2], count[2], start[3], count[3]};
    for (int k = 0; k < 4; k++) {
        if (count[k] <= light) continue;
        // None is empty: (pieces - 1) * each <= (pieces - 1) * most < count.
        const u32 pieces = (count[k] + most - 1) / most, each = (count[k] + pieces - 1) / pieces;
        const u32 at = atomicAdd(space.head + 1, pieces);
        space.arrived[at] = 0;
        for (u32 p = 0; p < pieces; p++) {
            const u32 done = min(p * each, count[k]);
            space.pieces[at + p] = Piece{(u32)(first + k), start[k] + done, min(each, count[k] - done), at};
        }
    }
}

__global__ void __launch_bounds__(THREADS) place_edges(const i64* ids, Space space, int edges) {
    const int first = blockIdx.x * (THREADS * 4) + threadIdx.x;
    u32 at[4];
    #pragma unroll
    for (int k = 0; k < 4; k++) {
        const int edge = first + k * THREADS;
        if (edge < edges) at[k] = space.runs[__ldcs(ids + edge)].begin + __ldcs(space.ranks + edge);
    }
    #pragma unroll
    for (int k = 0; k < 4; k++)
        if (first + k * THREADS < edges) space.order[at[k]] = first + k * THREADS;
}

// Edges first, first + step, .. of a list: N columns from `column` on, CHUNKS times, `apart` columns from each other.
template <class T, int N, int CHUNKS, int AHEAD> __device__ __forceinline__ void add_rows(
    const T* rows, const u32* list, int first, int count, int step, int dim, int column, int apart,
    float (&sum)[CHUNKS][N]) {
    u32 next[AHEAD];
    auto fetch = [&](int from) {
        #pragma unroll
        for (int a = 0; a < AHEAD; a++) next[a] = from + a * step < count ? list[from + a * step] : NONE;
    };
    fetch(first);
    for (int i = first; i < count; i += AHEAD * step) {
        Elements<T, N> got[AHEAD][CHUNKS];
        #pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const T* row = rows + (i64)next[a] * dim + column;
            #pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                got[a][c].clear();
                if (next[a] != NONE && column + c * apart < dim) got[a][c].load(row + c * apart);
            }
        }
        fetch(i + AHEAD * step);
        #pragma unroll
        for (int a = 0; a < AHEAD; a++)
            #pragma unroll
            for (int c = 0; c < CHUNKS; c++) got[a][c].add_to(sum[c]);
    }
}

// A group of 2^shift lanes has a node. The first blocks, which all run at once, draw the pieces of heavy nodes.
template <class T, int N, int CHUNKS, int AHEAD> __global__ void __launch_bounds__(THREADS, AHEAD > 4 ? 3 : 4) sum_rows(
    const T* base, const T* rows, T* out, Space space, int nodes, int dim, int shift, int drawing, u32 light) {
    const int lanes = 1 << shift, groups = THREADS >> shift, width = lanes * N * CHUNKS;
    const int lane = threadIdx.x & (lanes - 1), group = threadIdx.x >> shift;
    if (blockIdx.x >= drawing) {
        const i64 node = (i64)(blockIdx.x - drawing) * groups + group;
        if (node >= nodes) return;
        const uint2 run = *(const uint2*)(space.runs + node);
        const u32* list = space.order + run.x;
        if (run.y > light) return;
        for (int start = lane * N; start < dim; start += width) {
            Elements<T, N> old[CHUNKS];
            float sum[CHUNKS][N] = {};
            #pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                old[c].clear();
                if (start + c * lanes * N < dim) old[c].load(base + node * dim + start + c * lanes * N);
            }
            add_rows<T, N, CHUNKS, AHEAD>(rows, list, 0, run.y, 1, dim, start, lanes * N, sum);
            #pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                old[c].add_to(sum[c]);
                const int column = start + c * lanes * N;
                if (column < dim) Elements<T, N>::store(out + node * dim + column, sum[c]);
            }
        }
        return;
    }
    // Sums of a block lie by vector element, then by lane: neighbours in memory are neighbouring lanes'.
    __shared__ float sums[THREADS * N * CHUNKS];
    __shared__ u32 told;
    const i64 pitch = (i64)(dim + width - 1) / width * width;
    auto combine = [&](const float (&sum)[CHUNKS][N], auto use) {
        __syncthreads();
        #pragma unroll
        for (int j = 0; j < N * CHUNKS; j++) sums[group * width + j * lanes + lane] = sum[j / N][j % N];
        __syncthreads();
        for (int j = threadIdx.x; j < width; j += THREADS) {
            float total = 0.0f;
            for (int g = 0; g < groups; g++) total += sums[g * width + j];
            use(j, total);
        }
    };
    auto tell = [&](u32* counter) {
        __syncthreads();
        if (threadIdx.x == 0) told = atomicAdd(counter, 1u);
        __syncthreads();
        return told;
    };
    const u32 made = space.head[1];
    for (u32 drawn; (drawn = tell(space.head + 2)) < made;) {
        const Piece piece = space.pieces[drawn];
        const bool whole = piece.count == space.runs[piece.node].count;
        auto finish = [&](int start, int j, float total) {
            const int element = j >> shift, vector = element / N * lanes + (j & (lanes - 1));
            const int column = start + vector * N + element % N;
            const i64 at = (i64)piece.node * dim + column;
            if (column < dim) narrow(wide(base[at]) + total, out[at]);
        };
        for (int start = 0; start < dim; start += width) {
            float sum[CHUNKS][N] = {};
            add_rows<T, N, CHUNKS, AHEAD>(
                rows, space.order + piece.begin, group, piece.count, groups, dim, start + lane * N, lanes * N, sum);
            combine(sum, [&](int j, float total) {
                if (whole) finish(start, j, total);
                else space.partial[drawn * pitch + start + j] = total;
            });
        }
        if (whole) continue;
        __threadfence();
        const u32 each = space.pieces[piece.first].count;  // the last piece alone is smaller
        const u32 pieces = (space.runs[piece.node].count + each - 1) / each;
        if (tell(space.arrived + piece.first) + 1 < pieces) continue;
        __threadfence();
        for (int start = 0; start < dim; start += width) {
            float sum[CHUNKS][N] = {};
            #pragma unroll 2
            for (u32 p = group; p < pieces; p += groups) {
                const float* from = space.partial + (piece.first + p) * pitch + start + lane;
                #pragma unroll
                for (int j = 0; j < N * CHUNKS; j++) sum[j / N][j % N] += __ldcg(from + j * lanes);
            }
            combine(sum, [&](int j, float total) { finish(start, j, total); });
        }
    }
}

// Block b owns the nodes b, b + blocks, .. and 64 columns, two a lane; `blocks` is 2^shift. Each warp has its own sums.
constexpr int WARPS = 32, WIDE = 64, LOOK = 256;
template <class T, bool PAIRS> __global__ void __launch_bounds__(WARPS * 32) add_few(
    const T* base, const i64* ids, const T* rows, T* out, int edges, int nodes, int dim, int shift, int owned) {
    constexpr int TOGETHER = PAIRS && sizeof(T) == 2 ? 16 : 8, N = PAIRS ? 2 : 1;
    extern __shared__ float memory[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.y * WIDE + lane * 2;
    const u32 mask = (1u << shift) - 1;
    float* own = memory + warp * owned * WIDE;
    u32* queue = (u32*)(memory + WARPS * owned * WIDE) + warp * LOOK;
    #pragma unroll 4
    for (int i = lane; i < owned * WIDE; i += 32) own[i] = 0.0f;
    __syncwarp();
    // A hub's rows follow each other: the last node's sums stay in registers.
    float sum[2] = {0.0f, 0.0f};
    u32 last = 0;
    auto change = [&](u32 node) {
        float2* to = (float2*)(own + last * WIDE) + lane;
        *to = float2{to->x + sum[0], to->y + sum[1]};
        sum[0] = sum[1] = 0.0f, last = node;
    };
    for (int first = warp * LOOK; first < edges; first += WARPS * LOOK) {
        i64 id[LOOK / 32];
        #pragma unroll
        for (int j = 0; j < LOOK / 32; j++) id[j] = edges - first > j * 32 + lane ? ids[first + j * 32 + lane] : 0;
        int found = 0;
        #pragma unroll
        for (int j = 0; j < LOOK / 32; j++) {
            const u32 node = checked(id[j], nodes);
            const bool mine = (node & mask) == blockIdx.x && edges - first > j * 32 + lane;
            const u32 all = __ballot_sync(NONE, mine);
            if (mine) queue[found + __popc(all & ((1u << lane) - 1))] = node >> shift << 8 | (u32)(j * 32 + lane);
            found += __popc(all);
        }
        __syncwarp();
        for (int q = 0; q < found; q += TOGETHER) {
            // Beyond the last one it is read again, and beyond the last column that: no load waits for a condition.
            const u32 entry = queue[min(q + lane, found - 1)];
            Elements<T, N> got[TOGETHER][2 / N];
            #pragma unroll
            for (int a = 0; a < TOGETHER; a++) {
                const u32 edge = first + (__shfl_sync(NONE, entry, a) & 255);
                const T* from = rows + (u64)edge * (u32)dim;
                #pragma unroll
                for (int c = 0; c < 2 / N; c++) got[a][c].load(from + min(column + c, dim - N));
            }
            #pragma unroll
            for (int a = 0; a < TOGETHER; a++) {
                if (q + a >= found) break;
                const u32 node = __shfl_sync(NONE, entry, a) >> 8;
                if (node != last) change(node);
                #pragma unroll
                for (int c = 0; c < 2 / N; c++) got[a][c].add_to(sum + c);
            }
        }
        __syncwarp();
    }
    change(0);
    __syncthreads();
    for (int i = threadIdx.x; i < owned * WIDE; i += WARPS * 32) {
        const i64 node = ((i64)(i / WIDE) << shift) + blockIdx.x;
        const int at = blockIdx.y * WIDE + i % WIDE;
        if (node >= nodes || at >= dim) continue;
        float total = 0.0f;
        #pragma unroll 8
        for (int w = 0; w < WARPS; w++) total += memory[w * owned * WIDE + i];
        narrow(wide(base[node * dim + at]) + total, out[node * dim + at]);
    }
}

constexpr int MOST_OWNED = 24;  // 192 KB of sums
constexpr i64 MOST_LOOKS = 1 << 22;  // 32 MB of ids from the L2 cache, some 6 us
static int few_shift(i64 nodes) {
    int shift = 7;
    while (shift < 30 && nodes > (i64)MOST_OWNED << shift) shift++;
    return shift;
}
static bool few(i64 edges, i64 nodes, i64 dim) {
    const i64 strips = (dim + WIDE - 1) / WIDE;
    return strips <= 65535 && edges <= MOST_LOOKS / (strips << few_shift(nodes));
}
template <class T> static cudaError_t launch_few(
    const T* base, const i64* ids, const T* rows, T* out, int edges, int nodes, int dim, cudaStream_t stream) {
    const int shift = few_shift(nodes), owned = (nodes - 1 >> shift) + 1;
    const int shared = WARPS * (owned * WIDE + LOOK) * 4;
    const dim3 grid(min(nodes, 1 << shift), (dim + WIDE - 1) / WIDE);
    const bool pairs = dim % 2 == 0 && (uintptr_t)rows % (2 * sizeof(T)) == 0;
    auto kernel = pairs ? add_few<T, true> : add_few<T, false>;
    const cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (code != cudaSuccess) return code;
    kernel<<<grid, WARPS * 32, shared, stream>>>(base, ids, rows, out, edges, nodes, dim, shift, owned);
    return cudaGetLastError();
}

static i64 up_to_four(i64 count) { return (count + 3) / 4 * 4; }
static u32 most_pieces(i64 edges, i64 light, i64 piece) { return (u32)(edges / light + edges / piece); }

template <class T, int N, int CHUNKS> static cudaError_t launch_sorted(
    const T* base, const i64* ids, const T* rows, T* out, const Space& space, int edges, int nodes, int dim, int ahead,
    u32 light, u32 piece, cudaStream_t stream) {
    int shift = 0, device, processors;
    while (shift < 5 && N << shift < dim) shift++;
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess) code = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (code != cudaSuccess) return code;
    const int vectors = (int)((HEAD + up_to_four(nodes)) / 4), groups = THREADS >> shift;
    const int drawing = (int)min(most_pieces(edges, light, piece), (u32)(processors * (ahead > 4 ? 3 : 4)));
    const u32 blocks = drawing + (nodes - 1) / groups + 1;
    clear<<<(vectors - 1) / THREADS + 1, THREADS, 0, stream>>>((uint4*)space.head, vectors);
    count_edges<<<(edges - 1) / TILE + 1, COUNTERS, 0, stream>>>(ids, space, edges, nodes);
    place_nodes<<<(nodes - 1) / (4 * THREADS) + 1, THREADS, 0, stream>>>(space, nodes, light, piece);
    place_edges<<<(edges - 1) / (4 * THREADS) + 1, THREADS, 0, stream>>>(ids, space, edges);
    auto kernel = ahead > 4 ? sum_rows<T, N, CHUNKS, 8> : sum_rows<T, N, CHUNKS, 4>;
    kernel<<<blocks, THREADS, 0, stream>>>(base, rows, out, space, nodes, dim, shift, drawing, light);
    return cudaGetLastError();
}
// The sums of a piece take up to 128 columns more than there are, where they are no vectors.
static i64 layout(Space* space, u32* at, i64 edges, i64 nodes, i64 dim, i64 light, i64 piece) {
    const i64 counts = up_to_four(nodes), ranks = up_to_four(edges);
    const i64 pieces = up_to_four(most_pieces(edges, light, piece));
    if (space) {
        space->head = at, space->counts = at + HEAD, space->runs = (Run*)(space->counts + counts);
        space->ranks = (u32*)(space->runs + counts), space->order = space->ranks + ranks;
        space->pieces = (Piece*)(space->order + ranks), space->arrived = (u32*)(space->pieces + pieces);
        space->partial = (float*)(space->arrived + pieces);
    }
    return (HEAD + 3 * counts + 2 * ranks + pieces * (5 + dim + 256)) * 4;
}

// Bytes that a call needs beside its tensors.
int64_t scatter_space(int64_t edges, int64_t nodes, int64_t dim, int64_t light, int64_t piece) {
    return few(edges, nodes, dim) ? 0 : layout(nullptr, nullptr, edges, nodes, dim, light, piece);
}
cudaError_t scatter_launch(
    char type, const void* base, const int64_t* ids, const void* rows, void* out, void* space, int64_t edges,
    int64_t nodes, int64_t dim, int ahead, int64_t light, int64_t piece, cudaStream_t stream) {
    auto with = [&](auto sample) {
        typedef decltype(sample) T;
        const T *from = (const T*)base, *added = (const T*)rows;
        constexpr int N = 16 / sizeof(T);
        const i64* names = (const i64*)ids;
        if (few(edges, nodes, dim)) return launch_few<T>(from, names, added, (T*)out, edges, nodes, dim, stream);
        Space parts;
        layout(&parts, (u32*)space, edges, nodes, dim, light, piece);
        const bool vectors = dim % N == 0 && ((uintptr_t)base | (uintptr_t)rows | (uintptr_t)out) % 16 == 0;
        auto launch = vectors ? launch_sorted<T, N, 1> : launch_sorted<T, 1, 3>;
        return launch(
            from, names, added, (T*)out, parts, edges, nodes, dim, ahead, (u32)light, (u32)piece, stream);
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
#include <limits>

using at::Tensor;

int64_t scatter_space(int64_t edges, int64_t nodes, int64_t dim, int64_t light, int64_t piece);
cudaError_t scatter_launch(
    char type, const void* base, const int64_t* ids, const void* rows, void* out, void* space, int64_t edges,
    int64_t nodes, int64_t dim, int ahead, int64_t light, int64_t piece, cudaStream_t stream);

Tensor scatter_add(
    const Tensor& base, const Tensor& ids, const Tensor& rows, int64_t ahead, int64_t light, int64_t piece) {
    const auto type = base.scalar_type();
    TORCH_CHECK(
        type == at::kFloat || type == at::kHalf || type == at::kBFloat16, "float32, float16 or bfloat16, not ", type);
    TORCH_CHECK(
        base.is_cuda() && ids.device() == base.device() && rows.device() == base.device(), "tensors of one GPU");
    TORCH_CHECK(
        base.dim() == 2 && rows.dim() == 2 && rows.scalar_type() == type && rows.size(1) == base.size(1),
        "rows like those of ", type, " ", base.sizes(), " are needed, not ", rows.scalar_type(), " ", rows.sizes());
    TORCH_CHECK(
        ids.dim() == 1 && ids.size(0) == rows.size(0) && ids.scalar_type() == at::kLong,
        "one int64 for each of ", rows.size(0), " rows is needed, not ", ids.scalar_type(), " ", ids.sizes());
    const int64_t nodes = base.size(0), dim = base.size(1), edges = rows.size(0), most = 1 << 30;
    TORCH_CHECK(nodes <= most && dim <= most && edges <= most, "too large: ", base.sizes(), ", ", rows.sizes());
    TORCH_CHECK(nodes || !edges, "an edge to none of 0 nodes");
    Tensor out = at::empty(base.sizes(), base.options());
    if (!base.numel()) return out;
    const Tensor from = base.contiguous(), names = ids.contiguous(), added = rows.contiguous();
    const c10::cuda::CUDAGuard guard(base.device());
    const int64_t bytes = scatter_space(edges, nodes, dim, light, piece);
    Tensor space;
    if (bytes) space = at::empty({bytes}, base.options().dtype(at::kByte));
    C10_CUDA_CHECK(scatter_launch(
        type == at::kHalf ? 'h' : type == at::kBFloat16 ? 'b' : 'f', from.const_data_ptr(),
        names.const_data_ptr<int64_t>(), added.const_data_ptr(), out.mutable_data_ptr(),
        bytes ? space.mutable_data_ptr() : nullptr, edges, nodes, dim, (int)ahead, light, piece,
        c10::cuda::getCurrentCUDAStream(base.device().index())));
    return out;
}
"""
scatter_add = load_inline(
    name="scatter_add_sorted_runs",
    cpp_sources=GLUE,
    cuda_sources=KERNELS,
    functions=["scatter_add"],
    extra_cflags=["-O2"],
    extra_cuda_cflags=["-O3"],
    no_implicit_headers=True,
).scatter_add


class ModelNew(nn.Module):
    def forward(self, base, ids, rows):
        return scatter_add(base, ids, rows, AHEAD, LIGHT, PIECE)
