"""16 bytes a load, two of each tensor under way in forward, one in backward; the GELU takes one exponential, which
backward makes anew, beginning where forward ended, in the L2 cache. One launch each way. Bound by memory: 8 tensors of
traffic, forward and backward.
"""

import torch
from kernelwright import load_cuda
from torch import nn

TUNABLES = {"ROUNDS": [1, 2, 4], "BACK_ROUNDS": [1, 2], "THREADS": [128, 256, 512]}
ROUNDS = 2
"""Vectors of each tensor that a thread has under way in forward."""
BACK_ROUNDS = 1
THREADS = 256

SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
typedef long long i64;

__device__ __forceinline__ float wide(float value) { return value; }
__device__ __forceinline__ float wide(__half value) { return __half2float(value); }
__device__ __forceinline__ float wide(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ void narrow(float value, float& to) { to = value; }
__device__ __forceinline__ void narrow(float value, __half& to) { to = __float2half_rn(value); }
__device__ __forceinline__ void narrow(float value, __nv_bfloat16& to) { to = __float2bfloat16_rn(value); }

template <class T, int N> struct alignas(sizeof(T) * N) Vector { T at[N]; };
// Backward needs nothing a second time; what forward leaves in the L2 cache is to stay there meanwhile.
template <class T, int N> __device__ __forceinline__ Vector<T, N> load_once(const T* from) {
    if constexpr (sizeof(T) * N == 16) {
        const uint4 got = __ldcs((const uint4*)from);
        return *(const Vector<T, N>*)&got;
    } else {
        return *(const Vector<T, N>*)from;
    }
}
template <class T, int N> __device__ __forceinline__ void store_once(T* to, const Vector<T, N>& made) {
    if constexpr (sizeof(T) * N == 16) __stcs((uint4*)to, *(const uint4*)&made);
    else *(Vector<T, N>*)to = made;
}

// (1 + tanh(z)) / 2 is the sigmoid of 2 z, one exponential. Whether float32 comes in decides how exact it must be.
__device__ __forceinline__ float share(float g) {
    const float twice = 1.5957691216057308f * (g + 0.044715f * g * g * g);
    if constexpr (sizeof(ELEMENT) == 4) return 1.0f / (1.0f + expf(-twice));
    else return __fdividef(1.0f, 1.0f + __expf(-twice));
}
__device__ __forceinline__ float gated(float g, float u) { return g * share(g) * u; }
__device__ __forceinline__ void slopes(float g, float u, float d, float& to_gate, float& to_up) {
    const float near = share(g), active = g * near;
    to_gate = d * u * (near + active * (1.0f - near) * (1.5957691216057308f * (1.0f + 0.134145f * g * g)));
    to_up = d * active;
}
template <int N> __device__ __forceinline__ void ahead(
    const ELEMENT* gate, const ELEMENT* up, ELEMENT* out, i64 count) {
    typedef Vector<ELEMENT, N> V;
    const i64 vectors = count / N, first = (i64)blockIdx.x * (THREADS * ROUNDS) + threadIdx.x;
    V gates[ROUNDS], ups[ROUNDS];
    #pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        const i64 v = first + round * THREADS;
        if (v >= vectors) break;
        gates[round] = *(const V*)(gate + v * N), ups[round] = *(const V*)(up + v * N);
    }
    #pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        const i64 v = first + round * THREADS;
        if (v >= vectors) break;
        V made;
        #pragma unroll
        for (int k = 0; k < N; k++) narrow(gated(wide(gates[round].at[k]), wide(ups[round].at[k])), made.at[k]);
        store_once<ELEMENT, N>(out + v * N, made);
    }
    const i64 left = vectors * N + threadIdx.x;
    if (N > 1 && blockIdx.x == 0 && left < count) narrow(gated(wide(gate[left]), wide(up[left])), out[left]);
}

