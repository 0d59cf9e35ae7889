"""A row of the table is a few lanes' to a warp's, 16 bytes of each; a thread has eight rows under way, and the ids of
the next eight. Long bags are shared by as many of such groups of lanes as a warp has room for; of short ones a group
has several that follow each other, and gathers across their ends.

Bound by memory: each row is read as often as it is looked up, popular ones from the cache. The call is C++: small
workloads wait for the host. Sums are kept in float32, always in the same order.
"""

from torch import nn
from torch.utils.cpp_extension import load_inline

TUNABLES = {"DEEP": [4, 8, 16], "THREADS": [64, 128, 256], "RUN": [8, 16, 32]}
DEEP = 8
"""Rows that a thread has under way."""
THREADS = 128
"""Of a block."""
RUN = 16
"""Lookups that short bags of the same lanes have together."""

KERNELS = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <algorithm>
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

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

// N elements that a thread loads and stores at once: 16 bytes, or one where rows begin anywhere.
template <class T, int N> struct Piece {
    typedef typename Word<T>::Bits Bits;
    static constexpr int PER = 4 / sizeof(T), WORDS = (N + PER - 1) / PER, USED = N < PER ? N : PER;
    u32 word[WORDS];
    __device__ __forceinline__ void load(const void* from) {
        if constexpr (N > 1) {
            const uint4 all = __ldg((const uint4*)from);
            word[0] = all.x, word[1] = all.y, word[2] = all.z, word[3] = all.w;
        } else {
            word[0] = __ldg((const Bits*)from);
        }
    }
    __device__ __forceinline__ void add_to(float* sum) const {
        #pragma unroll
        for (int w = 0; w < WORDS; w++) {
            float number[PER];
            Word<T>::unpack(word[w], number);
            #pragma unroll
            for (int k = 0; k < USED; k++) sum[w * PER + k] += number[k];
        }
    }
    __device__ __forceinline__ void store(T* to, const float* sum) {
        #pragma unroll
        for (int w = 0; w < WORDS; w++) {
            float number[PER] = {};
            #pragma unroll
            for (int k = 0; k < USED; k++) number[k] = sum[w * PER + k];
            word[w] = Word<T>::pack(number);
        }
        // Out of the caches first: rows of the table are read again, the result is not.
        if constexpr (N > 1) __stcs((uint4*)to, uint4{word[0], word[1], word[2], word[3]});
        else __stcs((Bits*)to, (Bits)word[0]);
    }
};

struct Call {
    const i64 *ids, *offsets;
    const void* table;
    void* out;
    i64 bags, teams;
    int lookups, dim;
    u32 last;  // row of the table
    // A row has 1 << lanes lanes, and EACH pieces of each; longer ones `across` teams. A team is 1 << shared groups of
    // such lanes with a bag in common, or one group with `run` bags.
    int lanes, shared, across, run;
};
constexpr u32 ALL = 0xffffffffu;
constexpr int WANTED = 4096;  // warps

template <class T, int N, int EACH> struct Sums {
    float sum[EACH][N];
    __device__ __forceinline__ void clear() {
        #pragma unroll
        for (int e = 0; e < EACH; e++)
            #pragma unroll
            for (int k = 0; k < N; k++) sum[e][k] = 0.0f;
    }
    __device__ __forceinline__ void add(const Sums& more) {
        #pragma unroll
        for (int e = 0; e < EACH; e++)
            #pragma unroll
            for (int k = 0; k < N; k++) sum[e][k] += more.sum[e][k];
    }
    __device__ __forceinline__ void store(const Call& c, i64 bag, int column) const {
        T* to = (T*)c.out + bag * c.dim + column;
        #pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int further = e * N << c.lanes;
            if (column + further < c.dim) Piece<T, N>().store(to + further, sum[e]);
        }
    }
};

