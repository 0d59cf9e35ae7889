"""Three launches forwards and four backwards, autograd's part in C++: with nine from Python a step of 256 samples takes
1.5 ms, and its bytes and products are worth 3 us. A warp has a sample to itself, from X to LayerNorm's output:
(X^T Y)^T and X (X^T Y), turned, are in their places operands of the products that follow, so nothing but X is in shared
memory, and no warp waits for another. Backwards a warp computes that again and puts dX where X was. All else are
products of matrices with an epilogue; those that wait for nothing but the hidden numbers' gradients share a launch.

Bound by the host for small batches, else by the tensor cores (129 GFLOP for 16384 samples) and by memory for X, read
twice, and dX. Parts of the parameters' gradients are added up in one order, by the last launch.
"""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

TUNABLES = {"SMALL": [1024, 2048, 4096], "BROAD": [128, 256], "SPLITS": [2, 4, 8], "BLOCKS": [66, 132]}
SMALL = 2048
"""Up to so many samples products have tiles of 64 x 64, beyond of 128 x BROAD: few tiles leave processors idle."""
BROAD = 256
SPLITS = 4
"""Parts of the batch that the weights' gradients are summed in, for large batches: they are but 32 tiles."""
BLOCKS = 132
"""At most, of the kernels that have a sample a warp: one fills a processor's shared memory."""

INSTRUCTIONS = r"""
#include <atomic>
#include <cstdint>
#include <type_traits>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
typedef uint32_t u32;
typedef int64_t i64;

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
// 16 x 8 by 8 x 8, of numbers with 11 bits. A lane has rows l / 4 and l / 4 + 8 of columns l % 4 and l % 4 + 4.
__device__ __forceinline__ void multiply_short(
    float (&c)[4], float a0, float a1, float a2, float a3, float b0, float b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(__float_as_uint(a0)), "r"(__float_as_uint(a1)), "r"(__float_as_uint(a2)), "r"(__float_as_uint(a3)),
          "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
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
// A block of 8 x 8 in the lanes' registers, two of a row each, the other way round.
__device__ __forceinline__ u32 turned(u32 word) {
    u32 made;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(made) : "r"(word));
    return made;
}
// `bytes`: 16, or 0 for zeros.
__device__ __forceinline__ void copy_later(u32 to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void arrived() {
    asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
}
"""

