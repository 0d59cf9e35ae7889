"""A byte is two neighbouring inputs' weights of an output, as an operand of the tensor cores wants them: a permutation,
an AND with an OR and a subtraction make a register of 16-bit floats. Up to 16 rows: each warp streams its own part of
the inputs through a ring that only the thread which copied reads (cp.async), and multiplies 128 outputs at a time. More
rows: tiles by mma.sync; where outputs begin anywhere, whole vectors are fetched and words shifted in registers. More
than 64 rows, aligned: instructions of four warps (wgmma) with weights from registers, scaled and rounded once as the
operator says, and activations fetched by descriptors (TMA); no unpacked copy of the weights is written.

Few outputs are split along the inputs over the blocks of a cluster, which add up in one order. Without wgmma, each
group's exact products are summed, and scaled in float32. One call of C++ and one launch, as small workloads wait for
the host. Bound by the packed weights' bytes for few rows, by the tensor cores for many. float32, and groups that 16
does not divide, have a slow way of their own.
"""

from torch import nn
from torch.utils.cpp_extension import load_inline

TUNABLES = {"SPLITS_FEW": [1, 2, 4, 8], "SPLITS_TILES": [1, 2, 4, 8], "SPLITS_MANY": [1, 2, 4], "MANY": [16, 32, 64]}
SPLITS_FEW = 8
"""Blocks of a cluster at most, which share the inputs: of up to 16 rows,"""
SPLITS_TILES = 4
"""of tiles,"""
SPLITS_MANY = 4
"""and of many rows."""
MANY = 64
"""More rows than this are multiplied by four warps together."""


def instruction(columns, kind):
    """m64nNk16 of one of two 16-bit types: a warp's 16 outputs from registers, rows by a descriptor."""
    count = columns // 2
    sums = ",".join(f"%{i}" for i in range(count))
    bound = ",".join(f'"+f"(sum[{i}])' for i in range(count))
    given = ",".join(f"%{count + i}" for i in range(4))
    return (
        f"template <> __device__ __forceinline__ void multiply_four<{'__half' if kind == 'f16' else '__nv_bfloat16'}, "
        f"{columns}>(float (&sum)[{count}], const u32 (&a)[4], u64 b, int add) {{\n"
        f'    asm volatile("{{.reg .pred p; setp.ne.b32 p, %{count + 5}, 0;'
        f" wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} "
        f'{{{sums}}}, {{{given}}}, %{count + 4}, p, 1, 1, 0;}}"\n'
        f'        : {bound} : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));\n}}\n'
    )


INSTRUCTIONS = r"""
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <type_traits>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

__device__ __forceinline__ u32 at_shared(const void* at) { return (u32)__cvta_generic_to_shared(at); }
// Two numbers at once.
template <class T> __device__ __forceinline__ u32 less(u32 a, u32 b) {
    u32 made;
    if constexpr (std::is_same<T, __half>::value) asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(made) : "r"(a), "r"(b));
    else asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(made) : "r"(a), "r"(b));
    return made;
}
template <class T> __device__ __forceinline__ u32 times(u32 a, u32 b) {
    u32 made;
    if constexpr (std::is_same<T, __half>::value) asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(made) : "r"(a), "r"(b));
    else asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(made) : "r"(a), "r"(b));
    return made;
}
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
// Four blocks of 8 x 8, whose rows the lanes name, eight each; a lane gets two neighbours of a row.
__device__ __forceinline__ void four(u32 (&to)[4], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
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
    __syncwarp();
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}
// What lies at the same place in the shared memory of another block of the cluster.
__device__ __forceinline__ float4 four_of(u32 at, int block) {
    u32 place;
    float4 found;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"(at), "r"(block));
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
        : "=f"(found.x), "=f"(found.y), "=f"(found.z), "=f"(found.w) : "r"(place) : "memory");
    return found;
}
__device__ __forceinline__ void begin(u64* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at_shared(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void begun() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at_shared(barrier)) : "memory");
}
__device__ __forceinline__ void expect(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
        :: "r"(at_shared(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void wait(u64* barrier, u32 parity) {
    asm volatile("{.reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;}" :: "r"(at_shared(barrier)), "r"(parity) : "memory");
}
// A box whose rows of 128 bytes are swizzled.
__device__ __forceinline__ void fetch(void* to, const CUtensorMap* from, int column, int row, u64* barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];"
        :: "r"(at_shared(to)), "l"(from), "r"(column), "r"(row), "r"(at_shared(barrier)) : "memory");
}
// Rows of 128 swizzled bytes, eight of them 1,024 bytes from the next eight.
__device__ __forceinline__ u64 described(const void* at) {
    return (u64)(at_shared(at) & 0x3ffff) >> 4 | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62;
}
__device__ __forceinline__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_batch() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void finished() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory");
}
// What is made of it is made later.
__device__ __forceinline__ void pin(u32& word) { asm volatile("" : "+r"(word) :: "memory"); }
// The eight warps that multiply.
__device__ __forceinline__ void multipliers_meet() {
    __syncwarp();
    asm volatile("bar.sync 1, 256;" ::: "memory");
}
// Registers a thread, of all four warps.
template <int COUNT> __device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT));
}
template <class T, int COLS> __device__ __forceinline__ void multiply_four(
    float (&sum)[COLS / 2], const u32 (&a)[4], u64 b, int add);
""" + "".join(instruction(columns, kind) for columns in (128, 256) for kind in ("f16", "bf16"))

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
template <class T> __device__ __forceinline__ u32 packed_pair(float low, float high) {
    Word<T> made;
    made.pair.at[0] = narrow<T>(low), made.pair.at[1] = narrow<T>(high);
    return made.word;
}
template <class T> __device__ __forceinline__ float2 wide_pair(u32 word) {
    Word<T> given;
    given.word = word;
    return float2{wide(given.pair.at[0]), wide(given.pair.at[1])};
}
// A byte's two weights. `shifted`: the word by four bits to the right. A nibble is ORed to 1024 or 128, whose last bits
// it becomes; what it is more than with 8 there is exact. SMALL: a 16th of that, from 64 or 8: products that are scaled
// only later are not to overflow where the operator's would not.
template <class T, bool SMALL = true> __device__ __forceinline__ u32 weights(u32 word, u32 shifted, int byte) {
    constexpr u32 base = std::is_same<T, __half>::value ? (SMALL ? 0x54005400u : 0x64006400u)
                                                        : (SMALL ? 0x41004100u : 0x43004300u);
    const u32 two = __byte_perm(word, shifted, byte | (byte + 4) << 8) & 0x000f000fu;
    return less<T>(two | base, base | 0x00080008u);
}