// DEEP rows, and before them their ids. Of `left` lookups the first is at `at`.
template <class T, int N, int EACH> struct Gather {
    i64 id[DEEP] = {};  // what is not looked up stays as it was
    Piece<T, N> got[DEEP][EACH];
    __device__ __forceinline__ void look_up(const i64* at, int left) {
        #pragma unroll
        for (int d = 0; d < DEEP; d++)
            if (d < left) id[d] = __ldg(at + d);
    }
    // Ends the kernel at an id that is no row's, as torch does.
    __device__ __forceinline__ void load(const Call& c, int left, int column) {
        u32 high = 0, most = 0;
        #pragma unroll
        for (int d = 0; d < DEEP; d++) high |= (u32)((u64)id[d] >> 32), most = max(most, (u32)id[d]);
        if (high || most > c.last) __trap();
        const char* from = (const char*)c.table + (i64)column * sizeof(T);
        #pragma unroll
        for (int d = 0; d < DEEP; d++) {
            const char* row = from + (u64)(u32)id[d] * (u32)(c.dim * (int)sizeof(T));
            #pragma unroll
            for (int e = 0; e < EACH; e++) {
                const int further = e * N << c.lanes;
                if (d < left && (!e || column + further < c.dim)) got[d][e].load(row + further * sizeof(T));
            }
        }
    }
    __device__ __forceinline__ void add_to(Sums<T, N, EACH>& sums, const Call& c, int d, int column) const {
        #pragma unroll
        for (int e = 0; e < EACH; e++)
            if (!e || column + (e * N << c.lanes) < c.dim) got[d][e].add_to(sums.sum[e]);
    }
};

// Blocks of a processor, for its registers.
constexpr int RESIDENT = (DEEP < 8 ? 1024 : DEEP == 8 ? 768 : 512) / THREADS;
constexpr int RESIDENT_RUNS = (DEEP < 8 ? 1024 : DEEP == 8 ? 640 : 384) / THREADS;

template <class T, int N, int EACH> __global__ void __launch_bounds__(THREADS, RESIDENT) share_bags(Call c) {
    const i64 team = ((i64)blockIdx.x * THREADS + threadIdx.x) >> (c.lanes + c.shared);
    const int lane = threadIdx.x & ((1 << c.lanes) - 1), group = (threadIdx.x >> c.lanes) & ((1 << c.shared) - 1);
    const i64 bag = c.across > 1 ? team / c.across : team;
    const int column = (int)(team - bag * c.across) * (32 * EACH * N) + lane * N;
    const bool exists = team < c.teams;
    i64 begin = 0, end = 0;
    if (exists) begin = __ldg(c.offsets + bag), end = bag + 1 < c.bags ? __ldg(c.offsets + bag + 1) : c.lookups;
    if (begin < 0 || begin > end || end > c.lookups) __trap();
    const int step = DEEP << c.shared;  // of the team; each group has DEEP of it that follow each other
    const i64* at = c.ids + begin + group * DEEP;
    int left = column < c.dim ? (int)(end - begin) - group * DEEP : 0;
    Gather<T, N, EACH> rows;
    Sums<T, N, EACH> sums;
    sums.clear();
    rows.look_up(at, left);
    while (left > 0) {
        const int here = left;
        rows.load(c, here, column);
        at += step, left -= step;
        rows.look_up(at, left);
        constexpr bool EXACT = sizeof(T) == 4;  // of a long bag less is rounded away where a few rows are added first
        Sums<T, N, EACH> few;
        if constexpr (EXACT) few.clear();
        #pragma unroll
        for (int d = 0; d < DEEP; d++)
            if (d < here) rows.add_to(EXACT ? few : sums, c, d, column);
        if constexpr (EXACT) sums.add(few);
    }
    for (int apart = 1 << c.lanes; apart < 1 << (c.lanes + c.shared); apart *= 2)
        #pragma unroll
        for (int e = 0; e < EACH; e++)
            #pragma unroll
            for (int k = 0; k < N; k++) sums.sum[e][k] += __shfl_xor_sync(ALL, sums.sum[e][k], apart);
    if (exists && group == 0) sums.store(c, bag, column);
}