KERNELS = r"""
__device__ __forceinline__ float wide(float value) { return value; }
__device__ __forceinline__ float wide(__half value) { return __half2float(value); }
__device__ __forceinline__ float wide(__nv_bfloat16 value) { return __bfloat162float(value); }
template <class T> __device__ __forceinline__ T narrow(float value) {
    if constexpr (std::is_same<T, __half>::value) return __float2half_rn(value);
    else if constexpr (std::is_same<T, float>::value) return value;
    else return __float2bfloat16_rn(value);
}
template <class T> struct alignas(4) Pair { T at[2]; };
template <class T> union Word { Pair<T> pair; u32 word; __device__ Word() {} };
template <class T> __device__ __forceinline__ u32 packed(float low, float high) {
    Word<T> made;
    made.pair.at[0] = narrow<T>(low), made.pair.at[1] = narrow<T>(high);
    return made.word;
}
template <class T> __device__ __forceinline__ float2 both(u32 word) {
    Word<T> found;
    found.word = word;
    return make_float2(wide(found.pair.at[0]), wide(found.pair.at[1]));
}
template <class T> __device__ __forceinline__ bool even(const T* tensor, int pitch) {
    return (i64)tensor % 16 == 0 && pitch % 8 == 0;
}

// Two results of a product, which are an operand of the next. In fp16 they stay float32: gradients of 1e-5 behind a
// deviation of 3e5 lose their bits in fp16. They are then multiplied as sums of two numbers of 11 bits, as many as
// those of fp16, of which the small ones' product is left out.
template <class T> using Made = typename std::conditional<std::is_same<T, __half>::value, float2, u32>::type;
template <class T> __device__ __forceinline__ Made<T> made(float low, float high) {
    if constexpr (std::is_same<T, __half>::value) return make_float2(low, high);
    else return packed<T>(low, high);
}
__device__ __forceinline__ float2 turned(float2 value) {
    const u32 a = __float_as_uint(value.x), b = __float_as_uint(value.y);
    const u32 low = turned(__byte_perm(a, b, 0x5410)), high = turned(__byte_perm(a, b, 0x7632));
    return make_float2(
        __uint_as_float(__byte_perm(low, high, 0x5410)), __uint_as_float(__byte_perm(low, high, 0x7632)));
}
__device__ __forceinline__ float short_of(float value) {
    return __uint_as_float(__float_as_uint(value) & 0xffffe000u);
}
__device__ __forceinline__ float2 short_of(float2 value) { return make_float2(short_of(value.x), short_of(value.y)); }
__device__ __forceinline__ float2 rest_of(float2 value) {
    return short_of(make_float2(value.x - short_of(value.x), value.y - short_of(value.y)));
}
// As the instruction for 16 columns: two for 8, the even columns first.
__device__ __forceinline__ void multiply_halves(float (&c)[4], const float2 (&a)[4], float2 b0, float2 b1) {
    multiply_short(c, a[0].x, a[1].x, a[0].y, a[1].y, b0.x, b0.y);
    multiply_short(c, a[2].x, a[3].x, a[2].y, a[3].y, b1.x, b1.y);
}
template <class T> __device__ __forceinline__ void multiply(float (&c)[4], const float2 (&a)[4], u32 b0, u32 b1) {
    const float2 large[4] = {short_of(a[0]), short_of(a[1]), short_of(a[2]), short_of(a[3])};
    const float2 small[4] = {rest_of(a[0]), rest_of(a[1]), rest_of(a[2]), rest_of(a[3])};
    multiply_halves(c, small, both<T>(b0), both<T>(b1));
    multiply_halves(c, large, both<T>(b0), both<T>(b1));
}
template <class T> __device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], float2 b0, float2 b1) {
    const float2 exact[4] = {both<T>(a[0]), both<T>(a[1]), both<T>(a[2]), both<T>(a[3])};
    multiply_halves(c, exact, rest_of(b0), rest_of(b1));
    multiply_halves(c, exact, short_of(b0), short_of(b1));
}
template <class T> __device__ __forceinline__ void multiply(
    float (&c)[4], const float2 (&a)[4], float2 b0, float2 b1) {
    const float2 large[4] = {short_of(a[0]), short_of(a[1]), short_of(a[2]), short_of(a[3])};
    const float2 small[4] = {rest_of(a[0]), rest_of(a[1]), rest_of(a[2]), rest_of(a[3])};
    multiply_halves(c, small, short_of(b0), short_of(b1));
    multiply_halves(c, large, rest_of(b0), rest_of(b1));
    multiply_halves(c, large, short_of(b0), short_of(b1));
}

// Where in a tile in shared memory a chunk of 16 bytes is, in bytes; a row has PITCH chunks. Eight rows in a row have a
// chunk in different banks.
template <int PITCH> __device__ __forceinline__ u32 place(int row, int chunk) {
    return (row * PITCH + (chunk ^ (PITCH == 2 ? row >> 2 & 1 : row & 7))) * 16;
}

// A sample is FIELDS x DIM at most, what is beyond its own sizes is zero; interactions are FIELDS x RANK. A warp holds
// interactions turned: f[j][2 * half + e] is of field 8 j + 2 (lane % 4) + e and rank lane / 4 + 8 half.
constexpr int FIELDS = 64, DIM = 128, RANK = 16, SMALL = FIELDS * RANK;
struct Sample { int fields, dim, rank; float eps; };
// Gradients of LayerNorm's output: float32 for fp16, with rows of 80 bytes.
template <class T> using Slope = typename std::conditional<std::is_same<T, __half>::value, float, T>::type;
template <class T> struct Room {
    static constexpr bool HALF = std::is_same<T, __half>::value;
    static constexpr int WARPS = HALF ? 5 : 6, THREADS = WARPS * 32;  // as many as have room for two samples each
    static constexpr int X = FIELDS * DIM * 2, SLOPES = HALF ? FIELDS * 80 : SMALL * 2, STAGE = X + SLOPES;
    static constexpr int FORWARD = WARPS * 2 * X + 3 * SMALL * 2, BACKWARD = WARPS * 2 * STAGE + 2 * SMALL * 2;
    static_assert(BACKWARD <= 227 << 10, "what a block may have");
};
template <class T> __device__ __forceinline__ void keep_small(T* tile, const T* from, const Sample& s) {
    for (int i = threadIdx.x; i < SMALL; i += Room<T>::THREADS) {
        const int f = i / RANK, r = i % RANK;
        T* to = (T*)((char*)tile + place<2>(f, r / 8)) + r % 8;
        *to = f < s.fields && r < s.rank ? from[f * s.rank + r] : narrow<T>(0.0f);
    }
}
template <class T> __device__ __forceinline__ void fetch_sample(
    unsigned char* tile, const T* x, const Sample& s, bool vectors) {
    const int chunk = threadIdx.x % 16, top = threadIdx.x % 32 / 16;
    if (chunk >= (s.dim + 15) / 16 * 2) return;
    if (vectors) {
        #pragma unroll 8
        for (int row = top; row < FIELDS; row += 2) {
            const bool real = row < s.fields && chunk * 8 < s.dim;
            copy_later(at_shared(tile) + place<16>(row, chunk), real ? x + row * s.dim + chunk * 8 : x, real ? 16 : 0);
        }
        return;
    }
    #pragma unroll 1
    for (int row = top; row < FIELDS; row += 2) {
        T* to = (T*)(tile + place<16>(row, chunk));
        #pragma unroll
        for (int k = 0; k < 8; k++)
            to[k] = row < s.fields && chunk * 8 + k < s.dim ? x[row * s.dim + chunk * 8 + k] : narrow<T>(0.0f);
    }
}
template <class T> __device__ __forceinline__ void fetch_slopes(
    unsigned char* tile, const Slope<T>* from, const Sample& s, bool vectors) {
    constexpr int EACH = 16 / sizeof(Slope<T>), CHUNKS = RANK / EACH;
    const int lane = threadIdx.x % 32;
    auto place_of = [&](int row, int chunk) { return CHUNKS == 2 ? place<2>(row, chunk) : row * 80u + chunk * 16; };
    if (vectors) {
        #pragma unroll
        for (int i = lane; i < FIELDS * CHUNKS; i += 32) {
            const bool real = i / CHUNKS < s.fields;
            const Slope<T>* at = real ? from + i * EACH : from;
            copy_later(at_shared(tile) + place_of(i / CHUNKS, i % CHUNKS), at, real ? 16 : 0);
        }
        return;
    }
    #pragma unroll 1
    for (int i = lane; i < SMALL; i += 32) {
        const int f = i / RANK, r = i % RANK;
        Slope<T>* to = (Slope<T>*)(tile + place_of(f, r / EACH)) + r % EACH;
        *to = f < s.fields && r < s.rank ? from[f * s.rank + r] : narrow<Slope<T>>(0.0f);
    }
}
__device__ __forceinline__ float over_warp(float value) {
    #pragma unroll
    for (int step = 16; step; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}
__device__ __forceinline__ bool inside(int j, int k, int lane, const Sample& s) {
    return j * 8 + lane % 4 * 2 + k % 2 < s.fields && lane / 4 + k / 2 * 8 < s.rank;
}
// Of a tile of FIELDS x RANK: pairs that lie as f's four of block 2 p and of the next do.
__device__ __forceinline__ void small_pairs(u32 (&word)[4], const void* tile, int p, int lane) {
    four_turned(word, at_shared(tile) + place<2>(p * 16 + lane / 16 * 8 + lane % 8, lane / 8 % 2));
}
// 16 of X's columns as the right operand of a product over the fields, 16 of them each ...
__device__ __forceinline__ void columns_of(u32 (&word)[4][4], const void* x, int chunk, int lane) {
    #pragma unroll
    for (int k = 0; k < 4; k++)
        four_turned(word[k], at_shared(x) + place<16>(k * 16 + lane % 16, chunk * 2 + lane / 16));
}
// ... and of one over the columns, for 16 fields.
__device__ __forceinline__ void fields_of(u32 (&word)[4], const void* x, int p, int chunk, int lane) {
    four(word, at_shared(x) + place<16>(p * 16 + lane / 16 * 8 + lane % 8, chunk * 2 + lane / 8 % 2));
}
template <class T> __device__ __forceinline__ void operand(Made<T> (&a)[4], const float (&c)[2][4]) {
    a[0] = made<T>(c[0][0], c[0][1]), a[1] = made<T>(c[0][2], c[0][3]);
    a[2] = made<T>(c[1][0], c[1][1]), a[3] = made<T>(c[1][2], c[1][3]);
}
// Ranks by 16 columns: all fields' sum of `left` times X.
template <class T, class Left> __device__ __forceinline__ void over_fields(
    float (&c)[2][4], const Left (&left)[4][4], const u32 (&columns)[4][4]) {
    #pragma unroll
    for (int k = 0; k < 8; k++) c[k / 4][k % 4] = 0.0f;
    #pragma unroll
    for (int k = 0; k < 4; k++)
        #pragma unroll
        for (int n = 0; n < 2; n++) multiply<T>(c[n], left[k], columns[k][n * 2], columns[k][n * 2 + 1]);
}
// f += a X^T for 16 columns.
template <class T> __device__ __forceinline__ void over_columns(
    float (&f)[8][4], const Made<T> (&a)[4], const void* x, int chunk, int lane) {
    #pragma unroll
    for (int p = 0; p < 4; p++) {
        u32 b[4];
        fields_of(b, x, p, chunk, lane);
        multiply<T>(f[p * 2], a, b[0], b[1]);
        multiply<T>(f[p * 2 + 1], a, b[2], b[3]);
    }
}
// X (X^T Y), normalised.
template <class T> __device__ __forceinline__ void interactions(
    float (&f)[8][4], float& rstd, const void* x, const void* y, const Sample& s, int lane) {
    u32 left[4][4];
    #pragma unroll
    for (int k = 0; k < 4; k++) small_pairs(left[k], y, k, lane);
    #pragma unroll
    for (int k = 0; k < 32; k++) f[k / 4][k % 4] = 0.0f;
    #pragma unroll 1
    for (int chunk = 0; chunk * 16 < s.dim; chunk++) {
        u32 columns[4][4];
        float z[2][4];
        Made<T> a[4];
        columns_of(columns, x, chunk, lane);
        over_fields<T>(z, left, columns);
        operand<T>(a, z);
        over_columns<T>(f, a, x, chunk, lane);
    }
    const float share = __fdividef(1.0f, s.fields * s.rank);
    float sum = 0.0f, square = 0.0f;
    #pragma unroll
    for (int k = 0; k < 32; k++) sum += inside(k / 4, k % 4, lane, s) ? f[k / 4][k % 4] : 0.0f;
    const float mean = over_warp(sum) * share;
    #pragma unroll
    for (int k = 0; k < 32; k++) {
        float& each = f[k / 4][k % 4];
        each = inside(k / 4, k % 4, lane, s) ? each - mean : 0.0f;
        square += each * each;
    }
    rstd = rsqrtf(over_warp(square) * share + s.eps);
    #pragma unroll
    for (int k = 0; k < 32; k++) f[k / 4][k % 4] *= rstd;
}

template <class T> __global__ void __launch_bounds__(Room<T>::THREADS, 1) factorise(
    const T* x, const T* y, const T* scale, const T* shift, T* out, int batch, Sample s) {
    extern __shared__ __align__(1024) unsigned char memory[];
    constexpr int WARPS = Room<T>::WARPS;
    T* small = (T*)(memory + WARPS * 2 * Room<T>::X);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, size = s.fields * s.rank;
    const bool vectors = even(x, s.dim);
    unsigned char* own = memory + warp * 2 * Room<T>::X;
    int sample = blockIdx.x + gridDim.x * warp;
    if (sample < batch) fetch_sample(own, x + (i64)sample * s.fields * s.dim, s, vectors);
    commit();
    keep_small(small, y, s);
    keep_small(small + SMALL, scale, s);
    keep_small(small + 2 * SMALL, shift, s);
    __syncthreads();
    for (int turn = 0; sample < batch; turn ^= 1) {
        const int next = sample + gridDim.x * WARPS;
        if (next < batch) fetch_sample(own + (turn ^ 1) * Room<T>::X, x + (i64)next * s.fields * s.dim, s, vectors);
        commit();
        arrived<1>();
        __syncwarp();
        float f[8][4], rstd;
        interactions<T>(f, rstd, own + turn * Room<T>::X, small, s, lane);
        T* to = out + (i64)sample * size;
        #pragma unroll
        for (int p = 0; p < 4; p++) {
            u32 gamma[4], beta[4];
            small_pairs(gamma, small + SMALL, p, lane);
            small_pairs(beta, small + 2 * SMALL, p, lane);
            #pragma unroll
            for (int w = 0; w < 4; w++) {
                const float* own_two = f[p * 2 + w / 2] + w % 2 * 2;
                const float2 g = both<T>(gamma[w]), b = both<T>(beta[w]);
                Word<T> made;  // a field's ranks are neighbours
                made.word = turned(packed<T>(own_two[0] * g.x + b.x, own_two[1] * g.y + b.y));
                const int field = (p * 2 + w / 2) * 8 + lane / 4, rank = w % 2 * 8 + lane % 4 * 2;
                if (field >= s.fields) continue;
                if (s.rank == RANK) {
                    *(u32*)(to + field * RANK + rank) = made.word;
                } else {
                    if (rank < s.rank) to[field * s.rank + rank] = made.pair.at[0];
                    if (rank + 1 < s.rank) to[field * s.rank + rank + 1] = made.pair.at[1];
                }
            }
        }
        __syncwarp();
        sample = next;
    }
}

// dX, and parts of the gradients of Y and of LayerNorm's scale and shift, [3][FIELDS][RANK] of each block.
template <class T> __global__ void __launch_bounds__(Room<T>::THREADS, 1) factorise_backward(
    const T* x, const T* y, const T* scale, const Slope<T>* dnormed, T* dx, float* parts, int batch, Sample s) {
    extern __shared__ __align__(1024) unsigned char memory[];
    constexpr int WARPS = Room<T>::WARPS, STAGE = Room<T>::STAGE, AT_ONCE = Room<T>::HALF ? 1 : 4;
    T* small = (T*)(memory + WARPS * 2 * STAGE);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, size = s.fields * s.rank;
    const bool vectors = even(x, s.dim), even_slopes = s.rank == RANK;
    unsigned char* own = memory + warp * 2 * STAGE;
    auto fetch = [&](i64 sample, int turn) {
        fetch_sample(own + turn * STAGE, x + sample * s.fields * s.dim, s, vectors);
        fetch_slopes<T>(own + turn * STAGE + Room<T>::X, dnormed + sample * size, s, even_slopes);
    };
    int sample = blockIdx.x + gridDim.x * warp;
    if (sample < batch) fetch(sample, 0);
    commit();
    keep_small(small, y, s);
    keep_small(small + SMALL, scale, s);
    __syncthreads();
    float dy[8][4], dgamma[8][4], dbeta[8][4];
    #pragma unroll
    for (int k = 0; k < 32; k++) dy[k / 4][k % 4] = dgamma[k / 4][k % 4] = dbeta[k / 4][k % 4] = 0.0f;
    for (int turn = 0; sample < batch; turn ^= 1) {
        const int next = sample + gridDim.x * WARPS;
        if (next < batch) fetch(next, turn ^ 1);
        commit();
        arrived<1>();
        __syncwarp();
        unsigned char* held = own + turn * STAGE;
        const unsigned char* slopes = held + Room<T>::X;
        Made<T> df[4][4];  // the left operand of a product over the fields
        {
            float f[8][4], g[8][4], rstd, all = 0.0f, with = 0.0f;
            interactions<T>(f, rstd, held, small, s, lane);
            #pragma unroll
            for (int p = 0; p < 4; p++) {
                u32 gamma[4], slope[4];
                small_pairs(gamma, small + SMALL, p, lane);
                if constexpr (!std::is_same<T, __half>::value) small_pairs(slope, slopes, p, lane);
                #pragma unroll
                for (int w = 0; w < 4; w++) {
                    const int j = p * 2 + w / 2, k = w % 2 * 2;
                    float2 d;
                    if constexpr (std::is_same<T, __half>::value) {
                        const float* at = (const float*)slopes + (j * 8 + lane % 4 * 2) * 20 + lane / 4 + k * 4;
                        d = make_float2(at[0], at[20]);
                    } else {
                        d = both<T>(slope[w]);
                    }
                    dbeta[j][k] += d.x, dbeta[j][k + 1] += d.y;
                    dgamma[j][k] += d.x * f[j][k], dgamma[j][k + 1] += d.y * f[j][k + 1];
                    const float2 scaled = both<T>(gamma[w]);
                    g[j][k] = d.x * scaled.x, g[j][k + 1] = d.y * scaled.y;
                    all += g[j][k] + g[j][k + 1];
                    with += g[j][k] * f[j][k] + g[j][k + 1] * f[j][k + 1];
                }
            }
            const float share = __fdividef(1.0f, size), level = over_warp(all) * share, along = over_warp(with) * share;
            #pragma unroll
            for (int k = 0; k < 32; k++) {
                const float of = (g[k / 4][k % 4] - level - f[k / 4][k % 4] * along) * rstd;
                g[k / 4][k % 4] = inside(k / 4, k % 4, lane, s) ? of : 0.0f;
            }
            #pragma unroll
            for (int p = 0; p < 4; p++) {
                df[p][0] = made<T>(g[p * 2][0], g[p * 2][1]), df[p][1] = made<T>(g[p * 2][2], g[p * 2][3]);
                df[p][2] = made<T>(g[p * 2 + 1][0], g[p * 2 + 1][1]);
                df[p][3] = made<T>(g[p * 2 + 1][2], g[p * 2 + 1][3]);
            }
        }
        // The left operand of one over the ranks: there are registers for it where a number has 16 bits.
        Made<T> across[Room<T>::HALF ? 1 : 4][4];
        auto turn_four = [&](Made<T> (&to)[4], int m) {
            to[0] = turned(df[m][0]), to[1] = turned(df[m][2]), to[2] = turned(df[m][1]), to[3] = turned(df[m][3]);
        };
        if constexpr (!Room<T>::HALF) {
            #pragma unroll
            for (int m = 0; m < 4; m++) turn_four(across[m], m);
        }
        #pragma unroll 1
        for (int chunk = 0; chunk * 16 < s.dim; chunk++) {
            u32 columns[4][4], left[4][4];
            float z[2][4], dz[2][4];
            Made<T> of_z[4], of_dz[4];
            columns_of(columns, held, chunk, lane);
            #pragma unroll
            for (int k = 0; k < 4; k++) small_pairs(left[k], small, k, lane);
            over_fields<T>(z, left, columns);
            operand<T>(of_z, z);
            over_fields<T>(dz, df, columns);
            operand<T>(of_dz, dz);
            over_columns<T>(dy, of_dz, held, chunk, lane);
            #pragma unroll
            for (int k = 0; k < 4; k++) of_z[k] = turned(of_z[k]), of_dz[k] = turned(of_dz[k]);
            __syncwarp();  // what was X's is now dX's
            #pragma unroll
            for (int m = 0; m < 4; m++) {
                u32 of_y[4];
                if constexpr (Room<T>::HALF) turn_four(across[0], m);
                four(of_y, at_shared(small) + place<2>(m * 16 + lane % 16, lane / 16));
                #pragma unroll
                for (int n = 0; n < 2; n++) {
                    float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                    multiply<T>(c, across[Room<T>::HALF ? 0 : m], of_z[n * 2], of_z[n * 2 + 1]);
                    multiply<T>(c, of_y, of_dz[n * 2], of_dz[n * 2 + 1]);
                    #pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const u32 at = place<16>(m * 16 + half * 8 + lane / 4, chunk * 2 + n) + lane % 4 * 4;
                        *(u32*)(held + at) = packed<T>(c[half * 2], c[half * 2 + 1]);
                    }
                }
            }
        }
        __syncwarp();
        if (dx) {
            T* to = dx + (i64)sample * s.fields * s.dim;
            const int chunk = lane % 16;
            if (s.dim % 8 == 0) {
                if (chunk * 8 < s.dim)
                    #pragma unroll AT_ONCE
                    for (int row = lane / 16; row < s.fields; row += 2)
                        __stcs((uint4*)(to + row * s.dim + chunk * 8), *(const uint4*)(held + place<16>(row, chunk)));
            } else {
                #pragma unroll 1
                for (int row = lane / 16; row < s.fields; row += 2)
                    for (int k = 0; k < 8 && chunk * 8 + k < s.dim; k++)
                        to[row * s.dim + chunk * 8 + k] = ((const T*)(held + place<16>(row, chunk)))[k];
            }
        }
        __syncwarp();
        sample = next;
    }
    arrived<0>();
    __syncthreads();
    float* found = (float*)memory;
    #pragma unroll
    for (int k = 0; k < 32; k++) {
        const int field = k / 4 * 8 + lane % 4 * 2 + k % 2, rank = k % 4 / 2 * 8 + lane / 4;
        float* to = found + warp * 3 * SMALL + field * RANK + rank;
        to[0] = dy[k / 4][k % 4], to[SMALL] = dgamma[k / 4][k % 4], to[2 * SMALL] = dbeta[k / 4][k % 4];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 3 * SMALL; i += Room<T>::THREADS) {
        float sum = 0.0f;
        #pragma unroll
        for (int w = 0; w < WARPS; w++) sum += found[w * 3 * SMALL + i];
        parts[(i64)blockIdx.x * 3 * SMALL + i] = sum;
    }
}

// Products of matrices, 64 of the inner dimension at a time. A block has TALL x BROAD numbers of the result, a warp a
// square of it: two are above one another. Tiles of 128 x 256 do 85 operations with a byte from the L2 cache, of
// 128 x 128 64: at 400 TFLOPS these would ask it for 6.2 TB/s.
constexpr int DEPTH = 64, STAGES = 3;
template <bool LARGE> struct Tile {
    static constexpr int TALL = LARGE ? 128 : 64, ACROSS = LARGE ? BROAD : 64, SIDE = TALL / 2;
    static constexpr int THREADS = 64 * ACROSS / SIDE, BLOCKS = LARGE ? 256 / THREADS : 4;
    static constexpr int ROOM = STAGES * (TALL + ACROSS) * DEPTH * 2;
};
// An operand's rows of the result are along its own rows, or (ACROSS) along its columns. `end`: of the inner dimension.
template <int SIZE, int THREADS, bool ACROSS, class T> __device__ __forceinline__ void fetch_operand(
    unsigned char* tile, const T* from, int pitch, int row, int rows, int inner, int end, bool vectors) {
    constexpr int CHUNKS = ACROSS ? SIZE / 8 : 8, HIGH = ACROSS ? DEPTH : SIZE, STEP = THREADS / CHUNKS;
    const int top = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    const int down = ACROSS ? inner : row, low = ACROSS ? end : rows;
    const int column = (ACROSS ? row : inner) + chunk * 8, columns = ACROSS ? rows : end;
    const T* at = from + (i64)(down + top) * pitch + column;
    if (vectors) {
        #pragma unroll
        for (int r = 0; r < HIGH; r += STEP) {
            const bool real = down + top + r < low && column < columns;
            const T* own = real ? at + (i64)r * pitch : from;
            copy_later(at_shared(tile) + place<CHUNKS>(top + r, chunk), own, real ? 16 : 0);
        }
        return;
    }
    #pragma unroll 1
    for (int r = 0; r < HIGH; r += STEP) {
        T* to = (T*)(tile + place<CHUNKS>(top + r, chunk));
        #pragma unroll
        for (int k = 0; k < 8; k++)
            to[k] = down + top + r < low && column + k < columns ? at[(i64)r * pitch + k] : narrow<T>(0.0f);
    }
}
template <class T> struct Matrix {
    const T* from;
    int pitch;
};
// finish(row, column, eight numbers of it) gets all that is there; finish_sum(row, the sum of a's) once.
template <class T, bool LARGE, bool A_ACROSS, bool B_ACROSS, bool SUMS, class Finish, class FinishSum>
__device__ __forceinline__ void product(
    unsigned char* memory, Matrix<T> a, Matrix<T> b, int row, int rows, int column, int columns, int first, int end,
    Finish finish, FinishSum finish_sum) {
    typedef Tile<LARGE> S;
    constexpr int PARTS = S::SIDE / 16, BYTES_A = S::TALL * DEPTH * 2, BYTES = BYTES_A + S::ACROSS * DEPTH * 2;
    constexpr int PITCH_A = A_ACROSS ? S::TALL / 8 : 8, PITCH_B = B_ACROSS ? S::ACROSS / 8 : 8;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, down = warp % 2 * S::SIDE, right = warp / 2 * S::SIDE;
    const bool even_a = even(a.from, a.pitch), even_b = even(b.from, b.pitch), sums = SUMS && column == 0 && right == 0;
    const int steps = end > first ? (end - first + DEPTH - 1) / DEPTH : 0;
    auto load = [&](int step) {
        unsigned char* to = memory + step % STAGES * BYTES;
        const int inner = first + step * DEPTH;
        fetch_operand<S::TALL, S::THREADS, A_ACROSS>(to, a.from, a.pitch, row, rows, inner, end, even_a);
        fetch_operand<S::ACROSS, S::THREADS, B_ACROSS>(
            to + BYTES_A, b.from, b.pitch, column, columns, inner, end, even_b);
    };
    float sum[PARTS][PARTS * 2][4], ones[PARTS][4];
    #pragma unroll
    for (int m = 0; m < PARTS; m++)
        #pragma unroll
        for (int k = 0; k < 4; k++) {
            ones[m][k] = 0.0f;
            #pragma unroll
            for (int n = 0; n < PARTS * 2; n++) sum[m][n][k] = 0.0f;
        }
    const u32 one = packed<T>(1.0f, 1.0f);
    #pragma unroll
    for (int step = 0; step < STAGES - 1; step++) {
        if (step < steps) load(step);
        commit();
    }
    for (int step = 0; step < steps; step++) {
        arrived<STAGES - 2>();
        __syncthreads();
        if (step + STAGES - 1 < steps) load(step + STAGES - 1);
        commit();
        const u32 stage = at_shared(memory + step % STAGES * BYTES);
        const u32 left = stage + (A_ACROSS ? place<PITCH_A>(lane / 16 * 8 + lane % 8, down / 8 + lane / 8 % 2)
                                           : place<PITCH_A>(down + lane % 16, lane / 16));
        const u32 top = stage + BYTES_A
                        + (B_ACROSS ? place<PITCH_B>(lane % 16, right / 8 + lane / 16)
                                    : place<PITCH_B>(right + lane / 16 * 8 + lane % 8, lane / 8 % 2));
        #pragma unroll
        for (int k = 0; k < DEPTH / 16; k++) {
            u32 of_a[PARTS][4], of_b[PARTS][4];
            #pragma unroll
            for (int m = 0; m < PARTS; m++) {
                if constexpr (A_ACROSS) four_turned(of_a[m], (left ^ m * 32) + k * 256 * PITCH_A);
                else four(of_a[m], (left ^ k * 32) + m * 256 * PITCH_A);
            }
            #pragma unroll
            for (int n = 0; n < PARTS; n++) {
                if constexpr (B_ACROSS) four_turned(of_b[n], (top ^ n * 32) + k * 256 * PITCH_B);
                else four(of_b[n], (top ^ k * 32) + n * 256 * PITCH_B);
            }
            if (sums) {
                #pragma unroll
                for (int m = 0; m < PARTS; m++) multiply<T>(ones[m], of_a[m], one, one);
            }
            #pragma unroll
            for (int m = 0; m < PARTS; m++)
                #pragma unroll
                for (int n = 0; n < PARTS * 2; n++)
                    multiply<T>(sum[m][n], of_a[m], of_b[n / 2][n % 2 * 2], of_b[n / 2][n % 2 * 2 + 1]);
        }
    }
    // By way of shared memory, so that a thread has neighbours: whole lines are read and written.
    constexpr int PITCH = S::ACROSS + 8;
    float* found = (float*)memory;
    static_assert(S::TALL * PITCH * 4 <= S::ROOM, "the result is where the operands were");
    arrived<0>();
    __syncthreads();
    #pragma unroll
    for (int m = 0; m < PARTS; m++)
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = down + m * 16 + half * 8 + lane / 4;
            #pragma unroll
            for (int n = 0; n < PARTS * 2; n++)
                *(float2*)(found + at * PITCH + right + n * 8 + lane % 4 * 2) =
                    make_float2(sum[m][n][half * 2], sum[m][n][half * 2 + 1]);
            if (sums && lane % 4 == 0 && row + at < rows) finish_sum(row + at, ones[m][half * 2]);
        }
    __syncthreads();
    constexpr int STEP = S::THREADS * 8 / S::ACROSS;
    const int chunk = threadIdx.x % (S::ACROSS / 8) * 8;
    if (column + chunk >= columns) return;
    #pragma unroll 2
    for (int r = threadIdx.x / (S::ACROSS / 8); r < S::TALL && row + r < rows; r += STEP) {
        const float4 low = *(const float4*)(found + r * PITCH + chunk);
        const float4 high = *(const float4*)(found + r * PITCH + chunk + 4);
        float value[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        finish(row + r, column + chunk, value);
    }
}
struct Nothing { __device__ __forceinline__ void operator()(int, float) const {} };
template <class T> struct alignas(16) Eight { T at[8]; };
// Of a row of `columns` numbers in a tensor that begins at a multiple of 16 bytes.
template <class T> __device__ __forceinline__ void put(
    T* to, int row, int column, int columns, const float (&value)[8]) {
    T* at = to + (i64)row * columns + column;
    if (columns % 8 == 0) {
        if constexpr (sizeof(T) == 4) {
            ((float4*)at)[0] = make_float4(value[0], value[1], value[2], value[3]);
            ((float4*)at)[1] = make_float4(value[4], value[5], value[6], value[7]);
        } else {
            Eight<T> made;
            #pragma unroll
            for (int k = 0; k < 8; k++) made.at[k] = narrow<T>(value[k]);
            *(uint4*)at = *(const uint4*)&made;
        }
    } else {
        #pragma unroll
        for (int k = 0; k < 8; k++)
            if (column + k < columns) at[k] = narrow<T>(value[k]);
    }
}
// The normal distribution's integral up to h: 1.5e-7 exact (Abramowitz and Stegun, 7.1.26). `bell`: exp(-h^2 / 2).
__device__ __forceinline__ float below(float h, float bell) {
    const float t = __fdividef(1.0f, 1.0f + 0.23164189f * fabsf(h));
    const float series =
        ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    const float tail = 0.5f * series * bell;
    return h < 0.0f ? tail : 1.0f - tail;
}

// out = a weight^T + bias; GELU: `raw` is what it was before.
template <class T, bool LARGE, bool GELU>
__global__ void __launch_bounds__(Tile<LARGE>::THREADS, Tile<LARGE>::BLOCKS) linear(
    const T* a, const T* weight, const T* bias, T* raw, T* out, int rows, int columns, int inner) {
    extern __shared__ __align__(1024) unsigned char memory[];
    typedef Tile<LARGE> S;
    const int across = (columns + S::ACROSS - 1) / S::ACROSS;
    const int row = blockIdx.x / across * S::TALL, column = blockIdx.x % across * S::ACROSS;
    product<T, LARGE, false, false, false>(
        memory, Matrix<T>{a, inner}, Matrix<T>{weight, inner}, row, rows, column, columns, 0, inner,
        [&](int r, int c, float (&value)[8]) {
            #pragma unroll
            for (int k = 0; k < 8; k++) value[k] += c + k < columns ? wide(bias[c + k]) : 0.0f;
            if (GELU) {
                put(raw, r, c, columns, value);
                #pragma unroll
                for (int k = 0; k < 8; k++) value[k] *= below(value[k], __expf(-0.5f * value[k] * value[k]));
            }
            put(out, r, c, columns, value);
        }, Nothing());
}
// What the hidden numbers get: (dout weight) times GELU's slope.
template <class T, bool LARGE>
__global__ void __launch_bounds__(Tile<LARGE>::THREADS, Tile<LARGE>::BLOCKS) slopes_of_hidden(
    const T* dout, const T* weight, const T* raw, T* dhidden, int rows, int columns, int inner) {
    extern __shared__ __align__(1024) unsigned char memory[];
    typedef Tile<LARGE> S;
    const int across = (columns + S::ACROSS - 1) / S::ACROSS;
    const int row = blockIdx.x / across * S::TALL, column = blockIdx.x % across * S::ACROSS;
    product<T, LARGE, false, true, false>(
        memory, Matrix<T>{dout, inner}, Matrix<T>{weight, columns}, row, rows, column, columns, 0, inner,
        [&](int r, int c, float (&value)[8]) {
            const T* from = raw + (i64)r * columns + c;
            Eight<T> before;
            if (columns % 8 == 0) *(uint4*)&before = *(const uint4*)from;
            else
                #pragma unroll
                for (int k = 0; k < 8; k++) before.at[k] = c + k < columns ? from[k] : narrow<T>(0.0f);
            #pragma unroll
            for (int k = 0; k < 8; k++) {
                const float h = wide(before.at[k]), bell = __expf(-0.5f * h * h);
                value[k] *= below(h, bell) + h * bell * 0.3989422804014327f;
            }
            put(dhidden, r, c, columns, value);
        }, Nothing());
}
// The sizes of both layers' weights and biases, in the order in which splits' parts of their gradients lie.
struct Layers {
    int batch, size, hidden, outputs, splits;
    i64 weights;  // of all
    __host__ __device__ i64 first() const { return ((i64)outputs * hidden + 3) / 4 * 4; }
    __host__ __device__ i64 biases() const { return first() + (i64)hidden * size; }
};
template <class T> struct Gradients { T *dsecond, *dfirst, *dsecond_bias, *dfirst_bias; };
// The weights' gradients, whose inner dimension is the batch, first; then what LayerNorm's output gets.
template <class T, bool LARGE>
__global__ void __launch_bounds__(Tile<LARGE>::THREADS, Tile<LARGE>::BLOCKS) last_products(
    const T* dout, const T* hidden, const T* dhidden, const T* normed, const T* first, Slope<T>* dnormed, float* parts,
    Gradients<T> to, Layers l) {
    extern __shared__ __align__(1024) unsigned char memory[];
    typedef Tile<LARGE> S;
    const int wide_hidden = (l.hidden + S::ACROSS - 1) / S::ACROSS, wide_size = (l.size + S::ACROSS - 1) / S::ACROSS;
    const int of_second = (l.outputs + S::TALL - 1) / S::TALL * wide_hidden;
    const int each = of_second + (l.hidden + S::TALL - 1) / S::TALL * wide_size;
    if ((int)blockIdx.x < each * l.splits) {
        const int split = blockIdx.x / each, tile = blockIdx.x % each;
        const int share = ((l.batch + l.splits - 1) / l.splits + DEPTH - 1) / DEPTH * DEPTH;
        const int begin = split * share, end = min(begin + share, l.batch);
        float* part = parts + split * l.weights;
        const bool second = tile < of_second;
        const int own = second ? tile : tile - of_second, across = second ? wide_hidden : wide_size;
        const int rows = second ? l.outputs : l.hidden, columns = second ? l.hidden : l.size;
        T* made = second ? to.dsecond : to.dfirst;
        T* made_bias = second ? to.dsecond_bias : to.dfirst_bias;
        float* part_bias = part + l.biases() + (second ? 0 : l.outputs);
        if (!second) part += l.first();
        product<T, LARGE, true, true, true>(
            memory, Matrix<T>{second ? dout : dhidden, rows}, Matrix<T>{second ? hidden : normed, columns},
            own / across * S::TALL, rows, own % across * S::ACROSS, columns, begin, end,
            [&](int r, int c, float (&value)[8]) {
                if (l.splits == 1) put(made, r, c, columns, value);
                else {
                    float* at = part + (i64)r * columns + c;
                    if (columns % 8 == 0) {
                        ((float4*)at)[0] = make_float4(value[0], value[1], value[2], value[3]);
                        ((float4*)at)[1] = make_float4(value[4], value[5], value[6], value[7]);
                    } else {
                        #pragma unroll
                        for (int k = 0; k < 8; k++)
                            if (c + k < columns) at[k] = value[k];
                    }
                }
            },
            [&](int r, float value) {
                if (l.splits == 1) made_bias[r] = narrow<T>(value);
                else part_bias[r] = value;
            });
        return;
    }
    const int tile = blockIdx.x - each * l.splits;
    product<T, LARGE, false, true, false>(
        memory, Matrix<T>{dhidden, l.hidden}, Matrix<T>{first, l.size}, tile / wide_size * S::TALL, l.batch,
        tile % wide_size * S::ACROSS, l.size, 0, l.hidden,
        [&](int r, int c, float (&value)[8]) { put(dnormed, r, c, l.size, value); }, Nothing());
}

// Adds up the parts of `blocks` blocks, then, where there are several, those of the splits.
constexpr int SUM_BLOCKS = 3 * SMALL / 32;
template <class T> __global__ void __launch_bounds__(256) add_parts(
    const float* parts, int blocks, T* dy, T* dscale, T* dshift, const float* shares, Gradients<T> to, Layers l,
    Sample s) {
    __shared__ float found[256];
    if (blockIdx.x >= SUM_BLOCKS) {
        const i64 all = l.biases() + l.outputs + l.hidden;
        const i64 at = ((i64)(blockIdx.x - SUM_BLOCKS) * 256 + threadIdx.x) * 4;
        if (at >= all) return;
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        #pragma unroll 4
        for (int split = 0; split < l.splits; split++) {
            const float4 part = *(const float4*)(shares + split * l.weights + at);
            sum[0] += part.x, sum[1] += part.y, sum[2] += part.z, sum[3] += part.w;
        }
        auto leave = [&](T* tensor, i64 begin, i64 count) {
            T* own = tensor + (at - begin);
            if (at >= begin && at + 4 <= begin + count && (at - begin) % 4 == 0) {
                *(uint2*)own = make_uint2(packed<T>(sum[0], sum[1]), packed<T>(sum[2], sum[3]));
            } else {
                #pragma unroll
                for (int k = 0; k < 4; k++)
                    if (at + k >= begin && at + k < begin + count) own[k] = narrow<T>(sum[k]);
            }
        };
        leave(to.dsecond, 0, (i64)l.outputs * l.hidden);
        leave(to.dfirst, l.first(), (i64)l.hidden * l.size);
        leave(to.dsecond_bias, l.biases(), l.outputs);
        leave(to.dfirst_bias, l.biases() + l.outputs, l.hidden);
        return;
    }
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, at = blockIdx.x * 32 + lane;
    float sum = 0.0f;
    #pragma unroll 8
    for (int block = warp; block < blocks; block += 8) sum += parts[(i64)block * 3 * SMALL + at];
    found[threadIdx.x] = sum;
    __syncthreads();
    const int field = at % SMALL / RANK, rank = at % RANK;
    if (warp || field >= s.fields || rank >= s.rank) return;
    sum = 0.0f;
    #pragma unroll
    for (int w = 0; w < 8; w++) sum += found[w * 32 + lane];
    (at < SMALL ? dy : at < 2 * SMALL ? dscale : dshift)[field * s.rank + rank] = narrow<T>(sum);
}
"""

