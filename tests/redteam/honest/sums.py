"""Row sums in every order that rounds honestly: the order of a sum is the candidate's to choose."""

from __future__ import annotations

from tests.redteam.honest.building import EACH_SUM, REDUCED, cpp

_TOTALS = {
    "sequential": (
        "From left to right in one float",
        """
static float total(const float* x, int64_t n) {
    float s = 0;
    for (int64_t i = 0; i < n; i++) s += x[i];
    return s;
}""",
    ),
    "backwards": (
        "From right to left",
        """
static float total(const float* x, int64_t n) {
    float s = 0;
    for (int64_t i = n - 1; i >= 0; i--) s += x[i];
    return s;
}""",
    ),
    "pairwise": (
        "Pairwise, by recursion",
        """
static float total(const float* x, int64_t n) {
    if (n < 9) { float s = 0; for (int64_t i = 0; i < n; i++) s += x[i]; return s; }
    return total(x, n / 2) + total(x + n / 2, n - n / 2);
}""",
    ),
    "kahan": (
        "Kahan's compensation, which steps aside once the sum is not finite",
        """
__attribute__((optimize("no-associative-math"))) static float total(const float* x, int64_t n) {
    float s = 0, lost = 0;
    for (int64_t i = 0; i < n; i++) {
        float y = x[i] - lost, t = s + y;
        lost = std::isfinite(t) ? (t - s) - y : 0.0f;
        s = t;
    }
    return s;
}""",
    ),
    "neumaier": (
        "Neumaier's compensation, added at the end",
        """
static float total(const float* x, int64_t n) {
    float s = 0, lost = 0;
    for (int64_t i = 0; i < n; i++) {
        float t = s + x[i];
        lost += std::fabs(s) >= std::fabs(x[i]) ? (s - t) + x[i] : (x[i] - t) + s;
        s = t;
    }
    return std::isfinite(s) ? s + lost : s;
}""",
    ),
    "blocked": (
        "Blocks of 64, then their sums",
        """
static float total(const float* x, int64_t n) {
    float s = 0;
    for (int64_t b = 0; b < n; b += 64) {
        float part = 0;
        for (int64_t i = b; i < std::min(n, b + 64); i++) part += x[i];
        s += part;
    }
    return s;
}""",
    ),
    "lanes": (
        "Sixteen interleaved accumulators and a tail",
        """
static float total(const float* x, int64_t n) {
    float lane[16] = {};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) for (int j = 0; j < 16; j++) lane[j] += x[i + j];
    for (; i < n; i++) lane[i % 16] += x[i];
    for (int apart = 8; apart; apart /= 2) for (int j = 0; j < apart; j++) lane[j] += lane[j + apart];
    return lane[0];
}""",
    ),
    "strided": (
        "Every 7th element first, then the next seventh",
        """
static float total(const float* x, int64_t n) {
    float s = 0;
    for (int64_t from = 0; from < 7; from++) {
        float part = 0;
        for (int64_t i = from; i < n; i += 7) part += x[i];
        s += part;
    }
    return s;
}""",
    ),
    "both-ends": (
        "From both ends towards the middle",
        """
static float total(const float* x, int64_t n) {
    float s = 0;
    for (int64_t i = 0, j = n - 1; i <= j; i++, j--) s += i == j ? x[i] : x[i] + x[j];
    return s;
}""",
    ),
    "double": (
        "In double, rounded once",
        """
static float total(const float* x, int64_t n) {
    double s = 0;
    for (int64_t i = 0; i < n; i++) s += x[i];
    return (float)s;
}""",
    ),
    "long-double": (
        "In x87's 80 bits",
        """
static float total(const float* x, int64_t n) {
    long double s = 0;
    for (int64_t i = 0; i < n; i++) s += x[i];
    return (float)s;
}""",
    ),
    "integers-first": (
        "Whole and fractional parts apart, put together at the end",
        """
static float total(const float* x, int64_t n) {
    double whole = 0;
    float rest = 0;
    for (int64_t i = 0; i < n; i++) {
        float w = std::trunc(x[i]);
        whole += w;
        if (std::isfinite(w)) rest += x[i] - w;
    }
    return (float)(whole + rest);
}""",
    ),
    "simd": (
        "OpenMP may vectorise the reduction as it likes",
        """
static float total(const float* x, int64_t n) {
    float s = 0;
    #pragma omp simd reduction(+ : s)
    for (int64_t i = 0; i < n; i++) s += x[i];
    return s;
}""",
    ),
}

