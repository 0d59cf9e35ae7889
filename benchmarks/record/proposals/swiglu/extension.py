"""16 bytes a load, two of each tensor under way in forward, one in backward; backward makes the sigmoid anew and begins
where forward ended, in the L2 cache. One launch each way, and autograd's function in C++: a call's time on the host is
what small workloads wait for. Bound by memory: 8 tensors of traffic, forward and backward.
"""

from torch import nn
from torch.utils.cpp_extension import load_inline

TUNABLES = {"ROUNDS": [1, 2, 4], "BACK_ROUNDS": [1, 2], "THREADS": [128, 256, 512]}
ROUNDS = 2
"""Vectors of each tensor that a thread has under way in forward."""
BACK_ROUNDS = 1
THREADS = 256

KERNELS = r"""
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

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

// Whether float32 comes in decides how exact the sigmoid must be; memory leaves time for either.
template <class T> __device__ __forceinline__ float sigmoid(float value) {
    if constexpr (sizeof(T) == 4) return 1.0f / (1.0f + expf(-value));
    else return __fdividef(1.0f, 1.0f + __expf(-value));
}
template <class T> __device__ __forceinline__ float gated(float g, float u) { return g * sigmoid<T>(g) * u; }
template <class T> __device__ __forceinline__ void slopes(float g, float u, float d, float& to_gate, float& to_up) {
    const float near = sigmoid<T>(g);
    to_gate = d * u * (near * (1.0f + g * (1.0f - near)));
    to_up = d * (g * near);
}
template <class T, int N, int ROUNDS> __global__ void __launch_bounds__(512) gate_forward(
    const T* gate, const T* up, T* out, int64_t count) {
    typedef Vector<T, N> V;
    const int64_t vectors = count / N, first = (int64_t)blockIdx.x * (blockDim.x * ROUNDS) + threadIdx.x;
    V gates[ROUNDS], ups[ROUNDS];
    #pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        const int64_t v = first + round * blockDim.x;
        if (v >= vectors) break;
        gates[round] = *(const V*)(gate + v * N), ups[round] = *(const V*)(up + v * N);
    }
    #pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        const int64_t v = first + round * blockDim.x;
        if (v >= vectors) break;
        V made;
        #pragma unroll
        for (int k = 0; k < N; k++) narrow(gated<T>(wide(gates[round].at[k]), wide(ups[round].at[k])), made.at[k]);
        store_once<T, N>(out + v * N, made);
    }
    const int64_t left = vectors * N + threadIdx.x;
    if (N > 1 && blockIdx.x == 0 && left < count) narrow(gated<T>(wide(gate[left]), wide(up[left])), out[left]);
}

// A gradient that nobody wants is a null pointer.
template <class T, int N, int ROUNDS> __global__ void __launch_bounds__(512) gate_backward(
    const T* gate, const T* up, const T* dy, T* dgate, T* dup, int64_t count) {
    typedef Vector<T, N> V;
    const int64_t vectors = count / N;
    const int64_t first = (int64_t)(gridDim.x - 1 - blockIdx.x) * (blockDim.x * ROUNDS) + threadIdx.x;
    V gates[ROUNDS], ups[ROUNDS], grads[ROUNDS];
    #pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        const int64_t v = first + round * blockDim.x;
        if (v >= vectors) break;
        gates[round] = load_once<T, N>(gate + v * N);
        ups[round] = load_once<T, N>(up + v * N);
        grads[round] = load_once<T, N>(dy + v * N);
    }
    #pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        const int64_t v = first + round * blockDim.x;
        if (v >= vectors) break;
        V to_gate, to_up;
        #pragma unroll
        for (int k = 0; k < N; k++) {
            float one, other;
            slopes<T>(wide(gates[round].at[k]), wide(ups[round].at[k]), wide(grads[round].at[k]), one, other);
            narrow(one, to_gate.at[k]), narrow(other, to_up.at[k]);
        }
        if (dgate) store_once<T, N>(dgate + v * N, to_gate);
        if (dup) store_once<T, N>(dup + v * N, to_up);
    }
    const int64_t left = vectors * N + threadIdx.x;
    if (N > 1 && blockIdx.x == 0 && left < count) {
        float one, other;
        slopes<T>(wide(gate[left]), wide(up[left]), wide(dy[left]), one, other);
        if (dgate) narrow(one, dgate[left]);
        if (dup) narrow(other, dup[left]);
    }
}

template <class T, int N, int ROUNDS> void launch(
    bool back, const void* gate, const void* up, const void* dy, void* out, void* dup, int64_t count, int threads,
    cudaStream_t stream) {
    const int64_t each = (int64_t)threads * ROUNDS * N;
    const unsigned blocks = (unsigned)((count + each - 1) / each);
    if (back)
        gate_backward<T, N, ROUNDS><<<blocks, threads, 0, stream>>>(
            (const T*)gate, (const T*)up, (const T*)dy, (T*)out, (T*)dup, count);
    else
        gate_forward<T, N, ROUNDS><<<blocks, threads, 0, stream>>>(
            (const T*)gate, (const T*)up, (T*)out, count);
}
template <class T, int N, class... Args> void with_rounds(int rounds, Args... args) {
    if (rounds == 4) launch<T, N, 4>(args...);
    else if (rounds == 2) launch<T, N, 2>(args...);
    else launch<T, N, 1>(args...);
}
template <class T, class... Args> void with_width(bool vectors, Args... args) {
    if (vectors) with_rounds<T, 16 / sizeof(T)>(args...);
    else with_rounds<T, 1>(args...);  // tensors that begin anywhere
}
// Forward fills `out`, backward `out` and `dup` with the gradients.
cudaError_t gate_launch(
    char type, bool vectors, int rounds, bool back, const void* gate, const void* up, const void* dy, void* out,
    void* dup, int64_t count, int threads, cudaStream_t stream) {
    auto with = [&](auto sample) {
        with_width<decltype(sample)>(vectors, rounds, back, gate, up, dy, out, dup, count, threads, stream);
    };
    if (type == 'h') with(__half());
    else if (type == 'b') with(__nv_bfloat16());
    else with(0.0f);
    return cudaGetLastError();
}
"""

