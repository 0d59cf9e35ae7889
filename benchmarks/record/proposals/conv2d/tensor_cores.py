"""Tensor cores on the layout that the images have. Channels first, no operand is shifted: the three taps of a row
multiply the same places, and their sums are added one place to the left and to the right, from lane to lane. Channels
last, rows lie one after the other with a zero between, so that a tap is another address: 64 channels by 232 places
(four rows of 56) are a product of four warps (wgmma), with weights in registers and places where they lie.

Bound by tensor cores; channels first in instructions of one warp, which reach two thirds of what those of four can.
"""

import torch
from kernelwright import load_cuda
from torch import nn

TUNABLES = {"BAND": [2, 4, 8], "ROOM": [56, 75, 113]}
BAND = 4
ROOM = 113
"""Thousands of bytes of shared memory for a block."""

SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
typedef unsigned int u32;
typedef long long i64;

template <class T> struct Kind;
template <> struct Kind<__half> {
    static __device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
    static constexpr bool BRAIN = false;
    static __device__ __forceinline__ __half narrow(float value) { return __float2half_rn(value); }
    static __device__ __forceinline__ float wide(__half value) { return __half2float(value); }
};
template <> struct Kind<__nv_bfloat16> {
    static __device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
    static constexpr bool BRAIN = true;
    static __device__ __forceinline__ __nv_bfloat16 narrow(float value) { return __float2bfloat16_rn(value); }
    static __device__ __forceinline__ float wide(__nv_bfloat16 value) { return __bfloat162float(value); }
};

template <class T> __device__ __forceinline__ u32 at_shared(const T* at) { return (u32)__cvta_generic_to_shared(at); }

// Four 8x8 blocks, transposed: rows of shared memory are channels, what a lane gets are two channels of one place.
template <class T> __device__ __forceinline__ void load_four(u32 (&b)[4], const T* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(at_shared(row)));
}
template <class T> __device__ __forceinline__ void load_two(u32& b0, u32& b1, const T* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
        : "=r"(b0), "=r"(b1) : "r"(at_shared(row)));
}
template <class T> __device__ __forceinline__ void copy_later(T* to, const T* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at_shared(to)), "l"(from));
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;"); }
template <int LEFT> __device__ __forceinline__ void arrived() { asm volatile("cp.async.wait_group %0;" :: "n"(LEFT)); }
__device__ __forceinline__ float from_lane(float value, int lane) { return __shfl_sync(0xffffffffu, value, lane); }

// Weights as operands of 16 output x 16 input channels, four words for each lane, by (channels, row, step, tap, lane).
template <class T> __device__ __forceinline__ void pack_weights(
    const T* weight, uint4* packed, int outer, int inner, int high, int steps, int count,
    int by_outer, int by_inner, int by_row, int by_tap, int last) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const int lane = i % 32, tap = i / 32 % 3, step = i / 96 % steps, up = i / 96 / steps % high;
    const int block = i / 96 / steps / high;
    T value[8];
    for (int k = 0; k < 8; k++) {
        const int row = last ? lane / 8 * 4 + lane / 4 % 2 + (k / 2 % 2) * 2 : lane / 4 + (k / 2 % 2) * 8;
        const int co = block * 16 + row, ci = step * 16 + lane % 4 * 2 + k % 2 + (k / 4) * 8;
        const bool real = co < outer && ci < inner;
        value[k] = real ? weight[co * by_outer + ci * by_inner + up * by_row + tap * by_tap] : Kind<T>::narrow(0.0f);
    }
    packed[i] = *(const uint4*)value;
}

// Results of 16 channels at 8 places. Lane l holds places 2 (l % 4) and the next, of channels l / 4 and l / 4 + 8.
template <class T, bool EVEN> __device__ __forceinline__ void keep(
    T* out, const float (&sum)[4], const float (&shift)[2], int channel, int outer, int place, int length, i64 image) {
    const int lane = threadIdx.x % 32, l = place + lane % 4 * 2;
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int co = channel + lane / 4 + half * 8;
        if (co >= outer || l >= length) continue;
        T pair[2] = {Kind<T>::narrow(sum[2 * half] + shift[half]), Kind<T>::narrow(sum[2 * half + 1] + shift[half])};
        T* to = out + co * image + l;
        if (EVEN) {
            *(u32*)to = *(const u32*)pair;
        } else {
            to[0] = pair[0];
            if (l + 1 < length) to[1] = pair[1];
        }
    }
}

