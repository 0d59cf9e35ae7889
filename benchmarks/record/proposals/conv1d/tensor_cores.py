"""Tensor cores on the layout that torch has, channels first, with no operand shifted: the three taps multiply the same
places, and their sums are added one place to the left and to the right, from lane to lane. Blocks walk along rows and
fetch the next places while they multiply.

Bound by memory at 96 channels, by tensor cores from 128 on.
"""

import torch
from kernelwright import load_cuda
from torch import nn

TUNABLES = {"BLOCKS": [1, 2, 3, 4]}
BLOCKS = 2

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

// Weights as operands of 16 output x 16 input channels, four words for each lane, by (channels, step, tap, lane).
template <class T> __device__ __forceinline__ void pack_weights(
    const T* weight, uint4* packed, int outer, int inner, int steps, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const int lane = i % 32, tap = i / 32 % 3, step = i / 96 % steps, block = i / 96 / steps;
    T value[8];
    for (int k = 0; k < 8; k++) {
        const int co = block * 16 + lane / 4 + (k / 2 % 2) * 8, ci = step * 16 + lane % 4 * 2 + k % 2 + (k / 4) * 8;
        value[k] = co < outer && ci < inner ? weight[((i64)co * inner + ci) * 3 + tap] : Kind<T>::narrow(0.0f);
    }
    packed[i] = *(const uint4*)value;
}

// Results of 16 channels at 8 places. Lane l holds places 2 (l % 4) and the next, of channels l / 4 and l / 4 + 8.
template <class T, bool EVEN> __device__ __forceinline__ void keep(
    T* out, const float (&sum)[4], const float (&shift)[2], int channel, int outer, int place, int length) {
    const int lane = threadIdx.x % 32, l = place + lane % 4 * 2;
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int co = channel + lane / 4 + half * 8;
        if (co >= outer || l >= length) continue;
        T pair[2] = {Kind<T>::narrow(sum[2 * half] + shift[half]), Kind<T>::narrow(sum[2 * half + 1] + shift[half])};
        T* to = out + (i64)co * length + l;
        if (EVEN) {
            *(u32*)to = *(const u32*)pair;
        } else {
            to[0] = pair[0];
            if (l + 1 < length) to[1] = pair[1];
        }
    }
}

