"""Two launches over one partition of the flat buffer, in which a block has neighbouring tiles. The first leaves a sum
of squares for each block and tensor that meet, walking both along the buffer, so that no two have the same place and no
place is left out: hardly more sums than blocks and tensors. In the second each block adds all of them up by itself, in
the same order, and scales its tiles from the last to the first, as L2 holds the last ones still; its first loads are
under way while the sums are waited for. It makes the norms at its end. No atomics. One call of C++, as small workloads
wait for the host. Bound by memory: 3 tensors of traffic, 16 bytes at a time.
"""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

TUNABLES = {"ITEMS": [2, 4], "THREADS": [128, 256, 512], "RESIDENT": [1024, 1280, 1536]}
CONSTRAINTS = ["RESIDENT % THREADS == 0", "ITEMS * RESIDENT <= 5120"]
ITEMS = 4
"""Vectors of 16 bytes that a thread has under way."""
THREADS = 256
"""Of a block."""
RESIDENT = 1024
"""Threads of a multiprocessor."""

INSTRUCTIONS = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
typedef unsigned int u32;
typedef long long i64;

// Blocks of the next kernel may begin; and the one before has ended, its writes seen.
__device__ __forceinline__ void next_may_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void previous_ended() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
"""

KERNELS = r"""
__device__ __forceinline__ float wide(float value) { return value; }
__device__ __forceinline__ float wide(__half value) { return __half2float(value); }
__device__ __forceinline__ float wide(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ void narrow(float value, float& to) { to = value; }
__device__ __forceinline__ void narrow(float value, __half& to) { to = __float2half_rn(value); }
__device__ __forceinline__ void narrow(float value, __nv_bfloat16& to) { to = __float2bfloat16_rn(value); }

constexpr unsigned ALL = 0xffffffffu;
constexpr int WARPS = THREADS / 32, BLOCKS = RESIDENT / THREADS;

template <class T> struct Word;  // one float or two 16-bit numbers
template <> struct Word<float> {
    typedef u32 Bits;
    static __device__ __forceinline__ void unpack(u32 word, float* to) { to[0] = __uint_as_float(word); }
    static __device__ __forceinline__ u32 pack(const float* from) { return __float_as_uint(from[0]); }
};
template <> struct Word<__half> {
    typedef unsigned short Bits;
    static __device__ __forceinline__ void unpack(u32 word, float* to) {
        const float2 pair = __half22float2(*(const __half2*)&word);
        to[0] = pair.x, to[1] = pair.y;
    }
    static __device__ __forceinline__ u32 pack(const float* from) {
        const __half2 pair = __floats2half2_rn(from[0], from[1]);
        return *(const u32*)&pair;
    }
};
template <> struct Word<__nv_bfloat16> {
    typedef unsigned short Bits;
    static __device__ __forceinline__ void unpack(u32 word, float* to) {
        to[0] = __uint_as_float(word << 16), to[1] = __uint_as_float(word & 0xffff0000u);
    }
    static __device__ __forceinline__ u32 pack(const float* from) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(from[0], from[1]);
        return *(const u32*)&pair;
    }
};

// What a thread loads and stores at once: 16 bytes, or one element where the gradients do not begin at 16 bytes.
template <class T> struct Vector {
    typedef typename Word<T>::Bits Bits;
    static constexpr int LANES = 16 / sizeof(T), PER = 4 / sizeof(T), EACH = ITEMS;
    u32 word[4];
    __device__ __forceinline__ void load(const T* from, bool again) {
        const uint4 all = again ? __ldg((const uint4*)from) : __ldcs((const uint4*)from);
        word[0] = all.x, word[1] = all.y, word[2] = all.z, word[3] = all.w;
    }
    // With zeros behind the last gradient. One vector of all has such: it may take its time, but no registers.
    __device__ __forceinline__ void load_first(const T* from, i64 left, bool again) {
        if (left >= LANES) return load(from, again);
        word[0] = word[1] = word[2] = word[3] = 0;
        #pragma unroll 1
        for (int k = 0; k < (int)left; k++) {
            const u32 one = (u32)((const Bits*)from)[k] << k % PER * 16;
            #pragma unroll
            for (int w = 0; w < 4; w++) word[w] |= k / PER == w ? one : 0;
        }
    }
    __device__ __forceinline__ void get(int w, float* to) const { Word<T>::unpack(word[w], to); }
    __device__ __forceinline__ void set(int w, const float* from) { word[w] = Word<T>::pack(from); }
    __device__ __forceinline__ void store(T* to) const {
        __stcs((uint4*)to, uint4{word[0], word[1], word[2], word[3]});
    }
};
template <class T> struct Single {
    static constexpr int LANES = 1, PER = 1, EACH = 8;
    T value;
    __device__ __forceinline__ void load(const T* from, bool) { value = *from; }
    __device__ __forceinline__ void load_first(const T* from, i64 left, bool) {
        if (left > 0) value = *from;
        else narrow(0.0f, value);
    }
    __device__ __forceinline__ void get(int, float* to) const { to[0] = wide(value); }
    __device__ __forceinline__ void set(int, const float* from) { narrow(from[0], value); }
    __device__ __forceinline__ void store(T* to) const { *to = value; }
};

