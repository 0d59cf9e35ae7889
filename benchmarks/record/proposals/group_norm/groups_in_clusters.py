"""A group lies in the shared memory of a cluster of 1, 4 or 8 blocks: it is read once, the blocks tell each other their
moments (backward: two sums), and each finishes its part. A warp has pieces of 2 KB of one channel, several of them on
their way at any time. What does not fit stays in the L2 cache and is read again, last pieces first.

Bound by memory: 5 tensors of traffic, three launches of 4 us.
"""

import functools

import torch
from kernelwright import load_cuda
from torch import nn

TUNABLES = {"ROOM": [32, 56, 72, 100], "DEPTH": [2, 3, 4], "LARGEST": [104, 200]}
ROOM = 72
"""Thousands of bytes of a group for a block: larger groups have more blocks, up to 8."""
DEPTH = 2
"""Pieces of a warp that are on their way while it has another."""
LARGEST = 200
"""Thousands of bytes of shared memory of a block whose part of a group is larger than that."""

SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
typedef long long i64;

__device__ __forceinline__ float wide(float value) { return value; }
__device__ __forceinline__ float wide(__half value) { return __half2float(value); }
__device__ __forceinline__ float wide(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ void narrow(float value, float* to) { *to = value; }
__device__ __forceinline__ void narrow(float value, __half* to) { *to = __float2half_rn(value); }
__device__ __forceinline__ void narrow(float value, __nv_bfloat16* to) { *to = __float2bfloat16_rn(value); }
__device__ __forceinline__ void narrow(float low, float high, float* to) { to[0] = low, to[1] = high; }
__device__ __forceinline__ void narrow(float low, float high, __half* to) {
    *(__half2*)to = __floats2half2_rn(low, high);
}
__device__ __forceinline__ void narrow(float low, float high, __nv_bfloat16* to) {
    *(__nv_bfloat162*)to = __floats2bfloat162_rn(low, high);
}

constexpr int SIZE = LANES * sizeof(ELEMENT), PER = SIZE < 4 ? 16 : 64 / SIZE, UNROLLED = PER < 8 ? PER : 4;
struct alignas(SIZE) Vector { ELEMENT at[LANES]; };

// Results leave the cache first: x is wanted again.
__device__ __forceinline__ void leave(ELEMENT* to, const float (&value)[LANES]) {
    Vector made;
    #pragma unroll
    for (int l = 0; l + 1 < LANES; l += 2) narrow(value[l], value[l + 1], made.at + l);
    if (LANES == 1) narrow(value[0], made.at);
    if constexpr (SIZE == 16) __stcs((uint4*)to, *(const uint4*)&made);
    else if constexpr (SIZE == 8) __stcs((uint2*)to, *(const uint2*)&made);
    else if constexpr (SIZE == 4) __stcs((unsigned*)to, *(const unsigned*)&made);
    else *(Vector*)to = made;
}
__device__ __forceinline__ void copy_later(void* to, const void* from) {
    const unsigned place = (unsigned)__cvta_generic_to_shared(to);
    if constexpr (SIZE == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(place), "l"(from));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(place), "l"(from), "n"(SIZE < 4 ? 4 : SIZE));
}
__device__ __forceinline__ void committed() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void arrived() {
    asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
}
__device__ __forceinline__ void tell_cluster() {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_for_cluster() {
    __syncwarp();
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// What the block `rank` of this cluster has at the same place of its shared memory.
__device__ __forceinline__ float from_block(const float* from, int rank) {
    float value;
    unsigned place = (unsigned)__cvta_generic_to_shared(from);
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(place) : "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(place) : "memory");
    return value;
}

// The pieces of a group that a warp has: every warps-th of its block's. The first `fixed` of them have a place each in
// shared memory, the others go through a ring of AHEAD + 1 places. A thread reads only what it copied itself.
template <int TENSORS> struct Pieces {
    i64 start;
    int plane, chunks, chunk, begin, step, count, fixed, lane;
    bool vectors;
    ELEMENT* ring;

    __device__ __forceinline__ Pieces(
        unsigned char* memory, int group, int rank, int each, int plane, int chunks, int chunk, int per, int slots,
        const void* x, const void* dy)
        : plane(plane), chunks(chunks), chunk(chunk) {
        const int warp = threadIdx.x / 32;
        lane = threadIdx.x % 32, step = blockDim.x / 32;
        start = (i64)group * each * plane;
        begin = rank * per + warp;
        const int end = min((rank + 1) * per, each * chunks);
        count = begin < end ? (end - begin + step - 1) / step : 0;
        fixed = count <= slots ? count : slots - AHEAD - 1;
        ring = (ELEMENT*)memory + ((i64)warp * slots * TENSORS * chunk + lane) * LANES;
        vectors = ((i64)x | (i64)dy) % SIZE == 0;
    }
    __device__ __forceinline__ int channel(int i) const { return (begin + i * step) / chunks; }
    __device__ __forceinline__ int place_in_plane(int i) const { return (begin + i * step) % chunks * chunk; }
    // Vectors of the piece, less those before this lane's first.
    __device__ __forceinline__ int vectors_of(int i) const { return min(chunk, plane - place_in_plane(i)) - lane; }
    __device__ __forceinline__ i64 at(int i) const {
        return (start + (i64)channel(i) * plane + place_in_plane(i) + lane) * LANES;
    }
    __device__ __forceinline__ ELEMENT* slot(int i) const {
        return ring + (i < fixed ? i : fixed + (i - fixed) % (AHEAD + 1)) * TENSORS * chunk * LANES;
    }
    __device__ __forceinline__ void fetch(const ELEMENT* x, const ELEMENT* dy, int i) const {
        const int size = vectors_of(i);
        ELEMENT* to = slot(i);
        x += at(i), dy += at(i);
        if (SIZE >= 4 && vectors) {
            #pragma unroll UNROLLED
            for (int k = 0; k < PER; k++) {
                if (k * 32 >= size) continue;
                copy_later(to + k * 32 * LANES, x + k * 32 * LANES);
                if (TENSORS == 2) copy_later(to + (chunk + k * 32) * LANES, dy + k * 32 * LANES);
            }
        } else {
            for (int k = 0; k * 32 < size; k++)
                #pragma unroll
                for (int l = 0; l < LANES; l++) {
                    to[k * 32 * LANES + l] = x[k * 32 * LANES + l];
                    if (TENSORS == 2) to[(chunk + k * 32) * LANES + l] = dy[k * 32 * LANES + l];
                }
        }
    }
    // First to last ...
    __device__ __forceinline__ void begin_forth(const ELEMENT* x, const ELEMENT* dy) const {
        #pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (i < count) fetch(x, dy, i);
            committed();
        }
    }
    __device__ __forceinline__ void step_forth(const ELEMENT* x, const ELEMENT* dy, int i) const {
        if (i + AHEAD < count) fetch(x, dy, i + AHEAD);
        committed();
        arrived<AHEAD>();
    }
    // ... and back: the ring holds the last AHEAD + 1 of them still.
    __device__ __forceinline__ void step_back(const ELEMENT* x, const ELEMENT* dy, int i) const {
        if (i - AHEAD >= fixed && i < count - 1) fetch(x, dy, i - AHEAD);
        committed();
        arrived<AHEAD>();
    }
};

__device__ __forceinline__ float over_warp(float value) {
    #pragma unroll
    for (int step = 16; step; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}
struct Moments { float count, mean, spread; };
// In this order a gap of 1e20 to nothing adds 0, and no NaN.
__device__ __forceinline__ Moments merged(Moments a, Moments b) {
    const float count = a.count + b.count, share = count > 0.0f ? b.count / count : 0.0f, gap = b.mean - a.mean;
    return Moments{count, a.mean + gap * share, a.spread + b.spread + gap * (a.count * share) * gap};
}
__device__ __forceinline__ Moments over_lanes(Moments own) {
    #pragma unroll
    for (int step = 16; step; step /= 2) {
        const Moments other = {
            __shfl_xor_sync(0xffffffffu, own.count, step), __shfl_xor_sync(0xffffffffu, own.mean, step),
            __shfl_xor_sync(0xffffffffu, own.spread, step)};
        own = threadIdx.x & step ? merged(other, own) : merged(own, other);
    }
    return own;
}

constexpr int HEAD = 512;
// Three numbers of each warp at the front of shared memory, and three of the block.
__device__ __noinline__ void forward(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* out, float2* stats, int plane, int each,
    int channels, int chunks, int chunk, int per, int slots, float eps, int blocks) {
    extern __shared__ __align__(128) unsigned char memory[];
    const int group = blockIdx.x / blocks, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Pieces<1> pieces(
        memory + HEAD, group, blockIdx.x % blocks, each, plane, chunks, chunk, per, slots, x, x);
    float* found = (float*)memory;
    float* whole = found + 96;
    Moments all = {0.0f, 0.0f, 0.0f};
    pieces.begin_forth(x, x);
    for (int i = 0; i < pieces.count; i++) {
        pieces.step_forth(x, x, i);
        const ELEMENT* own = pieces.slot(i);
        const int size = pieces.vectors_of(i);
        if (size <= 0) continue;
        // A thread's own mean first, and squares about it: nothing is lost of values far from zero.
        float sum = 0.0f, spread = 0.0f;
        #pragma unroll UNROLLED
        for (int k = 0; k < PER; k++) {
            if (k * 32 >= size) continue;
            const Vector got = *(const Vector*)(own + k * 32 * LANES);
            #pragma unroll
            for (int l = 0; l < LANES; l++) sum += wide(got.at[l]);
        }
        const float number = (size + 31) / 32 * LANES, mean = sum / number;
        #pragma unroll UNROLLED
        for (int k = 0; k < PER; k++) {
            if (k * 32 >= size) continue;
            const Vector got = *(const Vector*)(own + k * 32 * LANES);
            #pragma unroll
            for (int l = 0; l < LANES; l++) spread += (wide(got.at[l]) - mean) * (wide(got.at[l]) - mean);
        }
        all = merged(all, Moments{number, mean, spread});
    }
    all = over_lanes(all);
    if (lane == 0) found[warp * 3] = all.count, found[warp * 3 + 1] = all.mean, found[warp * 3 + 2] = all.spread;
    __syncthreads();
    all = Moments{0.0f, 0.0f, 0.0f};
    if (lane < blockDim.x / 32) all = Moments{found[lane * 3], found[lane * 3 + 1], found[lane * 3 + 2]};
    all = over_lanes(all);
    if (blocks > 1) {
        if (threadIdx.x == 0) whole[0] = all.count, whole[1] = all.mean, whole[2] = all.spread;
        tell_cluster();
        wait_for_cluster();
        all = Moments{0.0f, 0.0f, 0.0f};
        if (lane < blocks)
            all = Moments{from_block(whole, lane), from_block(whole + 1, lane), from_block(whole + 2, lane)};
        all = over_lanes(all);
        tell_cluster();  // that it was read; whoever is asked stays until then
    }
    const float mean = all.mean, scale = rsqrtf(all.spread / all.count + eps);
    if (blockIdx.x % blocks == 0 && threadIdx.x == 0) stats[group] = make_float2(mean, scale);
    const int first = (int)((i64)group * each % channels);
    for (int i = pieces.count - 1; i >= 0; i--) {
        const int channel = first + pieces.channel(i);
        const float w = wide(weight[channel]) * scale, b = wide(bias[channel]);
        pieces.step_back(x, x, i);
        const ELEMENT* own = pieces.slot(i);
        const int size = pieces.vectors_of(i);
        ELEMENT* to = out + pieces.at(i);
        #pragma unroll UNROLLED
        for (int k = 0; k < PER; k++) {
            if (k * 32 >= size) continue;
            const Vector got = *(const Vector*)(own + k * 32 * LANES);
            float value[LANES];
            #pragma unroll
            for (int l = 0; l < LANES; l++) value[l] = (wide(got.at[l]) - mean) * w + b;
            leave(to + k * 32 * LANES, value);
        }
    }
    if (blocks > 1) wait_for_cluster();
}

__device__ __noinline__ void backward(
    const ELEMENT* x, const ELEMENT* weight, const float2* stats, const ELEMENT* dy, ELEMENT* dx, float2* sums,
    int plane, int each, int channels, int chunks, int chunk, int per, int slots, int blocks) {
    extern __shared__ __align__(128) unsigned char memory[];
    // The last groups first: the cache still has some of them.
    const int group = (gridDim.x - 1 - blockIdx.x) / blocks, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Pieces<2> pieces(
        memory + HEAD, group, blockIdx.x % blocks, each, plane, chunks, chunk, per, slots, x, dy);
    float* found = (float*)memory;
    float* whole = found + 96;
    pieces.begin_forth(x, dy);
    const float mean = stats[group].x, scale = stats[group].y;
    const int first = (int)((i64)group * each % channels);
    float from_along = 0.0f, from_level = 0.0f;
    for (int i = 0; i < pieces.count; i++) {
        const float w = wide(weight[first + pieces.channel(i)]);
        pieces.step_forth(x, dy, i);
        const ELEMENT* own = pieces.slot(i);
        const int size = pieces.vectors_of(i);
        float along = 0.0f, level = 0.0f;
        #pragma unroll UNROLLED
        for (int k = 0; k < PER; k++) {
            if (k * 32 >= size) continue;
            const Vector got = *(const Vector*)(own + k * 32 * LANES);
            const Vector slope = *(const Vector*)(own + (chunk + k * 32) * LANES);
            #pragma unroll
            for (int l = 0; l < LANES; l++) {
                const float g = wide(slope.at[l]);
                along += g * (wide(got.at[l]) - mean), level += g;
            }
        }
        along = over_warp(along) * scale, level = over_warp(level);
        from_along += along * w, from_level += level * w;
        const i64 number = ((i64)group * each + pieces.channel(i)) * chunks + pieces.place_in_plane(i) / chunk;
        if (lane == 0) sums[number] = make_float2(along, level);
    }
    if (lane == 0) found[warp * 2] = from_along, found[warp * 2 + 1] = from_level;
    __syncthreads();
    from_along = over_warp(lane < blockDim.x / 32 ? found[lane * 2] : 0.0f);
    from_level = over_warp(lane < blockDim.x / 32 ? found[lane * 2 + 1] : 0.0f);
    if (blocks > 1) {
        if (threadIdx.x == 0) whole[0] = from_along, whole[1] = from_level;
        tell_cluster();
        wait_for_cluster();
        from_along = over_warp(lane < blocks ? from_block(whole, lane) : 0.0f);
        from_level = over_warp(lane < blocks ? from_block(whole + 1, lane) : 0.0f);
        tell_cluster();
    }
    const float part = scale / ((float)each * plane * LANES);
    const float slant = from_along * part * scale, shift = from_level * part;
    for (int i = pieces.count - 1; i >= 0; i--) {
        const float w = wide(weight[first + pieces.channel(i)]) * scale;
        pieces.step_back(x, dy, i);
        const ELEMENT* own = pieces.slot(i);
        const int size = pieces.vectors_of(i);
        ELEMENT* to = dx + pieces.at(i);
        #pragma unroll UNROLLED
        for (int k = 0; k < PER; k++) {
            if (k * 32 >= size) continue;
            const Vector got = *(const Vector*)(own + k * 32 * LANES);
            const Vector slope = *(const Vector*)(own + (chunk + k * 32) * LANES);
            float value[LANES];
            #pragma unroll
            for (int l = 0; l < LANES; l++)
                value[l] = wide(slope.at[l]) * w - shift - (wide(got.at[l]) - mean) * slant;
            leave(to + k * 32 * LANES, value);
        }
    }
    if (blocks > 1) wait_for_cluster();
}

// One body each for all sizes of clusters, which are part of a kernel's declaration.
extern "C" __global__ void __launch_bounds__(512, 2) forward_1(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* out, float2* stats, int plane, int each,
    int channels, int chunks, int chunk, int per, int slots, float eps) {
    forward(x, weight, bias, out, stats, plane, each, channels, chunks, chunk, per, slots, eps, 1);
}
extern "C" __global__ void __launch_bounds__(512, 2) backward_1(
    const ELEMENT* x, const ELEMENT* weight, const float2* stats, const ELEMENT* dy, ELEMENT* dx, float2* sums,
    int plane, int each, int channels, int chunks, int chunk, int per, int slots) {
    backward(x, weight, stats, dy, dx, sums, plane, each, channels, chunks, chunk, per, slots, 1);
}
extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(512, 2) forward_4(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* out, float2* stats, int plane, int each,
    int channels, int chunks, int chunk, int per, int slots, float eps) {
    forward(x, weight, bias, out, stats, plane, each, channels, chunks, chunk, per, slots, eps, 4);
}
extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(512, 2) backward_4(
    const ELEMENT* x, const ELEMENT* weight, const float2* stats, const ELEMENT* dy, ELEMENT* dx, float2* sums,
    int plane, int each, int channels, int chunks, int chunk, int per, int slots) {
    backward(x, weight, stats, dy, dx, sums, plane, each, channels, chunks, chunk, per, slots, 4);
}
extern "C" __global__ void __cluster_dims__(8, 1, 1) __launch_bounds__(512, 2) forward_8(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* out, float2* stats, int plane, int each,
    int channels, int chunks, int chunk, int per, int slots, float eps) {
    forward(x, weight, bias, out, stats, plane, each, channels, chunks, chunk, per, slots, eps, 8);
}
extern "C" __global__ void __cluster_dims__(8, 1, 1) __launch_bounds__(512, 2) backward_8(
    const ELEMENT* x, const ELEMENT* weight, const float2* stats, const ELEMENT* dy, ELEMENT* dx, float2* sums,
    int plane, int each, int channels, int chunks, int chunk, int per, int slots) {
    backward(x, weight, stats, dy, dx, sums, plane, each, channels, chunks, chunk, per, slots, 8);
}

// A warp has a channel: its pieces in all images.
extern "C" __global__ void __launch_bounds__(128) over_images(
    const float2* sums, ELEMENT* dweight, ELEMENT* dbias, int images, int channels, int chunks) {
    const int channel = blockIdx.x * 4 + threadIdx.x / 32;
    if (channel >= channels) return;
    float along = 0.0f, level = 0.0f;
    #pragma unroll 4
    for (int i = threadIdx.x % 32; i < images * chunks; i += 32) {
        const int image = i / chunks;
        const float2 got = sums[((i64)image * channels + channel) * chunks + i - image * chunks];
        along += got.x, level += got.y;
    }
    along = over_warp(along), level = over_warp(level);
    if (threadIdx.x % 32 == 0) narrow(along, dweight + channel), narrow(level, dbias + channel);
}
"""
NAMES = {torch.float16: "__half", torch.bfloat16: "__nv_bfloat16", torch.float32: "float"}


@functools.cache
def modules_of(dtype):
    """The kernels for vectors of 16 and 4 bytes and for single elements. Built with the model: calls build nothing."""
    size = dtype.itemsize
    return {
        lanes: load_cuda(SOURCE, flags=[f"-DELEMENT={NAMES[dtype]}", f"-DLANES={lanes}", f"-DAHEAD={DEPTH}"])
        for lanes in {16 // size, 4 // size, 1}
    }


def spread_out(pieces, size, groups, processors):
    """(blocks of a group, warps, pieces of a block, places of a warp) for pieces of `size` bytes."""
    enough = [
        blocks
        for blocks in (1, 4, 8)
        if pieces * size <= ROOM * 1000 * blocks and (groups * blocks >= processors or pieces < 8 * blocks)
    ]
    blocks = min(enough, default=8)
    per = -(-pieces // blocks)
    if per * size > 113_000:  # a processor has one such block
        warps = max(1, min(16, LARGEST * 1000 // ((DEPTH + 1) * size), per))
    else:  # few that idle in the last round
        warps = min(range(8, min(3, per - 1), -1), key=lambda count: -(-per // count) * count)
    most = -(-per // warps)
    slots = min(most, max(DEPTH + 1, LARGEST * 1000 // (warps * size)))
    return blocks, warps, per, slots


@functools.lru_cache(maxsize=1000)
def launches_of(shape, dtype, groups, device):
    """The three launches for a shape, with the numbers that they take, and the sums that they need room for."""
    batch, channels = shape[:2]
    each, elements = channels // groups, shape[2:].numel()
    size = dtype.itemsize
    kernels = modules_of(dtype)
    lanes = max(count for count in kernels if elements % count == 0)
    plane, most = elements // lanes, 32 * min(16, 64 // (lanes * size))
    chunks = -(-plane // most)
    chunk = most if chunks > 1 else -(-plane // 8) * 8
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    piece = chunk * lanes * size
    forth = spread_out(each * chunks, piece, batch * groups, processors)
    back = spread_out(each * chunks, 2 * piece, batch * groups, processors)
    kernels = kernels[lanes]
    launches = [
        getattr(kernels, f"{name}_{blocks}")[(batch * groups * blocks,), (32 * warps,), 512 + warps * slots * bytes_]
        for name, (blocks, warps, _per, slots), bytes_ in (("forward", forth, piece), ("backward", back, 2 * piece))
    ]
    numbers = plane, each, channels, chunks, chunk
    added = kernels.over_images[(-(-channels // 4),), (128,), 0]
    return (*launches, added, (*numbers, *forth[2:]), (*numbers, *back[2:]), 2 * batch * channels * chunks)


class Normed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, norm):
        if not x.is_contiguous():
            x = x.contiguous()
        out = torch.empty_like(x)
        ctx.launches = launches = None
        if x.numel():
            shape, groups = x.shape, norm.num_groups
            launches = launches_of(shape, x.dtype, groups, x.device)
            stats = torch.empty(2 * shape[0] * groups, dtype=torch.float32, device=x.device)
            launches[0](x, weight, bias, out, stats, *launches[3], norm.eps)
            ctx.save_for_backward(x, weight, stats)
            ctx.launches = launches
        else:
            ctx.save_for_backward(x, weight)
        return out

    @staticmethod
    def backward(ctx, dy):
        if ctx.launches is None:
            x, weight = ctx.saved_tensors
            return torch.empty_like(x), torch.zeros_like(weight), torch.zeros_like(weight), None
        x, weight, stats = ctx.saved_tensors
        _forward, backward, over_images, _numbers, numbers, count = ctx.launches
        if not dy.is_contiguous():
            dy = dy.contiguous()
        dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
        sums = torch.empty(count, dtype=torch.float32, device=x.device)
        backward(x, weight, stats, dy, dx, sums, *numbers)
        over_images(sums, dweight, dbias, x.shape[0], numbers[2], numbers[3])
        return dx, dweight, dbias, None


class ModelNew(nn.Module):
    def __init__(self, channels, groups=32, dtype="float32"):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels, dtype=getattr(torch, dtype))
        modules_of(self.norm.weight.dtype)

    def forward(self, x):
        norm = self._modules["norm"]
        # Out of the dictionary: a parameter by attribute costs 2 us.
        found = norm._parameters
        weight = found["weight"]
        if x.dim() < 2 or x.shape[1] != norm.num_channels or x.dtype != weight.dtype or x.dtype not in NAMES:
            raise ValueError(f"a {weight.dtype} tensor [batch, {norm.num_channels}, ...] is needed")
        return Normed.apply(x, weight, found["bias"], norm)