template <class T, int N, int EACH> __global__ void __launch_bounds__(THREADS, RESIDENT_RUNS) run_of_bags(Call c) {
    const i64 team = ((i64)blockIdx.x * THREADS + threadIdx.x) >> c.lanes;
    const int lane = threadIdx.x & ((1 << c.lanes) - 1);
    const i64 run = c.across > 1 ? team / c.across : team, first = run * c.run;
    const int column = (int)(team - run * c.across) * (32 * EACH * N) + lane * N;
    if (team >= c.teams || column >= c.dim) return;
    const int count = (int)min((i64)c.run, c.bags - first);
    const i64* ends = c.offsets + first + 1;
    auto end_of = [&](int i) -> i64 { return first + i + 1 < c.bags ? __ldg(ends + i) : c.lookups; };
    const i64 begin = __ldg(ends - 1), stop = end_of(count - 1);
    if (begin < 0 || begin > stop || stop > c.lookups) __trap();
    const i64* at = c.ids + begin;
    int left = (int)(stop - begin), bag = 0;
    // What is left to look up after this bag, and after the next.
    int beyond = (int)(stop - end_of(0)), later = (int)(stop - end_of(min(1, count - 1)));
    Gather<T, N, EACH> rows;
    Sums<T, N, EACH> sums;
    sums.clear();
    rows.look_up(at, left);
    while (left > 0) {
        const int here = left;
        rows.load(c, here, column);
        at += DEEP, left -= DEEP;
        rows.look_up(at, left);
        #pragma unroll
        for (int d = 0; d < DEEP; d++) {
            if (d >= here) continue;
            while (here - d <= beyond && bag + 1 < count) {
                sums.store(c, first + bag, column);
                sums.clear();
                bag++;
                if (later > beyond) __trap();
                beyond = later, later = (int)(stop - end_of(min(bag + 1, count - 1)));
            }
            rows.add_to(sums, c, d, column);
        }
    }
    for (; bag < count; bag++) {
        sums.store(c, first + bag, column);
        sums.clear();
    }
}

static i64 over(i64 value, i64 by) { return (value + by - 1) / by; }

template <class T, int N, int EACH> static cudaError_t launch(Call c, cudaStream_t stream) {
    const int pieces = (int)over(c.dim, N * EACH);  // lanes that a row would have
    while (c.lanes < 5 && 1 << c.lanes < pieces) c.lanes++;
    c.across = (int)over(pieces, 32);
    const i64 mean = c.lookups / c.bags;
    const bool brief = mean < DEEP;
    if (brief) {
        c.run = (int)std::max((i64)1, RUN / std::max(mean, (i64)1));
        while (c.run > 1 && (over(c.bags, c.run) * c.across << c.lanes) < 32 * WANTED) c.run /= 2;
    } else {
        while (c.lanes + c.shared < 5 && 8 << c.shared <= mean) c.shared++;  // four lookups or more for each
    }
    c.teams = (brief ? over(c.bags, c.run) : c.bags) * c.across;
    const i64 blocks = over(c.teams << (c.lanes + c.shared), THREADS);
    if (blocks >= (i64)1 << 31) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((u32)blocks), config.blockDim = dim3(THREADS);
    config.stream = stream;
    return cudaLaunchKernelEx(&config, brief ? run_of_bags<T, N, EACH> : share_bags<T, N, EACH>, c);
}
template <class T> static cudaError_t of_type(const Call& c, cudaStream_t stream) {
    constexpr int N = 16 / sizeof(T);
    if (c.dim % N == 0 && (size_t)c.table % 16 == 0 && (size_t)c.out % 16 == 0) return launch<T, N, 1>(c, stream);
    if (c.dim <= 32) return launch<T, 1, 1>(c, stream);
    return launch<T, 1, 3>(c, stream);
}
cudaError_t bags_launch(
    char type, const i64* ids, const i64* offsets, const void* table, void* out, i64 bags, i64 rows, int lookups,
    int dim, cudaStream_t stream) {
    if (lookups && !rows) return cudaErrorInvalidValue;
    Call call = {};
    call.ids = ids, call.offsets = offsets, call.table = table, call.out = out;
    call.bags = bags, call.last = rows ? (u32)(rows - 1) : 0, call.lookups = lookups, call.dim = dim;
    if (type == 'h') return of_type<__half>(call, stream);
    if (type == 'b') return of_type<__nv_bfloat16>(call, stream);
    return of_type<float>(call, stream);
}
"""

GLUE = r"""
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

