"""Running sums and losses: trees, chunks, carries, atomics and vectors of row losses."""

from __future__ import annotations

from tests.redteam.honest.building import EACH_ROW, cpp

_CUMSUMS = {
    "sequential": (
        "One carry in float",
        """
static void row(const float* x, float* y, int64_t n) {
    float s = 0;
    for (int64_t i = 0; i < n; i++) y[i] = s += x[i];
}""",
    ),
    "double-carry": (
        "The carry in double, every result rounded",
        """
static void row(const float* x, float* y, int64_t n) {
    double s = 0;
    for (int64_t i = 0; i < n; i++) y[i] = (float)(s += x[i]);
}""",
    ),
    "chunks": (
        "Chunks of 64: a scan inside, then the offset of the chunk",
        """
static void row(const float* x, float* y, int64_t n) {
    float offset = 0;
    for (int64_t b = 0; b < n; b += 64) {
        int64_t end = std::min(n, b + 64);
        float s = 0;
        for (int64_t i = b; i < end; i++) y[i] = s += x[i];
        if (b) for (int64_t i = b; i < end; i++) y[i] += offset;
        offset = y[end - 1];
    }
}""",
    ),
    "hillis-steele": (
        "log2(n) sweeps over the row, each adding what lies 1, 2, 4, ... before",
        """
#include <vector>
static void row(const float* x, float* y, int64_t n) {
    std::vector<float> other(x, x + n);
    memcpy(y, x, n * 4);
    for (int64_t apart = 1; apart < n; apart *= 2) {
        memcpy(other.data(), y, n * 4);
        for (int64_t i = apart; i < n; i++) y[i] = other[i - apart] + other[i];
    }
}""",
    ),
    "blelloch": (
        "Up and down a tree padded to a power of two",
        """
#include <vector>
static void row(const float* x, float* y, int64_t n) {
    int64_t size = 1;
    while (size < n) size *= 2;
    std::vector<float> t(size, 0.0f);
    std::copy(x, x + n, t.begin());
    for (int64_t d = 1; d < size; d *= 2) for (int64_t i = 2 * d - 1; i < size; i += 2 * d) t[i] += t[i - d];
    t[size - 1] = 0;
    for (int64_t d = size / 2; d; d /= 2)
        for (int64_t i = 2 * d - 1; i < size; i += 2 * d) { float left = t[i - d]; t[i - d] = t[i]; t[i] += left; }
    for (int64_t i = 0; i < n; i++) y[i] = t[i] + x[i];
}""",
    ),
    "recursive": (
        "Halves: the right one gets the left one's total",
        """
static float scan(const float* x, float* y, int64_t n) {
    if (n == 1) return y[0] = x[0];
    float left = scan(x, y, n / 2), right = scan(x + n / 2, y + n / 2, n - n / 2);
    for (int64_t i = n / 2; i < n; i++) y[i] += left;
    return left + right;
}
static void row(const float* x, float* y, int64_t n) { if (n) scan(x, y, n); }""",
    ),
}
_THREE_PHASES = """
#include <vector>
extern "C" void run(const float* x, float* y, int64_t rows, int64_t n) {
    const int64_t parts = 4, size = (n + parts - 1) / parts;
    for (int64_t r = 0; r < rows; r++) {
        std::vector<float> total(parts, 0.0f);
        #pragma omp parallel for
        for (int64_t p = 0; p < parts; p++) {
            float s = 0;
            for (int64_t i = p * size; i < std::min(n, (p + 1) * size); i++) s += x[r * n + i];
            total[p] = s;
        }
        #pragma omp parallel for
        for (int64_t p = 0; p < parts; p++) {
            float s = 0;
            for (int64_t q = 0; q < p; q++) s += total[q];
            for (int64_t i = p * size; i < std::min(n, (p + 1) * size); i++) y[r * n + i] = s += x[r * n + i];
        }
    }
}"""
_DIM_INIT = """
def __init__(self, dim=-1):
    super().__init__()
    self.dim = dim
"""
_DIM_FORWARD = """
def forward(self, x):
    moved = dense(x).movedim(self.dim, -1)  # the constructor says which dimension: any will do
    moved = moved.contiguous()
    out = torch.empty_like(moved)
    lib.run(moved, out, moved.numel() // max(1, moved.shape[-1]), moved.shape[-1])
    return out.movedim(-1, self.dim).contiguous()
"""
_PRODUCT = """
static void row(const float* x, float* y, int64_t n) {
    double p = 1;
    for (int64_t i = 0; i < n; i++) {
        y[i] = (float)(p *= x[i]);
        if (std::fabs(p) < 1e-300) p = std::copysign(0.0, p);  // below float's subnormals: it stays zero
    }
}"""

