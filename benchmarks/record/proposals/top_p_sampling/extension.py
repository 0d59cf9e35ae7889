"""One launch: a cluster of blocks has a row, so that all multiprocessors work on a few rows, which the second cache
holds after the first of four passes. Logits become integers of the same order, whose upper 12 bits are a bin; masses
are added up by bin in shared memory, as integers of 2^-45 or less of the most that an element of the bin can have:
exact to 1e-14 of the row, and the same in any order. Bins tell where the nucleus ends and which few the drawn token may
lie in; these are listed in shared memory and split twice more by 10 bits, down to one value. Where they do not fit the
row itself is read for that, however its values are spread. The last pass counts what is above the end, and finds the
drawn one of equal logits by its place.

Bound by the exponential in float64 and by additions in shared memory; small workloads by barriers.
On an H200 41 to 762 us, eight to eighteen times as fast as eager.
"""

from torch import nn
from torch.utils.cpp_extension import load_inline

TUNABLES = {"THREADS": [512, 1024], "AHEAD": [2, 4], "MOST_BLOCKS": [4, 8]}
THREADS = 512
"""Of a block: a multiprocessor has 1,024."""
AHEAD = 4
"""Vectors that a thread has under way."""
MOST_BLOCKS = 8
"""Of a cluster, which has a row."""

INSTRUCTIONS = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

__device__ __forceinline__ char* shared_memory() {
    extern __shared__ uint4 room[];
    return (char*)room;
}
// All blocks of a cluster have come here, and what they wrote is seen.
__device__ __forceinline__ void cluster_barrier() {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The same place in the shared memory of another block of the cluster.
template <class E> __device__ __forceinline__ E* peer(E* own, int rank) {
    u64 there;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(own), "r"(rank));
    return (E*)there;
}
"""

KERNELS = r"""
constexpr u32 ALL = 0xffffffffu;
constexpr int WARPS = THREADS / 32;
constexpr int BINS = 4096;           // by the upper 12 bits
constexpr int FINE = 1024;           // by 10 bits more, twice
constexpr int ROOM = 13824;          // codes that a cluster's blocks list
constexpr int LISTED = 4096;         // codes that each of several blocks lists
constexpr int WIDEST = 8;            // blocks of a cluster
constexpr u32 LEAST = 0xff800000u;   // the code of -inf
constexpr u32 NONE = 0xffffffffu;
constexpr float LARGE = 1e30f;       // what +inf is taken for
constexpr double NOTHING = -100.0;   // masses of e^-100 of the largest are lost in any sum

struct Call {
    const void *logits, *p;
    const i64* number;
    i64 *tokens, *counts;
    void* totals;
    i64 stride;  // of rows, in elements
    i64 vocab;
    int blocks;  // of a cluster
    int bits;    // of the largest mass in a bin, so that no sum overflows
    char p_type;
};

// A thread's bins lie side by side: one word more for each eight, and its reads do not meet others in a bank.
__device__ __forceinline__ int padded(int bin) { return bin + bin / 8; }

struct Shared {
    u64 sums[BINS + BINS / 8];  // of the cluster, by bin
    u64 fine[FINE];             // of the cluster, by the bits of a level
    // Of the block, the lower and the upper words of bins. When these are summed there are 2 * FINE of a level, and
    // what is listed: of several blocks at the end what this one lists, and before it what all do.
    u32 words[2 * FINE + ROOM];
    double starts[32];
    u64 fine_starts[32];
    double befores[4];
    i64 highers[WIDEST], equals[WIDEST];  // by block
    u32 tops[WIDEST], many[WIDEST];       // by block
    u32 by_warp[32];
    u64 passed;
    u32 founds[4], highest, count, digit;
    unsigned char shifts[BINS];  // beyond call.bits
};
static_assert(sizeof(Shared) <= 113 << 10 && 2 * BINS <= 2 * FINE + ROOM - LISTED, "two blocks on a multiprocessor");

// Codes ascend as values descend. Values that are not numbers are -inf, and -0 is 0.
__device__ __forceinline__ u32 turned(u32 bits) { return (int)bits < 0 ? bits : bits ^ 0x7fffffffu; }
__device__ __forceinline__ u32 code_of(float value) {
    value += 0.0f;
    if (!(value == value)) return LEAST;
    return turned(__float_as_uint(value == __uint_as_float(0x7f800000u) ? LARGE : value));
}
__device__ __forceinline__ float value_of(u32 code) { return __uint_as_float(turned(code)); }

