"""A block reads up to 64 KB of a row of both tensors once, 64 KB in flight on a processor: maxima, sums and the cross
term by thread, merged at the end. What the pieces of a longer row have found is merged where the mean is made. Backward
reads both again, the last rows first, which are still in the L2 cache; the teacher is detached, and gets no gradient.
Autograd's part is C++, too, so that a small call does not wait for Python.

Bound by memory: 5 tensors of traffic, forward and backward. Two launches forward, one backward. The cross term is that
of exponents, not of logits: the maxima of both rows, which may be far apart, do not come into the loss.
"""

from torch import nn
from torch.utils.cpp_extension import load_inline

TUNABLES = {"THREADS": [256, 512], "AHEAD": [1, 2], "PIECES": [2, 4]}
THREADS = 256
AHEAD = 2
"""Vectors of 16 bytes of each tensor that a thread fetches while it adds up as many others, forward."""
PIECES = 2
"""Vectors of each tensor that a thread has, backward."""

KERNELS = r"""
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <stdexcept>
#include <stdint.h>
typedef unsigned int u32;
typedef long long i64;
#define INFINITE __int_as_float(0x7f800000)
constexpr float LN_2 = 0.693147181f;
constexpr float LOWEST = -1000.0f;  // of exponents: 2 to that power is zero, and a product with it no NaN

// A word holds one float or two 16-bit numbers; 2^x is good to its last bits only where the results are floats.
template <class T> struct Kind;
template <> struct Kind<float> {
    static constexpr u32 LEAST = 0xff800000u;
    static __device__ __forceinline__ float wide(float value) { return value; }
    static __device__ __forceinline__ float narrow(float value) { return value; }
    static __device__ __forceinline__ void unpack(u32 word, float* to) { to[0] = __uint_as_float(word); }
    static __device__ __forceinline__ u32 pack(const float* from) { return __float_as_uint(from[0]); }
    static __device__ __forceinline__ float power(float value) { return exp2f(value); }
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
    static __device__ __forceinline__ float power(float value) { return power_of_two(value); }
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
    static __device__ __forceinline__ float power(float value) { return power_of_two(value); }
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
// Elements before the first that lies at a multiple of 16 bytes, where all tensors begin at one.
template <class T> __device__ __forceinline__ int before_vectors(i64 start) {
    constexpr int LANES = 16 / sizeof(T);
    return (int)(-start & (LANES - 1));
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
// What is subtracted before 2^x: a maximum that is no number yet must not make NaN of -inf.
__device__ __forceinline__ float base_of(float top) { return top == -INFINITE ? 0.0f : top; }

// Of a logit, for powers of 2: its distance to the maximum times `unit`, log2(e) / temperature. Never fused into a sum:
// it is zero for the maximum, and two equal rows have no loss and no gradients.
__device__ __forceinline__ float exponent(float value, float base, float unit) { return __fmul_rn(value - base, unit); }

// Of the student (found) and the teacher (wanted) the highest logit and the sum of 2^exponent, and the sum of
// 2^wanted * (wanted - found), of exponents.
// fmaxf passes NaN over: 2^NaN brings it into a sum, so into the loss and all gradients of the row, as does inf - inf.
template <class T> struct Sums {
    float found_top, found, wanted_top, wanted, cross;
    static __device__ __forceinline__ Sums none() { return Sums{-INFINITE, 0.0f, -INFINITE, 0.0f, 0.0f}; }
    // To other maxima, which are not lower.
    __device__ __forceinline__ void move(float new_found, float new_wanted, float unit) {
        const float found_base = base_of(new_found), wanted_base = base_of(new_wanted);
        const float apart = (found_base - base_of(found_top)) - (wanted_base - base_of(wanted_top));
        const float kept = Kind<T>::power(exponent(wanted_top, wanted_base, unit));
        cross = fmaf(wanted, apart * unit, cross) * kept;
        wanted *= kept;
        found *= Kind<T>::power(exponent(found_top, found_base, unit));
        found_top = new_found, wanted_top = new_wanted;
    }
    // A student's and a teacher's logit, after `move`.
    __device__ __forceinline__ void add(float student, float teacher, float unit, float found_base, float wanted_base) {
        const float one = exponent(student, found_base, unit), other = exponent(teacher, wanted_base, unit);
        const float mass = Kind<T>::power(other);
        found += Kind<T>::power(one);
        wanted += mass;
        cross = fmaf(mass, fmaxf(other, LOWEST) - one, cross);
    }
    __device__ __forceinline__ void merge(const Sums& part, float unit) {
        Sums moved = part;
        const float found_most = fmaxf(found_top, part.found_top), wanted_most = fmaxf(wanted_top, part.wanted_top);
        move(found_most, wanted_most, unit), moved.move(found_most, wanted_most, unit);
        found += moved.found, wanted += moved.wanted, cross += moved.cross;
    }
    __device__ __forceinline__ void merge_warp(float unit) {
        move(most_of_warp(found_top), most_of_warp(wanted_top), unit);
        found = sum_of_warp(found), wanted = sum_of_warp(wanted), cross = sum_of_warp(cross);
    }
    __device__ __forceinline__ float loss() const { return LN_2 * (cross / wanted) + logf(found / wanted); }
    // What backward needs.
    __device__ __forceinline__ float4 shares() const {
        return float4{found_top, 1.0f / found, wanted_top, 1.0f / wanted};
    }
};

// What the launches of a call leave for each other: of each row its maxima and the inverses of its sums, and its loss;
// or, if rows have several pieces, maxima and sums of each, and its cross term.
struct Space { float4 *stats, *parts; float* crosses; };
__host__ __device__ __forceinline__ Space space_of(float* space, i64 rows, int pieces) {
    float4* parts = (float4*)space + rows;
    return Space{(float4*)space, parts, (float*)(parts + (pieces > 1 ? rows * pieces : 0))};
}

// A block has one of a row's `pieces`, `share` vectors, and the first one what is before and after the vectors, too.
template <class T, int THREADS, int AHEAD>
__global__ void __launch_bounds__(THREADS, (AHEAD == 1 ? 1536 : 1024) / THREADS) row_losses(
    const T* student, const T* teacher, Space space, int classes, int pieces, int share, float unit) {
    constexpr int LANES = 16 / sizeof(T), WARPS = THREADS / 32;
    const int piece = blockIdx.x % pieces;
    const i64 start = (i64)(blockIdx.x / pieces) * classes;
    student += start, teacher += start;
    const int head = min(classes, before_vectors<T>(start)), all = (classes - head) / LANES;
    const int vectors = min(share, all - piece * share), edge = piece ? 0 : classes - all * LANES;
    const uint4* ours = (const uint4*)(student + head) + piece * share;
    const uint4* theirs = (const uint4*)(teacher + head) + piece * share;
    const uint4 least = {Kind<T>::LEAST, Kind<T>::LEAST, Kind<T>::LEAST, Kind<T>::LEAST};
    uint4 next[2][AHEAD];
    auto fetch = [&](int first) {
        #pragma unroll
        for (int p = 0; p < AHEAD; p++) {
            const int i = first + p * THREADS;
            next[0][p] = i < vectors ? ours[i] : least, next[1][p] = i < vectors ? theirs[i] : least;
        }
    };
    fetch(threadIdx.x);
    Sums<T> mine = Sums<T>::none();
    if ((int)threadIdx.x < edge) {  // before the first vector and after the last
        const int column = threadIdx.x < head ? threadIdx.x : threadIdx.x + all * LANES;
        const float one = Kind<T>::wide(student[column]), other = Kind<T>::wide(teacher[column]);
        mine.move(fmaxf(-INFINITE, one), fmaxf(-INFINITE, other), unit);
        mine.add(one, other, unit, base_of(mine.found_top), base_of(mine.wanted_top));
    }
    for (int first = threadIdx.x; first < vectors; first += AHEAD * THREADS) {
        float one[AHEAD][LANES], other[AHEAD][LANES], found_top = mine.found_top, wanted_top = mine.wanted_top;
        #pragma unroll
        for (int p = 0; p < AHEAD; p++) {
            unpack<T>(next[0][p], one[p]), unpack<T>(next[1][p], other[p]);
            #pragma unroll
            for (int k = 0; k < LANES; k++) {
                found_top = fmaxf(found_top, one[p][k]), wanted_top = fmaxf(wanted_top, other[p][k]);
            }
        }
        fetch(first + AHEAD * THREADS);
        mine.move(found_top, wanted_top, unit);
        const float found_base = base_of(found_top), wanted_base = base_of(wanted_top);
        #pragma unroll
        for (int p = 0; p < AHEAD; p++) {
            if (first + p * THREADS >= vectors) break;
            Sums<T> part = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
            #pragma unroll
            for (int k = 0; k < LANES; k++) part.add(one[p][k], other[p][k], unit, found_base, wanted_base);
            mine.found += part.found, mine.wanted += part.wanted, mine.cross += part.cross;
        }
    }
    __shared__ Sums<T> parts[WARPS];
    const int lane = threadIdx.x % 32;
    mine.merge_warp(unit);
    if (lane == 0) parts[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    mine = lane < WARPS ? parts[lane] : Sums<T>::none();
    mine.merge_warp(unit);
    if (lane) return;
    if (pieces > 1) {
        space.parts[blockIdx.x] = float4{mine.found_top, mine.found, mine.wanted_top, mine.wanted};
        space.crosses[blockIdx.x] = mine.cross;
    } else {
        space.stats[blockIdx.x] = mine.shares();
        space.crosses[blockIdx.x] = mine.loss();
    }
}

template <class T> __global__ void __launch_bounds__(1024) mean_loss(
    Space space, T* out, int rows, int pieces, float unit, float factor) {
    float total = 0.0f;
    if (pieces == 1) {
        #pragma unroll 4
        for (int row = threadIdx.x; row < rows; row += 1024) total += space.crosses[row];
    } else {
        for (int row = threadIdx.x; row < rows; row += 1024) {
            Sums<T> all = Sums<T>::none();
            #pragma unroll 4
            for (int p = 0; p < pieces; p++) {
                const i64 at = (i64)row * pieces + p;
                const float4 part = space.parts[at];
                all.merge(Sums<T>{part.x, part.y, part.z, part.w, space.crosses[at]}, unit);
            }
            total += all.loss();
            space.stats[row] = all.shares();
        }
    }
    __shared__ float totals[32];
    total = sum_of_warp(total);
    if (threadIdx.x % 32 == 0) totals[threadIdx.x / 32] = total;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    total = sum_of_warp(totals[threadIdx.x]);
    if (threadIdx.x == 0) *out = Kind<T>::narrow(total * factor);
}

// A block has PIECES * THREADS vectors of a row.
template <class T, int THREADS, int PIECES>
__global__ void __launch_bounds__(THREADS, (PIECES > 2 ? 1024 : 1536) / THREADS) row_gradients(
    const T* student, const T* teacher, const float4* stats, const T* dy, T* dx, int classes, int chunks, float unit,
    float factor) {
    constexpr int LANES = 16 / sizeof(T);
    const u32 number = gridDim.x - 1 - blockIdx.x;
    const i64 row = number / chunks, start = row * classes;
    const int chunk = number % chunks, first = chunk * PIECES * THREADS + threadIdx.x;
    student += start, teacher += start, dx += start;
    const int head = min(classes, before_vectors<T>(start)), vectors = (classes - head) / LANES;
    const uint4 *ours = (const uint4*)(student + head), *theirs = (const uint4*)(teacher + head);
    uint4 found[PIECES], wanted[PIECES];
    #pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const int i = first + p * THREADS;
        if (i < vectors) found[p] = __ldcs(ours + i), wanted[p] = __ldcs(theirs + i);
    }
    const float4 of = stats[row];
    const float slope = Kind<T>::wide(*dy) * factor;
    auto gradient = [&](float one, float other) {
        const float share = __fmul_rn(Kind<T>::power(exponent(one, of.x, unit)), of.y);
        return (share - __fmul_rn(Kind<T>::power(exponent(other, of.z, unit)), of.w)) * slope;
    };
    #pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const int i = first + p * THREADS;
        if (i >= vectors) break;
        float one[LANES], other[LANES];
        unpack<T>(found[p], one), unpack<T>(wanted[p], other);
        #pragma unroll
        for (int k = 0; k < LANES; k++) one[k] = gradient(one[k], other[k]);
        __stcs((uint4*)(dx + head) + i, pack<T>(one));
    }
    const int i = chunk * THREADS + threadIdx.x;  // before the first vector and after the last
    if (i >= classes - vectors * LANES) return;
    const int column = i < head ? i : i + vectors * LANES;
    dx[column] = Kind<T>::narrow(gradient(Kind<T>::wide(student[column]), Kind<T>::wide(teacher[column])));
}

static void launched() {
    const cudaError_t code = cudaGetLastError();
    if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}

struct Losses {
    const void *student, *teacher;
    float* space;
    void* out;
    int rows, classes, pieces;
    float unit, factor;
    cudaStream_t stream;
};
constexpr i64 LONGEST = 64 << 10;  // of a piece, in bytes: 34 MB of neighbours in each tensor for all that are at work
int64_t pieces_of(int64_t row_bytes) { return row_bytes <= LONGEST ? 1 : (row_bytes + LONGEST - 1) / LONGEST; }

template <class T, int THREADS, int AHEAD> static void losses_of(const Losses& l) {
    const int share = (int)((l.classes * (i64)sizeof(T) / 16 + l.pieces - 1) / l.pieces);
    row_losses<T, THREADS, AHEAD><<<l.rows * l.pieces, THREADS, 0, l.stream>>>(
        (const T*)l.student, (const T*)l.teacher, space_of(l.space, l.rows, l.pieces), l.classes, l.pieces, share,
        l.unit);
}
template <class T> static void losses_of(const Losses& l, int threads, int ahead) {
    if (l.rows) {
        if (threads == 256) ahead == 1 ? losses_of<T, 256, 1>(l) : losses_of<T, 256, 2>(l);
        else ahead == 1 ? losses_of<T, 512, 1>(l) : losses_of<T, 512, 2>(l);
        launched();
    }
    mean_loss<T><<<1, 1024, 0, l.stream>>>(
        space_of(l.space, l.rows, l.pieces), (T*)l.out, l.rows, l.pieces, l.unit, l.factor);
    launched();
}

struct Gradients {
    const void *student, *teacher;
    const float* space;
    const void* dy;
    void* dx;
    int rows, classes;
    float unit, factor;
    cudaStream_t stream;
};
template <class T, int THREADS, int PIECES> static void gradients_of(const Gradients& g) {
    const i64 chunk = 16 * PIECES * THREADS;
    const int chunks = (int)((g.classes * (i64)sizeof(T) + chunk - 1) / chunk);
    row_gradients<T, THREADS, PIECES><<<g.rows * chunks, THREADS, 0, g.stream>>>(
        (const T*)g.student, (const T*)g.teacher, (const float4*)g.space, (const T*)g.dy, (T*)g.dx, g.classes, chunks,
        g.unit, g.factor);
}
template <class T> static void gradients_of(const Gradients& g, int threads, int pieces) {
    if (threads == 256) pieces == 2 ? gradients_of<T, 256, 2>(g) : gradients_of<T, 256, 4>(g);
    else pieces == 2 ? gradients_of<T, 512, 2>(g) : gradients_of<T, 512, 4>(g);
    launched();
}

// `type`: float, half, bfloat16.
void launch_losses(
    int type, const void* student, const void* teacher, float* space, void* out, int rows, int classes, int pieces,
    float unit, float factor, int threads, int ahead, cudaStream_t stream) {
    const Losses call = {student, teacher, space, out, rows, classes, pieces, unit, factor, stream};
    if (type == 0) losses_of<float>(call, threads, ahead);
    else if (type == 1) losses_of<__half>(call, threads, ahead);
    else losses_of<__nv_bfloat16>(call, threads, ahead);
}
void launch_gradients(
    int type, const void* student, const void* teacher, const float* space, const void* dy, void* dx, int rows,
    int classes, float unit, float factor, int threads, int pieces, cudaStream_t stream) {
    const Gradients call = {student, teacher, space, dy, dx, rows, classes, unit, factor, stream};
    if (type == 0) gradients_of<float>(call, threads, pieces);
    else if (type == 1) gradients_of<__half>(call, threads, pieces);
    else gradients_of<__nv_bfloat16>(call, threads, pieces);
}
"""