// A block makes `band` rows of an image. No operand is shifted: all three taps of a row multiply the same places, and
// their sums are added one place to the left and to the right. EVEN: rows begin at multiples of 16 bytes.
template <class T, int TILES, int PLACES, int PITCH, bool EVEN>
__device__ __forceinline__ void convolve(
    const T* x, const uint4* packed, const T* bias, T* out,
    int inner, int outer, int height, int width, int high, int steps, int band) {
    extern __shared__ __align__(128) unsigned char memory[];
    T* held = (T*)memory;
    const int bands = (height + band - 1) / band;
    const int first = (int)(blockIdx.x % bands) * band, last = min(first + band, height);
    const i64 number = blockIdx.x / bands, image = (i64)height * width;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int channels = blockIdx.y * (blockDim.x / 32) + warp, channel = channels * 16;
    const int margin = high / 2, low = max(first - margin, 0), top = min(last + margin, height);
    const int size = steps * 16 * PITCH;

    const T* from = x + number * inner * image;
    constexpr int VECTORS = PLACES / 8;
    const int vectors = steps * 16 * VECTORS;
    for (int i = threadIdx.x; i < (top - low) * vectors; i += blockDim.x) {
        const int h = i / vectors, ci = i % vectors / VECTORS, l = i % VECTORS * 8;
        const T* source = from + ci * image + (i64)(low + h) * width + l;
        T* target = held + h * size + ci * PITCH + l;
        if (EVEN && ci < inner && l < width) {
            copy_later(target, source);
        } else {
            #pragma unroll
            for (int k = 0; k < 8; k++) target[k] = ci < inner && l + k < width ? source[k] : Kind<T>::narrow(0.0f);
        }
    }
    commit();

    const uint4* own = packed + (i64)channels * high * steps * 96 + lane;
    float shift[2];
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int co = channel + lane / 4 + half * 8;
        shift[half] = co < outer ? Kind<T>::wide(bias[co]) : 0.0f;
    }
    const int before = (lane & ~3) | ((lane + 3) & 3), after = (lane & ~3) | ((lane + 1) & 3);
    arrived<0>();
    __syncthreads();
    for (int h = first; h < last; h++) {
        T* to = out + number * outer * image + (i64)h * width;
        const int begin = max(margin - h, 0) * steps, end = min(height - h + margin, high) * steps;
        const T* tile = held + (lane % 16) * PITCH + lane / 16 * 8 + (h - margin - low) * size;
        float left[2] = {0.0f, 0.0f}, open[4];  // the first tap's sums of the place before; a tile that wants the next
        int opened = -1;
        for (int chunk = 0; chunk * TILES * 8 < width; chunk++) {
            float sum[3][TILES][4];
            #pragma unroll
            for (int tap = 0; tap < 3; tap++)
                #pragma unroll
                for (int t = 0; t < TILES; t++)
                    #pragma unroll
                    for (int k = 0; k < 4; k++) sum[tap][t][k] = 0.0f;
            u32 next[3][4];
            #pragma unroll
            for (int tap = 0; tap < 3; tap++) *(uint4*)next[tap] = own[(begin * 3 + tap) * 32];
            for (int step = begin; step < end; step++) {
                u32 now[3][4];
                #pragma unroll
                for (int tap = 0; tap < 3; tap++)
                    #pragma unroll
                    for (int k = 0; k < 4; k++) now[tap][k] = next[tap][k];
                if (step + 1 < end) {
                    #pragma unroll
                    for (int tap = 0; tap < 3; tap++) *(uint4*)next[tap] = own[((step + 1) * 3 + tap) * 32];
                }
                const T* at = tile + step * 16 * PITCH + chunk * TILES * 8;  // rows follow one another as steps do
                #pragma unroll
                for (int t = 0; t < TILES; t += 2) {
                    u32 b[4];
                    if (t + 1 < TILES) load_four(b, at + t * 8);
                    else load_two(b[0], b[1], at + t * 8 - lane / 16 * 8);
                    #pragma unroll
                    for (int tap = 0; tap < 3; tap++) {
                        Kind<T>::multiply(sum[tap][t], now[tap], b[0], b[1]);
                        if (t + 1 < TILES) Kind<T>::multiply(sum[tap][t + 1 < TILES ? t + 1 : t], now[tap], b[2], b[3]);
                    }
                }
            }
            #pragma unroll
            for (int t = 0; t < TILES; t++) {
                float right[2];
                #pragma unroll
                for (int half = 0; half < 2; half++) right[half] = from_lane(sum[2][t][2 * half], after);
                if (opened >= 0) {
                    if (lane % 4 == 3) open[1] += right[0], open[3] += right[1];
                    keep<T, EVEN>(to, open, shift, channel, outer, opened, width, image);
                }
                #pragma unroll
                for (int half = 0; half < 2; half++) {
                    const float over = from_lane(sum[0][t][2 * half + 1], before);
                    const int k = 2 * half;
                    open[k] = sum[1][t][k] + (lane % 4 == 0 ? left[half] : over) + sum[2][t][k + 1];
                    open[k + 1] = sum[1][t][k + 1] + sum[0][t][k] + (lane % 4 < 3 ? right[half] : 0.0f);
                    left[half] = over;
                }
                opened = (chunk * TILES + t) * 8;
            }
        }
        keep<T, EVEN>(to, open, shift, channel, outer, opened, width, image);
    }
}