// 16 bytes of a row.
template <class T> struct Lanes;
template <> struct Lanes<float> {
    static constexpr int COUNT = 4;
    static constexpr u32 LOWEST = 0xff800000u;
    static __device__ __forceinline__ void codes(u32 word, u32* code) { code[0] = code_of(__uint_as_float(word)); }
};
template <> struct Lanes<__half> {
    static constexpr int COUNT = 8;
    static constexpr u32 LOWEST = 0xfc00u;
    static __device__ __forceinline__ void codes(u32 word, u32* code) {
        const float2 pair = __half22float2(*(const __half2*)&word);
        code[0] = code_of(pair.x), code[1] = code_of(pair.y);
    }
};
template <> struct Lanes<__nv_bfloat16> {
    static constexpr int COUNT = 8;
    static constexpr u32 LOWEST = 0xff80u;
    static __device__ __forceinline__ void codes(u32 word, u32* code) {
        code[0] = code_of(__uint_as_float(word << 16)), code[1] = code_of(__uint_as_float(word & 0xffff0000u));
    }
};

// A warp's part of a row, in vectors at multiples of 16 bytes; the first and the last may begin and end outside.
template <class T> struct Part {
    const T* row;
    int begin, end, vocab;
    int lead;  // elements of the first vector before the row

    // Vectors of no one have -inf.
    __device__ __forceinline__ uint4 load(int vector) const {
        constexpr int COUNT = Lanes<T>::COUNT, BITS = 8 * sizeof(T);
        const int at = vector * COUNT - lead;
        if (vector < end && at >= 0 && at <= vocab - COUNT) return __ldg((const uint4*)(row + at));
        u64 low = 0, high = 0;
        #pragma unroll 1
        for (int l = COUNT - 1; l >= 0; l--) {
            u32 bits = Lanes<T>::LOWEST;
            if (vector < end && at + l >= 0 && at + l < vocab) {
                if constexpr (COUNT == 4) bits = __ldg((const u32*)row + (at + l));
                else bits = __ldg((const unsigned short*)row + (at + l));
            }
            high = high << BITS | low >> (64 - BITS), low = low << BITS | bits;
        }
        return make_uint4((u32)low, (u32)(low >> 32), (u32)high, (u32)(high >> 32));
    }
    // All of a warp come to `use` together, which has a vector's codes and its number, and ends this by true.
    template <class Use> __device__ __forceinline__ void each(const Use& use) const {
        constexpr int PER = Lanes<T>::COUNT / 4;
        for (int base = begin; base < end; base += 32 * AHEAD) {
            uint4 all[AHEAD];
            #pragma unroll
            for (int i = 0; i < AHEAD; i++) all[i] = load(base + i * 32 + threadIdx.x % 32);
            #pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                if (base + i * 32 >= end) break;
                u32 code[4 * PER];
                Lanes<T>::codes(all[i].x, code), Lanes<T>::codes(all[i].y, code + PER);
                Lanes<T>::codes(all[i].z, code + 2 * PER), Lanes<T>::codes(all[i].w, code + 3 * PER);
                if (use(code, base + i * 32 + threadIdx.x % 32)) return;
            }
        }
    }
    // Four codes at a time, where there is much to do for each: one vector is ahead, and the code remains short.
    template <class Use> __device__ __forceinline__ void each_four(const Use& use) const {
        constexpr int PER = Lanes<T>::COUNT / 4;
        uint4 next = load(begin + threadIdx.x % 32);
        #pragma unroll 1
        for (int base = begin; base < end; base += 32) {
            uint4 all = next;
            if (base + 32 < end) next = load(base + 32 + threadIdx.x % 32);
            #pragma unroll 1
            for (int i = 0; i < PER; i++) {
                u32 code[4];
                Lanes<T>::codes(all.x, code);
                if constexpr (PER == 2) {
                    Lanes<T>::codes(all.y, code + 2);
                    all.x = all.z, all.y = all.w;
                } else {
                    Lanes<T>::codes(all.y, code + 1);
                    Lanes<T>::codes(all.z, code + 2), Lanes<T>::codes(all.w, code + 3);
                }
                if (use(code)) return;
            }
        }
    }
};

__device__ __forceinline__ void together(int blocks) {
    if (blocks == 1) __syncthreads();
    else cluster_barrier();
}