// What sums of small weights are multiplied by. An infinite scale makes NaN of a weight of zero, of which there is one
// in a group, or other signs.
__device__ __forceinline__ float scale_of(float scale) { return fmaf(scale, 0.0f, scale) * 16.0f; }

struct Call {
    const void *x, *scales;
    const unsigned char* packed;
    void* out;
    i64 rows;
    int inner, outer, group;
    int splits;  // blocks of a cluster, which share the inputs
};
__device__ __forceinline__ int share_of(int all, int part, int parts) { return (int)((i64)all * part / parts); }
extern __shared__ __align__(1024) unsigned char memory[];

constexpr int THREADS = 256, WARPS = 8, WIDE = 128;  // outputs of a block
constexpr int PITCH = 132;  // floats from row to row of a warp's sums

// Up to 8 TALL rows. Of 32 inputs, the four lanes of a quad have eight neighbours each: the order of a product's terms
// is free. Of the outputs, a lane has 16 neighbours: output 2 j is row `lane / 4` of tile j, the next one row + 8.
template <class T, int TALL, int STAGES> __global__ void __launch_bounds__(THREADS, TALL == 1 ? 2 : 1) few(Call c) {
    constexpr int STAGE = (4 + TALL) * 512;  // of a warp
    static_assert(STAGES * STAGE >= 8 * TALL * PITCH * 4, "sums take the ring's place");
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int rank = (int)blockIdx.x % c.splits, first = (int)blockIdx.x / c.splits * WIDE;
    const int steps = c.inner / 32, parts = c.splits * WARPS, part = rank * WARPS + warp;
    const int from = share_of(steps, part, parts), to = share_of(steps, part + 1, parts);
    const bool inside = first + g * 16 < c.outer;
    unsigned char* ring = memory + warp * (STAGES * STAGE) + lane * 16;

    const int column = inside ? first + g * 16 : 0, size = inside ? 16 : 0;
    const unsigned char* own = c.packed + (i64)(from * 16 + 4 * t) * c.outer + column;
    const T* rows[TALL];
    int row_size[TALL];
    #pragma unroll
    for (int n = 0; n < TALL; n++) {
        const bool there = n * 8 + g < c.rows;
        rows[n] = (const T*)c.x + (there ? (i64)(n * 8 + g) * c.inner : 0) + from * 32 + t * 8;
        row_size[n] = there ? 16 : 0;
    }
    int coming = from, slot_coming = 0;
    const auto load = [&]() {
        if (coming < to) {
            const u32 at = at_shared(ring + slot_coming * STAGE);
            #pragma unroll
            for (int i = 0; i < 4; i++) copy_later(at + i * 512, own + (i64)i * c.outer, size);
            #pragma unroll
            for (int n = 0; n < TALL; n++) copy_later(at + (4 + n) * 512, rows[n], row_size[n]), rows[n] += 32;
            own += (i64)16 * c.outer;
        }
        commit();  // an empty one, too: they are counted
        coming++, slot_coming = slot_coming == STAGES - 1 ? 0 : slot_coming + 1;
    };
    #pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++) load();

    float sum[TALL][8][4], exact[TALL][8][4];
    #pragma unroll
    for (int i = 0; i < TALL * 32; i++) sum[i / 32][i / 4 % 8][i % 4] = exact[i / 32][i / 4 % 8][i % 4] = 0.0f;
    const int each = c.group / 32;  // steps of a group
    int left = 0, slot = 0;
    uint4 scale[2] = {};
    #pragma unroll 1
    for (int step = from; step < to; step++) {
        if (left == 0) {
            const int group = step / each;
            left = (group + 1) * each - step;
            if (inside) {
                const uint4* at = (const uint4*)((const T*)c.scales + (i64)group * c.outer + column);
                scale[0] = __ldg(at), scale[1] = __ldg(at + 1);
            }
        }
        load();
        arrived<STAGES - 1>();
        const unsigned char* at = ring + slot * STAGE;
        slot = slot == STAGES - 1 ? 0 : slot + 1;
        uint4 row[TALL];
        #pragma unroll
        for (int n = 0; n < TALL; n++) row[n] = *(const uint4*)(at + (4 + n) * 512);
        #pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint4 near = *(const uint4*)(at + 2 * h * 512), far = *(const uint4*)(at + (2 * h + 1) * 512);
            const u32 low[4] = {near.x, near.y, near.z, near.w}, high[4] = {far.x, far.y, far.z, far.w};
            #pragma unroll
            for (int j = 0; j < 8; j++) {
                const u32 one = low[j / 2], other = high[j / 2];
                const int byte = j % 2 * 2;
                const u32 a[4] = {
                    weights<T>(one, one >> 4, byte), weights<T>(one, one >> 4, byte + 1),
                    weights<T>(other, other >> 4, byte), weights<T>(other, other >> 4, byte + 1)};
                #pragma unroll
                for (int n = 0; n < TALL; n++)
                    multiply<T>(exact[n][j], a, h ? row[n].z : row[n].x, h ? row[n].w : row[n].y);
            }
        }
        if (--left == 0 || step == to - 1) {
            const u32 words[8] = {scale[0].x, scale[0].y, scale[0].z, scale[0].w,
                                  scale[1].x, scale[1].y, scale[1].z, scale[1].w};
            #pragma unroll
            for (int j = 0; j < 8; j++) {
                const float2 both = wide_pair<T>(words[j]), by = {scale_of(both.x), scale_of(both.y)};
                #pragma unroll
                for (int n = 0; n < TALL; n++) {
                    sum[n][j][0] += exact[n][j][0] * by.x, sum[n][j][1] += exact[n][j][1] * by.x;
                    sum[n][j][2] += exact[n][j][2] * by.y, sum[n][j][3] += exact[n][j][3] * by.y;
                    exact[n][j][0] = exact[n][j][1] = exact[n][j][2] = exact[n][j][3] = 0.0f;
                }
            }
        }
    }
    arrived<0>();
    __syncthreads();

    // The warps' sums, then the blocks'.
    constexpr int PART = 8 * TALL * PITCH;
    float* sums = (float*)memory;
    #pragma unroll
    for (int n = 0; n < TALL; n++)
        #pragma unroll
        for (int j = 0; j < 8; j++)
            #pragma unroll
            for (int k = 0; k < 2; k++)
                *(float2*)(sums + warp * PART + (n * 8 + 2 * t + k) * PITCH + g * 16 + 2 * j) =
                    float2{sum[n][j][k], sum[n][j][2 + k]};
    __syncthreads();
    const int quads = (int)c.rows * (WIDE / 4);
    const auto leave = [&](int p, float4 v) {
        const int row = p / (WIDE / 4), at = first + p % (WIDE / 4) * 4;
        if (at < c.outer)
            *(uint2*)((T*)c.out + (i64)row * c.outer + at) = uint2{packed_pair<T>(v.x, v.y), packed_pair<T>(v.z, v.w)};
    };
    for (int p = threadIdx.x; p < quads; p += THREADS) {
        float* place = sums + p / (WIDE / 4) * PITCH + p % (WIDE / 4) * 4;
        float4 total = *(const float4*)place;
        #pragma unroll
        for (int w = 1; w < WARPS; w++) {
            const float4 more = *(const float4*)(place + w * PART);
            total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
        }
        if (c.splits == 1) leave(p, total);
        else *(float4*)place = total;
    }
    if (c.splits == 1) return;
    cluster_meets();
    for (int p = rank * THREADS + (int)threadIdx.x; p < quads; p += c.splits * THREADS) {
        const u32 place = at_shared(sums + p / (WIDE / 4) * PITCH + p % (WIDE / 4) * 4);
        float4 total = four_of(place, 0);
        for (int r = 1; r < c.splits; r++) {
            const float4 more = four_of(place, r);
            total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
        }
        leave(p, total);
    }
    cluster_meets();  // what others read must stay
}

