"""Two bytes an element: tensor cores, whose one factor is 16 rows of 16 pixels and the other a filter's row as a band
in a 16 x 8 matrix; products are exact, sums are in float32. Zeros touch infinities: what is no number is summed anew.

Channels first, a warp holds some planes of a channel, or a band of rows, in shared memory; channels last, a block turns
16 channels into planes there, and its results back. Float32, and 3 x 3 on aligned planes, take 4 rows of 8 pixels for
each thread. Bound by memory, but for 7 x 7 in float32: there by arithmetic.
"""

import functools

import torch
from kernelwright import load_cuda
from torch import nn

TUNABLES = {"WARPS": [2, 4, 8], "HELD": [4, 6, 10], "GROUPS": [1, 2], "ROOM": [32, 64, 96], "THREADS": [128, 192, 256]}
WARPS = 4
"""Of a block, channels first on tensor cores."""
HELD = 6
"""Thousands of bytes of planes that such a warp holds, if a plane is smaller."""
GROUPS = 1
"""Times 16 rows are a block's, channels last on tensor cores."""
ROOM = 64
"""Thousands of bytes of shared memory for a block without tensor cores."""
THREADS = 256
"""Of such a block."""

SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
typedef unsigned int u32;
typedef long long i64;

__device__ __forceinline__ float wide(float value) { return value; }
__device__ __forceinline__ float wide(__half value) { return __half2float(value); }
__device__ __forceinline__ float wide(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ void narrow(float value, float& to) { to = value; }
__device__ __forceinline__ void narrow(float value, __half& to) { to = __float2half_rn(value); }
__device__ __forceinline__ void narrow(float value, __nv_bfloat16& to) { to = __float2bfloat16_rn(value); }
__device__ __forceinline__ u32 place(const void* shared) { return (u32)__cvta_generic_to_shared(shared); }
template <int BYTES> __device__ __forceinline__ void copy_later(void* to, const void* from) {
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(place(to)), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                     :: "r"(place(to)), "l"(from), "n"(BYTES == 16 ? 4 : BYTES) : "memory");
}
__device__ __forceinline__ void arrived() { asm volatile("cp.async.wait_all;" ::: "memory"); }

template <class T> struct alignas(16) Vector { T at[16 / sizeof(T)]; };
template <class T> struct alignas(2 * sizeof(T)) Pair { T at[2]; };

// One sum, of the taps inside of the plane alone.
template <class T> __device__ __forceinline__ float exact(
    const T* plane, i64 step, const T* filter, float sum, int kernel, int height, int width, int y, int l) {
    #pragma unroll 1
    for (int v = 0; v < kernel; v++) {
        #pragma unroll 1
        for (int u = 0; u < kernel; u++) {
            const int above = y + v - kernel / 2, beside = l + u - kernel / 2;
            if (above < 0 || above >= height || beside < 0 || beside >= width) continue;
            sum += wide(plane[((i64)above * width + beside) * step]) * wide(filter[v * kernel + u]);
        }
    }
    return sum;
}

// Any odd kernel, a pixel a thread.
template <class T> __device__ __forceinline__ void plain(
    const T* x, const T* weight, const T* bias, T* out, i64 count, int channels, int height, int width, int kernel,
    int last) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const i64 image = (i64)height * width;
    const int c = (int)(last ? i % channels : i / image % channels);
    const i64 pixel = last ? i / channels % image : i % image;
    const T* from = x + i / (image * channels) * image * channels + (last ? c : c * image);
    const T* filter = weight + (i64)c * kernel * kernel;
    narrow(exact(from, last ? channels : 1, filter, wide(bias[c]), kernel, height, width,
                 (int)(pixel / width), (int)(pixel % width)), out[i]);
}