// The largest of a row, and the last code whose mass counts.
struct Top {
    double value;
    u32 last;
    __device__ __forceinline__ explicit Top(u32 code) {
        value = value_of(code), last = code_of(__double2float_ru(value + NOTHING));
    }
};
// e^r on [-ln2/2, ln2/2] to 2.2e-16. In constant memory, from where they cost no instruction.
__constant__ double POWERS[] = {
    2.7626371065696354e-07, 2.764019739169484e-06, 2.480150431378554e-05, 0.00019841170230570286,
    0.001388888893251478, 0.008333333385699212, 0.041666666666573066, 0.16666666666554314,
    0.5000000000000006, 1.0000000000000067, 1.0, 1.4426950408889634, 6755399441055744.0,
    -6.93147180369123816490e-01, -1.90821492927058770002e-10, 4503599627370496.0};
// e^(value - top) * 2^shift, to the next integer, which is below 2^51, of a code that counts.
__device__ __forceinline__ u64 mass_of(u32 code, double top, int shift) {
    const double down = (double)value_of(code) - top, magic = POWERS[12];  // 1.5 * 2^52
    const double moved = __fma_rn(down, POWERS[11], magic), whole = moved - magic;
    double r = __fma_rn(whole, POWERS[13], down);
    r = __fma_rn(whole, POWERS[14], r);
    double power = POWERS[0];
    #pragma unroll
    for (int i = 1; i <= 10; i++) power = __fma_rn(power, r, POWERS[i]);
    const int exponent = __double2loint(moved) + shift;
    const double scaled = __hiloint2double(__double2hiint(power) + exponent * (1 << 20), __double2loint(power));
    const double placed = scaled + POWERS[15];  // 2^52: the lower bits are the integer
    return ((u64)(u32)(__double2hiint(placed) & 0xfffff) << 32) | (u32)__double2loint(placed);
}
// How many bits more than `bits` the masses of a bin have, by the largest that may be there.
__device__ __forceinline__ int shift_of(int bin, u32 top_code) {
    const u32 first = (u32)bin << 20;
    const double down = (double)value_of(first > top_code ? first : top_code) - (double)value_of(top_code);
    return down >= NOTHING ? (int)ceil(down * -1.4426950408889634) : 0;
}
__device__ __forceinline__ double two_to_minus(int shift) { return __hiloint2double((1023 - shift) << 20, 0); }

// Of 64 bits the lower word is added first, and what it carries with the upper one.
__device__ __forceinline__ void add(u32* low, u32* high, int to, u64 mass) {
    const u32 lower = (u32)mass, before = atomicAdd(low + to, lower);
    atomicAdd(high + to, (u32)(mass >> 32) + (before + lower < before));
}
__device__ __forceinline__ u64 warp_sum(u64 value) {
    #pragma unroll
    for (int apart = 16; apart; apart /= 2) value += __shfl_xor_sync(ALL, value, apart);
    return value;
}
// Masses, where to[l] >= 0. Where a warp's all go to one place one lane adds them: others would wait in line.
__device__ __forceinline__ void add_all(
    u32* low, u32* high, const int* to, const u32* code, double top, const int* shift) {
    const int first = __shfl_sync(ALL, to[0], 0);
    bool same = true;
    #pragma unroll
    for (int l = 0; l < 4; l++) same = same && to[l] == first;
    u64 mass[4];
    #pragma unroll
    for (int l = 0; l < 4; l++) mass[l] = mass_of(code[l], top, shift[l]);
    if (__all_sync(ALL, same)) {
        if (first < 0) return;
        u64 sum = 0;
        #pragma unroll
        for (int l = 0; l < 4; l++) sum += mass[l];
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) add(low, high, first, sum);
        return;
    }
    #pragma unroll
    for (int l = 0; l < 4; l++)
        if (to[l] >= 0) add(low, high, to[l], mass[l]);
}
// What the cluster's blocks have of `bins`, into `sums` of each of them.
template <class Place> __device__ __forceinline__ void merge(
    u32* low, u32* high, u64* sums, int bins, int rank, int blocks, const Place& place) {
    together(blocks);
    const int share = bins / blocks;
    for (int i = threadIdx.x; i < share; i += THREADS) {
        const int bin = rank * share + i;
        u64 sum = 0;
        for (int r = 0; r < blocks; r++) {
            const u32 *lows = blocks > 1 ? peer(low, r) : low, *highs = blocks > 1 ? peer(high, r) : high;
            sum += ((u64)highs[bin] << 32) + lows[bin];
        }
        for (int r = 0; r < blocks; r++) *((blocks > 1 ? peer(sums, r) : sums) + place(bin)) = sum;
    }
    together(blocks);
}