template <int N> __device__ __forceinline__ void back(
    const ELEMENT* gate, const ELEMENT* up, const ELEMENT* dy, ELEMENT* dgate, ELEMENT* dup, i64 count) {
    typedef Vector<ELEMENT, N> V;
    const i64 vectors = count / N;
    const i64 first = (i64)(gridDim.x - 1 - blockIdx.x) * (THREADS * BACK_ROUNDS) + threadIdx.x;
    V gates[BACK_ROUNDS], ups[BACK_ROUNDS], grads[BACK_ROUNDS];
    #pragma unroll
    for (int round = 0; round < BACK_ROUNDS; round++) {
        const i64 v = first + round * THREADS;
        if (v >= vectors) break;
        gates[round] = load_once<ELEMENT, N>(gate + v * N);
        ups[round] = load_once<ELEMENT, N>(up + v * N);
        grads[round] = load_once<ELEMENT, N>(dy + v * N);
    }
    #pragma unroll
    for (int round = 0; round < BACK_ROUNDS; round++) {
        const i64 v = first + round * THREADS;
        if (v >= vectors) break;
        V to_gate, to_up;
        #pragma unroll
        for (int k = 0; k < N; k++) {
            float one, other;
            slopes(wide(gates[round].at[k]), wide(ups[round].at[k]), wide(grads[round].at[k]), one, other);
            narrow(one, to_gate.at[k]), narrow(other, to_up.at[k]);
        }
        store_once<ELEMENT, N>(dgate + v * N, to_gate);
        store_once<ELEMENT, N>(dup + v * N, to_up);
    }
    const i64 left = vectors * N + threadIdx.x;
    if (N > 1 && blockIdx.x == 0 && left < count) {
        float one, other;
        slopes(wide(gate[left]), wide(up[left]), wide(dy[left]), one, other);
        narrow(one, dgate[left]), narrow(other, dup[left]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) forward_vectors(
    const ELEMENT* gate, const ELEMENT* up, ELEMENT* out, int64_t count) {
    ahead<16 / sizeof(ELEMENT)>(gate, up, out, count);
}
extern "C" __global__ void __launch_bounds__(THREADS) backward_vectors(
    const ELEMENT* gate, const ELEMENT* up, const ELEMENT* dy, ELEMENT* dgate, ELEMENT* dup, int64_t count) {
    back<16 / sizeof(ELEMENT)>(gate, up, dy, dgate, dup, count);
}
// Tensors that begin anywhere.
extern "C" __global__ void __launch_bounds__(THREADS) forward_any(
    const ELEMENT* gate, const ELEMENT* up, ELEMENT* out, int64_t count) {
    ahead<1>(gate, up, out, count);
}
extern "C" __global__ void __launch_bounds__(THREADS) backward_any(
    const ELEMENT* gate, const ELEMENT* up, const ELEMENT* dy, ELEMENT* dgate, ELEMENT* dup, int64_t count) {
    back<1>(gate, up, dy, dgate, dup, count);
}
"""
NAMES = {torch.float16: "__half", torch.bfloat16: "__nv_bfloat16", torch.float32: "float"}
FLAGS = [f"-D{name}={globals()[name]}" for name in TUNABLES]
MODULES = {dtype: load_cuda(SOURCE, flags=[f"-DELEMENT={name}", *FLAGS]) for dtype, name in NAMES.items()}
BLOCK = (THREADS,)


class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up):
        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up)
        out, count, kernels = torch.empty_like(gate), gate.numel(), MODULES[gate.dtype]
        if not count:
            return out
        if (gate.data_ptr() | up.data_ptr()) % 16:
            kernel, each = kernels.forward_any, THREADS * ROUNDS
        else:
            kernel, each = kernels.forward_vectors, THREADS * ROUNDS * 16 // gate.itemsize
        kernel[(-(-count // each),), BLOCK, 0](gate, up, out, count)
        return out

    @staticmethod
    def backward(ctx, dy):
        gate, up = ctx.saved_tensors
        dy, count, kernels = dy.contiguous(), gate.numel(), MODULES[gate.dtype]
        dgate, dup = torch.empty_like(gate), torch.empty_like(gate)
        if not count:
            return dgate, dup
        if (gate.data_ptr() | up.data_ptr() | dy.data_ptr()) % 16:
            kernel, each = kernels.backward_any, THREADS * BACK_ROUNDS
        else:
            kernel, each = kernels.backward_vectors, THREADS * BACK_ROUNDS * 16 // gate.itemsize
        kernel[(-(-count // each),), BLOCK, 0](gate, up, dy, dgate, dup, count)
        return dgate, dup


class ModelNew(nn.Module):
    def forward(self, gate, up):
        if gate.shape != up.shape or gate.dtype is not up.dtype or gate.dtype not in MODULES:
            raise ValueError(f"two alike are needed: {gate.dtype} {gate.shape}, {up.dtype} {up.shape}")
        return Gate.apply(gate, up)