constexpr int TALL = 64, DEEP = 64;  // rows of a tile, inputs of a step
constexpr int LINE = 160;            // bytes from one line of packed weights to the next: four lie in different banks
constexpr int TILE_X = TALL * DEEP * 2, TILE = TILE_X + DEEP / 2 * LINE, TILE_STAGES = 5;
// Where a chunk of 16 bytes of a row is: eight rows in a row have it in different banks.
__device__ __forceinline__ u32 place(int row, int chunk) { return (row * 8 + (chunk ^ (row & 7))) * 16; }

// 64 rows by 128 outputs; a warp has 32 by 32. A lane's outputs are four neighbours.
template <class T> __global__ void __launch_bounds__(THREADS, 2) tiles(Call c, int across) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int rank = (int)blockIdx.x % c.splits, tile = (int)blockIdx.x / c.splits;
    const int first = tile % across * WIDE, width = min(WIDE, c.outer - first);
    const i64 top = (i64)(tile / across) * TALL;
    const int all = (c.inner + DEEP - 1) / DEEP;
    const int from = share_of(all, rank, c.splits), to = share_of(all, rank + 1, c.splits);
    const int down = warp / 4 * 32, right = warp % 4 * 32;
    const T *x = (const T*)c.x, *scales = (const T*)c.scales;
    const bool even = (u64)x % 16 == 0;
    const unsigned char* last = c.packed + (i64)(c.inner / 2) * c.outer;
    // Lines begin anywhere: by so much, from the last multiple of 16 bytes.
    const u32 lead = (u32)(u64)c.packed + (u32)first;
    const auto lead_of = [&](int line) { return (lead + (u32)line * (u32)c.outer) & 15; };

    const auto load = [&](int step) {
        if (step < to) {
            unsigned char* stage = memory + step % TILE_STAGES * TILE;
            #pragma unroll
            for (int i = 0; i < TALL * 8 / THREADS; i++) {
                const int row = (int)threadIdx.x / 8 + i * (THREADS / 8), chunk = threadIdx.x % 8;
                const int column = step * DEEP + chunk * 8;
                const bool real = top + row < c.rows && column < c.inner;
                const T* source = x + (top + row) * c.inner + column;
                unsigned char* at = stage + place(row, chunk);
                if (even) {
                    copy_later(at_shared(at), real ? source : x, real ? 16 : 0);
                } else {
                    #pragma unroll 1
                    for (int k = 0; k < 8; k++) ((T*)at)[k] = real ? source[k] : narrow<T>(0.0f);
                }
            }
            #pragma unroll 1
            for (int i = threadIdx.x; i < DEEP / 2 * 9; i += THREADS) {
                const int line = i / 9, vector = i % 9, byte = step * (DEEP / 2) + line;
                const int skip = (int)lead_of(byte);
                // What is not copied is not stored either, or meets zeros; any byte is two finite weights.
                if (byte >= c.inner / 2 || vector * 16 >= width + skip) continue;
                const unsigned char* source = c.packed + (i64)byte * c.outer + first - skip + vector * 16;
                unsigned char* at = stage + TILE_X + line * LINE + vector * 16;
                if (source >= c.packed && source + 16 <= last) {
                    copy_later(at_shared(at), source, 16);
                } else {
                    #pragma unroll 1
                    for (int k = 0; k < 16; k++)
                        if (source + k >= c.packed && source + k < last) at[k] = source[k];
                }
            }
        }
        commit();
    };
    #pragma unroll 1
    for (int s = 0; s < TILE_STAGES - 1; s++) load(from + s);

    float sum[4][2][4], exact[4][2][4];
    #pragma unroll
    for (int i = 0; i < 32; i++) sum[i / 8][i / 4 % 2][i % 4] = exact[i / 8][i / 4 % 2][i % 4] = 0.0f;
    T scale[4];
    int left = 0;
    const auto scaled = [&]() {
        #pragma unroll
        for (int m = 0; m < 2; m++) {
            const float one = scale_of(wide(scale[2 * m])), other = scale_of(wide(scale[2 * m + 1]));
            #pragma unroll
            for (int n = 0; n < 4; n++) {
                sum[n][m][0] += exact[n][m][0] * one, sum[n][m][1] += exact[n][m][1] * one;
                sum[n][m][2] += exact[n][m][2] * other, sum[n][m][3] += exact[n][m][3] * other;
                exact[n][m][0] = exact[n][m][1] = exact[n][m][2] = exact[n][m][3] = 0.0f;
            }
        }
    };
    #pragma unroll 1
    for (int step = from; step < to; step++) {
        arrived<TILE_STAGES - 2>();
        __syncthreads();
        load(step + TILE_STAGES - 1);
        const unsigned char* stage = memory + step % TILE_STAGES * TILE;
        #pragma unroll
        for (int s = 0; s < DEEP / 16; s++) {
            const int k = step * DEEP + s * 16;
            if (k >= c.inner) break;
            if (left == 0) {
                const int group = k / c.group;
                left = (group + 1) * c.group - k;
                #pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int column = first + right + g * 4 + i;
                    scale[i] = column < c.outer ? scales[(i64)group * c.outer + column] : narrow<T>(0.0f);
                }
            }
            u32 word[2];
            #pragma unroll
            for (int i = 0; i < 2; i++) {
                const int line = s * 8 + i * 4 + t, at = (int)lead_of(k / 2 + i * 4 + t) + right + g * 4;
                const u32* words = (const u32*)(stage + TILE_X + line * LINE + (at & ~3));
                word[i] = __funnelshift_r(words[0], words[1], at % 4 * 8);
            }
            u32 row[2][4];
            #pragma unroll
            for (int i = 0; i < 2; i++)
                four(row[i], at_shared(stage + place(down + i * 16 + lane / 16 * 8 + lane % 8, s * 2 + lane / 8 % 2)));
            #pragma unroll
            for (int m = 0; m < 2; m++) {
                const u32 a[4] = {
                    weights<T>(word[0], word[0] >> 4, 2 * m), weights<T>(word[0], word[0] >> 4, 2 * m + 1),
                    weights<T>(word[1], word[1] >> 4, 2 * m), weights<T>(word[1], word[1] >> 4, 2 * m + 1)};
                #pragma unroll
                for (int n = 0; n < 4; n++)
                    multiply<T>(exact[n][m], a, row[n / 2][n % 2 * 2], row[n / 2][n % 2 * 2 + 1]);
            }
            left -= 16;
            if (left == 0) scaled();
        }
    }
    if (left) scaled();

    const auto leave = [&](int n, int m, float4 v) {
        const float values[4] = {v.x, v.y, v.z, v.w};
        #pragma unroll
        for (int k = 0; k < 4; k++) {
            const i64 row = top + down + n * 8 + t * 2 + k % 2;
            const int column = first + right + g * 4 + m * 2 + k / 2;
            if (row < c.rows && column < c.outer) ((T*)c.out)[row * c.outer + column] = narrow<T>(values[k]);
        }
    };
    if (c.splits == 1) {
        #pragma unroll
        for (int i = 0; i < 8; i++) {
            const float (&v)[4] = sum[i / 2][i % 2];
            leave(i / 2, i % 2, float4{v[0], v[1], v[2], v[3]});
        }
        return;
    }
    arrived<0>();
    __syncthreads();
    float4* sums = (float4*)memory + threadIdx.x;
    #pragma unroll
    for (int i = 0; i < 8; i++) {
        const float (&v)[4] = sum[i / 2][i % 2];
        sums[i * THREADS] = float4{v[0], v[1], v[2], v[3]};
    }
    cluster_meets();
    #pragma unroll 1
    for (int i = share_of(8, rank, c.splits); i < share_of(8, rank + 1, c.splits); i++) {
        float4 total = four_of(at_shared(sums + i * THREADS), 0);
        for (int r = 1; r < c.splits; r++) {
            const float4 more = four_of(at_shared(sums + i * THREADS), r);
            total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
        }
        leave(i / 2, i % 2, total);
    }
    cluster_meets();
}

