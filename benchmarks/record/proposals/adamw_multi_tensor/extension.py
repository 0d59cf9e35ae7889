"""One launch, a warp for each aligned span of the flat buffers. What a warp needs is under way before it looks for the
tensor that its span begins in, with 32 ends at a time; only spans that hold a border look at each element. The step's
two corrections are made once a block, in double precision, while its loads are under way. One call of C++, as small
workloads wait for the host. Bound by memory: 28 bytes an element with float32 gradients, 16 bytes at a time.
"""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

TUNABLES = {"ITEMS": [1, 2, 4], "THREADS": [128, 256, 512]}
ITEMS = 2
"""Vectors of four elements that a thread has of each buffer, all under way together."""
THREADS = 256
"""Of a block."""

KERNELS = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
typedef long long i64;

__device__ __forceinline__ float wide(float value) { return value; }
__device__ __forceinline__ float wide(__half value) { return __half2float(value); }
__device__ __forceinline__ float wide(__nv_bfloat16 value) { return __bfloat162float(value); }

constexpr unsigned ALL = 0xffffffffu;
constexpr int WARPS = THREADS / 32;
static_assert(WARPS >= 2, "two warps make the corrections");

// What a thread loads or stores at once, and once only.
template <int BYTES> struct Word;
template <> struct Word<16> { typedef uint4 Type; };
template <> struct Word<8> { typedef uint2 Type; };
template <> struct Word<4> { typedef unsigned Type; };
template <> struct Word<2> { typedef unsigned short Type; };
template <class T, int LANES> struct alignas(sizeof(T) * LANES) Vector {
    typedef typename Word<sizeof(T) * LANES>::Type W;
    T at[LANES];
    __device__ __forceinline__ void load(const T* from) { *(W*)this = __ldcs((const W*)from); }
    __device__ __forceinline__ void store(T* to) const { __stcs((W*)to, *(const W*)this); }
    __device__ __forceinline__ void load_first(const T* from, i64 left) {
        #pragma unroll
        for (int k = 0; k < LANES; k++)
            if (k < left) at[k] = from[k];
    }
    __device__ __forceinline__ void store_first(T* to, i64 left) const {
        #pragma unroll
        for (int k = 0; k < LANES; k++)
            if (k < left) to[k] = at[k];
    }
};

// How many of the ends, which never fall, are not behind a place. The lanes of a warp look together.
__device__ __forceinline__ int ends_before(const i64* ends, int tensors, i64 place) {
    const int lane = threadIdx.x % 32;
    int low = 0, high = tensors;
    while (low < high) {
        const int step = (high - low + 31) / 32, probe = low + (lane + 1) * step - 1;
        const bool before = probe < high && __ldg(ends + probe) <= place;
        low += step * __popc(__ballot_sync(ALL, before));
        high = min(high, low + step - 1);
    }
    return low;
}

struct Call {
    const float *params, *first, *second;
    const i64 *steps, *ends, *decays;
    float *out, *out_first, *out_second;
    i64 count;
    int tensors;
    double lr, log1, log2;  // the logarithms of both betas
    float rate, keep2, add1, add2, eps;
};

