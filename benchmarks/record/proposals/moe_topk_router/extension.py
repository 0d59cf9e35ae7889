"""A logit and its expert's number are one integer that orders as logits do, lower experts first among equals: no two
are alike. Up to 64 experts, one to eight threads have a token and take the largest integer out k times. Up to 1,024, a
warp has a token: the k-th largest of its lanes' own maxima is no larger than the k-th logit, a dozen experts are not
below it, and each finds its place by counting those above it. Loads are counted in shared memory and added by one
atomic an expert and block, after a small launch beside this one has cleared them; where one block is enough it writes
them. One call of C++, as small workloads wait for the host. Bound by latency for few tokens, by instructions for many.
"""

from torch import nn
from torch.utils.cpp_extension import load_inline

TUNABLES = {"THREADS": [256, 512], "ALONE": [0, 2, 4, 8]}
THREADS = 512
"""Of a block."""
ALONE = 4
"""Up to so many rounds of tokens one block does all, and nothing has to be cleared before."""

INSTRUCTIONS = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
typedef unsigned u32;
typedef long long i64;
typedef unsigned long long u64;

// Blocks of the next kernel may begin; and the one before has ended, its writes seen.
__device__ __forceinline__ void next_may_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void previous_ended() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
"""

KERNELS = r"""
constexpr u32 ALL = 0xffffffffu, LAST = 0x7fffffffu;  // all lanes; more than any expert's number

// Bits of a float as a number that orders as floats do: NaN, whatever its sign, above all, both zeros alike. None is 0.
template <u32 SIGN, u32 INFINITE> struct Order {
    static constexpr u32 MOST = SIGN - 1 + SIGN;
    static __device__ __forceinline__ u32 of(u32 bits) {
        const u32 size = bits & (SIGN - 1);
        const u32 order = bits & SIGN ? ~bits & MOST : bits | SIGN;
        return size > INFINITE ? MOST : size == 0 ? SIGN : order;
    }
    static __device__ __forceinline__ u32 bits(u32 order) { return order & SIGN ? order ^ SIGN : ~order & MOST; }
};
// A key is an order, and below it the expert's number, where a lower one is more.
template <class T> struct Logit;
template <> struct Logit<float> : Order<0x80000000u, 0x7f800000u> {
    typedef u32 Bits;
    typedef u64 Key;
    static constexpr int SHIFT = 32;
    static __device__ __forceinline__ float value(u32 order) { return __uint_as_float(bits(order)); }
    static __device__ __forceinline__ float narrow(float value) { return value; }
};
template <> struct Logit<__half> : Order<0x8000u, 0x7c00u> {
    typedef unsigned short Bits;
    typedef u32 Key;
    static constexpr int SHIFT = 16;
    static __device__ __forceinline__ float value(u32 order) {
        return __half2float(__ushort_as_half((unsigned short)bits(order)));
    }
    static __device__ __forceinline__ __half narrow(float value) { return __float2half_rn(value); }
};
template <> struct Logit<__nv_bfloat16> : Order<0x8000u, 0x7f80u> {
    typedef unsigned short Bits;
    typedef u32 Key;
    static constexpr int SHIFT = 16;
    static __device__ __forceinline__ float value(u32 order) { return __uint_as_float(bits(order) << 16); }
    static __device__ __forceinline__ __nv_bfloat16 narrow(float value) { return __float2bfloat16_rn(value); }
};

template <class Key> __device__ __forceinline__ Key larger(Key a, Key b) { return a > b ? a : b; }

// `hits` are a block's counts, `loads` all tokens'. Where one block has all tokens nobody has cleared `loads`.
__device__ __forceinline__ void add_hits(const int* hits, u64* loads, int experts) {
    __syncthreads();
    previous_ended();
    for (int e = threadIdx.x; e < experts; e += THREADS) {
        const int found = hits[e];
        if (gridDim.x == 1) loads[e] = found;
        else if (found) atomicAdd(loads + e, (u64)found);
    }
}