// What comes before a thread's, and the sum of all, in one order.
template <class N> __device__ __forceinline__ N starts_of(N own, N* starts, N& all) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    N upto = own;
    #pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
        const N other = __shfl_up_sync(ALL, upto, apart);
        if (lane >= apart) upto += other;
    }
    if (lane == 31) starts[warp] = upto;
    const N before = __shfl_up_sync(ALL, upto, 1);
    __syncthreads();
    N start = 0, sum = 0;
    for (int w = 0; w < WARPS; w++) {
        if (w == warp) start = sum;
        sum += starts[w];
    }
    all = sum;
    __syncthreads();
    return lane ? start + before : start;
}

constexpr int OWN = BINS / THREADS;  // bins of a thread
struct Bins {
    Shared& s;
    double start, whole;
    int bits;

    __device__ __forceinline__ int shift(int bin) const { return bits + s.shifts[bin]; }
    __device__ __forceinline__ double mass(int bin) const {
        return (double)s.sums[padded(bin)] * two_to_minus(shift(bin));
    }
    __device__ __forceinline__ void scan() {
        double own = 0;
        u32 highest = 0;
        #pragma unroll
        for (int i = 0; i < OWN; i++) {
            const int bin = threadIdx.x * OWN + i;
            own += mass(bin);
            if (s.sums[padded(bin)]) highest = bin;
        }
        highest = __reduce_max_sync(ALL, highest);
        if (threadIdx.x % 32 == 0) atomicMax(&s.highest, highest);
        start = starts_of<double>(own, s.starts, whole);
    }
    // The first bin up to which there is the mass, or more than it (`beyond`), of `first` to `last`; and what lies
    // before. Each call has a slot of its own.
    __device__ __noinline__ u32 find(
        double wanted, bool beyond, u32 first, u32 last, int slot, double& before) const {
        double upto = start;
        u32 found = NONE;
        #pragma unroll
        for (int i = 0; i < OWN; i++) {
            const int bin = threadIdx.x * OWN + i;
            upto += mass(bin);
            if (found == NONE && s.sums[padded(bin)] && (beyond ? upto > wanted : upto >= wanted)) found = bin;
        }
        found = __reduce_min_sync(ALL, found);
        if (threadIdx.x % 32 == 0) atomicMin(&s.founds[slot], found);
        __syncthreads();
        found = max(min(s.founds[slot], last), first);
        if (threadIdx.x == found / OWN) {
            upto = start;
            for (u32 bin = threadIdx.x * OWN; bin < found; bin++) upto += mass(bin);
            s.befores[slot] = upto;
        }
        __syncthreads();
        before = s.befores[slot];
        return found;
    }
};

struct Found {
    u32 code;
    u64 upto;  // mass of its bin up to this token, itself included
    i64 nth;   // of the tokens with this code, from 1 on
};
// The first token of a bin up to which there is the wanted mass of the bin, which is 1 to all of it. `codes` are
// listed; or null, and the row has them.
template <class T> __device__ __noinline__ Found resolve(
    Shared& s, const Part<T>& part, const u32* codes, u32 listed, u32 bin, u64 wanted, const Top& top, int shift,
    int rank, int blocks) {
    u32 prefix = bin;
    u64 passed = 0;
    for (int low_bits = 10; low_bits >= 0; low_bits -= 10) {
        u32 *low = s.words, *high = s.words + FINE;
        for (int i = threadIdx.x; i < 2 * FINE; i += THREADS) s.words[i] = 0;
        __syncthreads();
        if (codes) {
            for (u32 i = threadIdx.x; i < listed; i += THREADS) {
                const u32 code = codes[i];
                if (code >> (low_bits + 10) != prefix || code > top.last) continue;
                add(low, high, (code >> low_bits) % FINE, mass_of(code, top.value, shift));
            }
            merge(low, high, s.fine, FINE, 0, 1, [](int i) { return i; });
        } else {
            part.each_four([&](const u32* code) {
                int to[4], shifts[4];
                bool any = false;
                #pragma unroll
                for (int l = 0; l < 4; l++) {
                    const bool own = code[l] >> (low_bits + 10) == prefix && code[l] <= top.last;
                    to[l] = own ? (int)((code[l] >> low_bits) % FINE) : -1, shifts[l] = shift, any = any || own;
                }
                if (__any_sync(ALL, any)) add_all(low, high, to, code, top.value, shifts);
                return false;
            });
            merge(low, high, s.fine, FINE, rank, blocks, [](int i) { return i; });
        }
        constexpr int EACH = FINE / THREADS;
        u64 own = 0, all;
        #pragma unroll
        for (int i = 0; i < EACH; i++) own += s.fine[threadIdx.x * EACH + i];
        u64 upto = starts_of<u64>(own, s.fine_starts, all);
        #pragma unroll
        for (int i = 0; i < EACH; i++) {
            const u64 mass = s.fine[threadIdx.x * EACH + i];
            if (upto < wanted - passed && upto + mass >= wanted - passed)
                s.digit = threadIdx.x * EACH + i, s.passed = upto;
            upto += mass;
        }
        __syncthreads();
        prefix = prefix << 10 | s.digit, passed += s.passed;
        __syncthreads();
    }
    const u64 mass = mass_of(prefix, top.value, shift);
    Found found;
    found.code = prefix;
    found.nth = (i64)((wanted - passed + mass - 1) / mass);
    found.upto = passed + (u64)found.nth * mass;
    return found;
}