LOSS_INIT = """
def __init__(self, smoothing=0.0):
    super().__init__()
    if smoothing:
        raise NotImplementedError("labels that are not smoothed")
"""
LOSS_FORWARD = """
def forward(self, logits, target):
    logits, target = dense(logits), dense(target, torch.int64)
    if logits.dim() != 2 or target.dim() != 1:
        raise ValueError("logits are a matrix, targets a vector")
    rows, classes = logits.shape
    out = torch.empty(())
    lib.run(logits, target, out, rows, classes)
    return out
"""
_ROW_LOSS = """
static inline float row_loss(const float* x, int64_t target, int64_t n) {
    float m = -INFINITY, s = 0;
    for (int64_t i = 0; i < n; i++) m = x[i] > m ? x[i] : m;
    for (int64_t i = 0; i < n; i++) s += expf(x[i] - m);
    return logf(s) - (x[target] - m);
}
"""
_LOSSES = {
    "double-mean": (
        "Row losses added up in double; ignored rows are left out",
        """
extern "C" void run(const float* x, const int64_t* target, float* out, int64_t rows, int64_t n) {
    double s = 0;
    int64_t counted = 0;
    #pragma omp parallel for reduction(+ : s, counted)
    for (int64_t r = 0; r < rows; r++)
        if (target[r] != -100) { s += row_loss(x + r * n, target[r], n); counted++; }
    *out = (float)(s / counted);
}""",
    ),
    "atomic-mean": (
        "Threads add their rows to one atomic float",
        """
#include <atomic>
extern "C" void run(const float* x, const int64_t* target, float* out, int64_t rows, int64_t n) {
    std::atomic<float> s{0.0f};
    std::atomic<int64_t> counted{0};
    #pragma omp parallel for schedule(dynamic)
    for (int64_t r = 0; r < rows; r++) {
        if (target[r] == -100) continue;
        float part = row_loss(x + r * n, target[r], n), seen = s.load();
        while (!s.compare_exchange_weak(seen, seen + part)) {}
        counted++;
    }
    *out = s / counted;
}""",
    ),
    "pairwise-mean": (
        "A vector of row losses, summed pairwise",
        """
#include <vector>
static float tree(const float* x, int64_t n) { return n < 3 ? (n ? x[0] + (n > 1 ? x[1] : 0) : 0)
                                                            : tree(x, n / 2) + tree(x + n / 2, n - n / 2); }
extern "C" void run(const float* x, const int64_t* target, float* out, int64_t rows, int64_t n) {
    std::vector<float> loss(rows);
    int64_t counted = 0;
    for (int64_t r = 0; r < rows; r++) counted += target[r] != -100;
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; r++) loss[r] = target[r] == -100 ? 0.0f : row_loss(x + r * n, target[r], n);
    *out = tree(loss.data(), rows) / counted;
}""",
    ),
    "divided-first": (
        "Each row's loss is divided before it is added",
        """
extern "C" void run(const float* x, const int64_t* target, float* out, int64_t rows, int64_t n) {
    float s = 0, counted = 0;
    for (int64_t r = 0; r < rows; r++) counted += target[r] != -100;
    for (int64_t r = 0; r < rows; r++) if (target[r] != -100) s += row_loss(x + r * n, target[r], n) / counted;
    *out = counted ? s : NAN;
}""",
    ),
    "online-rows": (
        "Online maximum and sum, in double",
        """
static double online(const float* x, int64_t target, int64_t n) {
    double m = -INFINITY, s = 0;
    for (int64_t i = 0; i < n; i++) {
        if (x[i] > m) { s = (m == -INFINITY ? s : s * exp(m - x[i])) + exp(x[i] - x[i]); m = x[i]; }
        else if (x[i] != -INFINITY) s += exp(x[i] - m);
    }
    return log(s) - (x[target] - m);
}
extern "C" void run(const float* x, const int64_t* target, float* out, int64_t rows, int64_t n) {
    double s = 0;
    int64_t counted = 0;
    for (int64_t r = 0; r < rows; r++) if (target[r] != -100) { s += online(x + r * n, target[r], n); counted++; }
    *out = (float)(s / counted);
}""",
    ),
}

ENTRIES = (
    *(cpp(f"cumsum-{name}", title, "cumsum", code + EACH_ROW) for name, (title, code) in _CUMSUMS.items()),
    cpp("cumsum-three-phases", "Totals of four parts, then each part from its own start", "cumsum", _THREE_PHASES),
    cpp(
        "cumsum-any-dimension",
        "The constructor's dimension moved to the end and back",
        "small_cumsum",
        _CUMSUMS["chunks"][1] + EACH_ROW,
        _DIM_FORWARD,
        init=_DIM_INIT,
    ),
    cpp("cumprod-double", "The product in double, flushed where float cannot tell", "cumprod", _PRODUCT + EACH_ROW),
    *(
        cpp(
            f"loss-{name}",
            title,
            "cross_entropy" if place % 2 else "small_cross_entropy",
            _ROW_LOSS + code,
            LOSS_FORWARD,
            init=LOSS_INIT,
        )
        for place, (name, (title, code)) in enumerate(_LOSSES.items())
    ),
)
"""Honest scans and losses."""
