"""A block reads up to 64 KB of a row once, 64 KB in flight on a processor: a maximum and a sum by thread, merged at the
end. What the pieces of a longer row have found is merged where the mean is made. Backward reads the logits again, the
last rows first, which are still in the L2 cache. Ignored rows are not read. Autograd's part is C++, too, so that a
small call does not wait for Python.

Bound by memory: 3 tensors of traffic, forward and backward. Two launches forward, one backward. With a block for a row
of 256 KB the 528 at work read places in 135 MB, and memory gives 0.6 there of what it gives neighbours; now they are in
34 MB. Not yet measured in pieces.
"""

from torch import nn
from torch.utils.cpp_extension import load_inline

TUNABLES = {"THREADS": [256, 512], "AHEAD": [2, 4], "PIECES": [4, 8]}
THREADS = 256
AHEAD = 4
"""Vectors of 16 bytes that a thread fetches while it adds up as many others, forward."""
PIECES = 4
"""Vectors of a thread, backward."""

KERNELS = r"""
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <stdexcept>
#include <stdint.h>
typedef unsigned int u32;
typedef long long i64;
#define INFINITE __int_as_float(0x7f800000)
constexpr int IGNORED = -100;

// A word holds one float or two 16-bit numbers; e^x is good to its last bit only where the results are floats.
template <class T> struct Kind;
template <> struct Kind<float> {
    static constexpr u32 LEAST = 0xff800000u;
    static __device__ __forceinline__ float wide(float value) { return value; }
    static __device__ __forceinline__ float narrow(float value) { return value; }
    static __device__ __forceinline__ void unpack(u32 word, float* to) { to[0] = __uint_as_float(word); }
    static __device__ __forceinline__ u32 pack(const float* from) { return __float_as_uint(from[0]); }
    static __device__ __forceinline__ float power(float value) { return expf(value); }
};
__device__ __forceinline__ float power_of_two(float value) {
    float made;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(made) : "f"(value));
    return made;
}
template <> struct Kind<__half> {
    static constexpr u32 LEAST = 0xfc00fc00u;
    static __device__ __forceinline__ float wide(__half value) { return __half2float(value); }
    static __device__ __forceinline__ __half narrow(float value) { return __float2half_rn(value); }
    static __device__ __forceinline__ void unpack(u32 word, float* to) {
        const float2 pair = __half22float2(*(const __half2*)&word);
        to[0] = pair.x, to[1] = pair.y;
    }
    static __device__ __forceinline__ u32 pack(const float* from) {
        const __half2 pair = __floats2half2_rn(from[0], from[1]);
        return *(const u32*)&pair;
    }
    static __device__ __forceinline__ float power(float value) { return power_of_two(value * 1.44269504f); }
};
template <> struct Kind<__nv_bfloat16> {
    static constexpr u32 LEAST = 0xff80ff80u;
    static __device__ __forceinline__ float wide(__nv_bfloat16 value) { return __bfloat162float(value); }
    static __device__ __forceinline__ __nv_bfloat16 narrow(float value) { return __float2bfloat16_rn(value); }
    static __device__ __forceinline__ void unpack(u32 word, float* to) {
        to[0] = __uint_as_float(word << 16), to[1] = __uint_as_float(word & 0xffff0000u);
    }
    static __device__ __forceinline__ u32 pack(const float* from) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(from[0], from[1]);
        return *(const u32*)&pair;
    }
    static __device__ __forceinline__ float power(float value) { return power_of_two(value * 1.44269504f); }
};
template <class T> __device__ __forceinline__ void unpack(uint4 from, float* to) {
    constexpr int PER = 4 / sizeof(T);
    Kind<T>::unpack(from.x, to), Kind<T>::unpack(from.y, to + PER);
    Kind<T>::unpack(from.z, to + 2 * PER), Kind<T>::unpack(from.w, to + 3 * PER);
}
template <class T> __device__ __forceinline__ uint4 pack(const float* from) {
    constexpr int PER = 4 / sizeof(T);
    return uint4{Kind<T>::pack(from), Kind<T>::pack(from + PER), Kind<T>::pack(from + 2 * PER),
        Kind<T>::pack(from + 3 * PER)};
}
// Elements before the first that lies at a multiple of 16 bytes.
template <class T> __device__ __forceinline__ int before_vectors(const T* at) {
    return (int)((16 - (size_t)at % 16) % 16 / sizeof(T));
}
__device__ __forceinline__ float most_of_warp(float value) {
    #pragma unroll
    for (int step = 16; step; step /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
    return value;
}
__device__ __forceinline__ float sum_of_warp(float value) {
    #pragma unroll
    for (int step = 16; step; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}
// What is subtracted before e^x: a maximum that is no number yet must not make NaN of -inf.
__device__ __forceinline__ float base_of(float top) { return top == -INFINITE ? 0.0f : top; }

// fmaxf passes NaN over: e^NaN brings it into the total, and so into all results of the row. So does inf - inf.
// `level`: the sum of the distances to `shift`, the row's first logit if that is finite.
template <class T> struct Sums {
    float top, total, level;
    __device__ __forceinline__ void merge_warp() {
        const float most = most_of_warp(top);
        total = sum_of_warp(total * Kind<T>::power(top - base_of(most)));
        level = sum_of_warp(level);
        top = most;
    }
    __device__ __forceinline__ void merge(float4 part) {
        const float most = fmaxf(top, part.x), base = base_of(most);
        total = total * Kind<T>::power(top - base) + part.y * Kind<T>::power(part.x - base);
        level += part.z;
        top = most;
    }
    __device__ __forceinline__ float loss(float own, float shift, int classes, float smoothing) const {
        const float rest = logf(total), loss = rest - (own - top);
        if (smoothing == 0.0f) return loss;
        return (1.0f - smoothing) * loss + smoothing * (rest - (level / classes + (shift - top)));
    }
};

// What the launches of a call leave for each other: of each row its maximum and the inverse of its sum, its loss, then
// the share of a row that counts; and of each piece of a row, if it has several, a maximum, a sum, a level, and the
// target's logit (first piece) or the shift (second).
struct Space { float2* stats; float *losses, *share; float4* parts; };
__host__ __device__ __forceinline__ Space space_of(float* space, i64 rows) {
    return Space{(float2*)space, space + 2 * rows, space + 3 * rows, (float4*)(space + (3 * rows + 4) / 4 * 4)};
}

// A block has one of a row's `pieces`, `share` vectors, and the first one what is before and after the vectors, too.
template <class T, bool SMOOTHED, int THREADS, int AHEAD>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS) row_losses(
    const T* logits, const i64* target, Space space, int classes, int pieces, int share, float smoothing) {
    constexpr int LANES = 16 / sizeof(T), WARPS = THREADS / 32;
    const int piece = blockIdx.x % pieces;
    const i64 row = blockIdx.x / pieces, wanted = target[row];
    if (wanted == IGNORED) {
        if (threadIdx.x == 0 && piece == 0) space.losses[row] = 0.0f;
        return;
    }
    const T* start = logits + row * classes;
    const int head = min(classes, before_vectors(start)), all = (classes - head) / LANES;
    const int vectors = min(share, all - piece * share), edge = piece ? 0 : classes - all * LANES;
    const uint4* body = (const uint4*)(start + head) + piece * share;
    uint4 next[AHEAD];
    auto fetch = [&](int first) {
        #pragma unroll
        for (int p = 0; p < AHEAD; p++) {
            const int i = first + p * THREADS;
            next[p] = i < vectors ? body[i] : uint4{Kind<T>::LEAST, Kind<T>::LEAST, Kind<T>::LEAST, Kind<T>::LEAST};
        }
    };
    fetch(threadIdx.x);
    float own = __uint_as_float(0x7fc00000u), shift = 0.0f;  // a target that is no class gives NaN
    if (threadIdx.x == 0 && wanted >= 0 && wanted < classes) own = Kind<T>::wide(start[wanted]);
    if (SMOOTHED) {  // numbers near each other and far from zero are summed up as their distances to the first
        shift = Kind<T>::wide(start[0]);
        if (!(fabsf(shift) < INFINITE)) shift = 0.0f;
    }
    Sums<T> mine = {-INFINITE, 0.0f, 0.0f};
    if ((int)threadIdx.x < edge) {  // before the first vector and after the last
        const float value = Kind<T>::wide(start[threadIdx.x < head ? threadIdx.x : threadIdx.x + all * LANES]);
        mine.top = fmaxf(mine.top, value);
        mine.total = Kind<T>::power(value - base_of(mine.top));
        mine.level = value - shift;
    }
    for (int first = threadIdx.x; first < vectors; first += AHEAD * THREADS) {
        float value[AHEAD][LANES], higher = mine.top;
        #pragma unroll
        for (int p = 0; p < AHEAD; p++) {
            unpack<T>(next[p], value[p]);
            #pragma unroll
            for (int k = 0; k < LANES; k++) higher = fmaxf(higher, value[p][k]);
        }
        fetch(first + AHEAD * THREADS);
        const float base = base_of(higher);
        mine.total *= Kind<T>::power(mine.top - base);
        mine.top = higher;
        #pragma unroll
        for (int p = 0; p < AHEAD; p++) {
            float part = 0.0f, distance = 0.0f;
            #pragma unroll
            for (int k = 0; k < LANES; k++) {
                part += Kind<T>::power(value[p][k] - base);
                if (SMOOTHED) distance += value[p][k] - shift;
            }
            mine.total += part;
            if (SMOOTHED && first + p * THREADS < vectors) mine.level += distance;
        }
    }
    __shared__ Sums<T> parts[WARPS];
    const int lane = threadIdx.x % 32;
    mine.merge_warp();
    if (lane == 0) parts[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    if (lane < WARPS) mine = parts[lane];
    else mine = Sums<T>{-INFINITE, 0.0f, 0.0f};
    mine.merge_warp();
    if (lane) return;
    if (pieces > 1) {
        space.parts[blockIdx.x] = float4{mine.top, mine.total, mine.level, piece ? shift : own};
        return;
    }
    space.losses[row] = mine.loss(own, shift, classes, SMOOTHED ? smoothing : 0.0f);
    space.stats[row] = float2{mine.top, 1.0f / mine.total};
}

template <class T> __global__ void __launch_bounds__(1024) mean_loss(
    const i64* target, Space space, T* out, int rows, int classes, int pieces, float smoothing) {
    float total = 0.0f;
    int count = 0;
    if (pieces == 1) {
        #pragma unroll 4
        for (int row = threadIdx.x; row < rows; row += 1024) {
            total += space.losses[row];
            count += target[row] != IGNORED;
        }
    } else {
        for (int row = threadIdx.x; row < rows; row += 1024) {
            if (target[row] == IGNORED) continue;
            const float4* parts = space.parts + (i64)row * pieces;
            const float own = parts[0].w, shift = parts[1].w;
            Sums<T> all = {-INFINITE, 0.0f, 0.0f};
            #pragma unroll 4
            for (int p = 0; p < pieces; p++) all.merge(parts[p]);
            total += all.loss(own, shift, classes, smoothing);
            count++;
            space.stats[row] = float2{all.top, 1.0f / all.total};
        }
    }
    __shared__ float totals[32];
    __shared__ int counts[32];
    total = sum_of_warp(total);
    #pragma unroll
    for (int step = 16; step; step /= 2) count += __shfl_xor_sync(0xffffffffu, count, step);
    if (threadIdx.x % 32 == 0) totals[threadIdx.x / 32] = total, counts[threadIdx.x / 32] = count;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    total = sum_of_warp(totals[threadIdx.x]), count = counts[threadIdx.x];
    #pragma unroll
    for (int step = 16; step; step /= 2) count += __shfl_xor_sync(0xffffffffu, count, step);
    if (threadIdx.x) return;
    *out = Kind<T>::narrow(total / count);
    *space.share = 1.0f / count;
}

// A block has PIECES * THREADS vectors of a row. `most` and `even`: what a smoothed target gives its class, and all.
template <class T, int THREADS, int PIECES>
__global__ void __launch_bounds__(THREADS, PIECES > 4 ? 1024 / THREADS : 1536 / THREADS) row_gradients(
    const T* logits, const i64* target, Space space, const T* dy, T* dx, int classes, int chunks, float most,
    float even) {
    constexpr int LANES = 16 / sizeof(T);
    const u32 number = gridDim.x - 1 - blockIdx.x;
    const i64 row = number / chunks;
    const int chunk = number % chunks, first = chunk * PIECES * THREADS + threadIdx.x;
    const int wanted = (int)target[row];
    const bool counts = wanted != IGNORED;
    const T* from = logits + row * classes;
    T* to = dx + row * classes;
    const bool alike = before_vectors(from) == before_vectors(to);
    const int head = alike ? min(classes, before_vectors(from)) : classes, vectors = (classes - head) / LANES;
    uint4 got[PIECES];
    #pragma unroll
    for (int p = 0; p < PIECES; p++)
        if (counts && first + p * THREADS < vectors) got[p] = __ldcs((const uint4*)(from + head) + first + p * THREADS);
    float2 stats = {0.0f, 0.0f};
    float factor = 0.0f;
    if (counts) stats = space.stats[row], factor = Kind<T>::wide(*dy) * *space.share;
    #pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const int i = first + p * THREADS;
        if (i >= vectors) break;
        float value[LANES];
        #pragma unroll
        for (int k = 0; k < LANES; k++) value[k] = 0.0f;
        if (counts) {
            unpack<T>(got[p], value);
            #pragma unroll
            for (int k = 0; k < LANES; k++) value[k] = fmaf(Kind<T>::power(value[k] - stats.x), stats.y, -even);
            const u32 place = wanted - head - i * LANES;
            if (place < LANES) {
                #pragma unroll
                for (int k = 0; k < LANES; k++)
                    if (k == place) value[k] -= most;
            }
            #pragma unroll
            for (int k = 0; k < LANES; k++) value[k] *= factor;
        }
        __stcs((uint4*)(to + head) + i, pack<T>(value));
    }
    // Before the first vector and after the last, or all where the two tensors lie differently.
    for (int i = chunk * THREADS + threadIdx.x; i < classes - vectors * LANES; i += chunks * THREADS) {
        const int column = i < head ? i : i + vectors * LANES;
        float value = 0.0f;
        if (counts) {
            value = fmaf(Kind<T>::power(Kind<T>::wide(from[column]) - stats.x), stats.y, -even);
            value = (column == wanted ? value - most : value) * factor;
        }
        to[column] = Kind<T>::narrow(value);
    }
}

static void launched() {
    const cudaError_t code = cudaGetLastError();
    if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}

struct Losses {
    const void* logits;
    const i64* target;
    float* space;
    void* out;
    int rows, classes;
    float smoothing;
    cudaStream_t stream;
};
constexpr i64 LONGEST = 64 << 10;  // of a piece, in bytes: 34 MB of neighbours for all that are at work
int64_t pieces_of(int64_t row_bytes) { return row_bytes <= LONGEST ? 1 : (row_bytes + LONGEST - 1) / LONGEST; }

template <class T, int THREADS, int AHEAD> static void losses_of(const Losses& l) {
    const int pieces = (int)pieces_of(l.classes * (i64)sizeof(T));
    const int share = (int)((l.classes * (i64)sizeof(T) / 16 + pieces - 1) / pieces);
    auto kernel = l.smoothing > 0.0f ? row_losses<T, true, THREADS, AHEAD> : row_losses<T, false, THREADS, AHEAD>;
    kernel<<<l.rows * pieces, THREADS, 0, l.stream>>>(
        (const T*)l.logits, l.target, space_of(l.space, l.rows), l.classes, pieces, share, l.smoothing);
}
template <class T> static void losses_of(const Losses& l, int threads, int ahead) {
    if (l.rows) {
        if (threads == 256) ahead == 2 ? losses_of<T, 256, 2>(l) : losses_of<T, 256, 4>(l);
        else ahead == 2 ? losses_of<T, 512, 2>(l) : losses_of<T, 512, 4>(l);
        launched();
    }
    mean_loss<T><<<1, 1024, 0, l.stream>>>(
        l.target, space_of(l.space, l.rows), (T*)l.out, l.rows, l.classes,
        (int)pieces_of(l.classes * (i64)sizeof(T)), l.smoothing);
    launched();
}

struct Gradients {
    const void* logits;
    const i64* target;
    const float* space;
    const void* dy;
    void* dx;
    int rows, classes;
    float smoothing;
    cudaStream_t stream;
};
template <class T, int THREADS, int PIECES> static void gradients_of(const Gradients& g) {
    const i64 chunk = 16 * PIECES * THREADS;
    const int chunks = (int)((g.classes * (i64)sizeof(T) + chunk - 1) / chunk);
    row_gradients<T, THREADS, PIECES><<<g.rows * chunks, THREADS, 0, g.stream>>>(
        (const T*)g.logits, g.target, space_of((float*)g.space, g.rows), (const T*)g.dy, (T*)g.dx, g.classes, chunks,
        1.0f - g.smoothing, g.smoothing / g.classes);
}
template <class T> static void gradients_of(const Gradients& g, int threads, int pieces) {
    if (threads == 256) pieces == 4 ? gradients_of<T, 256, 4>(g) : gradients_of<T, 256, 8>(g);
    else pieces == 4 ? gradients_of<T, 512, 4>(g) : gradients_of<T, 512, 8>(g);
    launched();
}

// `type`: float, half, bfloat16.
void launch_losses(
    int type, const void* logits, const int64_t* target, float* space, void* out, int rows, int classes,
    float smoothing, int threads, int ahead, cudaStream_t stream) {
    const Losses call = {logits, (const i64*)target, space, out, rows, classes, smoothing, stream};
    if (type == 0) losses_of<float>(call, threads, ahead);
    else if (type == 1) losses_of<__half>(call, threads, ahead);
    else losses_of<__nv_bfloat16>(call, threads, ahead);
}
void launch_gradients(
    int type, const void* logits, const int64_t* target, const float* space, const void* dy, void* dx, int rows,
    int classes, float smoothing, int threads, int pieces, cudaStream_t stream) {
    const Gradients call = {logits, (const i64*)target, space, dy, dx, rows, classes, smoothing, stream};
    if (type == 0) gradients_of<float>(call, threads, pieces);
    else if (type == 1) gradients_of<__half>(call, threads, pieces);
    else gradients_of<__nv_bfloat16>(call, threads, pieces);
}
"""