// Channels first: a block holds some planes with a margin of zeros, a thread makes 4 rows of 8 pixels. VECTORS: rows
// begin at multiples of 16 bytes.
template <class T, int K, bool VECTORS> __device__ __forceinline__ void planes(
    const T* x, const T* weight, const T* bias, T* out, int channels, int height, int width, int count, int per) {
    extern __shared__ __align__(128) unsigned char memory[];
    constexpr int LANES = 16 / sizeof(T), PAD = K / 2;
    static_assert(VECTORS || sizeof(T) == 4, "two bytes cannot be copied later");
    T* held = (T*)memory;
    const int strips = (width + 7) / 8, groups = (height + 3) / 4;
    const int pitch = strips * 8 + 2 * LANES, rows = groups * 4 + K - 1, chunks = pitch / LANES;
    const int first = blockIdx.x * per;
    // Where a thread's next vector lies is counted on, as three divisions cost as much as the vector.
    const int on = blockDim.x % chunks, up = blockDim.x / chunks;
    int c = threadIdx.x % chunks, line = threadIdx.x / chunks % rows, p = threadIdx.x / chunks / rows;
    for (int i = threadIdx.x; i < per * rows * chunks; i += blockDim.x) {
        const int y = line - PAD, l = (c - 1) * LANES;
        const bool inside = y >= 0 && y < height && first + p < count;
        const T* from = x + (i64)(first + p) * height * width + y * width + l;
        T* to = held + (i64)i * LANES;
        if (VECTORS && inside && l >= 0 && l < width) {
            copy_later<16>(to, from);
        } else {
            #pragma unroll
            for (int k = 0; k < LANES; k++) {
                if (!VECTORS && inside && l + k >= 0 && l + k < width) copy_later<4>(to + k, from + k);
                else narrow(0.0f, to[k]);
            }
        }
        c += on, line += up;
        if (c >= chunks) c -= chunks, line++;
        while (line >= rows) line -= rows, p++;
    }
    arrived();
    __syncthreads();
    const int lane = threadIdx.x % 32, all = per * groups * strips;
    T* corner = out + (i64)first * height * width;
    T* turned = held + (i64)per * rows * pitch + threadIdx.x / 32 * 256;  // a warp's own, if not VECTORS
    for (int base = threadIdx.x - lane; base < all; base += blockDim.x) {
        const int i = min(base + lane, all - 1);
        const int strip = i % strips, group = i / strips % groups, p = i / strips / groups;
        const bool mine = base + lane < all && first + p < count;
        const int channel = (first + p) % channels;
        float factor[K * K];
        #pragma unroll
        for (int k = 0; k < K * K; k++) factor[k] = wide(weight[(i64)channel * K * K + k]);
        const float shift = wide(bias[channel]);
        float sum[4][8];
        #pragma unroll
        for (int o = 0; o < 4; o++)
            #pragma unroll
            for (int l = 0; l < 8; l++) sum[o][l] = shift;
        const T* row = held + ((i64)p * rows + group * 4) * pitch + strip * 8;
        #pragma unroll
        for (int r = 0; r < 4 + K - 1; r++, row += pitch) {
            float value[8 + 2 * LANES];
            #pragma unroll
            for (int c = 0; c < 8 / LANES + 2; c++) {
                const Vector<T> got = *(const Vector<T>*)(row + c * LANES);
                #pragma unroll
                for (int k = 0; k < LANES; k++) value[c * LANES + k] = wide(got.at[k]);
            }
            #pragma unroll
            for (int o = 0; o < 4; o++) {
                if (r < o || r - o >= K) continue;
                #pragma unroll
                for (int k = 0; k < K; k++)
                    #pragma unroll
                    for (int l = 0; l < 8; l++) sum[o][l] += value[LANES - PAD + l + k] * factor[(r - o) * K + k];
            }
        }
        const int to = (p * height + group * 4) * width + strip * 8, tall = min(4, height - group * 4);
        if (VECTORS) {
            #pragma unroll
            for (int o = 0; o < 4; o++) {
                if (!mine || o >= tall) break;
                #pragma unroll
                for (int c = 0; c < 8 / LANES; c++) {
                    Vector<T> made;
                    #pragma unroll
                    for (int k = 0; k < LANES; k++) narrow(sum[o][c * LANES + k], made.at[k]);
                    if (strip * 8 + c * LANES < width) *(Vector<T>*)(corner + to + o * width + c * LANES) = made;
                }
            }
        } else {
            // Lanes would write 8 pixels apart, each into a sector of its own: a warp's pixels change lanes.
            const int code = to * 4 + tall - 1, wide_left = mine ? width - strip * 8 : 0;
            int goal[8];
            #pragma unroll
            for (int k = 0; k < 8; k++) {
                const int owner = k * 4 + lane / 8;
                goal[k] = __shfl_sync(~0u, code, owner) + lane % 8 * 4;
                if (lane % 8 >= __shfl_sync(~0u, wide_left, owner)) goal[k] = -1;
            }
            #pragma unroll
            for (int o = 0; o < 4; o++) {
                #pragma unroll
                for (int c = 0; c < 8 / LANES; c++) {
                    Vector<T> made;
                    #pragma unroll
                    for (int k = 0; k < LANES; k++) narrow(sum[o][c * LANES + k], made.at[k]);
                    *(Vector<T>*)(turned + lane * 8 + c * LANES) = made;
                }
                __syncwarp();
                #pragma unroll
                for (int k = 0; k < 8; k++)
                    if (goal[k] >= 0 && o <= goal[k] % 4) corner[goal[k] / 4 + o * width] = turned[k * 32 + lane];
                __syncwarp();
            }
        }
    }
}

