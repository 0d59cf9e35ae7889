"""Filters in registers or shared memory, 4 rows of 8 pixels for each thread, sums in float32: no tensor cores, whose
zeros would touch infinities.

Channels first, a block holds whole planes with their margins of zeros in shared memory; channels last, neighbouring
threads share pixels through the first cache. Bound by memory for 3x3, by arithmetic for 7x7.
"""

import functools

import torch
from kernelwright import load_cuda
from torch import nn

TUNABLES = {"ROOM": [32, 64, 96], "THREADS": [128, 192, 256]}
ROOM = 64
"""Thousands of bytes of shared memory for a block."""
THREADS = 256

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
template <class T> __device__ __forceinline__ void copy_later(T* to, const T* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"((u32)__cvta_generic_to_shared(to)), "l"(from));
}
__device__ __forceinline__ void arrived() { asm volatile("cp.async.wait_all;"); }

template <class T> struct alignas(16) Vector { T at[16 / sizeof(T)]; };
template <class T> struct alignas(2 * sizeof(T)) Pair { T at[2]; };

// Channels first: a block holds some planes with a margin of zeros, a thread makes 4 rows of 8 pixels. VECTORS: rows
// begin at multiples of 16 bytes.
template <class T, int K, bool VECTORS> __device__ __forceinline__ void planes(
    const T* x, const T* weight, const T* bias, T* out, int channels, int height, int width, int count, int per) {
    extern __shared__ __align__(128) unsigned char memory[];
    constexpr int LANES = 16 / sizeof(T), PAD = K / 2;
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
            copy_later(to, from);
        } else {
            #pragma unroll
            for (int k = 0; k < LANES; k++) {
                if (!VECTORS && inside && l + k >= 0 && l + k < width) to[k] = from[k];
                else narrow(0.0f, to[k]);
            }
        }
        c += on, line += up;
        if (c >= chunks) c -= chunks, line++;
        while (line >= rows) line -= rows, p++;
    }
    arrived();
    __syncthreads();
    for (int i = threadIdx.x; i < per * groups * strips; i += blockDim.x) {
        const int strip = i % strips, group = i / strips % groups, p = i / strips / groups;
        if (first + p >= count) break;
        const int channel = (first + p) % channels;
        float factor[K * K];
        #pragma unroll
        for (int k = 0; k < K * K; k++) factor[k] = wide(weight[channel * K * K + k]);
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
        T* to = out + (i64)(first + p) * height * width + (i64)group * 4 * width + strip * 8;
        #pragma unroll
        for (int o = 0; o < 4; o++) {
            if (group * 4 + o >= height) break;
            #pragma unroll
            for (int c = 0; c < 8 / LANES; c++) {
                Vector<T> made;
                #pragma unroll
                for (int k = 0; k < LANES; k++) narrow(sum[o][c * LANES + k], made.at[k]);
                if (VECTORS) {
                    if (strip * 8 + c * LANES < width) *(Vector<T>*)(to + o * width + c * LANES) = made;
                } else {
                    #pragma unroll
                    for (int k = 0; k < LANES; k++)
                        if (strip * 8 + c * LANES + k < width) to[o * width + c * LANES + k] = made.at[k];
                }
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
        factors[i] = c < channels ? wide(weight[c * K * K + tap]) : 0.0f;
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

// Any odd kernel, a pixel a thread.
template <class T> __device__ __forceinline__ void plain(
    const T* x, const T* weight, const T* bias, T* out, i64 count, int channels, int height, int width, int kernel,
    int last) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const i64 image = (i64)height * width;
    const int c = (int)(last ? i % channels : i / image % channels);
    const i64 pixel = last ? i / channels % image : i % image, step = last ? channels : 1;
    const int y = (int)(pixel / width), l = (int)(pixel % width);
    const T* from = x + i / (image * channels) * image * channels + (last ? c : c * image);
    float sum = wide(bias[c]);
    for (int v = 0; v < kernel; v++)
        for (int u = 0; u < kernel; u++) {
            const int above = y + v - kernel / 2, beside = l + u - kernel / 2;
            if (above < 0 || above >= height || beside < 0 || beside >= width) continue;
            sum += wide(from[((i64)above * width + beside) * step]) * wide(weight[(c * kernel + v) * kernel + u]);
        }
    narrow(sum, out[i]);
}

extern "C" __global__ void __launch_bounds__(256, 2) planes_vectors(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* out,
    int channels, int height, int width, int count, int per) {
    planes<ELEMENT, KERNEL, true>(x, weight, bias, out, channels, height, width, count, per);
}
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
extern "C" __global__ void one_pixel(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* out,
    int64_t count, int channels, int height, int width, int kernel, int last) {
    plain(x, weight, bias, out, count, channels, height, width, kernel, last);
}
"""
NAMES = {torch.float16: "__half", torch.bfloat16: "__nv_bfloat16", torch.float32: "float"}


@functools.cache
def module(dtype, kernel):
    """The kernels for a type and a filter's size; one of 3 where it is none of theirs."""
    flags = [f"-DELEMENT={NAMES[dtype]}", f"-DKERNEL={kernel if kernel in (3, 5, 7) else 3}"]
    return load_cuda(SOURCE, flags=flags)


def convolved_last(kernels, x, weight, bias, out, even):
    batch, channels, height, width = x.shape
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
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    per = max(1, min(ROOM * 1000 // size, -(-count // (2 * processors))))
    items = per * groups * strips
    threads = -(-items // -(-items // THREADS) // 32) * 32  # as few of them idle in the last round as can be
    kernel = kernels.planes_vectors if even else kernels.planes_any
    kernel[(-(-count // per),), (threads,), per * size](x, weight, bias, out, channels, height, width, count, per)


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
        row = (height + 3 + kernel - 1) * (-(-width // 8) * 8 * size + 32)
        if kernel not in (3, 5, 7) or not last and row > 227 << 10:
            kernels.one_pixel[(-(-x.numel() // 256),), (256,), 0](
                x, weight, bias, out, x.numel(), channels, height, width, kernel, int(last)
            )  # fmt: skip
        elif last:
            even = channels % 2 == 0 and x.data_ptr() % (2 * size) == 0
            convolved_last(kernels, x, weight, bias, out, even)
        else:
            even = width * size % 16 == 0 and x.data_ptr() % 16 == 0
            convolved_planes(kernels, x, weight, bias, out, even)
        return out