// A warp takes a token's largest key below the last one, k times, from memory: for any number of experts, and where too
// many logits are equal. Counts in `hits`, or where there is none in `loads`.
template <class T> __device__ __noinline__ void choose_slowly(
    const T* row, T* weights, i64* chosen, int* hits, u64* loads, int experts, int k) {
    typedef Logit<T> L;
    typedef typename L::Bits Bits;
    const int lane = threadIdx.x % 32;
    u64 last = ~0ull;  // above all keys, as none has the bit 31
    float most = 0.0f, sum = 0.0f;
    for (int j = 0; j < k; j++) {
        u64 best = 0;
        for (int e = lane; e < experts; e += 32) {
            const u64 key = (u64)L::of(((const Bits*)row)[e]) << 32 | (LAST - e);
            if (key < last && key > best) best = key;
        }
        #pragma unroll
        for (int apart = 16; apart; apart /= 2) best = larger(best, __shfl_xor_sync(ALL, best, apart));
        last = best;
        const float value = L::value((u32)(best >> 32));
        if (j == 0) most = value;
        sum += expf(value - most);
        if (lane) continue;
        const int expert = (int)(LAST - (u32)best);
        chosen[j] = expert;
        if (hits) atomicAdd(hits + expert, 1);
        else atomicAdd(loads + expert, 1ull);
    }
    __syncwarp();  // what the first lane has written is read
    for (int j = lane; j < k; j += 32) {
        const u32 bits = ((const Bits*)row)[chosen[j]];
        weights[j] = L::narrow(expf(L::value(L::of(bits)) - most) / sum);
    }
}

constexpr int HELD = 8;  // logits of a thread
template <class T> struct Raw {
    u32 word[HELD * sizeof(T) / 4];
    // `count`: how many of a thread's logits there are, if any. `even`: they begin at multiples of 16 bytes, and are so
    // many that 16 bytes are all there or none.
    __device__ __forceinline__ void read(const T* from, int count, bool even) {
        constexpr int WORDS = sizeof(word) / 4, LANES = 16 / sizeof(T), PER = 4 / sizeof(T);
        #pragma unroll
        for (int w = 0; w < WORDS; w++) word[w] = 0;
        if (even) {
            #pragma unroll
            for (int v = 0; v < WORDS / 4; v++) {
                if (v * LANES >= count) continue;
                const uint4 got = __ldcs((const uint4*)from + v);
                word[v * 4] = got.x, word[v * 4 + 1] = got.y, word[v * 4 + 2] = got.z, word[v * 4 + 3] = got.w;
            }
        } else {
            #pragma unroll
            for (int i = 0; i < HELD; i++)
                if (i < count) word[i / PER] |= (u32)((const typename Logit<T>::Bits*)from)[i] << (i % PER * 16);
        }
    }
    __device__ __forceinline__ u32 bits(int i) const {
        return sizeof(T) == 4 ? word[i] : word[i / 2] >> (i % 2 * 16) & 0xffffu;
    }
};