// A thread's part of a tile: so many pieces, with those of the other threads between them.
template <class T, class Piece> struct Part {
    static constexpr int LANES = Piece::LANES, PER = Piece::PER, EACH = Piece::EACH;
    static constexpr int STRIDE = THREADS * LANES, TILE = STRIDE * EACH;
    Piece piece[EACH];

    // `again`: the gradients are wanted once more.
    __device__ __forceinline__ void load(const T* grads, i64 tile, i64 count, bool again) {
        const i64 start = tile * TILE, begin = start + (int)threadIdx.x * LANES;
        if (start + TILE <= count) {
            #pragma unroll
            for (int j = 0; j < EACH; j++) piece[j].load(grads + begin + j * STRIDE, again);
        } else {
            #pragma unroll
            for (int j = 0; j < EACH; j++)
                piece[j].load_first(grads + begin + j * STRIDE, count - begin - j * STRIDE, again);
        }
    }
    // Of all elements, or of those from `low` up to `high`, counted from the tile's first. Chains of sums that do not
    // wait for one another.
    template <bool ALL_OF_THEM> __device__ __forceinline__ float squares(int low, int high) const {
        float sums[4] = {};
        #pragma unroll
        for (int j = 0; j < EACH; j++) {
            #pragma unroll
            for (int w = 0; w < LANES / PER; w++) {
                float g[PER];
                piece[j].get(w, g);
                #pragma unroll
                for (int l = 0; l < PER; l++) {
                    const int place = j * STRIDE + (int)threadIdx.x * LANES + w * PER + l;
                    float& sum = sums[(j * LANES + w * PER + l) % 4];
                    if (ALL_OF_THEM || (place >= low && place < high)) sum += g[l] * g[l];
                }
            }
        }
        return (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
    // The last vector of all, if it is not whole, is loaded again by element.
    __device__ __forceinline__ void scale(const T* grads, T* out, i64 tile, i64 count, float by) {
        const i64 start = tile * TILE, begin = start + (int)threadIdx.x * LANES;
        #pragma unroll
        for (int j = 0; j < EACH; j++) {
            #pragma unroll
            for (int w = 0; w < LANES / PER; w++) {
                float g[PER];
                piece[j].get(w, g);
                #pragma unroll
                for (int l = 0; l < PER; l++) g[l] *= by;
                piece[j].set(w, g);
            }
        }
        if (start + TILE <= count) {
            #pragma unroll
            for (int j = 0; j < EACH; j++) piece[j].store(out + begin + j * STRIDE);
            return;
        }
        #pragma unroll
        for (int j = 0; j < EACH; j++) {
            const i64 at = begin + j * STRIDE;
            if (at + LANES <= count) piece[j].store(out + at);
            else
                #pragma unroll 1
                for (i64 i = at; i < count; i++) narrow(wide(grads[i]) * by, out[i]);
        }
    }
};

__device__ __forceinline__ float over_warp(float value) {
    #pragma unroll
    for (int step = 16; step; step /= 2) value += __shfl_xor_sync(ALL, value, step);
    return value;
}
// For all threads of the block, of which all must come.
__device__ __forceinline__ float over_block(float value, float* room) {
    const int lane = threadIdx.x % 32;
    value = over_warp(value);
    __syncthreads();  // all have read what was in the room
    if (lane == 0) room[threadIdx.x / 32] = value;
    __syncthreads();
    return over_warp(lane < WARPS ? room[lane] : 0.0f);
}
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

// A block's tiles begin here; there are no more blocks than tiles. And the block that has a tile.
__device__ __forceinline__ i64 first_tile(i64 tiles, int block) { return tiles * block / (int)gridDim.x; }
__device__ __forceinline__ int block_of(i64 tiles, i64 tile) {
    return (int)(((tile + 1) * (int)gridDim.x - 1) / tiles);
}

// The sum of what block b has of tensor t lies at b + t. A block has also what is left of a tensor, nothing perhaps,
// behind its last element, and empty tensors there: so what is written has no gaps.
template <class T, class Piece> __global__ void __launch_bounds__(THREADS, BLOCKS) sum_squares(
    const T* grads, const i64* ends_of, float* sums, i64 count, i64 tiles, int tensors) {
    typedef Part<T, Piece> P;
    __shared__ float room[WARPS];
    next_may_start();
    i64 tile = first_tile(tiles, blockIdx.x);
    const i64 behind = first_tile(tiles, blockIdx.x + 1);
    P part;
    part.load(grads, tile, count, true);
    int tensor = blockIdx.x ? ends_before(ends_of, tensors, tile * P::TILE) : 0;
    i64 end = __ldg(ends_of + tensor);
    double sum = 0.0;  // of tiles, so that errors do not add up along a block's many
    while (true) {
        const i64 start = tile * P::TILE, stop = min(start + P::TILE, count);
        if (end > stop) {
            sum += part.template squares<true>(0, 0);
        } else {
            for (int low = 0;;) {
                const bool ends = end <= stop;  // alike in a block
                const int high = ends ? (int)(end - start) : P::TILE;
                sum += part.template squares<false>(low, high);
                if (!ends) break;
                const float whole = over_block((float)sum, room);
                if (threadIdx.x == 0) sums[(int)blockIdx.x + tensor] = whole;
                if (++tensor == tensors) return;
                sum = 0.0, low = high, end = __ldg(ends_of + tensor);
            }
        }
        if (++tile == behind) break;
        part.load(grads, tile, count, true);
    }
    const float rest = over_block((float)sum, room);
    if (threadIdx.x == 0) sums[(int)blockIdx.x + tensor] = rest;
}

template <class T, class Piece> __global__ void __launch_bounds__(THREADS, BLOCKS) scale_all(
    const T* grads, const i64* ends, const float* sums, T* out, float* total, float* norms, i64 count, i64 tiles,
    int tensors, float limit) {
    typedef Part<T, Piece> P;
    __shared__ float room[WARPS];
    const i64 first = first_tile(tiles, blockIdx.x);
    i64 tile = first_tile(tiles, blockIdx.x + 1) - 1;
    P part;
    part.load(grads, tile, count, false);
    previous_ended();
    const int written = (int)gridDim.x + tensors - 1;
    double sum = 0.0;
    #pragma unroll 4
    for (int i = threadIdx.x; i < written; i += THREADS) sum += __ldcg(sums + i);
    const float whole = sqrtf(over_block((float)sum, room));
    if (blockIdx.x == 0 && threadIdx.x == 0) *total = whole;
    float by = limit / (whole + 1e-6f);
    if (by > 1.0f) by = 1.0f;  // a NaN stays one
    while (true) {
        part.scale(grads, out, tile, count, by);
        if (tile == first) break;
        part.load(grads, --tile, count, false);
    }
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (i64 of = (i64)warp * gridDim.x + blockIdx.x; of < tensors; of += (i64)WARPS * gridDim.x) {
        const int tensor = (int)of;
        const i64 begin = tensor ? __ldg(ends + tensor - 1) : 0, end = __ldg(ends + tensor);
        double square = 0.0;
        if (begin < end) {
            const int last = block_of(tiles, (end - 1) / P::TILE) + tensor;
            for (int i = block_of(tiles, begin / P::TILE) + tensor + lane; i <= last; i += 32)
                square += __ldcg(sums + i);
        }
        const float norm = sqrtf(over_warp((float)square));
        if (lane == 0) norms[tensor] = norm;
    }
}

template <class T, class Piece> static cudaError_t launch(
    const T* grads, const i64* ends, float* sums, T* out, float* total, float* norms, i64 count, int tensors,
    float limit, int most, cudaStream_t stream) {
    constexpr int TILE = Part<T, Piece>::TILE;
    const i64 tiles = (count + TILE - 1) / TILE;
    cudaLaunchConfig_t config = {};
    // All at once, each with as many tiles; where that were one or two, the blocks come one after the other.
    config.gridDim = dim3((unsigned)(tiles <= 2 * most ? tiles : most));
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    const cudaError_t failed =
        cudaLaunchKernelEx(&config, sum_squares<T, Piece>, grads, ends, sums, count, tiles, tensors);
    if (failed != cudaSuccess) return failed;
    cudaLaunchAttribute early;
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &early, config.numAttrs = 1;
    return cudaLaunchKernelEx(
        &config, scale_all<T, Piece>, grads, ends, (const float*)sums, out, total, norms, count, tiles, tensors,
        limit);
}
static int blocks_at_once(int device) {
    static int found[128];
    if (!found[device]) cudaDeviceGetAttribute(&found[device], cudaDevAttrMultiProcessorCount, device);
    return found[device] * BLOCKS;
}
// At most so many sums are made, without one for each tensor.
int most_blocks(int device) { return 2 * blocks_at_once(device); }
cudaError_t clip_launch(
    char type, const void* grads, const i64* ends, float* sums, void* out, float* total, float* norms, i64 count,
    int tensors, float limit, int device, cudaStream_t stream) {
    const int most = blocks_at_once(device);
    const auto with = [&](auto sample) {
        typedef decltype(sample) T;
        const auto launched = (size_t)grads % 16 || (size_t)out % 16 ? launch<T, Single<T>> : launch<T, Vector<T>>;
        return launched(
            (const T*)grads, ends, sums, (T*)out, total, norms, count, tensors, limit, most, stream);
    };
    if (type == 'h') return with(__half());
    if (type == 'b') return with(__nv_bfloat16());
    return with(0.0f);
}
"""

GLUE = r"""
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <tuple>

using at::Tensor;
typedef long long i64;

int most_blocks(int device);
cudaError_t clip_launch(
    char type, const void* grads, const i64* ends, float* sums, void* out, float* total, float* norms, i64 count,
    int tensors, float limit, int device, cudaStream_t stream);

// `total`: the last of the ends, which only the GPU knows.
std::tuple<Tensor, Tensor, Tensor> clip(const Tensor& of_grads, const Tensor& of_ends, int64_t total, double limit) {
    const auto type = of_grads.scalar_type();
    TORCH_CHECK(of_grads.is_cuda(), "a tensor of a GPU, not of ", of_grads.device());
    TORCH_CHECK(type == at::kHalf || type == at::kBFloat16 || type == at::kFloat,
                "float16, bfloat16 or float32 is needed, not ", type);
    TORCH_CHECK(of_grads.dim() == 1 && of_grads.size(0) == total, "a flat buffer of ", total,
                " elements is needed, not ", of_grads.sizes());
    TORCH_CHECK(of_ends.dim() == 1 && of_ends.size(0) && of_ends.scalar_type() == at::kLong &&
                    of_ends.device() == of_grads.device(),
                "an end, int64, is needed for each tensor, not ", of_ends.sizes(), " of ", of_ends.scalar_type(),
                " on ", of_ends.device());
    const i64 tensors = of_ends.size(0);
    TORCH_CHECK(tensors < (i64)1 << 30 && total < (i64)1 << 40, "too large: ", total, " elements, ", tensors,
                " tensors");
    const c10::cuda::CUDAGuard guard(of_grads.device());
    const int device = of_grads.device().index();
    const auto wide = of_grads.options().dtype(at::kFloat);
    const Tensor out = at::empty({total}, of_grads.options());
    if (!total) return {out, at::zeros({}, wide), at::zeros({tensors}, wide)};
    const Tensor grads = of_grads.contiguous(), ends = of_ends.contiguous();
    const Tensor whole = at::empty({}, wide), norms = at::empty({tensors}, wide);
    const Tensor sums = at::empty({most_blocks(device) + tensors}, wide);
    C10_CUDA_CHECK(clip_launch(
        type == at::kHalf ? 'h' : type == at::kBFloat16 ? 'b' : 'f', grads.const_data_ptr(),
        (const i64*)ends.const_data_ptr(), (float*)sums.mutable_data_ptr(), out.mutable_data_ptr(),
        (float*)whole.mutable_data_ptr(), (float*)norms.mutable_data_ptr(), total, (int)tensors, (float)limit, device,
        c10::cuda::getCurrentCUDAStream()));
    return {out, whole, norms};
}
"""
clip = load_inline(
    name="grad_norm_clip",
    cpp_sources=[GLUE],
    cuda_sources=[INSTRUCTIONS, KERNELS],
    functions=["clip"],
    extra_cflags=["-O2"],
    extra_cuda_cflags=["-O3", f"-DITEMS={ITEMS}", f"-DTHREADS={THREADS}", f"-DRESIDENT={RESIDENT}"],
    no_implicit_headers=True,
).clip


class ModelNew(nn.Module):
    def __init__(self, sizes, limit=1.0):
        super().__init__()
        self.register_buffer("ends", torch.tensor(sizes).cumsum(0), persistent=False)
        self.total, self.limit = sum(sizes), limit

    def forward(self, grads):
        # Out of the dictionary: a buffer by attribute costs 2 us.
        return clip(grads, self._buffers["ends"], self.total, self.limit)