__device__ __forceinline__ double p_of(const Call& c, i64 row) {
    if (c.p_type == 'd') return ((const double*)c.p)[row];
    if (c.p_type == 'h') return __half2float(((const __half*)c.p)[row]);
    if (c.p_type == 'b') return __bfloat162float(((const __nv_bfloat16*)c.p)[row]);
    return ((const float*)c.p)[row];
}
__device__ __forceinline__ void tell(const Call& c, i64 row, i64 count, double total) {
    c.counts[row] = count;
    if (c.p_type == 'd') ((double*)c.totals)[row] = total;
    else if (c.p_type == 'h') ((__half*)c.totals)[row] = __float2half_rn((float)total);
    else if (c.p_type == 'b') ((__nv_bfloat16*)c.totals)[row] = __float2bfloat16_rn((float)total);
    else ((float*)c.totals)[row] = (float)total;
}

template <class T> __global__ void __launch_bounds__(THREADS, 1024 / THREADS) sample(Call c) {
    constexpr int COUNT = Lanes<T>::COUNT;
    Shared& s = *(Shared*)shared_memory();
    const int blocks = c.blocks, rank = (int)(blockIdx.x % blocks);
    const i64 row = blockIdx.x / blocks;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Part<T> part;
    part.row = (const T*)c.logits + row * c.stride, part.vocab = (int)c.vocab;
    part.lead = (int)((size_t)part.row % 16 / sizeof(T));
    const i64 vectors = (part.lead + c.vocab + COUNT - 1) / COUNT, parts = blocks * WARPS, own = rank * WARPS + warp;
    part.begin = (int)(vectors * own / parts), part.end = (int)(vectors * (own + 1) / parts);

    // First pass: the largest.
    u32 top_code = LEAST;
    part.each([&](const u32* code, int) {
        #pragma unroll
        for (int l = 0; l < COUNT; l++) top_code = min(top_code, code[l]);
        return false;
    });
    for (int i = threadIdx.x; i < 2 * BINS; i += THREADS) s.words[i] = 0;
    if (threadIdx.x < 4) s.founds[threadIdx.x] = NONE;
    if (threadIdx.x == 4) s.highest = 0, s.count = 0;
    top_code = __reduce_min_sync(ALL, top_code);
    if (lane == 0) s.by_warp[warp] = top_code;
    if (blocks > 1) cluster_barrier();  // others may be written to when they have begun
    else __syncthreads();
    if (warp == 0) {
        top_code = __reduce_min_sync(ALL, lane < WARPS ? s.by_warp[lane] : LEAST);
        if (lane < blocks) *((blocks > 1 ? peer(s.tops, lane) : s.tops) + rank) = top_code;
    }
    together(blocks);
    top_code = LEAST;
    for (int r = 0; r < blocks; r++) top_code = min(top_code, s.tops[r]);
    if (top_code == LEAST) {  // nothing to draw from: as the reference has it
        if (rank == 0 && threadIdx.x == 0) c.tokens[row] = 0, tell(c, row, 1, __hiloint2double(0x7ff80000, 0));
        return;
    }
    const Top top(top_code);
    for (int bin = threadIdx.x; bin < BINS; bin += THREADS) s.shifts[bin] = (unsigned char)shift_of(bin, top_code);
    __syncthreads();

    // Second pass: masses by bin.
    part.each_four([&](const u32* code) {
        int to[4], shift[4];
        #pragma unroll
        for (int l = 0; l < 4; l++) {
            const int bin = (int)(code[l] >> 20);
            to[l] = code[l] <= top.last ? bin : -1, shift[l] = c.bits + s.shifts[bin];
        }
        add_all(s.words, s.words + BINS, to, code, top.value, shift);
        return false;
    });
    merge(s.words, s.words + BINS, s.sums, BINS, rank, blocks, padded);
    Bins bins = {s, 0, 0, c.bits};
    bins.scan();
    const u32 highest = s.highest;
    const double whole = bins.whole, reach = p_of(c, row) - 1e-9, share = ((double)c.number[row] + 0.5) / 2147483648.0;
    const bool everything = reach >= 1.0;
    const double limit = reach > 1e-300 ? reach * whole : 1e-300;  // also for NaN: one token is always kept
    double before, ignored;
    const u32 last = everything ? highest : bins.find(limit, false, 0, highest, 0, before);
    // What is kept has a mass from `before` to `most`, give or take a rounding.
    const double most = everything ? whole : before + bins.mass(last);
    const u32 first = bins.find(share * (everything ? whole : before) * (1 - 1e-9), true, 0, last, 1, ignored);
    const u32 second = bins.find(share * most * (1 + 1e-9), true, 0, last, 2, ignored);

    // Third pass: lists of these bins, in any order.
    u32* const all_listed = s.words + 2 * FINE;
    u32* const own_listed = blocks > 1 ? all_listed + ROOM - LISTED : all_listed;
    const u32 most_listed = blocks > 1 ? LISTED : ROOM;
    part.each_four([&](const u32* code) {
        bool any = false;
        #pragma unroll
        for (int l = 0; l < 4; l++) {
            const u32 bin = code[l] >> 20;
            any = any || bin == last || (bin >= first && bin <= second);
        }
        if (!__any_sync(ALL, any)) return false;
        #pragma unroll
        for (int l = 0; l < 4; l++) {
            const u32 bin = code[l] >> 20;
            const bool own = bin == last || (bin >= first && bin <= second);
            const u32 mask = __ballot_sync(ALL, own);
            u32 start = 0;
            if (lane == 0 && mask) start = atomicAdd(&s.count, __popc(mask));
            start = __shfl_sync(ALL, start, 0);
            if (start > most_listed) return true;  // in vain
            const u32 to = start + __popc(mask & ((1u << lane) - 1));
            if (own && to < most_listed) own_listed[to] = code[l];
        }
        return false;
    });
    __syncthreads();
    if (threadIdx.x < blocks) *((blocks > 1 ? peer(s.many, (int)threadIdx.x) : s.many) + rank) = s.count;
    together(blocks);
    u32 listed = 0;
    bool fit = true;
    for (int r = 0; r < blocks; r++) {
        const u32 many = s.many[r];
        fit = fit && many <= most_listed, listed += min(many, most_listed);
    }
    fit = fit && (blocks == 1 || listed <= ROOM - LISTED);
    if (fit && blocks > 1) {
        u32 start = 0;
        for (int r = 0; r < blocks; r++) {
            const u32* there = peer(own_listed, r);
            for (u32 i = threadIdx.x; i < s.many[r]; i += THREADS) all_listed[start + i] = there[i];
            start += s.many[r];
        }
    }
    const u32* codes = fit ? all_listed : nullptr;  // the next barrier is in resolve()

    Found end = {0, 0, 0};
    double total = whole;
    if (!everything) {
        const int shift = bins.shift(last);
        const u64 all = s.sums[padded(last)];
        // The first up to which there is the limit is the last before which there is less.
        const double wanted = ceil((limit - before) / two_to_minus(shift));
        const u64 target = wanted < 1 ? 1 : wanted < (double)all ? (u64)wanted : all;
        end = resolve<T>(s, part, codes, listed, last, target, top, shift, rank, blocks);
        total = before + (double)end.upto * two_to_minus(shift);
    }
    const double wanted = share * total;
    const u32 bin = bins.find(wanted, true, first, second, 3, before);
    const int shift = bins.shift(bin);
    const u64 most_of = !everything && bin == last ? end.upto : s.sums[padded(bin)];
    const double within = floor((wanted - before) / two_to_minus(shift)) + 1;
    const u64 target = within < 1 ? 1 : within < (double)most_of ? (u64)within : most_of;
    const Found drawn = resolve<T>(s, part, codes, listed, bin, target, top, shift, rank, blocks);

    // Last pass: how many are above the end, and how many each warp has of the drawn value.
    i64 higher = 0;
    u32 equal = 0;
    if (everything)
        part.each_four([&](const u32* code) {
            #pragma unroll 1
            for (int l = 0; l < 4; l++) {
                const u32 one = l == 0 ? code[0] : l == 1 ? code[1] : l == 2 ? code[2] : code[3];
                higher += exp((double)value_of(one) - top.value) / whole > 0, equal += one == drawn.code;
            }
            return false;
        });
    else {
        u32 above = 0;
        part.each([&](const u32* code, int) {
            #pragma unroll
            for (int l = 0; l < COUNT; l++) above += code[l] < end.code, equal += code[l] == drawn.code;
            return false;
        });
        higher = above;
    }
    higher = (i64)warp_sum((u64)higher), equal = __reduce_add_sync(ALL, equal);
    if (lane == 0) s.by_warp[warp] = equal, s.fine[warp] = (u64)higher;
    __syncthreads();
    if (warp == 0) {
        higher = (i64)warp_sum(lane < WARPS ? s.fine[lane] : 0);
        const i64 equals = __reduce_add_sync(ALL, lane < WARPS ? s.by_warp[lane] : 0);
        if (lane < blocks) {
            *((blocks > 1 ? peer(s.highers, lane) : s.highers) + rank) = higher;
            *((blocks > 1 ? peer(s.equals, lane) : s.equals) + rank) = equals;
        }
    }
    together(blocks);  // no block reads or writes another's after this
    if (rank == 0 && threadIdx.x == 0) {
        i64 count = end.nth;
        for (int r = 0; r < blocks; r++) count += s.highers[r];
        tell(c, row, count, total / whole);
    }
    i64 seen = 0;
    for (int r = 0; r < rank; r++) seen += s.equals[r];
    for (int w = 0; w < warp; w++) seen += s.by_warp[w];
    if (seen >= drawn.nth || seen + equal < drawn.nth) return;
    part.each([&](const u32* code, int vector) {
        u32 own = 0;
        #pragma unroll
        for (int l = 0; l < COUNT; l++) own += code[l] == drawn.code;
        u32 upto = own;
        #pragma unroll
        for (int apart = 1; apart < 32; apart *= 2) {
            const u32 other = __shfl_up_sync(ALL, upto, apart);
            if (lane >= apart) upto += other;
        }
        i64 at = seen + upto - own;
        if (at < drawn.nth && seen + upto >= drawn.nth) {
            #pragma unroll
            for (int l = 0; l < COUNT; l++)
                if (code[l] == drawn.code && ++at == drawn.nth) c.tokens[row] = vector * COUNT - part.lead + l;
        }
        seen += __shfl_sync(ALL, upto, 31);
        return seen >= drawn.nth;
    });
}