// LANES threads have a token, which has at most HELD * LANES experts. A place is kept by lane `place % LANES`.
template <class T, int LANES> __global__ void __launch_bounds__(THREADS, 1024 / THREADS) route_by_groups(
    const T* logits, T* weights, i64* chosen, u64* loads, i64 tokens, int experts, int k, bool even) {
    typedef Logit<T> L;
    typedef typename L::Key Key;
    constexpr Key LOW = ((Key)1 << L::SHIFT) - 1;
    constexpr int TALL = THREADS / LANES;
    __shared__ int hits[HELD * LANES];
    for (int e = threadIdx.x; e < experts; e += THREADS) hits[e] = 0;
    __syncthreads();
    const int lane = threadIdx.x % LANES, first = lane * HELD;
    const i64 step = (i64)gridDim.x * TALL;
    i64 token = (i64)blockIdx.x * TALL + threadIdx.x / LANES;
    const auto left = [&](i64 of) { return of < tokens ? experts - first : 0; };
    Raw<T> next;
    next.read(logits + token * experts + first, left(token), even);
    for (i64 base = (i64)blockIdx.x * TALL; base < tokens; base += step, token += step) {  // whole warps stay
        Key key[HELD], kept[HELD];
        const int count = left(token);
        #pragma unroll
        for (int i = 0; i < HELD; i++)
            key[i] = i < count ? (Key)L::of(next.bits(i)) << L::SHIFT | (LOW - (first + i)) : 0;
        next.read(logits + (token + step) * experts + first, left(token + step), even);
        Key top = 0;
        #pragma unroll
        for (int q = 0; q < HELD; q++) {
            kept[q] = 0;
            #pragma unroll 1
            for (int r = 0; r < LANES && q * LANES + r < k; r++) {
                Key best = key[0];
                #pragma unroll
                for (int i = 1; i < HELD; i++) best = larger(best, key[i]);
                #pragma unroll
                for (int apart = LANES / 2; apart; apart /= 2)
                    best = larger(best, __shfl_xor_sync(ALL, best, apart));
                if (q == 0 && r == 0) top = best;
                if (r == lane) kept[q] = best;
                #pragma unroll
                for (int i = 0; i < HELD; i++) key[i] = key[i] == best ? 0 : key[i];
            }
        }
        const float most = L::value((u32)(top >> L::SHIFT));
        float mass[HELD], sum = 0.0f;
        #pragma unroll
        for (int q = 0; q < HELD; q++) {
            if (q * LANES >= k) break;
            mass[q] = q * LANES + lane < k ? expf(L::value((u32)(kept[q] >> L::SHIFT)) - most) : 0.0f;
            sum += mass[q];
        }
        #pragma unroll
        for (int apart = LANES / 2; apart; apart /= 2) sum += __shfl_xor_sync(ALL, sum, apart);
        if (token >= tokens) continue;
        if (LANES == 1 && k == 2) {  // a thread's two places at once
            struct alignas(2 * sizeof(T)) Pair { T at[2]; };
            const int one = (int)(LOW - (kept[0] & LOW)), other = (int)(LOW - (kept[1] & LOW));
            *(longlong2*)(chosen + token * 2) = longlong2{one, other};
            *(Pair*)(weights + token * 2) = Pair{{L::narrow(mass[0] / sum), L::narrow(mass[1] / sum)}};
            atomicAdd(hits + one, 1), atomicAdd(hits + other, 1);
            continue;
        }
        #pragma unroll
        for (int q = 0; q < HELD; q++) {
            const int place = q * LANES + lane;
            if (place >= k) break;
            const int expert = (int)(LOW - (kept[q] & LOW));
            chosen[token * k + place] = expert;
            weights[token * k + place] = L::narrow(mass[q] / sum);
            atomicAdd(hits + expert, 1);
        }
    }
    add_hits(hits, loads, experts);
}

// A warp has a token; a lane has each 32nd of at most EACH * 32 experts. k is at most 32.
template <class T, int EACH> __global__ void __launch_bounds__(THREADS, 1024 / THREADS) route_by_warps(
    const T* logits, T* weights, i64* chosen, u64* loads, i64 tokens, int experts, int k) {
    typedef Logit<T> L;
    constexpr int WARPS = THREADS / 32;
    constexpr bool AHEAD = EACH <= 8;  // the next token's logits are under way, if registers are enough
    __shared__ int hits[EACH * 32];
    __shared__ u64 found[WARPS][32];
    for (int e = threadIdx.x; e < experts; e += THREADS) hits[e] = 0;
    __syncthreads();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 step = (i64)gridDim.x * WARPS;
    u32 next[EACH];
    const auto read = [&](i64 token) {
        #pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int e = i * 32 + lane;
            next[i] = 0;
            if (token < tokens && e < experts) next[i] = __ldcs((const typename L::Bits*)logits + token * experts + e);
        }
    };
    i64 token = (i64)blockIdx.x * WARPS + warp;
    if (AHEAD) read(token);
    for (; token < tokens; token += step) {
        if (!AHEAD) read(token);
        u32 order[EACH], head = 0;
        #pragma unroll
        for (int i = 0; i < EACH; i++) {
            order[i] = i * 32 + lane < experts ? L::of(next[i]) : 0;
            head = larger(head, order[i]);
        }
        if (AHEAD) read(token + step);
        // At least k logits are no less than the last of k different maxima; all are where there are fewer maxima.
        u32 least = 1;
        #pragma unroll 1
        for (int j = 0; j < k; j++) {
            const u32 most = __reduce_max_sync(ALL, head);
            least = larger(most, 1u);
            if (!most) break;
            head = head == most ? 0 : head;
        }
        int count = 0;
        #pragma unroll
        for (int i = 0; i < EACH; i++) {
            const bool stays = order[i] >= least;
            const u32 lanes = __ballot_sync(ALL, stays);
            const int place = count + __popc(lanes & ((1u << lane) - 1));
            if (stays && place < 32) found[warp][place] = (u64)order[i] << 32 | (LAST - (i * 32 + lane));
            count += __popc(lanes);
        }
        __syncwarp();
        if (count > 32) {
            choose_slowly(
                logits + token * experts, weights + token * k, chosen + token * k, hits, loads, experts, k);
        } else {
            const u64 own = lane < count ? found[warp][lane] : 0;
            int place = 0;
            for (int c = 0; c < count; c++) place += found[warp][c] > own;
            const float most = L::value(__reduce_max_sync(ALL, (u32)(own >> 32)));
            const float mass = place < k ? expf(L::value((u32)(own >> 32)) - most) : 0.0f;
            float sum = mass;
            #pragma unroll
            for (int apart = 16; apart; apart /= 2) sum += __shfl_xor_sync(ALL, sum, apart);
            if (place < k) {  // not those without a logit: at least k are above
                const int expert = (int)(LAST - (u32)own);
                chosen[token * k + place] = expert;
                weights[token * k + place] = L::narrow(mass / sum);
                atomicAdd(hits + expert, 1);
            }
        }
        __syncwarp();  // all have read what the next token overwrites
    }
    add_hits(hits, loads, experts);
}