// 64 channels x 16 inputs, in registers, by 16 inputs x 232 places: blocks of 8 places x 8 inputs are 128 bytes, the
// next 8 places follow, the next 8 inputs are `pitch` places further on.
template <class T> __device__ __forceinline__ void multiply_places(
    float (&d)[116], const u32 (&a)[4], u32 at, int pitch) {
    const unsigned long long where = (at >> 4) | (unsigned long long)pitch << 16 | 8ull << 32;
    #define PRODUCT(KIND) asm volatile( \
        "{.reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n232k16.f32." KIND "." KIND " " \
        "{RESULTS}, {%116, %117, %118, %119}, %120, p, 1, 1, 0;}" \
        : OPERANDS : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(where))
    if constexpr (Kind<T>::BRAIN) PRODUCT("bf16");
    else PRODUCT("f16");
}
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_products() {
    asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
__device__ __forceinline__ u32 transposed(u32 two) {
    u32 made;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(made) : "r"(two));
    return made;
}

// The same with channels last: `band` rows, each with a zero before it, which is the one after the last row, too.
template <class T, bool EVEN> __device__ __forceinline__ void convolve_last(
    const T* x, const uint4* packed, const T* bias, T* out,
    int inner, int outer, int height, int width, int high, int steps, int band) {
    extern __shared__ __align__(128) unsigned char memory[];
    T* held = (T*)memory;
    const int bands = (height + band - 1) / band, cols = width + 1, margin = high / 2;
    const int chunks = (band * cols + 231) / 232, pitch = (chunks * 232 + (high - 1) * cols + 2) | 1;
    const int first = (int)(blockIdx.x % bands) * band;
    const i64 number = blockIdx.x / bands;
    const int lane = threadIdx.x % 32, block = blockIdx.y * 4 + threadIdx.x / 32;

    const T* from = x + number * height * width * inner;
    const int vectors = steps * 2, places = (band + high - 1) * cols + 1;
    for (int i = threadIdx.x; i < places * vectors; i += blockDim.x) {
        const int part = i % vectors, c = part * 8, place = i / vectors;
        const int h = first - margin + place / cols, w = place % cols - 1;
        const T* source = from + ((i64)h * width + w) * inner + c;
        T* target = held + (part * pitch + place) * 8;
        const bool inside = w >= 0 && h >= 0 && h < height;
        if (EVEN && inside && c < inner) {
            copy_later(target, source);
        } else {
            #pragma unroll
            for (int k = 0; k < 8; k++) target[k] = inside && c + k < inner ? source[k] : Kind<T>::narrow(0.0f);
        }
    }
    commit();
    // Rows of the product are in such an order that a lane gets four channels in a row in the end.
    const int own_channel = block * 16 + lane / 8 * 4 + lane / 4 % 2, channel = block * 16 + lane % 4 * 4;
    float shift[2];
    #pragma unroll
    for (int half = 0; half < 2; half++)
        shift[half] = own_channel + 2 * half < outer ? Kind<T>::wide(bias[own_channel + 2 * half]) : 0.0f;
    arrived<0>();
    asm volatile("fence.proxy.async;" ::: "memory");  // wgmma reads shared memory by another way than it was written
    __syncthreads();

    const uint4* own = packed + (i64)block * high * steps * 96 + lane;
    T* to = out + (number * height + first) * width * outer + channel;
    for (int chunk = 0; chunk < chunks; chunk++) {
        float sum[116];
        #pragma unroll
        for (int k = 0; k < 116; k++) sum[k] = 0.0f;
        u32 next[3][4];
        #pragma unroll
        for (int tap = 0; tap < 3; tap++) *(uint4*)next[tap] = own[tap * 32];
        for (int step = 0; step < high * steps; step++) {
            u32 now[3][4];
            #pragma unroll
            for (int tap = 0; tap < 3; tap++)
                #pragma unroll
                for (int k = 0; k < 4; k++) now[tap][k] = next[tap][k];
            const int coming = min(step + 1, high * steps - 1);
            #pragma unroll
            for (int tap = 0; tap < 3; tap++) *(uint4*)next[tap] = own[(coming * 3 + tap) * 32];
            const int start = step % steps * 2 * pitch + chunk * 232 + step / steps * cols;
            begin_products();
            #pragma unroll
            for (int tap = 0; tap < 3; tap++)
                multiply_places<T>(sum, now[tap], at_shared(held) + (start + tap) * 16, pitch);
            end_products();
        }
        #pragma unroll
        for (int n = 0; n < 29; n++) {
            const int place = chunk * 232 + n * 8 + lane / 4;
            const int row = (int)((place + 0.5f) * (1.0f / cols)), w = place - row * cols;  // exact up to a million
            u32 four[2];
            __syncwarp();
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                const float* found = sum + 4 * n + 2 * half;
                const T pair[2] = {Kind<T>::narrow(found[0] + shift[half]), Kind<T>::narrow(found[1] + shift[half])};
                four[half] = transposed(*(const u32*)pair);
            }
            if (row < band && first + row < height && w < width) {
                T* at = to + (i64)(row * width + w) * outer;
                if (EVEN && outer % 4 == 0) {
                    if (channel < outer) *(uint2*)at = make_uint2(four[0], four[1]);
                } else {
                    #pragma unroll
                    for (int k = 0; k < 4; k++)
                        if (channel + k < outer) at[k] = ((const T*)four)[k];
                }
            }
        }
    }
}