// Channels last: a thread makes 4 rows of 8 pixels of two channels, which come from the first cache; the filters lie in
// shared memory. EVEN: channels can be read in pairs.
template <class T, int K, bool EVEN> __device__ __forceinline__ void last(
    const T* x, const T* weight, const T* bias, T* out, int batch, int channels, int height, int width, int pairs) {
    extern __shared__ __align__(128) unsigned char memory[];
    constexpr int PAD = K / 2;
    float* factors = (float*)memory;
    const int first = blockIdx.y * pairs * 2;
    for (int i = threadIdx.x; i < K * K * pairs * 2; i += blockDim.x) {
        const int tap = i / (pairs * 2), c = first + i % (pairs * 2);
        factors[i] = c < channels ? wide(weight[(i64)c * K * K + tap]) : 0.0f;
    }
    __syncthreads();
    const int across = (width + 7) / 8, down = (height + 3) / 4;
    const i64 tile = (i64)blockIdx.x * (blockDim.x / pairs) + threadIdx.x / pairs;
    const int pair = threadIdx.x % pairs, c = first + pair * 2;
    const int left = (int)(tile % across) * 8, top = (int)(tile / across % down) * 4;
    const i64 image = tile / across / down;
    if (image >= batch || c >= channels) return;
    const bool two = EVEN || c + 1 < channels;
    const T* from = x + image * height * width * channels + c;
    float sum[4][8][2];
    const float shift[2] = {wide(bias[c]), two ? wide(bias[c + (two ? 1 : 0)]) : 0.0f};
    #pragma unroll
    for (int o = 0; o < 4; o++)
        #pragma unroll
        for (int l = 0; l < 8; l++) sum[o][l][0] = shift[0], sum[o][l][1] = shift[1];
    #pragma unroll 1
    for (int r = 0; r < 4 + K - 1; r++) {
        const int y = top + r - PAD;
        if (y < 0 || y >= height) continue;
        float value[8 + K - 1][2];
        #pragma unroll
        for (int l = 0; l < 8 + K - 1; l++) {
            const int place = left + l - PAD;
            value[l][0] = value[l][1] = 0.0f;
            if (place >= 0 && place < width) {
                const T* at = from + ((i64)y * width + place) * channels;
                if (EVEN) {
                    const Pair<T> got = *(const Pair<T>*)at;
                    value[l][0] = wide(got.at[0]), value[l][1] = wide(got.at[1]);
                } else {
                    value[l][0] = wide(at[0]);
                    if (two) value[l][1] = wide(at[1]);
                }
            }
        }
        #pragma unroll
        for (int o = 0; o < 4; o++) {
            if (r < o || r - o >= K) continue;
            #pragma unroll
            for (int k = 0; k < K; k++) {
                const float* factor = factors + ((r - o) * K + k) * pairs * 2 + pair * 2;
                const float one = factor[0], other = factor[1];
                #pragma unroll
                for (int l = 0; l < 8; l++) {
                    sum[o][l][0] += value[l + k][0] * one;
                    sum[o][l][1] += value[l + k][1] * other;
                }
            }
        }
    }
    #pragma unroll
    for (int o = 0; o < 4; o++)
        #pragma unroll
        for (int l = 0; l < 8; l++) {
            if (top + o >= height || left + l >= width) continue;
            T* to = out + (image * height * width + (i64)(top + o) * width + left + l) * channels + c;
            Pair<T> made;
            narrow(sum[o][l][0], made.at[0]), narrow(sum[o][l][1], made.at[1]);
            if (EVEN) {
                *(Pair<T>*)to = made;
            } else {
                to[0] = made.at[0];
                if (two) to[1] = made.at[1];
            }
        }
}

// Tensor cores. The pixels of a row lie in shared memory from 4 to the left of the first one that is made, so that the
// 16 from a multiple of 8 on are all that 8 results need, for filters up to 9 wide. CHUNKS of 8 pixels make a row: one
// more than are made, and an odd number, so that 8 rows of 16 bytes lie in different banks.
#define CHUNKS(TILES) ((TILES + 1) | 1)

__device__ __forceinline__ void multiply_add(float (&sum)[4], u32 a, u32 b, u32 c, u32 d, const u32 (&band)[2],
                                             const __half*) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};" : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a), "r"(b), "r"(c), "r"(d), "r"(band[0]), "r"(band[1]));
}
__device__ __forceinline__ void multiply_add(float (&sum)[4], u32 a, u32 b, u32 c, u32 d, const u32 (&band)[2],
                                             const __nv_bfloat16*) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};" : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a), "r"(b), "r"(c), "r"(d), "r"(band[0]), "r"(band[1]));
}
__device__ __forceinline__ void matrices(u32 (&one)[2], u32 (&other)[2], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(one[0]), "=r"(one[1]), "=r"(other[0]), "=r"(other[1]) : "r"(row) : "memory");
}
__device__ __forceinline__ void matrices(u32 (&to)[2], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1]) : "r"(row) : "memory");
}

