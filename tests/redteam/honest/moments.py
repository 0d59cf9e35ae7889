"""Means of everything and variances of rows: trees, running means, Welford, Chan, corrected passes."""

from __future__ import annotations

from tests.redteam.honest.building import EACH_SUM, REDUCED, cpp

_MEAN = """
def forward(self, x):
    x = dense(x)
    out = torch.empty(())
    lib.run(x, out, x.numel())
    return out
"""
_MEAN_REDUCTION = """
extern "C" void run(const float* x, float* out, int64_t n) {
    double s = 0;
    #pragma omp parallel for reduction(+ : s)
    for (int64_t i = 0; i < n; i++) s += x[i];
    *out = (float)(s / n);
}"""
_MEAN_RUNNING = """
extern "C" void run(const float* x, float* out, int64_t n) {
    double mean = 0;  // moved by each value, as a stream would
    for (int64_t i = 0; i < n; i++) mean += std::isfinite(mean) ? (x[i] - mean) / (i + 1) : x[i];
    *out = n ? (float)mean : NAN;
}"""
_MEAN_TREE = """
static float tree(const float* x, int64_t n) {
    if (n <= 32) { float s = 0; for (int64_t i = 0; i < n; i++) s += x[i]; return s; }
    return tree(x, n / 2) + tree(x + n / 2, n - n / 2);
}
extern "C" void run(const float* x, float* out, int64_t n) { *out = tree(x, n) / n; }"""
_VARIANCE = {
    "two-pass": (
        "The mean first, then squared deviations",
        """
static float total(const float* x, int64_t n) {
    double mean = 0, m2 = 0;
    for (int64_t i = 0; i < n; i++) mean += x[i];
    mean /= n;
    for (int64_t i = 0; i < n; i++) m2 += (x[i] - mean) * (x[i] - mean);
    return (float)(m2 / (n - 1));
}""",
    ),
    "welford": (
        "Welford's recurrence in float",
        """
static float total(const float* x, int64_t n) {
    float mean = 0, m2 = 0;
    for (int64_t i = 0; i < n; i++) {
        float d = x[i] - mean;
        mean += d / (i + 1);
        m2 += d * (x[i] - mean);
    }
    return m2 / (n - 1);
}""",
    ),
    "chan": (
        "Chunks of 32, merged by Chan's formula",
        """
static float total(const float* x, int64_t n) {
    double count = 0, mean = 0, m2 = 0;
    for (int64_t b = 0; b < n; b += 32) {
        double k = std::min<int64_t>(32, n - b), part = 0, q = 0;
        for (int64_t i = b; i < b + k; i++) part += x[i];
        part /= k;
        for (int64_t i = b; i < b + k; i++) q += (x[i] - part) * (x[i] - part);
        double d = part - mean, all = count + k;
        mean += d * k / all;
        m2 += q + d * d * count * k / all;
        count = all;
    }
    return (float)(m2 / (n - 1));
}""",
    ),
    "corrected": (
        "Two passes with the correction for the mean's own rounding",
        """
static float total(const float* x, int64_t n) {
    float mean = 0, m2 = 0, slip = 0;
    for (int64_t i = 0; i < n; i++) mean += x[i];
    mean /= n;
    for (int64_t i = 0; i < n; i++) { float d = x[i] - mean; m2 += d * d; slip += d; }
    return (m2 - slip * slip / n) / (n - 1);
}""",
    ),
}

ENTRIES = (
    cpp("mean-omp-reduction", "OpenMP's reduction over everything, in double", "mean_all", _MEAN_REDUCTION, _MEAN),
    cpp("mean-running", "A running mean: no sum at all", "mean_all", _MEAN_RUNNING, _MEAN),
    cpp("mean-tree", "A tree over everything, in float", "mean_all", _MEAN_TREE, _MEAN),
    *(
        cpp(f"variance-{name}", title, "variance", code + EACH_SUM, REDUCED)
        for name, (title, code) in _VARIANCE.items()
    ),
)
"""Honest means and variances."""