GLUE = r"""
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/utils/pybind.h>

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

cudaError_t gate_launch(
    char type, bool vectors, int rounds, bool back, const void* gate, const void* up, const void* dy, void* out,
    void* dup, int64_t count, int threads, cudaStream_t stream);

// Outputs may be undefined, inputs are contiguous.
static void run(bool back, const Tensor& gate, const Tensor& up, const Tensor& dy, const Tensor& out, const Tensor& dup,
                int64_t rounds, int64_t threads) {
    const int64_t count = gate.numel();
    if (!count) return;
    const c10::cuda::CUDAGuard guard(gate.device());
    auto from = [](const Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; };
    auto to = [](const Tensor& x) { return x.defined() ? x.mutable_data_ptr() : nullptr; };
    const void *one = from(gate), *other = from(up), *grad = from(dy);
    const bool vectors = ((uintptr_t)one | (uintptr_t)other | (uintptr_t)grad) % 16 == 0;
    const auto type = gate.scalar_type();
    C10_CUDA_CHECK(gate_launch(
        type == at::kHalf ? 'h' : type == at::kBFloat16 ? 'b' : 'f', vectors, (int)rounds, back, one, other, grad,
        to(out), to(dup), count, (int)threads, c10::cuda::getCurrentCUDAStream(gate.device().index())));
}
static Tensor forward(const Tensor& gate, const Tensor& up, int64_t rounds, int64_t threads) {
    Tensor out = at::empty(gate.sizes(), gate.options());
    run(false, gate, up, {}, out, {}, rounds, threads);
    return out;
}

struct Gate : torch::autograd::Function<Gate> {
    static Tensor forward(AutogradContext* ctx, const Tensor& gate, const Tensor& up, int64_t rounds,
                          int64_t back_rounds, int64_t threads) {
        const Tensor one = gate.contiguous(), other = up.contiguous();
        ctx->save_for_backward({one, other});
        ctx->saved_data["rounds"] = back_rounds;
        ctx->saved_data["threads"] = threads;
        return ::forward(one, other, rounds, threads);
    }
    static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
        const variable_list saved = ctx->get_saved_variables();
        const Tensor &gate = saved[0], dy = grads[0].contiguous();
        const int64_t rounds = ctx->saved_data["rounds"].toInt(), threads = ctx->saved_data["threads"].toInt();
        Tensor dgate, dup;
        if (ctx->needs_input_grad(0)) dgate = at::empty(gate.sizes(), gate.options());
        if (ctx->needs_input_grad(1)) dup = at::empty(gate.sizes(), gate.options());
        run(true, gate, saved[1], dy, dgate, dup, rounds, threads);
        return {dgate, dup, {}, {}, {}};
    }
};

Tensor swiglu(const Tensor& gate, const Tensor& up, int64_t rounds, int64_t back_rounds, int64_t threads) {
    const auto type = gate.scalar_type();
    TORCH_CHECK(gate.sizes() == up.sizes() && type == up.scalar_type() && gate.device() == up.device(),
                "two alike are needed: ", type, " ", gate.sizes(), ", ", up.scalar_type(), " ", up.sizes());
    TORCH_CHECK(type == at::kHalf || type == at::kBFloat16 || type == at::kFloat,
                "float16, bfloat16 or float32 are needed, not ", type);
    if (at::GradMode::is_enabled() && (gate.requires_grad() || up.requires_grad()))
        return Gate::apply(gate, up, rounds, back_rounds, threads);
    return forward(gate.contiguous(), up.contiguous(), rounds, threads);
}
"""
swiglu = load_inline(
    name="swiglu_extension",
    cpp_sources=GLUE,
    cuda_sources=KERNELS,
    functions=["swiglu"],
    extra_cflags=["-O2"],
    extra_cuda_cflags=["-O3"],
    no_implicit_headers=True,
).swiglu


class ModelNew(nn.Module):
    def forward(self, gate, up):
        return swiglu(gate, up, ROUNDS, BACK_ROUNDS, THREADS)