// Blocks whose first four warps fetch, by one thread; each next four multiply 64 outputs of every 128. ROWS rows, and
// 128 BROAD outputs; weights are the left operand, from registers, rows the right one.
template <class T, int BROAD, int ROWS, int STAGES> __global__ void __launch_bounds__(384, 1) many(
    const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap packed, Call c, int down, int across,
    int band) {
    constexpr int RIGHT = ROWS * 128, STAGE = RIGHT + BROAD * 4096;  // bytes
    constexpr int UNITS = BROAD * ROWS / 8;
    static_assert(STAGES * STAGE >= UNITS * 4096, "sums take the ring's place");
    u64 *full = (u64*)(memory + STAGES * STAGE), *empty = full + STAGES;
    const int of_four = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) begin(full + s, 1), begin(empty + s, 8);
        begun();
    }
    __syncthreads();
    const int rank = (int)blockIdx.x % c.splits, all = c.inner / 64;
    const int from = share_of(all, rank, c.splits), to = share_of(all, rank + 1, c.splits);
    int slot = 0;
    u32 turn = 0;
    // Bands of a few rows of tiles: what the L2 cache holds is shared by neighbours.
    const auto place_of = [&](int tile, int& row, int& column) {
        const int before = tile / (band * across) * band, within = tile % (band * across);
        const int height = min(down - before, band);
        row = (before + within % height) * ROWS, column = within / height * (BROAD * 128);
    };
    if (of_four == 0) {
        give_registers<40>();
        if (threadIdx.x == 0) {
            for (int tile = (int)blockIdx.x / c.splits; tile < down * across; tile += (int)gridDim.x / c.splits) {
                int row, column;
                place_of(tile, row, column);
                for (int step = from; step < to; step++) {
                    wait(empty + slot, turn ^ 1);
                    expect(full + slot, STAGE);
                    unsigned char* stage = memory + slot * STAGE;
                    fetch(stage, &x, step * 64, row, full + slot);
                    #pragma unroll
                    for (int b = 0; b < BROAD; b++)
                        fetch(stage + RIGHT + b * 4096, &packed, column + b * 128, step * 32, full + slot);
                    if (++slot == STAGES) slot = 0, turn ^= 1;
                }
            }
        }
        return;
    }
    take_registers<232>();
    const int thread = (int)threadIdx.x - 128, lane = thread % 32, g = lane / 4, t = lane % 4;
    const int chunk = thread / 32;  // of 16 outputs, of which the lane has two neighbours: rows g and g + 8 of the tile
    const int near = RIGHT + t * 128 + (chunk ^ t) * 16 + 2 * g;
    const int far = RIGHT + (t + 4) * 128 + (chunk ^ (t + 4)) * 16 + 2 * g;
    const int own = chunk * 16 + 2 * g;
    for (int tile = (int)blockIdx.x / c.splits; tile < down * across; tile += (int)gridDim.x / c.splits) {
        int first, column;
        place_of(tile, first, column);
        float sum[BROAD][ROWS / 2];
        u32 coming[BROAD], scale[BROAD][2];  // of the next group, and of this one
        const auto look_ahead = [&](int group) {
            #pragma unroll
            for (int b = 0; b < BROAD; b++) {
                const int at = column + b * 128 + own;
                coming[b] = 0;
                if (at < c.outer && group * (i64)c.group < c.inner)
                    coming[b] = __ldg((const u32*)((const T*)c.scales + (i64)group * c.outer + at));
            }
        };
        int group = from * 64 / c.group, last = 0;
        int left = from * 64 - group * c.group;  // inputs since the group began, then until it ends
        left = left ? c.group - left : 0;
        look_ahead(group);
        const auto next_group = [&]() {
            #pragma unroll
            for (int b = 0; b < BROAD; b++) {
                scale[b][0] = __byte_perm(coming[b], 0, 0x1010), scale[b][1] = __byte_perm(coming[b], 0, 0x3232);
            }
            look_ahead(++group);
        };
        if (left) next_group();
        #pragma unroll 1
        for (int step = from; step < to; step++) {
            wait(full + slot, turn);
            const unsigned char* stage = memory + slot * STAGE;
            u32 words[4][BROAD], a[4][BROAD][4];
            #pragma unroll
            for (int s = 0; s < 4; s++)
                #pragma unroll
                for (int b = 0; b < BROAD; b++) {
                    const u32 low = *(const unsigned short*)(stage + near + b * 4096 + s * 1024);
                    const u32 high = *(const unsigned short*)(stage + far + b * 4096 + s * 1024);
                    words[s][b] = low | high << 16;
                }
            // Registers that tensor cores read stay as they are until then; they have the other four warps' meanwhile.
            finished<0>();
            if (step > from && lane == 0) arrive(empty + last);
            #pragma unroll
            for (int s = 0; s < 4; s++) {
                if (left == 0) next_group(), left = c.group;
                left -= 16;
                #pragma unroll
                for (int b = 0; b < BROAD; b++) {
                    u32& word = words[s][b];
                    pin(word);
                    #pragma unroll
                    for (int k = 0; k < 4; k++)
                        a[s][b][k] = times<T>(weights<T, false>(word, word >> 4, k), scale[b][k % 2]);
                }
            }
            const u64 rows = described(stage);
            fence();
            #pragma unroll
            for (int s = 0; s < 4; s++)
                #pragma unroll
                for (int b = 0; b < BROAD; b++)
                    multiply_four<T, ROWS>(sum[b], a[s][b], rows + 2 * s, step > from || s);  // 32 bytes further
            end_batch();
            last = slot;
            if (++slot == STAGES) slot = 0, turn ^= 1;
        }
        finished<0>();
        if (lane == 0) arrive(empty + last);

        // Unit j: outputs `own` and the next, of the two rows from 8 j + 2 t.
        const auto leave = [&](int unit, float4 v) {
            const int at = column + unit / (ROWS / 8) * 128 + own;
            const i64 row = first + unit % (ROWS / 8) * 8 + 2 * t;
            if (at >= c.outer) return;
            T* to_here = (T*)c.out + row * c.outer + at;
            if (row < c.rows) *(u32*)to_here = packed_pair<T>(v.x, v.z);
            if (row + 1 < c.rows) *(u32*)(to_here + c.outer) = packed_pair<T>(v.y, v.w);
        };
        if (c.splits == 1) {
            #pragma unroll
            for (int b = 0; b < BROAD; b++)
                #pragma unroll
                for (int j = 0; j < ROWS / 8; j++)
                    leave(b * (ROWS / 8) + j,
                          float4{sum[b][4 * j], sum[b][4 * j + 1], sum[b][4 * j + 2], sum[b][4 * j + 3]});
            continue;
        }
        // The only tile of this cluster: nothing more comes into the ring.
        multipliers_meet();
        float4* sums = (float4*)memory + thread;
        #pragma unroll
        for (int b = 0; b < BROAD; b++)
            #pragma unroll
            for (int j = 0; j < ROWS / 8; j++)
                sums[(b * (ROWS / 8) + j) * 256] =
                    float4{sum[b][4 * j], sum[b][4 * j + 1], sum[b][4 * j + 2], sum[b][4 * j + 3]};
        cluster_meets();
        #pragma unroll 2
        for (int i = share_of(UNITS, rank, c.splits); i < share_of(UNITS, rank + 1, c.splits); i++) {
            float4 total = four_of(at_shared(sums + i * 256), 0);
            for (int r = 1; r < c.splits; r++) {
                const float4 more = four_of(at_shared(sums + i * 256), r);
                total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
            }
            leave(i, total);
        }
        cluster_meets();
    }
}

