"""A block has 32 features and walks down the rows. It holds their borders in shared memory, a feature to a bank: so a
warp's lanes, a feature each, read wherever their searches lead them without waiting for one another. Features are
filled up with infinities to the most borders that one of them has, and all lanes halve alike, without branches, seven
times for 64 borders. Features of more than 256 borders are searched where they lie. One launch, and one call of C++, as
small workloads wait for the host. Bound by memory: 4 bytes in and 8 out.
"""

from torch import nn
from torch.utils.cpp_extension import load_inline

TUNABLES = {"THREADS": [256, 512], "ITEMS": [2, 4, 8], "RESIDENT": [1024, 1536]}
THREADS = 512
"""Of a block."""
ITEMS = 4
"""Rows that a thread searches for together."""
RESIDENT = 1024
"""Threads of a multiprocessor."""

KERNELS = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
typedef unsigned u32;
typedef long long i64;

constexpr u32 ALL = 0xffffffffu;
constexpr int COLS = 32;   // features of a block
constexpr int ROOM = 256;  // borders of a feature in shared memory, at most
constexpr int WARPS = THREADS / 32, ROWS = WARPS * ITEMS;

__device__ __forceinline__ float wide(float value) { return value; }
__device__ __forceinline__ float wide(__half value) { return __half2float(value); }
__device__ __forceinline__ float wide(__nv_bfloat16 value) { return __bfloat162float(value); }

// Where Python begins or ends a slice of a list of `length`.
__device__ __forceinline__ i64 cut(i64 at, i64 length) {
    if (at < 0) at = max(at + length, (i64)0);
    return min(at, length);
}

// `total`: of all borders. Neighbouring blocks have neighbouring features of the same rows. At: 32 bits where all
// places of the matrix fit into them, as 64 cost several instructions for each.
template <class T, class At> __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS) merge(
    const T* dense, const T* borders, const i64* offsets, i64* out, i64 rows, i64 features, i64 total, int strips) {
    __shared__ float table[ROOM * COLS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 feature = (i64)(blockIdx.x % strips) * COLS + lane;
    const bool real = feature < features;
    const i64 step = (i64)(gridDim.x / strips) * ROWS;
    i64 row = (i64)(blockIdx.x / strips) * ROWS + warp;
    const At pitch = (At)(WARPS * features), leap = (At)(step * features);
    At place = (At)(row * features + feature), coming = place;  // the second is of what is read ahead
    float next[ITEMS];
    // How many rows there are from the thread's first one of a tile on, if any. It has one in WARPS of them.
    const auto left = [&] { return real ? (int)min(rows - row, (i64)ROWS) : 0; };
    const auto read = [&](int some) {
        #pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            next[i] = 0.0f;
            if (i * WARPS < some) next[i] = wide(__ldcs(dense + (At)(coming + i * pitch)));
        }
    };
    const i64 start = real ? __ldg(offsets + feature) : 0, end = real ? __ldg(offsets + feature + 1) : 0;
    int there = left();
    read(there);
    const i64 begin = cut(start, total), count = max(cut(end, total) - begin, (i64)0);
    const int most = (int)__reduce_max_sync(ALL, (u32)min(count, (i64)ROOM + 1));
    if (most <= ROOM) {
        // A warp brings four borders of each of its eight features at a time, and BATCH such pieces are under way.
        constexpr int BATCH = 4;
        const int column = warp % 4 * 8 + lane / 4;
        const i64 bring = __shfl_sync(ALL, begin, column);
        const int full = __shfl_sync(ALL, (int)count, column);
        for (int first = warp / 4 * 4 + lane % 4; first < most; first += BATCH * WARPS) {
            float got[BATCH];
            #pragma unroll
            for (int b = 0; b < BATCH; b++) {
                got[b] = __int_as_float(0x7f800000);
                if (first + b * WARPS < full) got[b] = wide(__ldg(borders + bring + first + b * WARPS));
            }
            #pragma unroll
            for (int b = 0; b < BATCH; b++)
                if (first + b * WARPS < most) table[(first + b * WARPS) * COLS + column] = got[b];
        }
        __syncthreads();
    }
    const i64 offset = start + feature;
    const int half = most < 1 ? 0 : 1 << (31 - __clz(most));
    constexpr u32 APART = COLS * sizeof(float);  // bytes from a border to the next one
    const auto border = [&](u32 at) { return *(const float*)((const char*)table + at); };
    while (there > 0) {
        const int here = there;
        float x[ITEMS];
        #pragma unroll
        for (int i = 0; i < ITEMS; i++) x[i] = next[i];
        row += step, coming += leap;
        there = left();
        read(there);
        // "Not at or above" and not "below": NaN is beyond all borders, as torch.bucketize has it.
        if (most > ROOM) {
            #pragma unroll
            for (int i = 0; i < ITEMS; i++) {
                i64 low = 0, high = i * WARPS < here ? count : 0;
                while (low < high) {
                    const i64 middle = low + (high - low) / 2;
                    if (!(wide(__ldg(borders + begin + middle)) >= x[i])) low = middle + 1;
                    else high = middle;
                }
                if (i * WARPS < here) __stcs(out + (At)(place + i * pitch), offset + low);
            }
        } else {
            u32 at[ITEMS];  // bytes to the first border that may be at or above, behind the lane's first one
            #pragma unroll
            for (int i = 0; i < ITEMS; i++) at[i] = lane * sizeof(float);
            if (most) {
                // Of the first and the last `half - 1` borders, one stretch has the end that is looked for.
                const float middle = border(at[0] + (half - 1) * APART);
                #pragma unroll
                for (int i = 0; i < ITEMS; i++)
                    if (!(middle >= x[i])) at[i] += (most - half + 1) * APART;
                for (u32 some = half / 2 * APART; some >= APART; some /= 2) {
                    #pragma unroll
                    for (int i = 0; i < ITEMS; i++)
                        if (!(border(at[i] + some - APART) >= x[i])) at[i] += some;
                }
            }
            #pragma unroll
            for (int i = 0; i < ITEMS; i++)
                if (i * WARPS < here)
                    __stcs(out + (At)(place + i * pitch), offset + min((int)(at[i] / APART), (int)count));
        }
        place += leap;
    }
}

