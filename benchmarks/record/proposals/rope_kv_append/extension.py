"""A block has rows of both caches: it copies them, or turns and writes what their tokens bring, so nothing is written
twice; other blocks of the same launch turn queries. Which token a row has: where tokens are few, each block looks for
its rows in all of the slots; else a first launch notes a slot's token in a table, which queries do not wait for. One
call of C++, as small workloads wait for the host. Bound by memory: the caches are copied, 16 bytes at a time, as the
operator returns new ones.
"""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

TUNABLES = {"ITEMS": [1, 2], "THREADS": [128, 256], "PASSES": [1, 2, 4], "SCAN": [0, 1024, 4096]}
ITEMS = 2
"""Rows of the caches, and heads of a query, that a thread has under way together."""
THREADS = 256
"""Of a block, at most."""
PASSES = 1
"""How often a block's threads take rows of the caches."""
SCAN = 1024
"""Up to so many tokens blocks look through all slots themselves."""

INSTRUCTIONS = r"""
#include <algorithm>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

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

template <class T> struct Word;  // one float or two 16-bit numbers
template <> struct Word<float> {
    static __device__ __forceinline__ void unpack(u32 word, float* to) { to[0] = __uint_as_float(word); }
    static __device__ __forceinline__ u32 pack(const float* from) { return __float_as_uint(from[0]); }
};
template <> struct Word<__half> {
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
    static __device__ __forceinline__ void unpack(u32 word, float* to) {
        to[0] = __uint_as_float(word << 16), to[1] = __uint_as_float(word & 0xffff0000u);
    }
    static __device__ __forceinline__ u32 pack(const float* from) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(from[0], from[1]);
        return *(const u32*)&pair;
    }
};

// What a thread loads and stores at once: 16 bytes, or one element where halves do not begin at multiples of 16 bytes.
template <class T> struct Vector {
    static constexpr int LANES = 16 / sizeof(T), PER = 4 / sizeof(T);
    u32 word[4];
    __device__ __forceinline__ void take(uint4 all) {
        word[0] = all.x, word[1] = all.y, word[2] = all.z, word[3] = all.w;
    }
    __device__ __forceinline__ void load(const T* from) { take(__ldcs((const uint4*)from)); }
    __device__ __forceinline__ void load_often(const T* from) { take(__ldg((const uint4*)from)); }
    __device__ __forceinline__ void get(int w, float* to) const { Word<T>::unpack(word[w], to); }
    __device__ __forceinline__ void set(int w, const float* from) { word[w] = Word<T>::pack(from); }
    __device__ __forceinline__ void store(T* to) const {
        __stcs((uint4*)to, uint4{word[0], word[1], word[2], word[3]});
    }
};
template <class T> struct Single {
    static constexpr int LANES = 1, PER = 1;
    T value;
    __device__ __forceinline__ void load(const T* from) { value = *from; }
    __device__ __forceinline__ void load_often(const T* from) { value = *from; }
    __device__ __forceinline__ void get(int, float* to) const { to[0] = wide(value); }
    __device__ __forceinline__ void set(int, const float* from) { narrow(from[0], value); }
    __device__ __forceinline__ void store(T* to) const { *to = value; }
};

template <class Piece> __device__ __forceinline__ void turn(
    Piece& first, Piece& second, const Piece& near, const Piece& far) {
    constexpr int PER = Piece::PER;
    #pragma unroll
    for (int w = 0; w < Piece::LANES / PER; w++) {  // a word at a time: the floats would not fit beside the words
        float c[PER], s[PER], one[PER], other[PER], made[PER];
        near.get(w, c), far.get(w, s), first.get(w, one), second.get(w, other);
        #pragma unroll
        for (int l = 0; l < PER; l++) made[l] = one[l] * c[l] - other[l] * s[l];
        first.set(w, made);
        #pragma unroll
        for (int l = 0; l < PER; l++) made[l] = other[l] * c[l] + one[l] * s[l];
        second.set(w, made);
    }
}

constexpr int MOST = 256;        // threads of a block
constexpr int MOST_ROWS = 1024;  // of the caches, for a block
constexpr int AT_ONCE = 4;       // slots that a thread looks through
template <class T> struct Call {
    const T *q, *k, *v, *keys, *values, *cos, *sin;
    T *out_q, *out_k, *out_v;
    const i64 *positions, *slots;
    const int* owner;  // null where blocks look for themselves
    int tokens, count, length, heads, kv_heads, half;
    // A token has `unit` threads: `groups` for each of `across` places of a half. A block has `many` tokens.
    int groups, across, unit, many, query_blocks;
    // A row of the caches has `share` threads. A block has `rows`, and `lines` at a time.
    int share, lines, rows;
};

// Where a position's angles begin. Torch counts negative ones from the end, and ends the kernel at others outside.
template <class T> __device__ __forceinline__ i64 angles_of(const Call<T>& c, i64 position) {
    if (position < 0) position += c.length;
    if ((u64)position >= (u64)c.length) __trap();
    return position * c.half;
}

template <class T, class Piece, int ITEMS> __device__ __forceinline__ void turn_queries(const Call<T>& c) {
    constexpr int LANES = Piece::LANES;
    const int line = (int)threadIdx.x / c.unit, local = (int)threadIdx.x - line * c.unit;
    const int token = (int)blockIdx.x * c.many + line;
    if (line >= c.many || token >= c.tokens) return;
    const int group = local / c.across, each = c.half / LANES, width = 2 * c.half;
    const i64 position = __ldg(c.positions + token), start = (i64)token * c.heads * width;
    for (int place = local - group * c.across; place < each; place += c.across) {
        const int at = place * LANES;
        Piece near, far;
        const T* from = c.q + start + at;
        T* to = c.out_q + start + at;
        for (int begin = group; begin < c.heads; begin += ITEMS * c.groups) {
            Piece first[ITEMS], second[ITEMS];
            #pragma unroll
            for (int j = 0; j < ITEMS; j++) {
                const int head = begin + j * c.groups;
                if (head >= c.heads) continue;
                first[j].load(from + head * width), second[j].load(from + head * width + c.half);
            }
            if (begin == group) {  // once, and not before the heads are under way
                const i64 angles = angles_of(c, position) + at;
                near.load_often(c.cos + angles), far.load_often(c.sin + angles);
            }
            #pragma unroll
            for (int j = 0; j < ITEMS; j++) {
                const int head = begin + j * c.groups;
                if (head >= c.heads) continue;
                turn(first[j], second[j], near, far);
                first[j].store(to + head * width), second[j].store(to + head * width + c.half);
            }
        }
    }
}

template <class T, class Piece, int ITEMS> __device__ __forceinline__ void fill_rows(const Call<T>& c) {
    constexpr int LANES = Piece::LANES;
    __shared__ int owners[MOST_ROWS];  // of the block's rows: the token, or -1
    const int begin = ((int)blockIdx.x - c.query_blocks) * c.rows, rows = min(c.rows, c.count - begin);
    if (c.owner) {
        previous_ended();
        for (int i = threadIdx.x; i < rows; i += blockDim.x) {
            owners[i] = __ldcg(c.owner + begin + i);
        }
    } else {
        for (int i = threadIdx.x; i < rows; i += blockDim.x) owners[i] = -1;
        __syncthreads();
        bool outside = false;
        for (int token = threadIdx.x; token < c.tokens; token += AT_ONCE * blockDim.x) {
            i64 slot[AT_ONCE];
            #pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                slot[k] = -1;
                if (token + k * (int)blockDim.x < c.tokens) slot[k] = __ldg(c.slots + token + k * (int)blockDim.x);
            }
            #pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                outside |= token + k * (int)blockDim.x < c.tokens && (u64)slot[k] >= (u64)c.count;
                if ((u64)(slot[k] - begin) < (u64)rows) owners[slot[k] - begin] = token + k * (int)blockDim.x;
            }
        }
        if (outside) __trap();
    }
    __syncthreads();
    const int line = (int)threadIdx.x / c.share, local = (int)threadIdx.x - line * c.share;
    if (line >= c.lines) return;
    const int each = c.half / LANES, places = c.kv_heads * each;
    const i64 width = (i64)c.kv_heads * 2 * c.half;
    for (int base = line; base < rows; base += ITEMS * c.lines) {
        int token[ITEMS];
        #pragma unroll
        for (int j = 0; j < ITEMS; j++)
            token[j] = base + j * c.lines < rows ? owners[base + j * c.lines] : -1;
        for (int place = local; place < places; place += c.share) {
            const int head = place / each, within = (place - head * each) * LANES;
            const int at = head * 2 * c.half + within;
            Piece first[ITEMS], second[ITEMS], low[ITEMS], high[ITEMS];  // of a key's and a value's halves
            #pragma unroll
            for (int j = 0; j < ITEMS; j++) {
                if (base + j * c.lines >= rows) continue;
                const i64 row = begin + base + j * c.lines;
                const T* key = token[j] >= 0 ? c.k + token[j] * width : c.keys + row * width;
                const T* value = token[j] >= 0 ? c.v + token[j] * width : c.values + row * width;
                first[j].load(key + at), second[j].load(key + at + c.half);
                low[j].load(value + at), high[j].load(value + at + c.half);
            }
            i64 position[ITEMS];
            #pragma unroll
            for (int j = 0; j < ITEMS; j++) position[j] = token[j] >= 0 ? __ldg(c.positions + token[j]) : 0;
            #pragma unroll
            for (int j = 0; j < ITEMS; j++) {
                if (token[j] < 0) continue;
                const i64 angles = angles_of(c, position[j]) + within;
                Piece near, far;
                near.load_often(c.cos + angles), far.load_often(c.sin + angles);
                turn(first[j], second[j], near, far);
            }
            #pragma unroll
            for (int j = 0; j < ITEMS; j++) {
                if (base + j * c.lines >= rows) continue;
                const i64 to = (begin + base + j * c.lines) * width + at;
                first[j].store(c.out_k + to), second[j].store(c.out_k + to + c.half);
                low[j].store(c.out_v + to), high[j].store(c.out_v + to + c.half);
            }
        }
    }
}

template <class T, class Piece, int ITEMS> __global__ void __launch_bounds__(MOST, 3) append(Call<T> call) {
    if ((int)blockIdx.x < call.query_blocks) turn_queries<T, Piece, ITEMS>(call);
    else fill_rows<T, Piece, ITEMS>(call);
}

__global__ void __launch_bounds__(MOST) mark(const i64* slots, int* owner, int tokens, int count) {
    next_may_start();
    const int token = (int)blockIdx.x * MOST + (int)threadIdx.x;
    if (token >= tokens) return;
    const i64 slot = slots[token];
    if ((u64)slot >= (u64)count) __trap();
    owner[slot] = token;
}

static int over(int value, int by) { return value / by + (value % by ? 1 : 0); }

template <class T, class Piece, int ITEMS> static cudaError_t launch(
    Call<T> call, int* owner, int threads, int passes, cudaStream_t stream) {
    const int each = call.half / Piece::LANES, places = call.kv_heads * each;
    int blocks = 0;
    if (call.tokens && call.heads && each) {
        call.across = std::min(each, threads);
        call.groups = std::max(1, std::min(over(call.heads, ITEMS), threads / call.across));
        call.unit = call.groups * call.across, call.many = threads / call.unit;
        blocks = call.query_blocks = over(call.tokens, call.many);
    }
    cudaLaunchAttribute early;
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.stream = stream;
    if (call.count && places) {
        call.share = std::min(places, threads), call.lines = threads / call.share;
        const int at_a_time = call.lines * ITEMS;
        call.rows = at_a_time * std::max(1, std::min(passes, MOST_ROWS / at_a_time));
        blocks += over(call.count, call.rows);
        if (owner && call.tokens) {
            call.owner = owner;
            config.gridDim = dim3(over(call.tokens, MOST)), config.blockDim = dim3(MOST);
            cudaError_t failed = cudaMemsetAsync(owner, 0xff, call.count * sizeof(int), stream);  // -1
            if (failed != cudaSuccess) return failed;
            failed = cudaLaunchKernelEx(&config, mark, call.slots, owner, call.tokens, call.count);
            if (failed != cudaSuccess) return failed;
            config.attrs = &early, config.numAttrs = 1;
        }
    }
    if (!blocks) return cudaSuccess;
    config.gridDim = dim3(blocks), config.blockDim = dim3(threads);
    return cudaLaunchKernelEx(&config, append<T, Piece, ITEMS>, call);
}

template <class T, class Piece> static cudaError_t with_items(
    const Call<T>& call, int* owner, int items, int threads, int passes, cudaStream_t stream) {
    if (items == 2) return launch<T, Piece, 2>(call, owner, threads, passes, stream);
    return launch<T, Piece, 1>(call, owner, threads, passes, stream);
}
// `from`: q, k, v, both caches, cos, sin. `to`: q, both caches. `sizes`: tokens, slots, length of cos, heads of a query
// and of a key, half of a head.
cudaError_t append_launch(
    char type, const void* const* from, void* const* to, const i64* positions, const i64* slots, int* owner,
    const int* sizes, int items, int threads, int passes, cudaStream_t stream) {
    const auto with = [&](auto sample) {
        typedef decltype(sample) T;
        Call<T> call = {};
        call.q = (const T*)from[0], call.k = (const T*)from[1], call.v = (const T*)from[2];
        call.keys = (const T*)from[3], call.values = (const T*)from[4];
        call.cos = (const T*)from[5], call.sin = (const T*)from[6];
        call.out_q = (T*)to[0], call.out_k = (T*)to[1], call.out_v = (T*)to[2];
        call.positions = positions, call.slots = slots;
        call.tokens = sizes[0], call.count = sizes[1], call.length = sizes[2];
        call.heads = sizes[3], call.kv_heads = sizes[4], call.half = sizes[5];
        bool even = call.half % Vector<T>::LANES == 0;
        for (int i = 0; i < 7; i++) even = even && (size_t)from[i] % 16 == 0;
        for (int i = 0; i < 3; i++) even = even && (size_t)to[i] % 16 == 0;
        if (even) return with_items<T, Vector<T>>(call, owner, items, threads, passes, stream);
        return with_items<T, Single<T>>(call, owner, items, threads, passes, stream);
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
#include <algorithm>
#include <limits>
#include <tuple>

using at::Tensor;
typedef long long i64;

cudaError_t append_launch(
    char type, const void* const* from, void* const* to, const i64* positions, const i64* slots, int* owner,
    const int* sizes, int items, int threads, int passes, cudaStream_t stream);

std::tuple<Tensor, Tensor, Tensor> append(
    const Tensor& of_q, const Tensor& of_k, const Tensor& of_v, const Tensor& of_keys, const Tensor& of_values,
    const Tensor& of_positions, const Tensor& of_slots, const Tensor& of_cos, const Tensor& of_sin, int64_t items,
    int64_t threads, int64_t passes, int64_t scan) {
    const auto type = of_q.scalar_type();
    TORCH_CHECK(of_q.is_cuda(), "tensors of a GPU, not of ", of_q.device());
    TORCH_CHECK(type == at::kHalf || type == at::kBFloat16 || type == at::kFloat,
                "float16, bfloat16 or float32 are needed, not ", type);
    for (const Tensor* each : {&of_k, &of_v, &of_keys, &of_values, &of_cos, &of_sin})
        TORCH_CHECK(each->scalar_type() == type && each->device() == of_q.device(), "queries are of ", type, " on ",
                    of_q.device(), ", something else of ", each->scalar_type(), " on ", each->device());
    const auto kind = of_positions.scalar_type();
    TORCH_CHECK((kind == at::kLong || kind == at::kInt) && of_slots.scalar_type() == at::kLong &&
                    of_positions.device() == of_q.device() && of_slots.device() == of_q.device(),
                "positions and slots are int64 on the queries' GPU, not ", kind, " and ", of_slots.scalar_type());
    TORCH_CHECK(of_q.dim() == 3 && of_k.dim() == 3 && of_keys.dim() == 3 && of_k.size(0) == of_q.size(0) &&
                    of_k.size(2) == of_q.size(2) && of_q.size(2) % 2 == 0 && of_v.sizes() == of_k.sizes() &&
                    of_keys.size(1) == of_k.size(1) && of_keys.size(2) == of_k.size(2) &&
                    of_values.sizes() == of_keys.sizes(),
                "queries ", of_q.sizes(), ", keys ", of_k.sizes(), ", values ", of_v.sizes(), " and caches ",
                of_keys.sizes(), " and ", of_values.sizes(), " do not fit one another");
    const i64 tokens = of_q.size(0), heads = of_q.size(1), kv_heads = of_k.size(1), dim = of_q.size(2);
    const i64 count = of_keys.size(0), length = of_cos.dim() ? of_cos.size(0) : 0;
    TORCH_CHECK(of_positions.dim() == 1 && of_positions.size(0) == tokens && of_slots.dim() == 1 &&
                    of_slots.size(0) == tokens && (count || !tokens),
                "positions ", of_positions.sizes(), " and slots ", of_slots.sizes(), " do not fit ", tokens, " tokens");
    TORCH_CHECK(of_cos.dim() == 2 && of_cos.sizes() == of_sin.sizes() && of_cos.size(1) * 2 == dim,
                "angles ", of_cos.sizes(), " do not fit queries ", of_q.sizes());
    constexpr i64 most = std::numeric_limits<int>::max() / 2;
    TORCH_CHECK(std::max({tokens, count, length, heads * dim, kv_heads * dim}) <= most, "too large: ", of_q.sizes(),
                ", ", of_keys.sizes(), ", angles ", of_cos.sizes());
    const c10::cuda::CUDAGuard guard(of_q.device());
    const Tensor q = of_q.contiguous(), k = of_k.contiguous(), v = of_v.contiguous(), keys = of_keys.contiguous();
    const Tensor values = of_values.contiguous(), cos = of_cos.contiguous(), sin = of_sin.contiguous();
    const Tensor positions = (kind == at::kLong ? of_positions : of_positions.to(at::kLong)).contiguous();
    const Tensor slots = of_slots.contiguous();
    const Tensor out_q = at::empty(q.sizes(), q.options());
    const Tensor out_k = at::empty(keys.sizes(), q.options()), out_v = at::empty(keys.sizes(), q.options());
    Tensor owner;
    if (tokens > scan) owner = at::empty({count}, slots.options().dtype(at::kInt));
    const void* const from[] = {
        q.const_data_ptr(), k.const_data_ptr(), v.const_data_ptr(), keys.const_data_ptr(), values.const_data_ptr(),
        cos.const_data_ptr(), sin.const_data_ptr()};
    void* const to[] = {out_q.mutable_data_ptr(), out_k.mutable_data_ptr(), out_v.mutable_data_ptr()};
    const int sizes[] = {(int)tokens, (int)count, (int)length, (int)heads, (int)kv_heads, (int)(dim / 2)};
    C10_CUDA_CHECK(append_launch(
        type == at::kHalf ? 'h' : type == at::kBFloat16 ? 'b' : 'f', from, to, (const i64*)positions.const_data_ptr(),
        (const i64*)slots.const_data_ptr(), owner.defined() ? (int*)owner.mutable_data_ptr() : nullptr, sizes,
        (int)items, (int)threads, (int)passes, c10::cuda::getCurrentCUDAStream()));
    return {out_q, out_k, out_v};
}
"""
append = load_inline(
    name="rope_kv_append",
    cpp_sources=[GLUE],
    cuda_sources=[INSTRUCTIONS, KERNELS],
    functions=["append"],
    extra_cflags=["-O2"],
    extra_cuda_cflags=["-O3"],
    no_implicit_headers=True,
).append


class ModelNew(nn.Module):
    def __init__(self, length, dim, base=10000.0, dtype="float32"):
        super().__init__()
        frequency = base ** (-torch.arange(0, dim, 2).float() / dim)
        angle = torch.outer(torch.arange(length).float(), frequency)
        self.register_buffer("cos", angle.cos().to(getattr(torch, dtype)))
        self.register_buffer("sin", angle.sin().to(getattr(torch, dtype)))

    def forward(self, q, k, v, key_cache, value_cache, positions, slots):
        angles = self._buffers  # out of the dictionary: a buffer by attribute costs 2 us
        return append(
            q, k, v, key_cache, value_cache, positions, slots, angles["cos"], angles["sin"], ITEMS, THREADS, PASSES,
            SCAN,
        )  # fmt: skip