// Any type and group: a thread has an output of four rows.
template <class T> __global__ void __launch_bounds__(128) plainly(Call c, int across) {
    const int column = (int)(blockIdx.x % across) * 128 + (int)threadIdx.x;
    const i64 top = (i64)(blockIdx.x / across) * 4;
    if (column >= c.outer) return;
    const T *x = (const T*)c.x, *scales = (const T*)c.scales;
    float sum[4] = {};
    for (int group = 0; group * (i64)c.group < c.inner; group++) {
        const float scale = wide(scales[(i64)group * c.outer + column]);
        for (int i = 0; i < c.group; i++) {
            const int k = group * c.group + i;
            const int byte = c.packed[(i64)(k / 2) * c.outer + column];
            const float weight = (float)((k % 2 ? byte >> 4 : byte & 15) - 8) * scale;
            #pragma unroll
            for (int r = 0; r < 4; r++)
                if (top + r < c.rows) sum[r] += wide(x[(top + r) * c.inner + k]) * weight;
        }
    }
    #pragma unroll
    for (int r = 0; r < 4; r++)
        if (top + r < c.rows) ((T*)c.out)[(top + r) * c.outer + column] = narrow<T>(sum[r]);
}
"""

HOST = r"""
static i64 over(i64 value, i64 by) { return (value + by - 1) / by; }
static int processors(int device) {
    static std::atomic<int> known[64];
    int count = known[device % 64];
    if (!count) {
        if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 132;
        known[device % 64] = count;
    }
    return count;
}
// Twice as many blocks to a cluster while all can be there at once and have enough to do.
static int splits_for(i64 tiles, i64 room, i64 steps, i64 least, int most) {
    int splits = 1;
    while (splits < most && tiles * splits * 2 <= room && steps / (splits * 2) >= least) splits *= 2;
    return splits;
}
template <class... Parameters, class... Given> static cudaError_t launch(
    void (*kernel)(Parameters...), i64 blocks, int threads, int shared, int splits, int device, cudaStream_t stream,
    std::atomic<bool>* roomy, const Given&... given) {
    if (blocks > 0x7fffffff) return cudaErrorInvalidConfiguration;
    if (!roomy[device % 64]) {
        const cudaError_t failed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
        if (failed != cudaSuccess) return failed;
        // No more than a wish, so what it answers does not matter.
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
        roomy[device % 64] = true;
    }
    cudaLaunchAttribute together;
    together.id = cudaLaunchAttributeClusterDimension;
    together.val.clusterDim.x = splits, together.val.clusterDim.y = 1, together.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((u32)blocks), config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared, config.stream = stream;
    config.attrs = &together, config.numAttrs = splits > 1 ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, given...);
}
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
// Boxes of `box` rows of 128 bytes.
static bool describe(
    CUtensorMap* map, CUtensorMapDataType type, int bytes, const void* from, i64 rows, i64 columns, int box) {
    static const Encode encode = encoder();
    const cuuint64_t size[2] = {(cuuint64_t)columns, (cuuint64_t)rows}, stride[1] = {(cuuint64_t)(columns * bytes)};
    const cuuint32_t part[2] = {(cuuint32_t)(128 / bytes), (cuuint32_t)box}, every[2] = {1, 1};
    return encode && encode(
        map, type, 2, (void*)from, size, stride, part, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
        == CUDA_SUCCESS;
}
struct Most { int few, tiles, many, rows; };

template <class T, int TALL_HERE, int STAGES> static cudaError_t run_few(
    Call c, const Most& most, int device, cudaStream_t stream) {
    static std::atomic<bool> roomy[64];
    const i64 tiles = over(c.outer, WIDE);
    const int room = processors(device) * (TALL_HERE == 1 ? 2 : 1);
    c.splits = splits_for(tiles, room, c.inner / 32, 4 * WARPS, most.few);
    return launch(
        few<T, TALL_HERE, STAGES>, tiles * c.splits, THREADS, WARPS * STAGES * (4 + TALL_HERE) * 512, c.splits, device,
        stream, roomy, c);
}
template <class T> static cudaError_t run_tiles(Call c, const Most& most, int device, cudaStream_t stream) {
    static std::atomic<bool> roomy[64];
    const i64 across = over(c.outer, WIDE), all = across * over(c.rows, TALL);
    c.splits = splits_for(all, 2 * processors(device), over(c.inner, DEEP), 4, most.tiles);
    return launch(
        tiles<T>, all * c.splits, THREADS, TILE_STAGES * TILE, c.splits, device, stream, roomy, c, (int)across);
}
template <class T, int BROAD, int ROWS, int STAGES> static cudaError_t run_many(
    Call c, const Most& most, int device, cudaStream_t stream) {
    static std::atomic<bool> roomy[64];
    const auto type = std::is_same<T, __half>::value ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                     : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    CUtensorMap x, packed;
    if (!describe(&x, type, 2, c.x, c.rows, c.inner, ROWS) ||
        !describe(&packed, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, c.packed, c.inner / 2, c.outer, 32))
        return cudaErrorInvalidValue;
    const i64 down = over(c.rows, ROWS), across = over(c.outer, BROAD * 128), all = down * across;
    if (all > 0x3fffffff) return cudaErrorInvalidConfiguration;
    const int count = processors(device), band = 8;
    c.splits = splits_for(all, count, c.inner / 64, 8, most.many);
    // Without clusters, blocks stay, and fetch the next tile's while they store.
    const i64 blocks = c.splits > 1 ? all * c.splits : std::min<i64>(all, count);
    return launch(
        many<T, BROAD, ROWS, STAGES>, blocks, 384, STAGES * (ROWS * 128 + BROAD * 4096 + 16), c.splits, device, stream,
        roomy, x, packed, c, (int)down, (int)across, band);
}
template <class T> static cudaError_t run_plainly(Call c, int, cudaStream_t stream) {
    const i64 across = over(c.outer, 128), blocks = across * over(c.rows, 4);
    if (blocks > 0x7fffffff) return cudaErrorInvalidConfiguration;
    c.splits = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((u32)blocks), config.blockDim = dim3(128), config.stream = stream;
    return cudaLaunchKernelEx(&config, plainly<T>, c, (int)across);
}
template <class T> static cudaError_t run(const Call& c, const Most& most, int device, cudaStream_t stream) {
    if (c.group % 16) return run_plainly<T>(c, device, stream);
    const bool even = c.outer % 16 == 0 && ((u64)c.x | (u64)c.packed | (u64)c.scales) % 16 == 0;
    if (even && c.rows <= 8 && c.group % 32 == 0) return run_few<T, 1, 5>(c, most, device, stream);
    if (even && c.rows <= 16 && c.group % 32 == 0) return run_few<T, 2, 8>(c, most, device, stream);
    if (even && c.rows > most.rows && c.inner % 64 == 0 && c.rows < 0x7fffff00) {
        if (c.rows <= 128) return run_many<T, 2, 128, 8>(c, most, device, stream);
        return run_many<T, 1, 256, 6>(c, most, device, stream);
    }
    return run_tiles<T>(c, most, device, stream);
}
// `type`: h, b or f. `sizes`: inner, outer, group. `most`: blocks of clusters, and rows that are not many.
cudaError_t product_launch(
    char type, const void* x, const unsigned char* packed, const void* scales, void* out, i64 rows, const int* sizes,
    const int* most, int device, cudaStream_t stream) {
    const Call call = {x, scales, packed, out, rows, sizes[0], sizes[1], sizes[2], 1};
    const Most at_most = {most[0], most[1], most[2], most[3]};
    if (type == 'h') return run<__half>(call, at_most, device, stream);
    if (type == 'b') return run<__nv_bfloat16>(call, at_most, device, stream);
    return run_plainly<float>(call, device, stream);
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

using at::Tensor;
typedef long long i64;

cudaError_t product_launch(
    char type, const void* x, const unsigned char* packed, const void* scales, void* out, i64 rows, const int* sizes,
    const int* most, int device, cudaStream_t stream);

// x [rows, inner], packed [inner / 2, outer], scales [inner / group, outer].
Tensor product(
    const Tensor& of_x, const Tensor& of_packed, const Tensor& of_scales, int64_t few, int64_t tiles, int64_t many,
    int64_t most_rows) {
    const auto type = of_x.scalar_type();
    TORCH_CHECK(of_x.is_cuda() && of_packed.device() == of_x.device() && of_scales.device() == of_x.device(),
                "tensors of one GPU are needed, not of ", of_x.device(), ", ", of_packed.device(), " and ",
                of_scales.device());
    TORCH_CHECK(type == at::kHalf || type == at::kBFloat16 || type == at::kFloat,
                "float16, bfloat16 or float32 is needed, not ", type);
    TORCH_CHECK(of_scales.scalar_type() == type && of_packed.scalar_type() == at::kByte,
                "scales of x's type and bytes are needed, not ", of_scales.scalar_type(), " and ",
                of_packed.scalar_type());
    TORCH_CHECK(of_x.dim() == 2 && of_packed.dim() == 2 && of_scales.dim() == 2 &&
                    of_x.size(1) == 2 * of_packed.size(0) && of_scales.size(1) == of_packed.size(1) &&
                    of_scales.size(0) > 0 && of_x.size(1) > 0 && of_x.size(1) % of_scales.size(0) == 0,
                "x ", of_x.sizes(), ", weights ", of_packed.sizes(), " and scales ", of_scales.sizes(),
                " do not fit one another");
    const i64 rows = of_x.size(0), inner = of_x.size(1), outer = of_packed.size(1);
    TORCH_CHECK(inner <= 1 << 26 && outer <= 1 << 28, "too large: weights ", of_packed.sizes());
    const c10::cuda::CUDAGuard guard(of_x.device());
    const Tensor out = at::empty({rows, outer}, of_x.options());
    if (!out.numel()) return out;
    const Tensor x = of_x.contiguous(), packed = of_packed.contiguous(), scales = of_scales.contiguous();
    const int sizes[] = {(int)inner, (int)outer, (int)(inner / scales.size(0))};
    const int most[] = {(int)few, (int)tiles, (int)many, (int)most_rows};
    C10_CUDA_CHECK(product_launch(
        type == at::kHalf ? 'h' : type == at::kBFloat16 ? 'b' : 'f', x.const_data_ptr(),
        (const unsigned char*)packed.const_data_ptr(), scales.const_data_ptr(), out.mutable_data_ptr(), rows, sizes,
        most, of_x.device().index(), c10::cuda::getCurrentCUDAStream()));
    return out;
}
"""
product = load_inline(
    name="gemm_w4a16",
    cpp_sources=[GLUE],
    cuda_sources=[INSTRUCTIONS + KERNELS + HOST],
    functions=["product"],
    extra_cflags=["-O2"],
    extra_cuda_cflags=["-O3"],
    no_implicit_headers=True,
).product


class ModelNew(nn.Module):
    def forward(self, x, packed, scales):
        return product(x, packed, scales, SPLITS_FEW, SPLITS_TILES, SPLITS_MANY, MANY)