GLUE = r"""
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/utils/pybind.h>
#include <limits>

int64_t pieces_of(int64_t row_bytes);
void launch_losses(
    int type, const void* logits, const int64_t* target, float* space, void* out, int rows, int classes,
    float smoothing, int threads, int ahead, cudaStream_t stream);
void launch_gradients(
    int type, const void* logits, const int64_t* target, const float* space, const void* dy, void* dx, int rows,
    int classes, float smoothing, int threads, int pieces, cudaStream_t stream);

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

static int type_of(const Tensor& x) {
    const auto type = x.scalar_type();
    return type == at::kFloat ? 0 : type == at::kHalf ? 1 : 2;
}

// `space`: what the backward pass needs of the rows, too.
static Tensor mean_loss(
    const Tensor& logits, const Tensor& target, double smoothing, int64_t threads, int64_t ahead, Tensor& space) {
    c10::cuda::CUDAGuard guard(logits.device());
    at::AutoDispatchBelowADInplaceOrView below;
    const int rows = (int)logits.size(0), classes = (int)logits.size(1);
    const int64_t pieces = pieces_of(classes * (int64_t)logits.element_size());
    space = at::empty(
        {3 * (int64_t)rows + 4 + (pieces > 1 ? 4 * pieces * rows : 0)}, logits.options().dtype(at::kFloat));
    Tensor out = at::empty({}, logits.options());
    launch_losses(
        type_of(logits), logits.const_data_ptr(), target.const_data_ptr<int64_t>(), space.mutable_data_ptr<float>(),
        out.mutable_data_ptr(), rows, classes, (float)smoothing, (int)threads, (int)ahead,
        c10::cuda::getCurrentCUDAStream());
    return out;
}

struct Loss : torch::autograd::Function<Loss> {
    static Tensor forward(
        AutogradContext* ctx, const Tensor& logits, const Tensor& target, double smoothing, int64_t threads,
        int64_t ahead, int64_t pieces) {
        const Tensor rows = logits.contiguous(), classes = target.contiguous();
        Tensor space, out = mean_loss(rows, classes, smoothing, threads, ahead, space);
        ctx->save_for_backward({rows, classes, space});
        ctx->saved_data["smoothing"] = smoothing;
        ctx->saved_data["threads"] = threads;
        ctx->saved_data["pieces"] = pieces;
        return out;
    }

    static variable_list backward(AutogradContext* ctx, const variable_list& slopes) {
        const variable_list saved = ctx->get_saved_variables();
        const Tensor &logits = saved[0], &target = saved[1], &space = saved[2], &dy = slopes[0];
        c10::cuda::CUDAGuard guard(logits.device());
        at::AutoDispatchBelowADInplaceOrView below;
        Tensor dx = at::empty_like(logits);
        if (dx.numel())
            launch_gradients(
                type_of(logits), logits.const_data_ptr(), target.const_data_ptr<int64_t>(),
                space.const_data_ptr<float>(), dy.const_data_ptr(), dx.mutable_data_ptr(), (int)logits.size(0),
                (int)logits.size(1), (float)ctx->saved_data["smoothing"].toDouble(),
                (int)ctx->saved_data["threads"].toInt(), (int)ctx->saved_data["pieces"].toInt(),
                c10::cuda::getCurrentCUDAStream());
        return {dx, Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
    }
};

Tensor cross_entropy(
    const Tensor& logits, const Tensor& target, double smoothing, int64_t threads, int64_t ahead, int64_t pieces) {
    TORCH_CHECK(logits.is_cuda() && target.device() == logits.device(), "tensors of one GPU");
    const auto type = logits.scalar_type();
    TORCH_CHECK(
        type == at::kFloat || type == at::kHalf || type == at::kBFloat16, "float32, float16 or bfloat16, not ", type);
    TORCH_CHECK(logits.dim() == 2 && logits.size(1) > 0, "rows of at least one class, not ", logits.sizes());
    TORCH_CHECK(
        target.scalar_type() == at::kLong && target.dim() == 1 && target.size(0) == logits.size(0),
        "one class for each of ", logits.size(0), " rows is needed, of type int64");
    // A block takes 16 KB of a row at least, and a grid 2^31 - 1 of them.
    const int64_t most = std::numeric_limits<int>::max();
    TORCH_CHECK(
        logits.size(1) <= most && logits.size(0) * (logits.size(1) / 4096 + 1) <= most, "too large: ", logits.sizes());
    if (at::GradMode::is_enabled() && logits.requires_grad())
        return Loss::apply(logits, target, smoothing, threads, ahead, pieces);
    Tensor space;
    return mean_loss(logits.contiguous(), target.contiguous(), smoothing, threads, ahead, space);
}
"""
extension = load_inline(
    name="cross_entropy",
    cpp_sources=[GLUE],
    cuda_sources=[KERNELS],
    functions=["cross_entropy"],
    extra_cflags=["-O2"],
    extra_cuda_cflags=["-O3"],
    no_implicit_headers=True,
)


class ModelNew(nn.Module):
    def __init__(self, smoothing=0.0):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits, target):
        return extension.cross_entropy(logits, target, self.smoothing, THREADS, AHEAD, PIECES)