// A block walks along rows, PLACES places at a time, which are copied while the ones before are multiplied. No operand
// is shifted: all three taps multiply the same places, and their sums are added one place to the left and to the right.
template <class T, int STEPS, int TILES, int PLACES, int PITCH, int STAGES, bool HELD, bool EVEN>
__device__ __forceinline__ void convolve(
    const T* x, const uint4* packed, const T* bias, T* out, int batch, int inner, int outer, int length, int some) {
    extern __shared__ __align__(128) unsigned char memory[];
    T* stages = (T*)memory;
    const int steps = STEPS ? STEPS : some, rows = steps * 16;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int channels = blockIdx.y * (blockDim.x / 32) + warp, channel = channels * 16;
    const int parts = (length + PLACES - 1) / PLACES;
    const int mine = ((int)batch - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    const int total = mine * parts;

    // What lies beyond the inner channels is zero in every stage, for good.
    for (int i = inner * PITCH + threadIdx.x; i < rows * PITCH; i += blockDim.x)
        for (int s = 0; s < STAGES; s++) stages[s * rows * PITCH + i] = Kind<T>::narrow(0.0f);

    auto fetch = [&](int number) {
        if (number < total) {
            const i64 row = blockIdx.x + (i64)(number / parts) * gridDim.x;
            const int first = number % parts * PLACES;
            const T* from = x + row * inner * length + first;
            T* to = stages + number % STAGES * rows * PITCH;
            for (int i = threadIdx.x; i < inner * (PLACES / 8); i += blockDim.x) {
                const int ci = i / (PLACES / 8), l = i % (PLACES / 8) * 8;
                const T* source = from + (i64)ci * length + l;
                T* target = to + ci * PITCH + l;
                if (EVEN && first + l < length) {
                    copy_later(target, source);
                } else {
                    #pragma unroll
                    for (int k = 0; k < 8; k++) target[k] = first + l + k < length ? source[k] : Kind<T>::narrow(0.0f);
                }
            }
        }
        commit();
    };

    const uint4* own = packed + (i64)channels * steps * 96 + lane;
    u32 held[HELD ? STEPS : 1][3][4];
    if (HELD) {
        #pragma unroll
        for (int step = 0; step < STEPS; step++)
            #pragma unroll
            for (int tap = 0; tap < 3; tap++) *(uint4*)held[step][tap] = own[(step * 3 + tap) * 32];
    }
    float shift[2];
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int co = channel + lane / 4 + half * 8;
        shift[half] = co < outer ? Kind<T>::wide(bias[co]) : 0.0f;
    }
    #pragma unroll
    for (int s = 0; s < STAGES - 1; s++) fetch(s);

    const int before = (lane & ~3) | ((lane + 3) & 3), after = (lane & ~3) | ((lane + 1) & 3);
    float left[2] = {0.0f, 0.0f}, open[4];  // the first tap's sums of the place before; a tile that wants the next
    int opened = -1;
    for (int number = 0; number < total; number++) {
        arrived<STAGES - 2>();
        __syncthreads();
        fetch(number + STAGES - 1);
        const i64 row = blockIdx.x + (i64)(number / parts) * gridDim.x;
        const int first = number % parts * PLACES;
        T* to = out + row * outer * length;
        const T* tile = stages + number % STAGES * rows * PITCH + (lane % 16) * PITCH + lane / 16 * 8;
        if (first == 0) left[0] = left[1] = 0.0f;
        for (int chunk = 0; chunk < PLACES / (8 * TILES) && first + chunk * TILES * 8 < length; chunk++) {
            float sum[3][TILES][4];
            #pragma unroll
            for (int tap = 0; tap < 3; tap++)
                #pragma unroll
                for (int t = 0; t < TILES; t++)
                    #pragma unroll
                    for (int k = 0; k < 4; k++) sum[tap][t][k] = 0.0f;
            auto multiply = [&](const u32 (&w)[3][4], int step) {
                const T* at = tile + step * 16 * PITCH + chunk * TILES * 8;
                #pragma unroll
                for (int t = 0; t < TILES; t += 2) {
                    u32 b[4];
                    if (t + 1 < TILES) load_four(b, at + t * 8);
                    else load_two(b[0], b[1], at + t * 8 - lane / 16 * 8);
                    #pragma unroll
                    for (int tap = 0; tap < 3; tap++) {
                        Kind<T>::multiply(sum[tap][t], w[tap], b[0], b[1]);
                        if (t + 1 < TILES) Kind<T>::multiply(sum[tap][t + 1 < TILES ? t + 1 : t], w[tap], b[2], b[3]);
                    }
                }
            };
            if constexpr (HELD) {
                #pragma unroll
                for (int step = 0; step < STEPS; step++) multiply(held[step], step);
            } else {
                u32 next[3][4];
                #pragma unroll
                for (int tap = 0; tap < 3; tap++) *(uint4*)next[tap] = own[tap * 32];
                for (int step = 0; step < steps; step++) {
                    u32 now[3][4];
                    #pragma unroll
                    for (int tap = 0; tap < 3; tap++)
                        #pragma unroll
                        for (int k = 0; k < 4; k++) now[tap][k] = next[tap][k];
                    if (step + 1 < steps) {
                        #pragma unroll
                        for (int tap = 0; tap < 3; tap++) *(uint4*)next[tap] = own[((step + 1) * 3 + tap) * 32];
                    }
                    multiply(now, step);
                }
            }
            #pragma unroll
            for (int t = 0; t < TILES; t++) {
                const int place = first + (chunk * TILES + t) * 8;
                float right[2];
                #pragma unroll
                for (int half = 0; half < 2; half++) right[half] = from_lane(sum[2][t][2 * half], after);
                if (opened >= 0) {
                    if (lane % 4 == 3) open[1] += right[0], open[3] += right[1];
                    keep<T, EVEN>(to, open, shift, channel, outer, opened, length);
                }
                #pragma unroll
                for (int half = 0; half < 2; half++) {
                    const float over = from_lane(sum[0][t][2 * half + 1], before);
                    const int k = 2 * half;
                    open[k] = sum[1][t][k] + (lane % 4 == 0 ? left[half] : over) + sum[2][t][k + 1];
                    open[k + 1] = sum[1][t][k + 1] + sum[0][t][k] + (lane % 4 < 3 ? right[half] : 0.0f);
                    left[half] = over;
                }
                opened = place;
            }
        }
        if (first + PLACES >= length) {
            keep<T, EVEN>(to, open, shift, channel, outer, opened, length);
            opened = -1;
        }
    }
}