using at::Tensor;
typedef long long i64;

cudaError_t bags_launch(
    char type, const i64* ids, const i64* offsets, const void* table, void* out, i64 bags, i64 rows, int lookups,
    int dim, cudaStream_t stream);

static Tensor longs(const Tensor& given) {
    return (given.scalar_type() == at::kLong ? given : given.to(at::kLong)).contiguous();
}

Tensor bag_sums(const Tensor& of_ids, const Tensor& of_offsets, const Tensor& of_table) {
    const auto type = of_table.scalar_type(), kind = of_ids.scalar_type();
    TORCH_CHECK(of_table.is_cuda() && of_ids.device() == of_table.device() && of_offsets.device() == of_table.device(),
                "tensors of one GPU are needed, not of ", of_ids.device(), ", ", of_offsets.device(), " and ",
                of_table.device());
    TORCH_CHECK(type == at::kFloat || type == at::kHalf || type == at::kBFloat16,
                "a table of float32, float16 or bfloat16, not of ", type);
    TORCH_CHECK((kind == at::kLong || kind == at::kInt) && of_offsets.scalar_type() == kind,
                "ids and offsets are both int64 or int32, not ", kind, " and ", of_offsets.scalar_type());
    TORCH_CHECK(of_ids.dim() == 1 && of_offsets.dim() == 1 && of_table.dim() == 2,
                "ids, offsets and a table of rows are needed, not ", of_ids.sizes(), ", ", of_offsets.sizes(), " and ",
                of_table.sizes());
    TORCH_CHECK(!(c10::GradMode::is_enabled() && of_table.requires_grad()), "there is no backward");
    const i64 bags = of_offsets.size(0), lookups = of_ids.size(0), rows = of_table.size(0), dim = of_table.size(1);
    constexpr i64 most = (i64)1 << 31;
    TORCH_CHECK(bags < most && lookups < most && rows < most && dim < most / 64, "too large: ", of_ids.sizes(), ", ",
                of_offsets.sizes(), ", ", of_table.sizes());
    const c10::cuda::CUDAGuard guard(of_table.device());
    const Tensor out = at::empty({bags, dim}, of_table.options());
    if (!bags || !dim) return out;
    const Tensor ids = longs(of_ids), offsets = longs(of_offsets), table = of_table.contiguous();
    C10_CUDA_CHECK(bags_launch(
        type == at::kHalf ? 'h' : type == at::kBFloat16 ? 'b' : 'f', (const i64*)ids.const_data_ptr(),
        (const i64*)offsets.const_data_ptr(), table.const_data_ptr(), out.mutable_data_ptr(), bags, rows, (int)lookups,
        (int)dim, c10::cuda::getCurrentCUDAStream()));
    return out;
}
"""
bag_sums = load_inline(
    name="embedding_bag",
    cpp_sources=[GLUE],
    cuda_sources=[KERNELS],
    functions=["bag_sums"],
    extra_cflags=["-O2"],
    extra_cuda_cflags=["-O3", f"-DDEEP={DEEP}", f"-DTHREADS={THREADS}", f"-DRUN={RUN}"],
    no_implicit_headers=True,
).bag_sums


class ModelNew(nn.Module):
    def forward(self, ids, offsets, table):
        return bag_sums(ids, offsets, table)