GLUE = r"""
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/utils/pybind.h>
#include <limits>

int64_t pieces_of(int64_t row_bytes);
void launch_losses(
    int type, const void* student, const void* teacher, float* space, void* out, int rows, int classes, int pieces,
    float unit, float factor, int threads, int ahead, cudaStream_t stream);
void launch_gradients(
    int type, const void* student, const void* teacher, const float* space, const void* dy, void* dx, int rows,
    int classes, float unit, float factor, int threads, int pieces, cudaStream_t stream);

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

static Tensor aligned(const Tensor& given) {
    const Tensor x = given.contiguous();
    return (uintptr_t)x.const_data_ptr() % 16 ? x.clone() : x;
}
static int type_of(const Tensor& x) {
    const auto type = x.scalar_type();
    return type == at::kFloat ? 0 : type == at::kHalf ? 1 : 2;
}
// By what a logit is multiplied to be an exponent of 2.
static float unit_of(double temperature) { return (float)(1.4426950408889634 / temperature); }

// `space`: what the backward pass needs of the rows, too. No rows have no mean: 0 * inf, as in torch.
static Tensor mean_loss(
    const Tensor& student, const Tensor& teacher, double temperature, int64_t threads, int64_t ahead, Tensor& space) {
    c10::cuda::CUDAGuard guard(student.device());
    at::AutoDispatchBelowADInplaceOrView below;
    const int64_t rows = student.size(0), classes = student.size(1);
    const int64_t pieces = pieces_of(classes * (int64_t)student.element_size());
    space = at::empty({rows * (pieces > 1 ? 4 + 5 * pieces : 5)}, student.options().dtype(at::kFloat));
    Tensor out = at::empty({}, student.options());
    launch_losses(
        type_of(student), student.const_data_ptr(), teacher.const_data_ptr(), space.mutable_data_ptr<float>(),
        out.mutable_data_ptr(), (int)rows, (int)classes, (int)pieces, unit_of(temperature),
        (float)(temperature * temperature / (double)rows), (int)threads, (int)ahead,
        c10::cuda::getCurrentCUDAStream());
    return out;
}

struct Loss : torch::autograd::Function<Loss> {
    static Tensor forward(
        AutogradContext* ctx, const Tensor& student, const Tensor& teacher, double temperature, int64_t threads,
        int64_t ahead, int64_t pieces) {
        const Tensor ours = aligned(student), theirs = aligned(teacher);
        Tensor space, out = mean_loss(ours, theirs, temperature, threads, ahead, space);
        ctx->save_for_backward({ours, theirs, space});
        ctx->saved_data["temperature"] = temperature;
        ctx->saved_data["threads"] = threads;
        ctx->saved_data["pieces"] = pieces;
        return out;
    }

    static variable_list backward(AutogradContext* ctx, const variable_list& slopes) {
        const variable_list saved = ctx->get_saved_variables();
        const Tensor &student = saved[0], &teacher = saved[1], &space = saved[2], &dy = slopes[0];
        c10::cuda::CUDAGuard guard(student.device());
        at::AutoDispatchBelowADInplaceOrView below;
        const double temperature = ctx->saved_data["temperature"].toDouble();
        const int64_t rows = student.size(0);
        Tensor dx = at::empty(student.sizes(), student.options());
        if (rows)
            launch_gradients(
                type_of(student), student.const_data_ptr(), teacher.const_data_ptr(), space.const_data_ptr<float>(),
                dy.const_data_ptr(), dx.mutable_data_ptr(), (int)rows, (int)student.size(1), unit_of(temperature),
                (float)(temperature / (double)rows), (int)ctx->saved_data["threads"].toInt(),
                (int)ctx->saved_data["pieces"].toInt(), c10::cuda::getCurrentCUDAStream());
        return {dx, Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
    }
};

Tensor kl_div_distillation(
    const Tensor& student, const Tensor& teacher, double temperature, int64_t threads, int64_t ahead, int64_t pieces) {
    TORCH_CHECK(student.is_cuda() && teacher.device() == student.device(), "tensors of one GPU");
    const auto type = student.scalar_type();
    TORCH_CHECK(
        type == at::kFloat || type == at::kHalf || type == at::kBFloat16, "float32, float16 or bfloat16, not ", type);
    TORCH_CHECK(
        teacher.scalar_type() == type && teacher.sizes() == student.sizes() && student.dim() == 2 &&
            student.size(1) > 0,
        "two alike of rows of at least one class, not ", type, " ", student.sizes(), " and ", teacher.scalar_type(),
        " ", teacher.sizes());
    TORCH_CHECK(temperature > 0.0, "temperatures above zero, not ", temperature);
    // A block takes 8 KB of a row at least, and a grid 2^31 - 1 of them.
    const int64_t most = std::numeric_limits<int>::max();
    TORCH_CHECK(
        student.size(1) <= most / 2 && student.size(0) * (student.size(1) / 2048 + 1) <= most, "too large: ",
        student.sizes());
    // The student's alone: a teacher that is being trained is not to be reached from here.
    const Tensor fixed = teacher.requires_grad() ? teacher.detach() : teacher;
    if (at::GradMode::is_enabled() && student.requires_grad())
        return Loss::apply(student, fixed, temperature, threads, ahead, pieces);
    Tensor space;
    return mean_loss(aligned(student), aligned(fixed), temperature, threads, ahead, space);
}
"""
extension = load_inline(
    name="kl_div_distillation",
    cpp_sources=[GLUE],
    cuda_sources=[KERNELS],
    functions=["kl_div_distillation"],
    extra_cflags=["-O2"],
    extra_cuda_cflags=["-O3"],
    no_implicit_headers=True,
)


class ModelNew(nn.Module):
    def __init__(self, temperature=2.0):
        super().__init__()
        self.temperature = temperature

    def forward(self, student, teacher):
        return extension.kl_div_distillation(student, teacher, self.temperature, THREADS, AHEAD, PIECES)