extern "C" __global__ void pack(const ELEMENT* weight, void* packed, int outer, int inner, int steps, int count) {
    pack_weights(weight, (uint4*)packed, outer, inner, steps, count);
}
// Rows of 200 places, 81 to 96 inner channels: the weights stay in registers.
extern "C" __global__ void __launch_bounds__(192, 2) rows(
    const ELEMENT* x, const void* packed, const ELEMENT* bias, ELEMENT* out,
    int batch, int inner, int outer, int length, int steps) {
    convolve<ELEMENT, 6, 5, 200, 200, 2, true, true>(
        x, (const uint4*)packed, bias, out, batch, inner, outer, length, steps);
}
extern "C" __global__ void __launch_bounds__(256, 1) even(
    const ELEMENT* x, const void* packed, const ELEMENT* bias, ELEMENT* out,
    int batch, int inner, int outer, int length, int steps) {
    convolve<ELEMENT, 0, 8, 128, 136, 3, false, true>(
        x, (const uint4*)packed, bias, out, batch, inner, outer, length, steps);
}
// Rows of any length, which begin anywhere.
extern "C" __global__ void __launch_bounds__(256, 1) odd(
    const ELEMENT* x, const void* packed, const ELEMENT* bias, ELEMENT* out,
    int batch, int inner, int outer, int length, int steps) {
    convolve<ELEMENT, 0, 8, 128, 136, 2, false, false>(
        x, (const uint4*)packed, bias, out, batch, inner, outer, length, steps);
}
"""
MODULES = {
    torch.float16: load_cuda(SOURCE, flags=["-DELEMENT=__half"]),
    torch.bfloat16: load_cuda(SOURCE, flags=["-DELEMENT=__nv_bfloat16"]),
}


class ModelNew(nn.Module):
    def __init__(self, inner, outer, dtype="float32"):
        super().__init__()
        self.conv = nn.Conv1d(inner, outer, kernel_size=3, padding=1, dtype=getattr(torch, dtype))

    def forward(self, x):
        weight, bias = self.conv.weight.contiguous(), self.conv.bias
        outer, inner, _taps = weight.shape
        if x.dim() != 3 or x.shape[1] != inner or x.dtype != weight.dtype:
            raise ValueError(f"a {weight.dtype} tensor [batch, {inner}, length] is needed")
        if x.dtype not in MODULES or inner > 384:  # two stages of more channels do not fit into shared memory
            raise NotImplementedError("float16 and bfloat16, and at most 384 channels")
        x = x.contiguous()
        batch, _inner, length = x.shape
        out = torch.empty((batch, outer, length), dtype=x.dtype, device=x.device)
        if not out.numel():
            return out
        module, steps = MODULES[x.dtype], -(-inner // 16)
        even = length % 8 == 0 and x.data_ptr() % 16 == 0
        rows = even and length == 200 and steps == 6 and outer <= 96
        warps = 6 if rows else min(8, -(-outer // 16))
        groups = -(-outer // (16 * warps))
        count = groups * warps * steps * 96
        packed = torch.empty(count * 8, dtype=x.dtype, device=x.device)
        module.pack[(-(-count // 256),), (256,), 0](weight, packed, outer, inner, steps, count)
        kernel, shared = (
            (module.rows, 2 * 96 * 200 * 2) if rows
            else (module.even, 3 * steps * 16 * 136 * 2) if even and inner <= 272
            else (module.odd, 2 * steps * 16 * 136 * 2)
        )  # fmt: skip
        processors = torch.cuda.get_device_properties(x.device).multi_processor_count
        blocks = max(1, min(batch, BLOCKS * processors // groups))
        kernel[(blocks, groups), (32 * warps,), shared](
            x, packed, bias, out, batch, inner, outer, length, steps
        )  # fmt: skip
        return out