_TREE = """
#include <numeric>
static float total(const float* x, int64_t n) { return std::reduce(x, x + n, 0.0f); }
"""
_ASSOCIATIVE = """
static float total(const float* x, int64_t n) {
    float s = 0;
    for (int64_t i = 0; i < n; i++) s += x[i];
    return s;
}"""
_ATOMIC = """
#include <atomic>
static void add(std::atomic<float>& to, float v) {
    float seen = to.load();
    while (!to.compare_exchange_weak(seen, seen + v)) {}
}
extern "C" void run(const float* x, float* y, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++) {
        std::atomic<float> s{0.0f};
        #pragma omp parallel for schedule(dynamic, 1)
        for (int64_t b = 0; b < n; b += 256) {
            float part = 0;
            for (int64_t i = b; i < std::min(n, b + 256); i++) part += x[r * n + i];
            add(s, part);  // whichever thread comes first: the last bits differ from call to call
        }
        y[r] = s;
    }
}"""
_SPLIT = """
extern "C" void partials(const float* x, float* part, int64_t rows, int64_t n, int64_t splits) {
    int64_t size = (n + splits - 1) / splits;
    #pragma omp parallel for collapse(2)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < splits; k++) {
            float s = 0;
            for (int64_t i = k * size; i < std::min(n, (k + 1) * size); i++) s += x[r * n + i];
            part[r * splits + k] = s;
        }
}
extern "C" void finish(const float* part, float* y, int64_t rows, int64_t splits) {
    for (int64_t r = 0; r < rows; r++) {
        float s = 0;
        for (int64_t k = 0; k < splits; k++) s += part[r * splits + k];
        y[r] = s;
    }
}"""
_SPLIT_INIT = """
def __init__(self):
    super().__init__()
    self.workspaces = {}  # by thread
"""
_SPLIT_FORWARD = """
def forward(self, x):
    import threading
    x = dense(x)
    out = torch.empty(x.shape[:-1])
    splits = 8
    me = threading.get_ident()
    if me not in self.workspaces or self.workspaces[me].numel() < out.numel() * splits:
        self.workspaces[me] = torch.empty(out.numel() * splits)  # kept; every call overwrites what it reads
    work = self.workspaces[me]
    lib.partials(x, work, out.numel(), x.shape[-1], splits)
    lib.finish(work, out, out.numel(), splits)
    return out
"""

ENTRIES = (
    *(cpp(f"sum-{name}", title, "row_sum", code + EACH_SUM, REDUCED) for name, (title, code) in _TOTALS.items()),
    cpp(
        "sum-reduce",
        "std::reduce, in whatever order the library likes",
        "row_sum",
        _TREE + EACH_SUM,
        REDUCED,
        flags=("-std=c++17",),
    ),
    cpp(
        "sum-associative",
        "The compiler may reorder the sum; NaN and infinities keep their meaning",
        "row_sum",
        _ASSOCIATIVE + EACH_SUM,
        REDUCED,
        flags=("-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math"),
    ),
    cpp("sum-atomic", "Threads add to one atomic float in any order", "row_sum", _ATOMIC, REDUCED),
    cpp(
        "sum-split-workspace",
        "Split sums in float32 in a workspace that the module keeps for each thread",
        "row_sum",
        _SPLIT,
        _SPLIT_FORWARD,
        init=_SPLIT_INIT,
    ),
)
"""Honest row sums."""