SHAPE = r"""
struct Shape {
    bool half, large;
    int batch, fields, dim, rank, hidden, outputs, blocks, splits, device;
    int64_t weights;
    float eps;
    cudaStream_t stream;
};
struct Given { const void *x, *y, *scale, *shift, *first, *first_bias, *second, *second_bias; };
struct Kept { void *normed, *raw, *hidden; };
struct Between { void *dhidden, *dnormed; float *parts, *shares; };
struct Found { void *dx, *dy, *dscale, *dshift, *dfirst, *dfirst_bias, *dsecond, *dsecond_bias; };
cudaError_t fm_forward(const Shape& s, const Given& g, const Kept& k, void* out);
cudaError_t fm_backward(
    const Shape& s, const Given& g, const Kept& k, const void* dout, const Between& b, const Found& f);
"""

HOST = r"""
// Shared memory beyond 48 KB, once for a kernel on a device.
template <class Kernel> static cudaError_t allow(Kernel kernel, std::atomic<bool>* allowed, int device, int bytes) {
    if (bytes <= 48 << 10 || allowed[device % 64]) return cudaSuccess;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error == cudaSuccess) allowed[device % 64] = true;
    return error;
}
#define LAUNCH(kernel, grid, threads, bytes, ...) do { \
    static std::atomic<bool> allowed[64]; \
    const cudaError_t error = allow(kernel, allowed, s.device, bytes); \
    if (error != cudaSuccess) return error; \
    kernel<<<grid, threads, bytes, s.stream>>>(__VA_ARGS__); \
} while (0)

template <bool LARGE> static int tiles(int rows, int columns) {
    typedef Tile<LARGE> S;
    return (rows + S::TALL - 1) / S::TALL * ((columns + S::ACROSS - 1) / S::ACROSS);
}
template <class T, bool LARGE> static cudaError_t forward(const Shape& s, const Given& g, const Kept& k, void* out) {
    const Sample sample = {s.fields, s.dim, s.rank, s.eps};
    const int size = s.fields * s.rank;
    LAUNCH((factorise<T>), s.blocks, Room<T>::THREADS, Room<T>::FORWARD,
           (const T*)g.x, (const T*)g.y, (const T*)g.scale, (const T*)g.shift, (T*)k.normed, s.batch, sample);
    LAUNCH((linear<T, LARGE, true>), tiles<LARGE>(s.batch, s.hidden), Tile<LARGE>::THREADS, Tile<LARGE>::ROOM,
           (const T*)k.normed, (const T*)g.first, (const T*)g.first_bias, (T*)k.raw, (T*)k.hidden, s.batch, s.hidden,
           size);
    LAUNCH((linear<T, LARGE, false>), tiles<LARGE>(s.batch, s.outputs), Tile<LARGE>::THREADS, Tile<LARGE>::ROOM,
           (const T*)k.hidden, (const T*)g.second, (const T*)g.second_bias, (T*)nullptr, (T*)out, s.batch, s.outputs,
           s.hidden);
    return cudaGetLastError();
}
template <class T, bool LARGE> static cudaError_t backward(
    const Shape& s, const Given& g, const Kept& k, const void* dout, const Between& b, const Found& f) {
    const Sample sample = {s.fields, s.dim, s.rank, s.eps};
    const Layers layers = {s.batch, s.fields * s.rank, s.hidden, s.outputs, s.splits, s.weights};
    const Gradients<T> weights = {(T*)f.dsecond, (T*)f.dfirst, (T*)f.dsecond_bias, (T*)f.dfirst_bias};
    LAUNCH((slopes_of_hidden<T, LARGE>), tiles<LARGE>(s.batch, s.hidden), Tile<LARGE>::THREADS, Tile<LARGE>::ROOM,
           (const T*)dout, (const T*)g.second, (const T*)k.raw, (T*)b.dhidden, s.batch, s.hidden, s.outputs);
    const int of_weights = tiles<LARGE>(s.outputs, s.hidden) + tiles<LARGE>(s.hidden, layers.size);
    const int of_batch = tiles<LARGE>(s.batch, layers.size);
    LAUNCH((last_products<T, LARGE>), of_weights * s.splits + of_batch, Tile<LARGE>::THREADS, Tile<LARGE>::ROOM,
           (const T*)dout, (const T*)k.hidden, (const T*)b.dhidden, (const T*)k.normed, (const T*)g.first,
           (Slope<T>*)b.dnormed, b.shares, weights, layers);
    LAUNCH((factorise_backward<T>), s.blocks, Room<T>::THREADS, Room<T>::BACKWARD,
           (const T*)g.x, (const T*)g.y, (const T*)g.scale, (const Slope<T>*)b.dnormed, (T*)f.dx, b.parts, s.batch,
           sample);
    const int of_shares = s.splits > 1 ? (int)((s.weights + 1023) / 1024) : 0;
    LAUNCH((add_parts<T>), SUM_BLOCKS + of_shares, 256, 0,
           b.parts, s.blocks, (T*)f.dy, (T*)f.dscale, (T*)f.dshift, b.shares, weights, layers, sample);
    return cudaGetLastError();
}
#define CHOSEN(pass, ...) \
    if (s.half) return s.large ? pass<__half, true>(__VA_ARGS__) : pass<__half, false>(__VA_ARGS__); \
    return s.large ? pass<__nv_bfloat16, true>(__VA_ARGS__) : pass<__nv_bfloat16, false>(__VA_ARGS__)
cudaError_t fm_forward(const Shape& s, const Given& g, const Kept& k, void* out) { CHOSEN(forward, s, g, k, out); }
cudaError_t fm_backward(
    const Shape& s, const Given& g, const Kept& k, const void* dout, const Between& b, const Found& f) {
    CHOSEN(backward, s, g, k, dout, b, f);
}
"""

