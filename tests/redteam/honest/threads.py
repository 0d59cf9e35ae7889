"""Parallel C++ that ends before it returns: OpenMP's schedules, tasks, std::thread, futures, pools, scratch memory."""

from __future__ import annotations

from tests.redteam.honest.building import REDUCED, SAME, cpp
from tests.redteam.honest.pointwise import BIAS_INIT

_ROW = """
static void row(const float* x, float* y, int64_t n) {
    float m = -INFINITY, s = 0;
    for (int64_t i = 0; i < n; i++) m = x[i] > m ? x[i] : m;
    for (int64_t i = 0; i < n; i++) s += y[i] = expf(x[i] - m);
    for (int64_t i = 0; i < n; i++) y[i] /= s;
}
"""
_HEAD = """extern "C" void run(const float* x, float* y, int64_t rows, int64_t n) {"""
_WAYS = {
    "static": ("A static schedule in chunks of one",
               """
    #pragma omp parallel for schedule(static, 1)
    for (int64_t r = 0; r < rows; r++) row(x + r * n, y + r * n, n);
}"""),
    "dynamic": ("A dynamic schedule, last row first",
                """
    #pragma omp parallel for schedule(dynamic, 5)
    for (int64_t k = 0; k < rows; k++) { int64_t r = rows - 1 - k; row(x + r * n, y + r * n, n); }
}"""),
    "tasks": ("A task for each row, waited for at the end of the region",
              """
    #pragma omp parallel
    #pragma omp single
    for (int64_t r = 0; r < rows; r++) {
        #pragma omp task firstprivate(r)
        row(x + r * n, y + r * n, n);
    }
}"""),
    "sections": ("Two sections, one for each half",
                 """
    #pragma omp parallel sections
    {
        #pragma omp section
        for (int64_t r = 0; r < rows / 2; r++) row(x + r * n, y + r * n, n);
        #pragma omp section
        for (int64_t r = rows / 2; r < rows; r++) row(x + r * n, y + r * n, n);
    }
}"""),
    "one-thread": ("A region of one thread: num_threads is the candidate's choice",
                   """
    #pragma omp parallel for num_threads(1)
    for (int64_t r = 0; r < rows; r++) row(x + r * n, y + r * n, n);
}"""),
    "joined": ("Two std::threads for the halves, joined before the return",
               """
    std::thread upper([=] { for (int64_t r = 0; r < rows / 2; r++) row(x + r * n, y + r * n, n); });
    for (int64_t r = rows / 2; r < rows; r++) row(x + r * n, y + r * n, n);
    upper.join();
}"""),
    "queue": ("Three threads take rows from an atomic counter",
              """
    std::atomic<int64_t> next{0};
    auto work = [&] { for (int64_t r; (r = next++) < rows;) row(x + r * n, y + r * n, n); };
    std::vector<std::thread> crew;
    for (int t = 0; t < 3; t++) crew.emplace_back(work);
    for (auto& each : crew) each.join();
}"""),
    "futures": ("std::async for four bands of rows, each future asked for",
                """
    std::vector<std::future<void>> bands;
    for (int64_t b = 0; b < 4; b++)
        bands.push_back(std::async(std::launch::async, [=] {
            for (int64_t r = b * rows / 4; r < (b + 1) * rows / 4; r++) row(x + r * n, y + r * n, n);
        }));
    for (auto& band : bands) band.get();
}"""),
}  # fmt: skip
_POOL = """
#include <condition_variable>
#include <mutex>
#include <thread>
// One helper that sleeps between calls. It works only while a call waits for it, and never touches memory afterwards.
struct Helper {
    std::mutex lock;
    std::condition_variable bell;
    const float* x = nullptr; float* y = nullptr; int64_t first = 0, last = 0, n = 0;
    bool busy = false;
    Helper() { std::thread([this] { serve(); }).detach(); }
    void serve() {
        std::unique_lock<std::mutex> held(lock);
        for (;;) {
            bell.wait(held, [this] { return busy; });
            for (int64_t r = first; r < last; r++) row(x + r * n, y + r * n, n);
            busy = false;
            bell.notify_all();
        }
    }
};
extern "C" void run(const float* x, float* y, int64_t rows, int64_t n) {
    static Helper* helper = new Helper;
    {
        std::lock_guard<std::mutex> held(helper->lock);
        helper->x = x, helper->y = y, helper->first = 0, helper->last = rows / 2, helper->n = n, helper->busy = true;
    }
    helper->bell.notify_all();
    for (int64_t r = rows / 2; r < rows; r++) row(x + r * n, y + r * n, n);
    std::unique_lock<std::mutex> held(helper->lock);
    helper->bell.wait(held, [] { return !helper->busy; });
}"""
_STATIC_SCRATCH = """
#include <vector>
static std::vector<float> scratch;  // grows, and is written before it is read in every call
extern "C" void run(const float* x, float* y, int64_t rows, int64_t n) {
    if ((int64_t)scratch.size() < rows * n) scratch.resize(rows * n);
    float* t = scratch.data();
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; r++) { row(x + r * n, t + r * n, n); memcpy(y + r * n, t + r * n, n * 4); }
}"""
_ALIGNED = """
#include <cstdlib>
extern "C" void run(const float* x, float* y, int64_t rows, int64_t n) {
    int64_t stride = (n + 15) / 16 * 16;
    float* t = (float*)aligned_alloc(64, std::max<int64_t>(64, stride * 4));
    for (int64_t r = 0; r < rows; r++) {
        memcpy(t, x + r * n, n * 4);
        std::fill(t + n, t + stride, -INFINITY);  // the padding adds exp(-inf) = 0 to every sum
        row(t, t, stride);
        memcpy(y + r * n, t, n * 4);
    }
    free(t);
}"""
_CLASSES = """
template <int Width> struct Kernel {
    static void run(const float* x, float* y, int64_t n) {
        float m = -INFINITY, part[Width] = {}, s = 0;
        for (int64_t i = 0; i < n; i++) m = x[i] > m ? x[i] : m;
        for (int64_t i = 0; i < n; i++) part[i % Width] += y[i] = expf(x[i] - m);
        for (float p : part) s += p;
        for (int64_t i = 0; i < n; i++) y[i] /= s;
    }
};
typedef void (*Row)(const float*, float*, int64_t);
static Row choose(int64_t n) {  // by shape, never by values
    static const Row rows[3] = {Kernel<1>::run, Kernel<4>::run, Kernel<16>::run};
    return rows[n < 64 ? 0 : n < 400 ? 1 : 2];
}
extern "C" void run(const float* x, float* y, int64_t rows, int64_t n) {
    Row one = choose(n);
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; r++) one(x + r * n, y + r * n, n);
}"""
_LOCKED = """
#include <mutex>
extern "C" void run(const float* x, float* y, int64_t rows, int64_t n) {
    #pragma omp parallel
    {
        float* own = new float[rows]();
        #pragma omp for nowait
        for (int64_t c = 0; c < n; c++) for (int64_t r = 0; r < rows; r++) own[r] += x[r * n + c];
        #pragma omp single
        std::fill(y, y + rows, 0.0f);  // waits: nobody adds before
        #pragma omp critical
        for (int64_t r = 0; r < rows; r++) y[r] += own[r];  // in the order in which threads arrive
        delete[] own;
    }
}"""
_STREAMED = """
#include <immintrin.h>
extern "C" void run(const float* x, const float* bias, float* y, int64_t rows, int64_t n) {
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++) {
            float v = x[r * n + i] + bias[i];
            v = v < 0.0f ? 0.0f : v;
            int bits;
            memcpy(&bits, &v, 4);
            if (i % 64 == 0 && i + 64 < n) _mm_prefetch((const char*)(x + r * n + i + 64), _MM_HINT_T0);
            _mm_stream_si32((int*)(y + r * n + i), bits);  // past the cache
        }
    _mm_sfence();
}"""
_BIAS_FORWARD = """
def forward(self, x):
    x, n = dense(x), self.bias.numel()
    if x.shape[-1] != n:
        raise ValueError(f"rows of {n} were promised")
    out = torch.empty_like(x)
    lib.run(x, self.bias, out, x.numel() // max(1, n), n)
    return out
"""
_THREAD_HEADERS = "#include <atomic>\n#include <future>\n#include <thread>\n#include <vector>\n"

ENTRIES = (
    *(
        cpp(f"threads-{name}", title, "softmax", (_THREAD_HEADERS if place > 4 else "") + _ROW + _HEAD + code, SAME)
        for place, (name, (title, code)) in enumerate(_WAYS.items())
    ),
    cpp(
        "threads-sleeping-helper",
        "A helper thread that sleeps between calls and is idle at every return",
        "softmax",
        _ROW + _POOL,
    ),
    cpp("scratch-static", "A static buffer for intermediate rows", "softmax", _ROW + _STATIC_SCRATCH),
    cpp(
        "scratch-padded",
        "Rows padded with -inf to whole cache lines in memory that is freed again",
        "softmax",
        _ROW + _ALIGNED,
    ),
    cpp("kernels-by-shape", "Template instances chosen by the row's length", "softmax", _CLASSES),
    cpp("sum-critical", "Threads add their columns' sums one after another, in any order", "row_sum", _LOCKED, REDUCED),
    cpp(
        "bias-relu-streamed",
        "Prefetches and non-temporal stores, fenced",
        "bias_relu",
        _STREAMED,
        _BIAS_FORWARD,
        init=BIAS_INIT,
    ),
)
"""Honest parallel candidates."""