// The filter's rows as the 16 x 8 matrices whose column n has its taps from row n + 4 - K / 2 on.
template <class T, int K> __device__ __forceinline__ void spread(u32 (&band)[K][2], const T* filter) {
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int v = 0; v < K; v++)
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            Pair<T> taps;
            #pragma unroll
            for (int k = 0; k < 2; k++) {
                const int u = lane % 4 * 2 + half * 8 + k - lane / 4 - (4 - K / 2);
                taps.at[k] = filter[v * K + min((u32)max(u, 0), K - 1u)];
                if ((u32)u >= K) narrow(0.0f, taps.at[k]);
            }
            band[v][half] = *(const u32*)&taps;
        }
}

// 16 rows of TILES * 8 pixels from the rows at `from`, rounded, to rows of the same length at `made`; these may be the
// first 16 of the former. Returns whether a sum may be no number.
template <class T, int K, int TILES> __device__ __forceinline__ bool convolve(
    const T* from, const u32 (&band)[K][2], float shift, T* made) {
    constexpr int PITCH = CHUNKS(TILES) * 8;
    const int lane = threadIdx.x % 32;
    float sum[TILES][4];
    #pragma unroll
    for (int n = 0; n < TILES; n++)
        #pragma unroll
        for (int k = 0; k < 4; k++) sum[n][k] = shift;
    const u32 row = place(from + lane % 16 * PITCH + lane / 16 * 8);
    #pragma unroll
    for (int v = 0; v < K; v++) {
        u32 part[TILES + 1][2];  // 8 pixels of 8 rows and of the 8 rows below them
        #pragma unroll
        for (int n = 0; n < TILES; n += 2) matrices(part[n], part[n + 1], row + v * PITCH * 2 + n * 16);
        if (TILES % 2 == 0) matrices(part[TILES], row + v * PITCH * 2 + TILES * 16);
        #pragma unroll
        for (int n = 0; n < TILES; n++)
            multiply_add(sum[n], part[n][0], part[n][1], part[n + 1][0], part[n + 1][1], band[v], (const T*)nullptr);
    }
    __syncwarp();
    made += lane / 4 * PITCH + lane % 4 * 2;
    float all = 0.0f;
    #pragma unroll
    for (int n = 0; n < TILES; n++)
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            Pair<T> two;
            narrow(sum[n][half * 2], two.at[0]), narrow(sum[n][half * 2 + 1], two.at[1]);
            *(Pair<T>*)(made + half * 8 * PITCH + n * 8) = two;
            all += sum[n][half * 2] + sum[n][half * 2 + 1];
        }
    __syncwarp();
    return all != all;
}

// A zero beside the filter may have met an infinity: only a sum that is a number is sure to be right. A warp sums the
// others anew, of the 16 rows at `made`, whose first pixel is in row `top` and column `left` of a plane.
template <class T, int K, int TILES> __device__ __forceinline__ void mend(
    T* made, const T* plane, i64 step, const T* filter, float shift, int height, int width, int top, int left) {
    #pragma unroll 1
    for (int i = threadIdx.x % 32; i < 16 * TILES * 8; i += 32) {
        const int down = i / (TILES * 8), over = i % (TILES * 8);
        T* at = made + down * CHUNKS(TILES) * 8 + over;
        const float value = wide(*at);
        if (value == value || top + down >= height || left + over >= width) continue;
        narrow(exact(plane, step, filter, shift, K, height, width, top + down, left + over), *at);
    }
    __syncwarp();
}

// Where a lane begins if lanes are beside each other as far as a row of so many units goes, and then in the next rows.
struct Places {
    int beside, below, down;
    __device__ __forceinline__ explicit Places(int units) {
        int bits = 0;
        while (bits < 5 && 1 << bits < units) bits++;
        beside = threadIdx.x % 32 & ((1 << bits) - 1), below = threadIdx.x % 32 >> bits, down = 32 >> bits;
    }
};