extern "C" __global__ void pack(
    const ELEMENT* weight, void* packed, int outer, int inner, int high, int steps, int count,
    int by_outer, int by_inner, int by_row, int by_tap, int last) {
    pack_weights(weight, (uint4*)packed, outer, inner, high, steps, count, by_outer, by_inner, by_row, by_tap, last);
}
extern "C" __global__ void __launch_bounds__(256, 1) even_56(
    const ELEMENT* x, const void* packed, const ELEMENT* bias, ELEMENT* out,
    int inner, int outer, int height, int width, int high, int steps, int band) {
    convolve<ELEMENT, 7, 56, 56, true>(
        x, (const uint4*)packed, bias, out, inner, outer, height, width, high, steps, band);
}
extern "C" __global__ void __launch_bounds__(256, 1) even_200(
    const ELEMENT* x, const void* packed, const ELEMENT* bias, ELEMENT* out,
    int inner, int outer, int height, int width, int high, int steps, int band) {
    convolve<ELEMENT, 5, 200, 200, true>(
        x, (const uint4*)packed, bias, out, inner, outer, height, width, high, steps, band);
}
extern "C" __global__ void __launch_bounds__(256, 1) even_256(
    const ELEMENT* x, const void* packed, const ELEMENT* bias, ELEMENT* out,
    int inner, int outer, int height, int width, int high, int steps, int band) {
    convolve<ELEMENT, 8, 256, 264, true>(
        x, (const uint4*)packed, bias, out, inner, outer, height, width, high, steps, band);
}
extern "C" __global__ void __launch_bounds__(256, 1) odd_64(
    const ELEMENT* x, const void* packed, const ELEMENT* bias, ELEMENT* out,
    int inner, int outer, int height, int width, int high, int steps, int band) {
    convolve<ELEMENT, 8, 64, 72, false>(
        x, (const uint4*)packed, bias, out, inner, outer, height, width, high, steps, band);
}
extern "C" __global__ void __launch_bounds__(256, 1) odd_256(
    const ELEMENT* x, const void* packed, const ELEMENT* bias, ELEMENT* out,
    int inner, int outer, int height, int width, int high, int steps, int band) {
    convolve<ELEMENT, 8, 256, 264, false>(
        x, (const uint4*)packed, bias, out, inner, outer, height, width, high, steps, band);
}
extern "C" __global__ void __launch_bounds__(128, 3) last_even(
    const ELEMENT* x, const void* packed, const ELEMENT* bias, ELEMENT* out,
    int inner, int outer, int height, int width, int high, int steps, int band) {
    convolve_last<ELEMENT, true>(
        x, (const uint4*)packed, bias, out, inner, outer, height, width, high, steps, band);
}
extern "C" __global__ void __launch_bounds__(128, 3) last_odd(
    const ELEMENT* x, const void* packed, const ELEMENT* bias, ELEMENT* out,
    int inner, int outer, int height, int width, int high, int steps, int band) {
    convolve_last<ELEMENT, false>(
        x, (const uint4*)packed, bias, out, inner, outer, height, width, high, steps, band);
}
""".replace("RESULTS", ", ".join(f"%{k}" for k in range(116))).replace(
    "OPERANDS", ", ".join(f'"+f"(d[{k}])' for k in range(116))
)
MODULES = {
    torch.float16: load_cuda(SOURCE, flags=["-DELEMENT=__half"]),
    torch.bfloat16: load_cuda(SOURCE, flags=["-DELEMENT=__nv_bfloat16"]),
}
MOST = 227 << 10
PLACES = 232
"""Of a product of four warps, with channels last."""


def chosen(module, width, steps, even):
    """A kernel for channels first, and the bytes of shared memory that a row takes."""
    if even and width <= 56:
        return module.even_56, steps * 16 * 56 * 2
    if even and 160 < width <= 200:
        return module.even_200, steps * 16 * 200 * 2
    if even:
        return module.even_256, steps * 16 * 264 * 2
    if width <= 64:
        return module.odd_64, steps * 16 * 72 * 2
    return module.odd_256, steps * 16 * 264 * 2


class ModelNew(nn.Module):
    def __init__(self, inner, outer, kernel=(3, 3), dtype="float32", channels_last=False):
        super().__init__()
        padding = tuple(size // 2 for size in kernel)
        self.conv = nn.Conv2d(inner, outer, tuple(kernel), padding=padding, dtype=getattr(torch, dtype))
        if channels_last:
            weight = self.conv.weight.detach().to(memory_format=torch.channels_last)
            self.conv.weight = nn.Parameter(weight)

    def forward(self, x):
        weight, bias = self.conv.weight, self.conv.bias
        outer, inner, high, wide = weight.shape
        if x.dim() != 4 or x.shape[1] != inner or x.dtype != weight.dtype:
            raise ValueError(f"a {weight.dtype} tensor [batch, {inner}, height, width] is needed")
        if x.dtype not in MODULES or wide != 3 or high not in (1, 3):  # what the tiles and their sums are laid out for
            raise NotImplementedError("float16 and bfloat16, kernels of 1 x 3 and 3 x 3")
        last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
        if not last:
            x = x.contiguous()
        batch, _inner, height, width = x.shape
        form = torch.channels_last if last else torch.contiguous_format
        out = torch.empty((batch, outer, height, width), dtype=x.dtype, device=x.device, memory_format=form)
        if not out.numel():
            return out
        module, steps = MODULES[x.dtype], -(-inner // 16)
        warps = 4 if last else min(8, -(-outer // 16))
        groups = -(-outer // (64 if last else 16 * warps))
        count = max(groups * warps, -(-outer // 16)) * high * steps * 96
        packed = torch.empty(count * 8, dtype=x.dtype, device=x.device)
        module.pack[(-(-count // 256),), (256,), 0](
            weight, packed, outer, inner, high, steps, count, *weight.stride(), int(last)
        )  # fmt: skip
        even = (inner if last else width) % 8 == 0 and x.data_ptr() % 16 == 0
        if last:
            kernel, cols = module.last_even if even else module.last_odd, width + 1
            band = max(1, min(height, PLACES // cols))
            shared = (-(-band * cols // PLACES) * PLACES + (high - 1) * cols + 2 | 1) * steps * 32
        else:
            kernel, row = chosen(module, width, steps, even)
            band = max(1, min(BAND, height, ROOM * 1000 // row - high + 1))
            shared = (band + high - 1) * row
        if width > 256 and not last or shared > MOST:
            raise NotImplementedError("rows of so many channels and places do not fit into shared memory")
        bands = -(-height // band)
        kernel[(batch * bands, groups), (32 * warps,), shared](
            x, packed, bias, out, inner, outer, height, width, high, steps, band
        )  # fmt: skip
        return out
