"""A thread has 8 vectors of 16 bytes under way, and mostly no more to do: a block of 256 is 32 KB of neighbouring
memory, whatever the rows' length. Short rows are a few lanes', longer ones a warp's to a block's; where rows are longer
than 128 KB, or few, their pieces of 32 KB are summed, and a second launch, made ready meanwhile, adds up the sums.

Bound by memory: one read. Blocks are launched in order and live shortly, so that no processor ends late, and what is
read at a time is one region: 528 blocks of 32 KB are 17 MB. The call is C++: small workloads wait for the host. Rows
that begin anywhere are read in whole vectors, too, and what stands before and after those by the element.
"""

from torch import nn
from torch.utils.cpp_extension import load_inline

TUNABLES = {"DEEP": [4, 8], "THREADS": [128, 256, 512], "WIDEST": [256, 512]}
CONSTRAINTS = ["THREADS <= WIDEST"]
DEEP = 8
"""Vectors that a thread has under way."""
THREADS = 256
"""Of a block, and of a piece of a row."""
WIDEST = 512
"""Threads that a row may have; such a block then."""

KERNELS = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
typedef long long i64;

__device__ __forceinline__ float wide(float value) { return value; }
__device__ __forceinline__ float wide(__half value) { return __half2float(value); }
__device__ __forceinline__ float wide(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ void narrow(float value, float* to) { *to = value; }
__device__ __forceinline__ void narrow(float value, __half* to) { *to = __float2half_rn(value); }
__device__ __forceinline__ void narrow(float value, __nv_bfloat16* to) { *to = __float2bfloat16_rn(value); }

// The second launch's blocks may come as soon as those of the first have all begun, and wait for their results.
__device__ __forceinline__ void let_follow() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// No load from a place that is known only afterwards can come before.
template <class T> __device__ __forceinline__ void wait_for_first(const T*& from) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" : "+l"(from) :: "memory");
#endif
}

// 16 bytes, or one element where rows of a few begin anywhere.
template <class T, int N> struct Loaded { typedef uint4 Type; };
template <class T> struct Loaded<T, 1> { typedef T Type; };
template <class T, int N> using Vector = typename Loaded<T, N>::Type;
template <class T, int N> __device__ __forceinline__ Vector<T, N> load(const T* from) {
    if constexpr (N > 1) return __ldcs((const uint4*)from);
    else return __ldg(from);
}
template <class T, int N> __device__ __forceinline__ void clear(Vector<T, N>& to) {
    if constexpr (N > 1) to = make_uint4(0, 0, 0, 0);
    else narrow(0.0f, &to);
}
// The compiler would add up each vector where it comes, two under way: all have come, for what it knows, at once.
__device__ __forceinline__ void pin(uint4& v) { asm volatile("" : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)); }
template <class V, int N> __device__ __forceinline__ void all_loaded(V (&of)[N]) {
    if constexpr (sizeof(V) == 16) {
        #pragma unroll
        for (int i = 0; i < N; i++) pin(of[i]);
    }
}
__device__ __forceinline__ float pair(unsigned of, float) { return __uint_as_float(of); }
__device__ __forceinline__ float pair(unsigned of, __half) {
    const float2 both = __half22float2(*(const __half2*)&of);
    return both.x + both.y;
}
__device__ __forceinline__ float pair(unsigned of, __nv_bfloat16) {
    return __uint_as_float(of << 16) + __uint_as_float(of & 0xffff0000u);
}
// By pairs: fewer additions wait for each other, and less is rounded.
template <class T, int N> __device__ __forceinline__ float total(const Vector<T, N>& of) {
    if constexpr (N > 1) return (pair(of.x, T()) + pair(of.y, T())) + (pair(of.z, T()) + pair(of.w, T()));
    else return wide(of);
}