template <class T> static cudaError_t launch(const Call& call, i64 rows, int device, cudaStream_t stream) {
    // A kernel has it once for each device.
    static bool prepared[64] = {};
    if (device >= 64 || !prepared[device]) {
        const cudaError_t failed =
            cudaFuncSetAttribute(sample<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(Shared));
        if (failed != cudaSuccess) return failed;
        if (device < 64) prepared[device] = true;
    }
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = call.blocks, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(rows * call.blocks)), config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = sizeof(Shared), config.stream = stream;
    config.attrs = &cluster, config.numAttrs = call.blocks > 1;
    return cudaLaunchKernelEx(&config, sample<T>, call);
}
cudaError_t sample_launch(
    char type, char p_type, const void* logits, const void* p, const i64* number, i64* tokens, i64* counts,
    void* totals, i64 rows, i64 vocab, i64 stride, int most_blocks, int processors, int device, cudaStream_t stream) {
    Call call = {};
    call.logits = logits, call.p = p, call.number = number;
    call.tokens = tokens, call.counts = counts, call.totals = totals;
    call.stride = stride, call.vocab = vocab, call.p_type = p_type;
    call.blocks = 1;
    const i64 resident = (i64)processors * (1024 / THREADS);
    while (call.blocks < most_blocks && call.blocks < WIDEST && rows * call.blocks * 2 <= resident &&
           vocab / (call.blocks * 2) >= 2048)
        call.blocks *= 2;
    call.bits = 50;
    while (call.bits > 20 && vocab > (i64)1 << (62 - call.bits)) call.bits--;
    if (type == 'h') return launch<__half>(call, rows, device, stream);
    if (type == 'b') return launch<__nv_bfloat16>(call, rows, device, stream);
    return launch<float>(call, rows, device, stream);
}
int multiprocessors(int device) {
    static int known[64] = {};
    if (device < 0 || device >= 64) return 132;
    if (!known[device]) cudaDeviceGetAttribute(&known[device], cudaDevAttrMultiProcessorCount, device);
    return known[device];
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
#include <tuple>

using at::Tensor;
typedef long long i64;

cudaError_t sample_launch(
    char type, char p_type, const void* logits, const void* p, const i64* number, i64* tokens, i64* counts,
    void* totals, i64 rows, i64 vocab, i64 stride, int most_blocks, int processors, int device, cudaStream_t stream);
int multiprocessors(int device);

static char name_of(at::ScalarType type) {
    return type == at::kFloat ? 'f' : type == at::kHalf ? 'h' : type == at::kBFloat16 ? 'b' : 'd';
}

std::tuple<Tensor, Tensor, Tensor> sample(
    const Tensor& of_logits, const Tensor& of_p, const Tensor& of_number, int64_t most_blocks) {
    const auto type = of_logits.scalar_type(), p_type = of_p.scalar_type(), kind = of_number.scalar_type();
    TORCH_CHECK(of_logits.is_cuda() && of_p.device() == of_logits.device() && of_number.device() == of_logits.device(),
                "tensors of one GPU, not of ", of_logits.device(), ", ", of_p.device(), " and ", of_number.device());
    TORCH_CHECK(type == at::kFloat || type == at::kHalf || type == at::kBFloat16,
                "logits of float32, float16 or bfloat16, not ", type);
    TORCH_CHECK(p_type == at::kFloat || p_type == at::kHalf || p_type == at::kBFloat16 || p_type == at::kDouble,
                "p of floats, not ", p_type);
    TORCH_CHECK(kind == at::kLong || kind == at::kInt, "numbers of int64, not ", kind);
    TORCH_CHECK(of_logits.dim() == 2 && of_p.dim() == 1 && of_number.dim() == 1 &&
                    of_p.size(0) == of_logits.size(0) && of_number.size(0) == of_logits.size(0),
                "logits [rows, vocab], and a p and a number for each row, not ", of_logits.sizes(), ", ", of_p.sizes(),
                " and ", of_number.sizes());
    const i64 rows = of_logits.size(0), vocab = of_logits.size(1);
    TORCH_CHECK_INDEX(vocab, "no token to draw");
    TORCH_CHECK(rows < (i64)1 << 27 && vocab < ((i64)1 << 31) - 4096, "too large: ", of_logits.sizes());
    const c10::cuda::CUDAGuard guard(of_logits.device());
    const Tensor logits = of_logits.stride(1) == 1 || vocab == 1 ? of_logits : of_logits.contiguous();
    const Tensor p = of_p.contiguous(), number = (kind == at::kLong ? of_number : of_number.to(at::kLong)).contiguous();
    const Tensor tokens = at::empty({rows}, number.options()), counts = at::empty({rows}, number.options());
    const Tensor totals = at::empty({rows}, p.options());
    if (!rows) return {tokens, counts, totals};
    const int device = logits.device().index();
    C10_CUDA_CHECK(sample_launch(
        name_of(type), name_of(p_type), logits.const_data_ptr(), p.const_data_ptr(),
        (const i64*)number.const_data_ptr(), (i64*)tokens.mutable_data_ptr(), (i64*)counts.mutable_data_ptr(),
        totals.mutable_data_ptr(), rows, vocab, logits.stride(0), (int)most_blocks, multiprocessors(device), device,
        c10::cuda::getCurrentCUDAStream(device)));
    return {tokens, counts, totals};
}
"""
sample = load_inline(
    name="top_p_sampling",
    cpp_sources=[GLUE],
    cuda_sources=[INSTRUCTIONS, KERNELS],
    functions=["sample"],
    extra_cflags=["-O2"],
    extra_cuda_cflags=["-O3", f"-DTHREADS={THREADS}", f"-DAHEAD={AHEAD}"],
    no_implicit_headers=True,
).sample


class ModelNew(nn.Module):
    def forward(self, logits, p, number):
        return sample(logits, p, number, MOST_BLOCKS)