GLUE = (
    r"""
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/utils/pybind.h>
#include <algorithm>

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
"""
    + SHAPE
    + r"""
struct Choice { int64_t small, splits, blocks; };
static Shape shape_of(const Tensor& x, const Tensor& y, const Tensor& second, double eps, const Choice& chosen) {
    const int device = x.device().index(), batch = (int)x.size(0), rank = (int)y.size(1);
    const int64_t size = x.size(1) * rank, hidden = second.size(1), outputs = second.size(0);
    const bool few = batch <= chosen.small;
    const int64_t weights = (outputs * hidden + 3) / 4 * 4 + hidden * size + outputs + hidden;
    return {x.scalar_type() == at::kHalf, !few, batch, (int)x.size(1), (int)x.size(2), rank, (int)hidden, (int)outputs,
            (int)std::min<int64_t>(chosen.blocks, batch), few ? 1 : (int)chosen.splits, device,
            (weights + 3) / 4 * 4, (float)eps, c10::cuda::getCurrentCUDAStream(device).stream()};
}
static int64_t rounded(int64_t bytes) { return (bytes + 255) / 256 * 256; }
// What is kept for the backward pass: LayerNorm's output, and the hidden numbers before and after GELU.
static Kept within(const Tensor& kept, const Shape& s) {
    const int64_t normed = rounded((int64_t)s.batch * s.fields * s.rank * 2);
    const int64_t hidden = rounded((int64_t)s.batch * s.hidden * 2);
    char* at = (char*)kept.mutable_data_ptr();
    return {at, at + normed, at + normed + hidden};
}
static Given pointers(const Tensor (&of)[8]) {
    return {of[0].const_data_ptr(), of[1].const_data_ptr(), of[2].const_data_ptr(), of[3].const_data_ptr(),
            of[4].const_data_ptr(), of[5].const_data_ptr(), of[6].const_data_ptr(), of[7].const_data_ptr()};
}
// The result, and what is kept. Inputs are contiguous: x, Y, scale, shift, and both layers' weights and biases.
static std::pair<Tensor, Tensor> forward(const Tensor (&of)[8], int64_t width, double eps, const Choice& chosen) {
    const Tensor& x = of[0];
    Tensor out = at::empty({x.size(0), of[6].size(0) / width, width}, x.options());
    if (!x.size(0)) return {out, Tensor()};
    const c10::cuda::CUDAGuard guard(x.device());
    const Shape s = shape_of(x, of[1], of[6], eps, chosen);
    const int64_t of_normed = rounded((int64_t)s.batch * s.fields * s.rank * 2);
    const int64_t of_hidden = rounded((int64_t)s.batch * s.hidden * 2);
    Tensor kept = at::empty({of_normed + 2 * of_hidden}, x.options().dtype(at::kByte));
    C10_CUDA_CHECK(fm_forward(s, pointers(of), within(kept, s), out.mutable_data_ptr()));
    return {out, kept};
}

struct FactorizationMachine : torch::autograd::Function<FactorizationMachine> {
    static Tensor forward(
        AutogradContext* ctx, const Tensor& x, const Tensor& y, const Tensor& scale, const Tensor& shift,
        const Tensor& first, const Tensor& first_bias, const Tensor& second, const Tensor& second_bias, int64_t width,
        double eps, int64_t small, int64_t splits, int64_t blocks) {
        const Tensor of[8] = {x.contiguous(), y.contiguous(), scale.contiguous(), shift.contiguous(),
                              first.contiguous(), first_bias.contiguous(), second.contiguous(),
                              second_bias.contiguous()};
        auto [out, kept] = ::forward(of, width, eps, {small, splits, blocks});
        ctx->save_for_backward({of[0], of[1], of[2], of[4], of[6], kept});
        ctx->saved_data["eps"] = eps;
        ctx->saved_data["small"] = small;
        ctx->saved_data["splits"] = splits;
        ctx->saved_data["blocks"] = blocks;
        return out;
    }
    static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
        const variable_list saved = ctx->get_saved_variables();
        const Tensor &x = saved[0], &y = saved[1], &scale = saved[2], &first = saved[3], &second = saved[4];
        const int64_t batch = x.size(0), hidden = second.size(1), outputs = second.size(0);
        if (!batch) {
            auto none = [&](at::IntArrayRef sizes) { return at::zeros(sizes, x.options()); };
            return {none(x.sizes()), none(y.sizes()), none(scale.sizes()), none(scale.sizes()), none(first.sizes()),
                    none({hidden}), none(second.sizes()), none({outputs}), {}, {}, {}, {}, {}};
        }
        const c10::cuda::CUDAGuard guard(x.device());
        const Tensor dout = grads[0].contiguous();
        const Choice chosen = {ctx->saved_data["small"].toInt(), ctx->saved_data["splits"].toInt(),
                               ctx->saved_data["blocks"].toInt()};
        const Shape s = shape_of(x, y, second, ctx->saved_data["eps"].toDouble(), chosen);
        auto like = [&](at::IntArrayRef sizes) { return at::empty(sizes, x.options()); };
        Tensor dx, dy = like(y.sizes()), dscale = like(scale.sizes()), dshift = like(scale.sizes());
        Tensor dfirst = like(first.sizes()), dfirst_bias = like({hidden});
        Tensor dsecond = like(second.sizes()), dsecond_bias = like({outputs});
        if (ctx->needs_input_grad(0)) dx = like(x.sizes());
        const int64_t of_hidden = rounded(batch * hidden * 2);
        const int64_t of_normed = rounded(batch * s.fields * s.rank * (s.half ? 4 : 2));
        const int64_t of_parts = rounded((int64_t)s.blocks * 3 * 64 * 16 * 4);
        const int64_t of_shares = s.splits > 1 ? s.splits * s.weights * 4 : 0;
        Tensor room = at::empty({of_hidden + of_normed + of_parts + of_shares}, x.options().dtype(at::kByte));
        char* at = (char*)room.mutable_data_ptr();
        const Between between = {at, at + of_hidden, (float*)(at + of_hidden + of_normed),
                                 (float*)(at + of_hidden + of_normed + of_parts)};
        const Found found = {dx.defined() ? dx.mutable_data_ptr() : nullptr, dy.mutable_data_ptr(),
                             dscale.mutable_data_ptr(), dshift.mutable_data_ptr(), dfirst.mutable_data_ptr(),
                             dfirst_bias.mutable_data_ptr(), dsecond.mutable_data_ptr(),
                             dsecond_bias.mutable_data_ptr()};
        const Given given = {x.const_data_ptr(), y.const_data_ptr(), scale.const_data_ptr(), nullptr,
                             first.const_data_ptr(), nullptr, second.const_data_ptr(), nullptr};
        C10_CUDA_CHECK(fm_backward(s, given, within(saved[5], s), dout.const_data_ptr(), between, found));
        return {dx, dy, dscale, dshift, dfirst, dfirst_bias, dsecond, dsecond_bias, {}, {}, {}, {}, {}};
    }
};

// x [batch, fields, dim], y [fields, rank], scale and shift [fields rank], weights [outputs, inputs] and biases of two
// layers. The result is [batch, outputs / width, width].
Tensor factorization_machine(
    const Tensor& x, const Tensor& y, const Tensor& scale, const Tensor& shift, const Tensor& first,
    const Tensor& first_bias, const Tensor& second, const Tensor& second_bias, int64_t width, double eps,
    int64_t small, int64_t splits, int64_t blocks) {
    const auto type = x.scalar_type();
    TORCH_CHECK(type == at::kHalf || type == at::kBFloat16, "float16 or bfloat16 is needed, not ", type);
    TORCH_CHECK(x.dim() == 3 && y.dim() == 2 && first.dim() == 2 && second.dim() == 2 && x.size(1) == y.size(0),
                "embeddings [batch, ", y.size(0), ", dim] are needed, not ", x.sizes());
    const int64_t fields = y.size(0), rank = y.size(1), dim = x.size(2);
    const int64_t hidden = first.size(0), outputs = second.size(0), most = 1 << 15;
    TORCH_CHECK(0 < fields && fields <= 64 && 0 < dim && dim <= 128 && 0 < rank && rank <= 16,
                "at most 64 fields of 128 numbers, and a rank of 16, not ", fields, ", ", dim, ", ", rank);
    TORCH_CHECK(scale.numel() == fields * rank && shift.numel() == fields * rank && first.size(1) == fields * rank &&
                first_bias.numel() == hidden && second.size(1) == hidden && second_bias.numel() == outputs &&
                width > 0 && outputs % width == 0,
                "the layers' sizes do not fit: ", first.sizes(), ", ", second.sizes());
    for (const Tensor* each : {&y, &scale, &shift, &first, &first_bias, &second, &second_bias})
        TORCH_CHECK(each->scalar_type() == type && each->device() == x.device(), "one type and device are needed");
    TORCH_CHECK(x.is_cuda() && x.size(0) < 1 << 22 && 0 < hidden && hidden < most && 0 < outputs && outputs < most,
                "tensors of a GPU, layers not empty and none of them so large: ", x.sizes(), ", ", second.sizes());
    if (at::GradMode::is_enabled() &&
        (x.requires_grad() || y.requires_grad() || scale.requires_grad() || shift.requires_grad() ||
         first.requires_grad() || first_bias.requires_grad() || second.requires_grad() || second_bias.requires_grad()))
        return FactorizationMachine::apply(
            x, y, scale, shift, first, first_bias, second, second_bias, width, eps, small, splits, blocks);
    return forward({x.contiguous(), y.contiguous(), scale.contiguous(), shift.contiguous(), first.contiguous(),
                    first_bias.contiguous(), second.contiguous(), second_bias.contiguous()}, width, eps,
                   {small, splits, blocks}).first;
}
"""
)
factorization_machine = load_inline(
    name="wukong_fm_extension",
    cpp_sources=[GLUE],
    cuda_sources=[INSTRUCTIONS + KERNELS + SHAPE + HOST],
    functions=["factorization_machine"],
    extra_cflags=["-O2"],
    extra_cuda_cflags=["-O3", f"-DBROAD={BROAD}"],
    no_implicit_headers=True,
).factorization_machine


class ModelNew(nn.Module):
    def __init__(self, fields, dim, rank, hidden, outputs, dtype="float32"):
        super().__init__()
        kind = getattr(torch, dtype)
        self.outputs, self.dim = outputs, dim
        self.projection = nn.Parameter((torch.randn(fields, rank) * fields**-0.5).to(kind))
        self.norm = nn.LayerNorm(fields * rank, dtype=kind)
        self.first = nn.Linear(fields * rank, hidden, dtype=kind)
        self.second = nn.Linear(hidden, outputs * dim, dtype=kind)

    def forward(self, x):
        # Out of the dictionaries: a parameter by attribute costs 2 us.
        layers = self._modules
        norm, first, second = layers["norm"], layers["first"]._parameters, layers["second"]._parameters
        return factorization_machine(
            x, self._parameters["projection"], norm._parameters["weight"], norm._parameters["bias"],
            first["weight"], first["bias"], second["weight"], second["bias"], self.dim, norm.eps, SMALL, SPLITS, BLOCKS,
        )  # fmt: skip