// Rows of at most 32 vectors, each the next 1 << shift lanes': a warp's load is 32 vectors of neighbours. FULL: every
// lane has a vector.
template <class T, int N, bool FULL> __global__ void __launch_bounds__(512, 2) short_rows(
    const T* x, T* out, i64 rows, int vectors, int shift) {
    const int lanes = 1 << shift, lane = threadIdx.x % 32, column = lane & (lanes - 1), step = 32 >> shift;
    const i64 row = ((i64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * (DEEP * step) + (lane >> shift);
    const T* from = x + (row * vectors + column) * N;
    const int stride = FULL ? 32 * N : step * vectors * N;
    Vector<T, N> got[DEEP];
    if (row + (DEEP - 1) * step < rows && (FULL || column < vectors)) {
        #pragma unroll
        for (int i = 0; i < DEEP; i++) got[i] = load<T, N>(from + i * stride);
    } else {
        #pragma unroll
        for (int i = 0; i < DEEP; i++) {
            clear<T, N>(got[i]);
            if (row + i * step < rows && (FULL || column < vectors)) got[i] = load<T, N>(from + i * stride);
        }
    }
    float sum[DEEP];
    #pragma unroll
    for (int i = 0; i < DEEP; i++) sum[i] = total<T, N>(got[i]);
    // Each exchange leaves a lane half of the sums, of twice as many vectors: 8 rows of 32 lanes take 9, not 40.
    int first = 0, left = DEEP, apart = lanes;
    #pragma unroll
    for (int half = DEEP / 2; half; half /= 2) {
        apart /= 2;
        if (apart == 0) break;
        const bool upper = lane & apart;
        #pragma unroll
        for (int i = 0; i < half; i++) {
            const float other = upper ? sum[i] : sum[i + half];
            sum[i] = (upper ? sum[i + half] : sum[i]) + __shfl_xor_sync(0xffffffffu, other, apart);
        }
        first += upper ? half : 0;
        left = half;
    }
    const int alike = max(apart, 1);  // lanes of a row that still have parts of the same sum
    for (apart /= 2; apart; apart /= 2) sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], apart);
    if (column & (alike - 1)) return;
    #pragma unroll
    for (int i = 0; i < DEEP; i++)
        if (i < left && row + (first + i) * step < rows) narrow(sum[i], out + row + (first + i) * step);
}