template <class T> static cudaError_t launch(
    const void* dense, const void* borders, const i64* offsets, i64* out, i64 rows, i64 features, i64 total,
    int processors, cudaStream_t stream) {
    const i64 strips = (features + COLS - 1) / COLS, tiles = (rows + ROWS - 1) / ROWS;
    const i64 resident = (i64)processors * (RESIDENT / THREADS), most = resident > strips ? resident / strips : 1;
    const i64 rounds = (tiles + most - 1) / most, blocks = (tiles + rounds - 1) / rounds;
    cudaLaunchConfig_t config = {};
    config.stream = stream, config.gridDim = dim3((u32)(strips * blocks)), config.blockDim = dim3(THREADS);
    const auto kernel = rows * features < (i64)1 << 32 ? merge<T, u32> : merge<T, i64>;
    return cudaLaunchKernelEx(
        &config, kernel, (const T*)dense, (const T*)borders, offsets, out, rows, features, total, (int)strips);
}
cudaError_t merge_launch(
    char type, const void* dense, const void* borders, const i64* offsets, i64* out, i64 rows, i64 features, i64 total,
    int device, cudaStream_t stream) {
    static int found[128];
    if (!found[device]) cudaDeviceGetAttribute(&found[device], cudaDevAttrMultiProcessorCount, device);
    const auto chosen = type == 'h' ? launch<__half> : type == 'b' ? launch<__nv_bfloat16> : launch<float>;
    return chosen(dense, borders, offsets, out, rows, features, total, found[device], stream);
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
#include <limits>

using at::Tensor;
typedef long long i64;

cudaError_t merge_launch(
    char type, const void* dense, const void* borders, const i64* offsets, i64* out, i64 rows, i64 features, i64 total,
    int device, cudaStream_t stream);

Tensor merge(const Tensor& of_dense, const Tensor& of_borders, const Tensor& of_offsets) {
    const auto type = of_dense.scalar_type(), kind = of_offsets.scalar_type();
    TORCH_CHECK(of_dense.is_cuda() && of_borders.device() == of_dense.device() &&
                    of_offsets.device() == of_dense.device(),
                "tensors of one GPU are needed, not of ", of_dense.device(), ", ", of_borders.device(), " and ",
                of_offsets.device());
    TORCH_CHECK((type == at::kFloat || type == at::kHalf || type == at::kBFloat16) &&
                    of_borders.scalar_type() == type && (kind == at::kLong || kind == at::kInt),
                "features and borders of one type of float32, float16 and bfloat16, and int64 offsets, not ", type,
                ", ", of_borders.scalar_type(), " and ", kind);
    TORCH_CHECK(of_dense.dim() == 2 && of_borders.dim() == 1 && of_offsets.dim() == 1, "a matrix and two lists, not ",
                of_dense.sizes(), ", ", of_borders.sizes(), " and ", of_offsets.sizes());
    const i64 rows = of_dense.size(0), features = of_dense.size(1), total = of_borders.size(0);
    TORCH_CHECK(features && of_offsets.size(0) > features, "at least one feature, and where the borders of each begin ",
                "and end, not ", of_dense.sizes(), " and ", of_offsets.sizes());
    TORCH_CHECK(features < (i64)32 * std::numeric_limits<int>::max(), "too many features: ", features);
    const c10::cuda::CUDAGuard guard(of_dense.device());
    const Tensor offsets = (kind == at::kLong ? of_offsets : of_offsets.to(at::kLong)).contiguous();
    const Tensor dense = of_dense.contiguous(), borders = of_borders.contiguous();
    const Tensor out = at::empty({rows, features}, offsets.options());
    if (!rows) return out;
    const int device = of_dense.device().index();
    C10_CUDA_CHECK(merge_launch(
        type == at::kHalf ? 'h' : type == at::kBFloat16 ? 'b' : 'f', dense.const_data_ptr(), borders.const_data_ptr(),
        (const i64*)offsets.const_data_ptr(), (i64*)out.mutable_data_ptr(), rows, features, total, device,
        c10::cuda::getCurrentCUDAStream(device)));
    return out;
}
"""
merge = load_inline(
    name="merge_bucketized_dense",
    cpp_sources=[GLUE],
    cuda_sources=[KERNELS],
    functions=["merge"],
    extra_cflags=["-O2"],
    extra_cuda_cflags=["-O3", f"-DTHREADS={THREADS}", f"-DITEMS={ITEMS}", f"-DRESIDENT={RESIDENT}"],
    no_implicit_headers=True,
).merge


class ModelNew(nn.Module):
    def forward(self, dense, borders, offsets):
        return merge(dense, borders, offsets)