// Channels first: a warp makes a band of `deep` rows (16 at least) of TILES * 8 columns of some pictures' planes of a
// channel, `held` at a time. UNIT: the bytes in which rows can be written, and read if they are no more than 8.
template <class T, int K, int TILES, int UNIT> __device__ __forceinline__ void tiles_first(
    const T* x, const T* weight, const T* bias, T* out, int batch, int channels, int height, int width,
    int columns, int bands, int deep, int held, int passes) {
    extern __shared__ __align__(128) unsigned char memory[];
    constexpr int PITCH = CHUNKS(TILES) * 8, READ = UNIT < 8 ? UNIT : 8, PAD = K / 2;
    constexpr int GOT = READ / sizeof(T), PUT = UNIT / sizeof(T);
    struct alignas(UNIT) Unit { T at[PUT]; };
    const int rows = deep + K - 1;
    u32 item = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const int c = item % channels;
    item /= channels;
    const int left = item % columns * (TILES * 8);
    item /= columns;
    const int top = item % bands * deep;
    i64 image = (i64)(item / bands) * held * passes;
    if (image >= batch) return;  // the warps of a block do not wait for each other
    T* kept = (T*)memory + threadIdx.x / 32 * (held * rows + 16) * PITCH;
    T* made = kept + held * rows * PITCH;
    // What lies beside the picture is zero, and stays so.
    for (int i = threadIdx.x % 32; i < held * rows * CHUNKS(TILES); i += 32)
        *(uint4*)(kept + i * 8) = make_uint4(0, 0, 0, 0);
    __syncwarp();
    const int begin = max(left - 4, 0), wanted = (min(left + TILES * 8 + 4, width) - begin) / GOT;
    const int across = (min(left + TILES * 8, width) - left) / PUT;
    const Places in(wanted), on(across);
    const int above = max(top - PAD, 0), under = min(top + deep + PAD, height);
    const i64 picture = (i64)channels * height * width, offset = (i64)c * height * width;
    const T* source = x + offset + (i64)(above + in.below) * width + begin;
    T* target = kept + (above + in.below + PAD - top) * PITCH + begin - left + 4;
    const T* filter = weight + (i64)c * K * K;
    const float shift = wide(bias[c]);
    u32 band[K][2];
    for (int pass = 0; pass < passes && image < batch; pass++, image += held) {
        const int count = (int)min((i64)held, batch - image);
        for (int p = 0; p < count; p++) {
            for (int u = in.beside; u < wanted; u += 32) {
                const T* from = source + (image + p) * picture + u * GOT;
                T* to = target + p * rows * PITCH + u * GOT;
                #pragma unroll 4
                for (int y = above + in.below; y < under; y += in.down) {
                    if (READ >= 4) copy_later<READ>(to, from);
                    else *to = *from;
                    from += (i64)in.down * width, to += in.down * PITCH;
                }
                if (READ >= 4) break;  // no row has more than 32 units then
            }
        }
        if (pass == 0) spread<T, K>(band, filter);
        arrived();
        __syncwarp();
        #pragma unroll 1
        for (int p = 0; p < count; p++) {
            const i64 plane = (image + p) * picture + offset;
            #pragma unroll 1
            for (int group = 0; group < deep && top + group < height; group += 16) {
                const int start = min(group, deep - 16);
                const bool doubtful = convolve<T, K, TILES>(kept + (p * rows + start) * PITCH, band, shift, made);
                if (__any_sync(~0u, doubtful))
                    mend<T, K, TILES>(made, x + plane, 1, filter, shift, height, width, top + start, left);
                const int begun = group - start + on.below, tall = min(16, height - top - start);
                for (int u = on.beside; u < across; u += 32) {
                    const T* from = made + begun * PITCH + u * PUT;
                    T* to = out + plane + (i64)(top + start + begun) * width + left + u * PUT;
                    #pragma unroll 4
                    for (int r = begun; r < tall; r += on.down) {
                        *(Unit*)to = *(const Unit*)from;
                        from += on.down * PITCH, to += (i64)on.down * width;
                    }
                    if (UNIT >= 4) break;
                }
                __syncwarp();
            }
        }
    }
}

// Up to 8 channels of a pixel.
template <class T, bool VECTORS> __device__ __forceinline__ void get(u32 (&to)[4], const T* from, int count) {
    if (VECTORS) {
        const uint4 got = __ldg((const uint4*)from);
        to[0] = got.x, to[1] = got.y, to[2] = got.z, to[3] = got.w;
    } else {
        #pragma unroll
        for (int k = 0; k < 8; k++)
            if (k < count) to[k / 2] |= (u32)__ldg((const unsigned short*)from + k) << k % 2 * 16;
    }
}
template <class T, bool VECTORS> __device__ __forceinline__ void put(T* to, const u32 (&from)[4], int count) {
    if (VECTORS) {
        *(uint4*)to = make_uint4(from[0], from[1], from[2], from[3]);
    } else {
        #pragma unroll
        for (int k = 0; k < 8; k++)
            if (k < count) ((unsigned short*)to)[k] = (unsigned short)(from[k / 2] >> k % 2 * 16);
    }
}