template <class G, int LANES> __global__ void __launch_bounds__(THREADS) step_spans(const G* grads, Call c) {
    constexpr int SPAN = 32 * LANES * ITEMS;
    __shared__ float corrections[2];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 start = ((i64)blockIdx.x * WARPS + warp) * SPAN, begin = start + lane * LANES;
    const bool some = start < c.count, whole = start + SPAN <= c.count;  // alike in a warp
    const i64 done = __ldg(c.steps);
    Vector<float, LANES> p[ITEMS], m[ITEMS], v[ITEMS];
    Vector<G, LANES> g[ITEMS];
    if (whole) {
        #pragma unroll
        for (int j = 0; j < ITEMS; j++) {
            const i64 at = begin + j * 32 * LANES;
            p[j].load(c.params + at), g[j].load(grads + at), m[j].load(c.first + at), v[j].load(c.second + at);
        }
    } else {
        #pragma unroll
        for (int j = 0; j < ITEMS; j++) {
            const i64 at = begin + j * 32 * LANES, left = c.count - at;
            p[j].load_first(c.params + at, left), g[j].load_first(grads + at, left);
            m[j].load_first(c.first + at, left), v[j].load_first(c.second + at, left);
        }
    }
    int tensor = 0;
    i64 end = c.count;
    float fade = 1.0f;
    if (some) {
        tensor = ends_before(c.ends, c.tensors, start);
        end = __ldg(c.ends + tensor);
        fade = 1.0f - c.rate * (float)__ldg(c.decays + tensor);
    }
    const bool border = end < min(start + SPAN, c.count);
    if (lane == 0 && warp < 2) {
        const double left = 1.0 - exp(((double)done + 1.0) * (warp ? c.log2 : c.log1));
        corrections[warp] = warp ? (float)sqrt(left) : (float)(c.lr / left);
    }
    __syncthreads();
    if (!some) return;
    const float size = corrections[0], root = corrections[1];
    #pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        #pragma unroll
        for (int k = 0; k < LANES; k++) {
            const i64 at = begin + j * 32 * LANES + k;
            if (border && at < c.count) {
                while (at >= end) {  // a tensor may be empty
                    end = __ldg(c.ends + ++tensor);
                    fade = 1.0f - c.rate * (float)__ldg(c.decays + tensor);
                }
            }
            const float slope = wide(g[j].at[k]);
            const float mean = m[j].at[k] + c.add1 * (slope - m[j].at[k]);
            const float square = c.keep2 * v[j].at[k] + c.add2 * slope * slope;
            p[j].at[k] = p[j].at[k] * fade - size * mean / (sqrtf(square) / root + c.eps);
            m[j].at[k] = mean, v[j].at[k] = square;
        }
        const i64 at = begin + j * 32 * LANES;
        if (whole) {
            p[j].store(c.out + at), m[j].store(c.out_first + at), v[j].store(c.out_second + at);
        } else {
            const i64 left = c.count - at;
            p[j].store_first(c.out + at, left), m[j].store_first(c.out_first + at, left);
            v[j].store_first(c.out_second + at, left);
        }
    }
}