// A unit is a row, or one of its pieces of `share` elements; it has 1 << shift threads, a warp at least.
template <class T, class O> __global__ void __launch_bounds__(512, 2) long_rows(
    const T* x, O* out, i64 units, i64 cols, i64 share, int pieces, int shift, bool second) {
    constexpr int N = 16 / sizeof(T);
    __shared__ float room[16];
    const int team = 1 << shift, lane = threadIdx.x & (team - 1);
    const i64 unit = (i64)blockIdx.x * (blockDim.x >> shift) + (threadIdx.x >> shift);
    i64 start = unit * cols, count = unit < units ? cols : 0;
    if (pieces > 1) {  // then a block's
        const int row = blockIdx.x / pieces, piece = blockIdx.x - row * pieces;
        start = row * cols + piece * share;
        count = min(share, cols - piece * share);
        let_follow();
    }
    if (second) wait_for_first(x);
    const T* from = x + start;
    const int before = (int)min(count, (i64)((16 - (size_t)from % 16) % 16 / sizeof(T)));
    const i64 vectors = (count - before) / N;
    const int after = (int)(count - before - vectors * N);
    const T* inner = from + before;
    Vector<T, 1> edge;
    clear<T, 1>(edge);
    if (lane < 8 ? lane < before : lane - 8 < after)
        edge = __ldcs(lane < 8 ? from + lane : inner + vectors * N + (lane - 8));
    float sum = 0.0f;
    // A warp's loads are neighbours, and their places constants.
    i64 v = (lane & ~31) * DEEP + (lane & 31);
    for (inner += v * N; v + (DEEP - 1) * 32 < vectors; v += DEEP * team, inner += DEEP * team * N) {
        Vector<T, N> got[DEEP];
        #pragma unroll
        for (int i = 0; i < DEEP; i++) got[i] = load<T, N>(inner + i * 32 * N);
        all_loaded(got);
        #pragma unroll
        for (int i = 0; i < DEEP; i++) sum += total<T, N>(got[i]);
    }
    if (v < vectors) {
        Vector<T, N> got[DEEP - 1];
        #pragma unroll
        for (int i = 0; i < DEEP - 1; i++) {
            clear<T, N>(got[i]);
            if (v + i * 32 < vectors) got[i] = load<T, N>(inner + i * 32 * N);
        }
        all_loaded(got);
        #pragma unroll
        for (int i = 0; i < DEEP - 1; i++) sum += total<T, N>(got[i]);
    }
    sum += wide(edge);
    #pragma unroll
    for (int apart = 16; apart; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
    if (team > 32) {
        if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = sum;
        __syncthreads();
        if (lane) return;
        sum = 0.0f;
        #pragma unroll 4
        for (int w = 0; w < team / 32; w++) sum += room[threadIdx.x / 32 + w];
    }
    if (lane == 0 && unit < units) narrow(sum, out + unit);
}

static i64 over(i64 value, i64 by) { return (value + by - 1) / by; }
static int log_of(i64 value) {  // rounded up
    int log = 0;
    while ((i64)1 << log < value) log++;
    return log;
}
static int team_of(i64 vectors, int most) {
    const int log = log_of(over(vectors, DEEP));
    return log < 5 ? 5 : log < log_of(most) ? log : log_of(most);
}
constexpr int LONGEST = 8192;  // vectors of a row in one piece: 128 KB
constexpr int FEW = 264;       // rows that leave processors without work

// Elements of a piece; all of a row where it is not cut.
static i64 share_of(int size, i64 rows, i64 cols) {
    const i64 vectors = cols * size / 16;
    return vectors > (rows < FEW ? LONGEST / 2 : LONGEST) ? (i64)THREADS * DEEP * 16 / size : cols;
}
i64 pieces_of(int size, i64 rows, i64 cols) {
    const i64 share = share_of(size, rows, cols);
    return share < cols ? over(cols, share) : 1;
}

template <class T, class O> static cudaError_t long_launch(
    const T* x, O* out, i64 rows, i64 cols, i64 share, i64 pieces, bool second, cudaStream_t stream) {
    const int shift = pieces > 1 ? log_of(THREADS) : team_of(cols * (int)sizeof(T) / 16, WIDEST);
    const int block = 1 << shift < THREADS ? THREADS : 1 << shift;
    cudaLaunchAttribute follows;
    follows.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    follows.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)over(rows * pieces, block >> shift));
    config.blockDim = dim3(block);
    config.stream = stream;
    config.attrs = &follows;
    config.numAttrs = second ? 1 : 0;
    return cudaLaunchKernelEx(
        &config, long_rows<T, O>, x, out, (i64)(rows * pieces), cols, share, (int)pieces, shift, second);
}
template <class T, int N> static cudaError_t short_launch(
    const T* x, T* out, i64 rows, int vectors, cudaStream_t stream) {
    const int shift = log_of(vectors);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)over(rows, (i64)DEEP * THREADS >> shift));
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    const auto kernel = 1 << shift == vectors ? short_rows<T, N, true> : short_rows<T, N, false>;
    return cudaLaunchKernelEx(&config, kernel, x, out, rows, vectors, shift);
}
template <class T> static cudaError_t sums(
    const void* from, void* to, float* parts, i64 rows, i64 cols, cudaStream_t stream) {
    constexpr int N = 16 / sizeof(T);
    const T* x = (const T*)from;
    T* out = (T*)to;
    if ((size_t)x % 16 == 0 && cols % N == 0 && cols <= 32 * N)
        return short_launch<T, N>(x, out, rows, (int)(cols / N), stream);
    if (cols <= 32) return short_launch<T, 1>(x, out, rows, (int)cols, stream);
    const i64 share = share_of(sizeof(T), rows, cols), pieces = pieces_of(sizeof(T), rows, cols);
    if (pieces == 1) return long_launch<T, T>(x, out, rows, cols, cols, 1, false, stream);
    const cudaError_t failed = long_launch<T, float>(x, parts, rows, cols, share, pieces, false, stream);
    return failed ? failed : long_launch<float, T>(parts, out, rows, pieces, pieces, 1, true, stream);
}
// `type`: float, half, bfloat16.
cudaError_t launch_sums(
    int type, const void* x, void* out, float* parts, i64 rows, i64 cols, cudaStream_t stream) {
    if (type == 0) return sums<float>(x, out, parts, rows, cols, stream);
    if (type == 1) return sums<__half>(x, out, parts, rows, cols, stream);
    return sums<__nv_bfloat16>(x, out, parts, rows, cols, stream);
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

using at::Tensor;
typedef long long i64;

i64 pieces_of(int size, i64 rows, i64 cols);
cudaError_t launch_sums(
    int type, const void* x, void* out, float* parts, i64 rows, i64 cols, cudaStream_t stream);

Tensor row_sums(const Tensor& given) {
    TORCH_CHECK(given.is_cuda(), "a tensor of a GPU");
    const auto type = given.scalar_type();
    TORCH_CHECK(
        type == at::kFloat || type == at::kHalf || type == at::kBFloat16, "float32, float16 or bfloat16, not ", type);
    TORCH_CHECK(given.dim() > 0, "rows are needed, not a number");
    const c10::cuda::CUDAGuard guard(given.device());
    const Tensor x = given.contiguous();
    const Tensor out = at::empty(x.sizes().slice(0, x.dim() - 1), x.options());
    const i64 rows = out.numel(), cols = x.size(-1);
    if (!rows) return out;
    const i64 pieces = pieces_of((int)x.element_size(), rows, cols);
    TORCH_CHECK(rows * pieces < (i64)1 << 31, "too many rows: ", x.sizes());
    Tensor parts;
    if (pieces > 1) parts = at::empty({rows, pieces}, x.options().dtype(at::kFloat));
    C10_CUDA_CHECK(launch_sums(
        type == at::kFloat ? 0 : type == at::kHalf ? 1 : 2, x.const_data_ptr(), out.mutable_data_ptr(),
        pieces > 1 ? (float*)parts.mutable_data_ptr() : nullptr, rows, cols, c10::cuda::getCurrentCUDAStream()));
    return out;
}
"""
row_sums = load_inline(
    name="reduce_sum_inner",
    cpp_sources=[GLUE],
    cuda_sources=[KERNELS],
    functions=["row_sums"],
    extra_cflags=["-O2"],
    extra_cuda_cflags=["-O3", f"-DDEEP={DEEP}", f"-DTHREADS={THREADS}", f"-DWIDEST={WIDEST}"],
    no_implicit_headers=True,
).row_sums


class ModelNew(nn.Module):
    def forward(self, x):
        return row_sums(x)