template <class T> __global__ void __launch_bounds__(THREADS) route_any(
    const T* logits, T* weights, i64* chosen, u64* loads, i64 tokens, int experts, int k) {
    constexpr int WARPS = THREADS / 32;
    previous_ended();
    for (i64 token = (i64)blockIdx.x * WARPS + threadIdx.x / 32; token < tokens; token += (i64)gridDim.x * WARPS)
        choose_slowly(logits + token * experts, weights + token * k, chosen + token * k, nullptr, loads, experts, k);
}

__global__ void __launch_bounds__(THREADS) clear(u64* loads, int experts) {
    next_may_start();
    const int e = (int)blockIdx.x * THREADS + (int)threadIdx.x;
    if (e < experts) loads[e] = 0;
}

struct Call {
    const void* logits;
    void* weights;
    i64* chosen;
    u64* loads;
    i64 tokens;
    int experts, k, alone, processors;
    cudaStream_t stream;
};
// A block has `tall` tokens at a time.
template <class Kernel, class... Rest> static cudaError_t launch(
    const Call& c, int tall, int alone, Kernel kernel, Rest... rest) {
    cudaLaunchAttribute early;
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.stream = c.stream, config.blockDim = dim3(THREADS);
    i64 blocks = 1;
    if (c.tokens > (i64)tall * alone) {
        const i64 most = (i64)c.processors * (1024 / THREADS), wanted = (c.tokens + tall - 1) / tall;
        // Two, so that they add to what is cleared.
        blocks = wanted < 2 ? 2 : wanted < most ? wanted : most;
        config.gridDim = dim3((u32)(((i64)c.experts + THREADS - 1) / THREADS));
        const cudaError_t failed = cudaLaunchKernelEx(&config, clear, c.loads, c.experts);
        if (failed != cudaSuccess) return failed;
        config.attrs = &early, config.numAttrs = 1;
    }
    config.gridDim = dim3((u32)blocks);
    return cudaLaunchKernelEx(&config, kernel, rest...);
}
template <class T> static cudaError_t with_type(const Call& c) {
    const T* const logits = (const T*)c.logits;
    T* const weights = (T*)c.weights;
    const auto groups = [&](auto kernel, int lanes) {
        const bool even = (size_t)logits % 16 == 0 && c.experts * sizeof(T) % 16 == 0;
        return launch(c, THREADS / lanes, c.alone, kernel, logits, weights, c.chosen, c.loads, c.tokens, c.experts,
                      c.k, even);
    };
    const auto warps = [&](auto kernel, int alone) {
        return launch(c, THREADS / 32, alone, kernel, logits, weights, c.chosen, c.loads, c.tokens, c.experts, c.k);
    };
    if (c.experts <= HELD) return groups(route_by_groups<T, 1>, 1);
    if (c.experts <= HELD * 2) return groups(route_by_groups<T, 2>, 2);
    if (c.experts <= HELD * 4) return groups(route_by_groups<T, 4>, 4);
    if (c.experts <= HELD * 8) return groups(route_by_groups<T, 8>, 8);
    if (c.experts > 1024 || c.k > 32) return warps(route_any<T>, 0);
    if (c.experts <= 128) return warps(route_by_warps<T, 4>, c.alone);
    if (c.experts <= 256) return warps(route_by_warps<T, 8>, c.alone);
    if (c.experts <= 512) return warps(route_by_warps<T, 16>, c.alone);
    return warps(route_by_warps<T, 32>, c.alone);
}
cudaError_t route_launch(char type, const Call& call) {
    if (type == 'h') return with_type<__half>(call);
    if (type == 'b') return with_type<__nv_bfloat16>(call);
    return with_type<float>(call);
}
int multiprocessors(int device) {
    static int found[128];
    if (!found[device]) cudaDeviceGetAttribute(&found[device], cudaDevAttrMultiProcessorCount, device);
    return found[device];
}
"""

GLUE = r"""
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
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
typedef unsigned long long u64;