// Channels last: a block makes DEEP rows of TILES * 8 columns of 16 channels of a picture. VECTORS: 8 channels are 16
// bytes of memory that begin at a multiple of 16.
template <class T, int K, int TILES, int DEEP, bool VECTORS> __device__ __forceinline__ void tiles_last(
    const T* x, const T* weight, const T* bias, T* out, int channels, int height, int width,
    int parts, int columns, int bands) {
    extern __shared__ __align__(128) unsigned char memory[];
    constexpr int PITCH = CHUNKS(TILES) * 8, PAD = K / 2, ROWS = DEEP + K - 1, PLANE = ROWS * PITCH;
    // 64 bytes between the eights of channels: the lanes of two of them meet different banks.
    constexpr int EIGHT = 8 * PLANE + 32;
    // A thread takes eights of channels of two pixels, STEP rows apart: BATCH of them at once, as registers allow.
    constexpr int READ = TILES * 8 + 8, STEP = 256 / READ, EACH = (ROWS + STEP - 1) / STEP, MOST = VECTORS ? 6 : 2;
    constexpr int TURNS = (EACH + MOST - 1) / MOST, BATCH = (EACH + TURNS - 1) / TURNS;
    constexpr int WRITE = TILES * 8, LEAP = 256 / WRITE;
    T* kept = (T*)memory;
    T* filters = kept + 2 * EIGHT;
    u32 item = blockIdx.x;
    const int first = item % parts * 16;
    item /= parts;
    const int left = item % columns * (TILES * 8);
    item /= columns;
    const int top = item % bands * DEEP;
    const i64 image = (i64)(item / bands) * height * width * channels;
    for (int i = threadIdx.x; i < min(16, channels - first) * K * K; i += blockDim.x)
        filters[i] = weight[(i64)first * K * K + i];
    {
        const int r = threadIdx.x / READ, s = threadIdx.x % READ / 2 * 2, c = threadIdx.x % 2 * 8, l = left - 4 + s;
        const int count = channels - first - c, step = STEP * width;
        const bool touched = count > 0 && s + 1 >= 4 - PAD && s < TILES * 8 + 4 + PAD;  // by a tap
        const bool one_in = touched && l >= 0 && l < width, other_in = touched && l + 1 >= 0 && l + 1 < width;
        const T* from = x + image + ((i64)(top - PAD + r) * width + l) * channels + first + c;
        T* to = kept + c / 8 * EIGHT + r * PITCH + s;
        #pragma unroll 1
        for (int line = r; r < STEP && line < ROWS; line += STEP * BATCH) {
            u32 one[BATCH][4], other[BATCH][4];
            #pragma unroll
            for (int b = 0; b < BATCH; b++) {
                const int y = top - PAD + line + b * STEP;
                const bool inside = y >= 0 && y < height && line + b * STEP < ROWS;
                #pragma unroll
                for (int k = 0; k < 4; k++) one[b][k] = other[b][k] = 0;
                if (inside && one_in) get<T, VECTORS>(one[b], from, count);
                if (inside && other_in) get<T, VECTORS>(other[b], from + channels, count);
                from += (i64)step * channels;
            }
            #pragma unroll
            for (int b = 0; b < BATCH; b++) {
                if (line + b * STEP >= ROWS) break;
                #pragma unroll
                for (int k = 0; k < 4; k++) {
                    T* at = to + b * STEP * PITCH + k * 2 * PLANE;
                    *(u32*)at = __byte_perm(one[b][k], other[b][k], 0x5410);
                    *(u32*)(at + PLANE) = __byte_perm(one[b][k], other[b][k], 0x7632);
                }
            }
            to += STEP * BATCH * PITCH;
        }
    }
    __syncthreads();
    bool doubtful = false;
    #pragma unroll 1
    for (int c = threadIdx.x / 32; c < 16 && first + c < channels; c += blockDim.x / 32) {
        u32 band[K][2];
        spread<T, K>(band, filters + c * K * K);
        const float shift = wide(bias[first + c]);
        T* plane = kept + c / 8 * EIGHT + c % 8 * PLANE;
        #pragma unroll
        for (int down = 0; down < DEEP; down += 16)
            if (down == 0 || top + down < height)
                doubtful |= convolve<T, K, TILES>(plane + down * PITCH, band, shift, plane + down * PITCH);
    }
    if (__any_sync(~0u, doubtful))
        #pragma unroll 1
        for (int c = threadIdx.x / 32; c < 16 && first + c < channels; c += blockDim.x / 32)
            #pragma unroll 1
            for (int down = 0; down < DEEP && top + down < height; down += 16)
                mend<T, K, TILES>(kept + c / 8 * EIGHT + c % 8 * PLANE + down * PITCH, x + image + first + c, channels,
                                  filters + c * K * K, wide(bias[first + c]), height, width, top + down, left);
    __syncthreads();
    const int r = threadIdx.x / WRITE, s = threadIdx.x % WRITE / 2 * 2, c = threadIdx.x % 2 * 8;
    const int count = channels - first - c, tall = min(DEEP, height - top);
    if (r >= LEAP || left + s >= width || count <= 0) return;
    const T* from = kept + c / 8 * EIGHT + r * PITCH + s;
    T* to = out + image + ((i64)(top + r) * width + left + s) * channels + first + c;
    #pragma unroll 2
    for (int line = r; line < tall; line += LEAP) {
        u32 one[4], other[4];
        #pragma unroll
        for (int k = 0; k < 4; k++) {
            const u32 even = *(const u32*)(from + k * 2 * PLANE), odd = *(const u32*)(from + (k * 2 + 1) * PLANE);
            one[k] = __byte_perm(even, odd, 0x5410), other[k] = __byte_perm(even, odd, 0x7632);
        }
        put<T, VECTORS>(to, one, count);
        if (left + s + 1 < width) put<T, VECTORS>(to + channels, other, count);
        from += LEAP * PITCH, to += (i64)LEAP * width * channels;
    }
}