template <class G, int LANES> static cudaError_t launch(const G* grads, const Call& call, cudaStream_t stream) {
    constexpr i64 EACH = (i64)THREADS * LANES * ITEMS;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)((call.count + EACH - 1) / EACH));
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    return cudaLaunchKernelEx(&config, step_spans<G, LANES>, grads, call);
}
// `from`: parameters, gradients, both averages. `to`: parameters, both averages. `rates`: lr, both betas, eps, decay.
cudaError_t step_launch(
    char type, const void* const* from, void* const* to, const i64* steps, const i64* ends, const i64* decays,
    i64 count, int tensors, const double* rates, const double* logs, cudaStream_t stream) {
    Call call = {};
    call.params = (const float*)from[0], call.first = (const float*)from[2], call.second = (const float*)from[3];
    call.out = (float*)to[0], call.out_first = (float*)to[1], call.out_second = (float*)to[2];
    call.steps = steps, call.ends = ends, call.decays = decays;
    call.count = count, call.tensors = tensors;
    call.lr = rates[0], call.log1 = logs[0], call.log2 = logs[1];
    call.rate = (float)(rates[0] * rates[4]), call.keep2 = (float)rates[2];
    call.add1 = (float)(1.0 - rates[1]), call.add2 = (float)(1.0 - rates[2]), call.eps = (float)rates[3];
    bool even = true;
    for (int i = 0; i < 4; i++) even = even && (size_t)from[i] % 16 == 0;
    for (int i = 0; i < 3; i++) even = even && (size_t)to[i] % 16 == 0;
    const auto with = [&](auto sample) {
        typedef decltype(sample) G;
        const G* grads = (const G*)from[1];
        return even ? launch<G, 4>(grads, call, stream) : launch<G, 1>(grads, call, stream);
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
#include <cmath>
#include <tuple>

using at::Tensor;
typedef long long i64;

cudaError_t step_launch(
    char type, const void* const* from, void* const* to, const i64* steps, const i64* ends, const i64* decays,
    i64 count, int tensors, const double* rates, const double* logs, cudaStream_t stream);

// `total`: the last of the ends, which only the GPU knows.
std::tuple<Tensor, Tensor, Tensor> step(
    const Tensor& of_params, const Tensor& of_grads, const Tensor& of_first, const Tensor& of_second,
    const Tensor& of_steps, const Tensor& of_ends, const Tensor& of_decays, int64_t total, double lr, double beta1,
    double beta2, double eps, double decay) {
    const auto type = of_grads.scalar_type(), kind = of_steps.scalar_type();
    TORCH_CHECK(of_params.is_cuda(), "tensors of a GPU, not of ", of_params.device());
    TORCH_CHECK(type == at::kHalf || type == at::kBFloat16 || type == at::kFloat,
                "gradients are float16, bfloat16 or float32, not ", type);
    for (const Tensor* each : {&of_params, &of_first, &of_second})
        TORCH_CHECK(each->scalar_type() == at::kFloat, "parameters and averages are float32, not ",
                    each->scalar_type());
    for (const Tensor* each : {&of_params, &of_grads, &of_first, &of_second})
        TORCH_CHECK(each->dim() == 1 && each->size(0) == total && each->device() == of_params.device(),
                    "flat buffers of ", total, " elements on one GPU are needed, not ", each->sizes(), " on ",
                    each->device());
    TORCH_CHECK((kind == at::kLong || kind == at::kInt) && of_steps.numel() == 1 &&
                    of_steps.device() == of_params.device(),
                "one number of steps is needed, not ", of_steps.sizes(), " of ", kind, " on ", of_steps.device());
    for (const Tensor* each : {&of_ends, &of_decays})
        TORCH_CHECK(each->dim() == 1 && each->scalar_type() == at::kLong && each->size(0) == of_ends.size(0) &&
                        each->device() == of_params.device(),
                    "an end and a decay, int64, are needed for each tensor, not ", each->sizes(), " of ",
                    each->scalar_type(), " on ", each->device());
    const i64 tensors = of_ends.size(0);
    TORCH_CHECK(tensors < (i64)1 << 30 && total < (i64)1 << 38, "too large: ", total, " elements, ", tensors,
                " tensors");
    const c10::cuda::CUDAGuard guard(of_params.device());
    const Tensor params = of_params.contiguous(), grads = of_grads.contiguous();
    const Tensor first = of_first.contiguous(), second = of_second.contiguous();
    const Tensor out = at::empty({total}, params.options()), out_first = at::empty({total}, params.options());
    const Tensor out_second = at::empty({total}, params.options());
    if (!total) return {out, out_first, out_second};
    const Tensor steps = kind == at::kLong ? of_steps : of_steps.to(at::kLong);
    const Tensor ends = of_ends.contiguous(), decays = of_decays.contiguous();
    const void* const from[] = {
        params.const_data_ptr(), grads.const_data_ptr(), first.const_data_ptr(), second.const_data_ptr()};
    void* const to[] = {out.mutable_data_ptr(), out_first.mutable_data_ptr(), out_second.mutable_data_ptr()};
    const double rates[] = {lr, beta1, beta2, eps, decay}, logs[] = {std::log(beta1), std::log(beta2)};
    C10_CUDA_CHECK(step_launch(
        type == at::kHalf ? 'h' : type == at::kBFloat16 ? 'b' : 'f', from, to, (const i64*)steps.const_data_ptr(),
        (const i64*)ends.const_data_ptr(), (const i64*)decays.const_data_ptr(), total, (int)tensors, rates, logs,
        c10::cuda::getCurrentCUDAStream()));
    return {out, out_first, out_second};
}
"""
step = load_inline(
    name="adamw_multi_tensor",
    cpp_sources=[GLUE],
    cuda_sources=[KERNELS],
    functions=["step"],
    extra_cflags=["-O2"],
    extra_cuda_cflags=["-O3", f"-DITEMS={ITEMS}", f"-DTHREADS={THREADS}"],
    no_implicit_headers=True,
).step


class ModelNew(nn.Module):
    def __init__(self, sizes, norm, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, decay=0.1):
        super().__init__()
        self.register_buffer("sizes", torch.tensor(sizes))
        self.register_buffer("decays", torch.tensor([0 if size == norm else 1 for size in sizes]))
        self.register_buffer("ends", torch.tensor(sizes).cumsum(0), persistent=False)
        self.total = sum(sizes)
        self.lr, self.betas, self.eps, self.decay = lr, betas, eps, decay

    def forward(self, params, grads, exp_avg, exp_avg_sq, steps):
        kept = self._buffers  # out of the dictionary: a buffer by attribute costs 2 us
        return step(
            params, grads, exp_avg, exp_avg_sq, steps, kept["ends"], kept["decays"], self.total, self.lr, *self.betas,
            self.eps, self.decay,
        )  # fmt: skip