struct Call {
    const void* logits;
    void* weights;
    i64* chosen;
    u64* loads;
    i64 tokens;
    int experts, k, alone, processors;
    cudaStream_t stream;
};
cudaError_t route_launch(char type, const Call& call);
int multiprocessors(int device);

std::tuple<Tensor, Tensor, Tensor> route(const Tensor& given, int64_t wanted, int64_t alone) {
    const auto type = given.scalar_type();
    TORCH_CHECK(given.is_cuda(), "logits on a GPU, not on ", given.device());
    TORCH_CHECK(type == at::kFloat || type == at::kHalf || type == at::kBFloat16,
                "float32, float16 or bfloat16, not ", type);
    TORCH_CHECK(given.dim() == 2, "a matrix of logits is needed, not ", given.sizes());
    TORCH_CHECK(!(c10::GradMode::is_enabled() && given.requires_grad()), "there is no backward");
    const i64 tokens = given.size(0), experts = given.size(1);
    TORCH_CHECK(experts <= std::numeric_limits<int>::max() / 2, "too many experts: ", experts);
    // As Python cuts a list.
    const i64 k = wanted < 0 ? std::max<i64>(0, experts + wanted) : std::min<i64>(wanted, experts);
    const c10::cuda::CUDAGuard guard(given.device());
    const auto numbers = given.options().dtype(at::kLong);
    const Tensor weights = at::empty({tokens, k}, given.options()), chosen = at::empty({tokens, k}, numbers);
    if (!tokens || !k) return {weights, chosen, at::zeros({experts}, numbers)};
    const Tensor logits = given.contiguous(), loads = at::empty({experts}, numbers);
    const int device = given.device().index();
    Call call = {};
    call.logits = logits.const_data_ptr(), call.weights = weights.mutable_data_ptr();
    call.chosen = (i64*)chosen.mutable_data_ptr(), call.loads = (u64*)loads.mutable_data_ptr();
    call.tokens = tokens, call.experts = (int)experts, call.k = (int)k, call.alone = (int)alone;
    call.processors = multiprocessors(device), call.stream = c10::cuda::getCurrentCUDAStream(device);
    C10_CUDA_CHECK(route_launch(type == at::kHalf ? 'h' : type == at::kBFloat16 ? 'b' : 'f', call));
    return {weights, chosen, loads};
}
"""
route = load_inline(
    name="moe_topk_router",
    cpp_sources=[GLUE],
    cuda_sources=[INSTRUCTIONS, KERNELS],
    functions=["route"],
    extra_cflags=["-O2"],
    extra_cuda_cflags=["-O3", f"-DTHREADS={THREADS}"],
    no_implicit_headers=True,
).route


class ModelNew(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, logits):
        return route(logits, self.k, ALONE)