extern "C" __global__ void one_pixel(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* out,
    int64_t count, int channels, int height, int width, int kernel, int last) {
    plain(x, weight, bias, out, count, channels, height, width, kernel, last);
}
extern "C" __global__ void __launch_bounds__(256, 2) planes_vectors(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* out,
    int channels, int height, int width, int count, int per) {
    planes<ELEMENT, KERNEL, true>(x, weight, bias, out, channels, height, width, count, per);
}
#if HALVES
#define FIRST(TILES, UNIT) \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, (TILES == 7 ? 16 : TILES == 4 ? 20 : 24) / WARPS) \
    first_##TILES##_##UNIT( \
        const ELEMENT* x, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* out, int batch, int channels, \
        int height, int width, int columns, int bands, int deep, int held, int passes) { \
        tiles_first<ELEMENT, KERNEL, TILES, UNIT>(x, weight, bias, out, batch, channels, height, width, \
                                                  columns, bands, deep, held, passes); \
    }
#define LAST(TILES, UNIT) \
    extern "C" __global__ void __launch_bounds__(256, BAND == 16 ? 3 : 2) last_##TILES##_##UNIT( \
        const ELEMENT* x, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* out, int channels, \
        int height, int width, int parts, int columns, int bands) { \
        tiles_last<ELEMENT, KERNEL, TILES, BAND, UNIT == 16>(x, weight, bias, out, channels, height, width, \
                                                             parts, columns, bands); \
    }
#define ALL(TILES) \
    FIRST(TILES, 2) FIRST(TILES, 4) FIRST(TILES, 8) FIRST(TILES, 16) LAST(TILES, 2) LAST(TILES, 16)
ALL(2) ALL(4) ALL(7)
#else
extern "C" __global__ void __launch_bounds__(256, 2) planes_any(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* out,
    int channels, int height, int width, int count, int per) {
    planes<ELEMENT, KERNEL, false>(x, weight, bias, out, channels, height, width, count, per);
}
extern "C" __global__ void __launch_bounds__(256, 2) last_pairs(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* out,
    int batch, int channels, int height, int width, int pairs) {
    last<ELEMENT, KERNEL, true>(x, weight, bias, out, batch, channels, height, width, pairs);
}
extern "C" __global__ void __launch_bounds__(256, 2) last_any(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* out,
    int batch, int channels, int height, int width, int pairs) {
    last<ELEMENT, KERNEL, false>(x, weight, bias, out, batch, channels, height, width, pairs);
}
#endif
"""
NAMES = {torch.float16: "__half", torch.bfloat16: "__nv_bfloat16", torch.float32: "float"}


@functools.cache
def module(dtype, kernel):
    """The kernels for a type and a filter's size; one of 3 where it is none of theirs."""
    flags = [f"-DELEMENT={NAMES[dtype]}", f"-DKERNEL={kernel if kernel in (3, 5, 7) else 3}"]
    flags += [f"-DHALVES={int(dtype.itemsize == 2)}", f"-DWARPS={WARPS}", f"-DBAND={GROUPS * 16}"]
    return load_cuda(SOURCE, flags=flags)


@functools.cache
def processors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count


def tiles_across(width):
    """How many tiles of 8 pixels a warp makes beside each other, and how many such columns that takes."""
    tiles = -(-width // 8)
    span = min((2, 4, 7), key=lambda n: -(-tiles // n) * (n + 1))
    return span, -(-tiles // span), (span + 1 | 1) * 16


def tiled_first(kernels, x, weight, bias, out):
    batch, channels, height, width = x.shape
    span, columns, pitch = tiles_across(width)
    bands = -(-height // 64)
    deep = max(16, -(-height // bands))
    rows = deep + weight.shape[2] - 1
    # Planes are held and passes made only if there is work enough for every processor without.
    strips = batch * channels * columns * bands
    held = max(1, min(HELD * 1000 // (rows * pitch), batch, strips // (16 * processors(x.device))))
    passes = max(1, min(4, strips // (held * 128 * processors(x.device))))
    items = channels * columns * bands * -(-batch // (held * passes))
    warps = max(1, min(WARPS, items // processors(x.device)))
    unit = next((size for size in (16, 8, 4) if x.data_ptr() % size == 0 and width * 2 % size == 0), 2)
    kernel = getattr(kernels, f"first_{span}_{unit}")
    kernel[(-(-items // warps),), (warps * 32,), warps * (held * rows + 16) * pitch](
        x, weight, bias, out, batch, channels, height, width, columns, bands, deep, held, passes
    )  # fmt: skip


def tiled_last(kernels, x, weight, bias, out):
    batch, channels, height, width = x.shape
    span, columns, pitch = tiles_across(width)
    deep, taps = GROUPS * 16, weight.shape[2]
    parts, bands = -(-channels // 16), -(-height // deep)
    unit = 16 if channels % 8 == 0 and x.data_ptr() % 16 == 0 else 2
    kernel = getattr(kernels, f"last_{span}_{unit}")
    shared = 16 * (deep + taps - 1) * pitch + 128 + 32 * taps * taps
    kernel[(batch * bands * columns * parts,), (256,), shared](
        x, weight, bias, out, channels, height, width, parts, columns, bands
    )  # fmt: skip


def convolved_last(kernels, x, weight, bias, out):
    batch, channels, height, width = x.shape
    even = channels % 2 == 0 and x.data_ptr() % (2 * x.element_size()) == 0
    pairs = -(-channels // 2)
    parts = -(-pairs // min(THREADS, 128))
    pairs = -(-pairs // parts)
    slots = max(1, THREADS // pairs)
    tiles = batch * -(-height // 4) * -(-width // 8)
    kernel = kernels.last_pairs if even else kernels.last_any
    shared = weight.shape[2] ** 2 * pairs * 8
    kernel[(-(-tiles // slots), parts), (slots * pairs,), shared](
        x, weight, bias, out, batch, channels, height, width, pairs
    )  # fmt: skip


def convolved_planes(kernels, x, weight, bias, out, even):
    batch, channels, height, width = x.shape
    strips, groups = -(-width // 8), -(-height // 4)
    size = (groups * 4 + weight.shape[2] - 1) * (strips * 8 * x.element_size() + 32)
    count = batch * channels
    per = max(1, min(ROOM * 1000 // size, -(-count // (2 * processors(x.device)))))
    items = per * groups * strips
    threads = -(-items // -(-items // THREADS) // 32) * 32  # as few of them idle in the last round as can be
    kernel = kernels.planes_vectors if even else kernels.planes_any
    shared = per * size + (0 if even else threads * 32)
    kernel[(-(-count // per),), (threads,), shared](x, weight, bias, out, channels, height, width, count, per)


class ModelNew(nn.Module):
    def __init__(self, channels, kernel, dtype="float32"):
        super().__init__()
        self.conv = nn.Conv2d(
            channels, channels, kernel, padding=kernel // 2, groups=channels, dtype=getattr(torch, dtype)
        )
        module(self.conv.weight.dtype, kernel)

    def forward(self, x):
        weight, bias = self.conv.weight.contiguous(), self.conv.bias
        channels, _one, kernel, _same = weight.shape
        if x.dim() != 4 or x.shape[1] != channels or x.dtype != weight.dtype or kernel % 2 == 0:
            raise ValueError(f"a {weight.dtype} tensor [batch, {channels}, height, width] and an odd filter are needed")
        last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
        x = x if last else x.contiguous()
        out = torch.empty_like(x)
        if not out.numel():
            return out
        kernels = module(x.dtype, kernel)
        _batch, _channels, height, width = x.shape
        size = x.element_size()
        even = width * size % 16 == 0 and x.data_ptr() % 16 == 0
        row = (height + 3 + kernel - 1) * (-(-width // 8) * 8 * size + 32) + (0 if even else THREADS * 32)
        fits = not last and row <= 227 << 10
        if kernel in (3, 5, 7) and fits and (size == 4 or kernel == 3 and even):
            convolved_planes(kernels, x, weight, bias, out, even)
        elif kernel in (3, 5, 7) and size == 2:
            (tiled_last if last else tiled_first)(kernels, x, weight, bias, out)
        elif kernel in (3, 5, 7) and last:
            convolved_last(kernels, x, weight, bias, out)
        else:
            kernels.one_pixel[(-(-x.numel() // 256),), (256,), 0](
                x, weight, bias, out, x.numel(), channels, height, width, kernel, int(last)
            )  # fmt: skip
        return out
