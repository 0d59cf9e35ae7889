"""Matrix products and attention: loop orders, tiles, packing, split K, online softmax, split keys."""

from __future__ import annotations

from tests.redteam.honest.building import cpp

MATMUL_FORWARD = """
def forward(self, a, b):
    a, b = dense(a), dense(b)
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError("two matrices that fit are needed")
    out = torch.empty(a.shape[0], b.shape[1])
    lib.run(a, b, out, a.shape[0], b.shape[1], a.shape[1])
    return out
"""
_HEAD = """extern "C" void run(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k) {"""
_MATMULS = {
    "dot-products": (
        "A dot product for each output",
        """
    #pragma omp parallel for collapse(2)
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float s = 0;
            for (int64_t p = 0; p < k; p++) s += a[i * k + p] * b[p * n + j];
            c[i * n + j] = s;
        }
}""",
    ),
    "rank-one": (
        "Rank-one updates of rows that begin at zero",
        """
    std::fill(c, c + m * n, 0.0f);
    #pragma omp parallel for
    for (int64_t i = 0; i < m; i++)
        for (int64_t p = 0; p < k; p++)
            for (int64_t j = 0; j < n; j++) c[i * n + j] += a[i * k + p] * b[p * n + j];
}""",
    ),
    "tiles": (
        "Tiles of 16 x 32 x 64, the last of each kind smaller",
        """
    std::fill(c, c + m * n, 0.0f);
    #pragma omp parallel for schedule(dynamic)
    for (int64_t i0 = 0; i0 < m; i0 += 16)
        for (int64_t j0 = 0; j0 < n; j0 += 32)
            for (int64_t p0 = 0; p0 < k; p0 += 64)
                for (int64_t i = i0; i < std::min(m, i0 + 16); i++)
                    for (int64_t p = p0; p < std::min(k, p0 + 64); p++) {
                        float v = a[i * k + p];
                        for (int64_t j = j0; j < std::min(n, j0 + 32); j++) c[i * n + j] += v * b[p * n + j];
                    }
}""",
    ),
    "packed": (
        "Columns of b are packed anew in every call, into a buffer that each thread keeps",
        """
    #pragma omp parallel
    {
        static thread_local float* packed = nullptr;
        static thread_local int64_t room = 0;
        if (room < k * 8) { packed = (float*)realloc(packed, k * 8 * 4); room = k * 8; }
        #pragma omp for
        for (int64_t j0 = 0; j0 < n; j0 += 8) {
            int64_t w = std::min<int64_t>(8, n - j0);
            for (int64_t p = 0; p < k; p++) for (int64_t j = 0; j < 8; j++) packed[p * 8 + j] = j < w ? b[p * n + j0 + j] : 0;
            for (int64_t i = 0; i < m; i++) {
                float s[8] = {};
                for (int64_t p = 0; p < k; p++) for (int64_t j = 0; j < 8; j++) s[j] += a[i * k + p] * packed[p * 8 + j];
                for (int64_t j = 0; j < w; j++) c[i * n + j0 + j] = s[j];
            }
        }
    }
}""",
    ),
    "double": (
        "Sums in double",
        """
    #pragma omp parallel for
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double s = 0;
            for (int64_t p = 0; p < k; p++) s += (double)a[i * k + p] * b[p * n + j];
            c[i * n + j] = (float)s;
        }
}""",
    ),
    "register-block": (
        "Blocks of 3 x 4 in registers; edges one by one",
        """
    for (int64_t i0 = 0; i0 < m; i0 += 3)
        for (int64_t j0 = 0; j0 < n; j0 += 4) {
            float s[3][4] = {};
            int64_t h = std::min<int64_t>(3, m - i0), w = std::min<int64_t>(4, n - j0);
            for (int64_t p = k - 1; p >= 0; p--)  // from the back
                for (int64_t i = 0; i < h; i++)
                    for (int64_t j = 0; j < w; j++) s[i][j] = std::fma(a[(i0 + i) * k + p], b[p * n + j0 + j], s[i][j]);
            for (int64_t i = 0; i < h; i++) for (int64_t j = 0; j < w; j++) c[(i0 + i) * n + j0 + j] = s[i][j];
        }
}""",
    ),
}
_SPLIT_K = """
extern "C" void run(const float* a, const float* b, float* part, float* c, int64_t m, int64_t n, int64_t k, int64_t splits) {
    int64_t size = (k + splits - 1) / splits;
    #pragma omp parallel for
    for (int64_t q = 0; q < splits; q++)
        for (int64_t i = 0; i < m; i++) {
            float* to = part + (q * m + i) * n;
            std::fill(to, to + n, 0.0f);
            for (int64_t p = q * size; p < std::min(k, (q + 1) * size); p++)
                for (int64_t j = 0; j < n; j++) to[j] += a[i * k + p] * b[p * n + j];
        }
    for (int64_t e = 0; e < m * n; e++) {
        float s = 0;
        for (int64_t q = 0; q < splits; q++) s += part[q * m * n + e];
        c[e] = s;
    }
}"""
_SPLIT_INIT = """
def __init__(self):
    super().__init__()
    self._cache = {}  # workspaces by shape: memory, never results
"""
_SPLIT_FORWARD = MATMUL_FORWARD.replace(
    "    lib.run(a, b, out,",
    "    key = (4, *out.shape)\n    if key not in self._cache:\n        self._cache[key] = torch.empty(key)\n"
    "    lib.run(a, b, self._cache[key], out,",
).replace("a.shape[1])\n    return", "a.shape[1], 4)\n    return")

_LINEAR_INIT = """
def __init__(self, cols):
    super().__init__()
    self.layer = nn.Linear(cols, 80)
"""
_GELU_LINEAR = """
extern "C" void run(const float* x, const float* w, const float* b, float* y, int64_t m, int64_t n, int64_t k, int64_t act) {
    #pragma omp parallel for collapse(2)
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float s[4] = {};
            for (int64_t p = 0; p < k; p++) s[p % 4] += x[i * k + p] * w[j * k + p];
            float v = ((s[0] + s[1]) + (s[2] + s[3])) + b[j];
            y[i * n + j] = act ? 0.5f * v * (1.0f + erff(v * 0.70710678f)) : v;
        }
}"""
_LINEAR_FORWARD = """
def forward(self, x):
    x, layer = dense(x), self.LAYER
    rows, features = x.numel() // max(1, x.shape[-1]), layer.weight.shape[0]
    if x.shape[-1] != layer.weight.shape[1]:
        raise ValueError(f"rows of {layer.weight.shape[1]} were promised")
    out = torch.empty(*x.shape[:-1], features)
    lib.run(x, dense(layer.weight), dense(layer.bias), out, rows, features, x.shape[-1], ACT)
    return out
"""
_FUSED_INIT = """
def __init__(self, inner, outer, dtype="float32"):
    super().__init__()
    self.linear = nn.Linear(inner, outer, dtype=getattr(torch, dtype))
"""

ATTENTION_FORWARD = """
def forward(self, q, k, v):
    q, k, v = dense(q), dense(k), dense(v)
    if q.dim() < 3 or k.shape != v.shape or q.shape[:-3] != k.shape[:-3] or q.shape[-1] != k.shape[-1]:
        raise ValueError("queries, keys and values do not fit")
    heads, kv_heads = q.shape[-3], k.shape[-3]
    out = torch.empty_like(q)
    batch = q.numel() // max(1, heads * q.shape[-2] * q.shape[-1])
    lib.run(q, k, v, out, batch, heads, kv_heads, q.shape[-2], k.shape[-2], q.shape[-1])
    return out
"""
_ATTENTION = """
#include <vector>
BODY
extern "C" void run(const float* q, const float* k, const float* v, float* o, int64_t batch, int64_t heads,
                    int64_t kv_heads, int64_t length, int64_t keys, int64_t dim) {
    float scale = 1.0f / std::sqrt((float)dim);
    #pragma omp parallel for collapse(3) schedule(dynamic, 8)
    for (int64_t z = 0; z < batch; z++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < length; i++) {
                int64_t from = (z * kv_heads + h / (heads / kv_heads)) * keys * dim, at = ((z * heads + h) * length + i) * dim;
                one(q + at, k + from, v + from, o + at, CAUSAL ? i + 1 : keys, dim, scale);
            }
}"""
_DOT = """
static inline float dot(const float* a, const float* b, int64_t n) {
    float s = 0;
    for (int64_t i = 0; i < n; i++) s += a[i] * b[i];
    return s;
}"""
_ONE = """
static void one(const float* q, const float* k, const float* v, float* o, int64_t keys, int64_t dim, float scale) {"""
_ATTENTIONS = {
    "scores-kept": (
        "All scores of a query, a softmax, a sum",
        _DOT
        + _ONE
        + """
    std::vector<float> p(keys);
    float m = -INFINITY, s = 0;
    for (int64_t j = 0; j < keys; j++) { p[j] = dot(q, k + j * dim, dim) * scale; m = p[j] > m ? p[j] : m; }
    for (int64_t j = 0; j < keys; j++) s += p[j] = expf(p[j] - m);
    for (int64_t d = 0; d < dim; d++) {
        float t = 0;
        for (int64_t j = 0; j < keys; j++) t += p[j] / s * v[j * dim + d];
        o[d] = t;
    }
}""",
    ),
    "online": (
        "Keys one by one with a running maximum; the accumulator is rescaled when it moves",
        _DOT
        + _ONE
        + """
    float m = -INFINITY, s = 0;
    std::fill(o, o + dim, 0.0f);
    for (int64_t j = 0; j < keys; j++) {
        float x = dot(q, k + j * dim, dim) * scale, top = x > m ? x : m;
        float keep = m == -INFINITY ? 1.0f : expf(m - top), p = expf(x - (top == -INFINITY ? 0.0f : top));
        s = s * keep + p;
        for (int64_t d = 0; d < dim; d++) o[d] = o[d] * keep + p * v[j * dim + d];
        m = top;
    }
    for (int64_t d = 0; d < dim; d++) o[d] /= s;
}""",
    ),
    "tiles": (
        "Tiles of 16 keys, online between tiles",
        _DOT
        + _ONE
        + """
    float m = -INFINITY, s = 0, p[16];
    std::vector<double> acc(dim, 0.0);
    for (int64_t b = 0; b < keys; b += 16) {
        int64_t w = std::min<int64_t>(16, keys - b);
        float top = m;
        for (int64_t j = 0; j < w; j++) { p[j] = dot(q, k + (b + j) * dim, dim) * scale; top = p[j] > top ? p[j] : top; }
        float keep = m == -INFINITY ? 1.0f : expf(m - top), base = top == -INFINITY ? 0.0f : top;
        s *= keep;
        for (auto& a : acc) a *= keep;
        for (int64_t j = 0; j < w; j++) {
            p[j] = expf(p[j] - base);
            s += p[j];
            for (int64_t d = 0; d < dim; d++) acc[d] += p[j] * v[(b + j) * dim + d];
        }
        m = top;
    }
    for (int64_t d = 0; d < dim; d++) o[d] = (float)(acc[d] / s);
}""",
    ),
    "split-keys": (
        "Three parts of the keys on their own, merged by their log-sum-exps, as in decoding",
        _DOT
        + _ONE
        + """
    const int64_t parts = 3, size = (keys + parts - 1) / parts;
    std::vector<float> m(parts, -INFINITY), s(parts, 0.0f), acc(parts * dim, 0.0f);
    float top = -INFINITY, total = 0;
    for (int64_t c = 0; c < parts; c++) {
        int64_t end = std::min(keys, (c + 1) * size);
        for (int64_t j = c * size; j < end; j++) m[c] = std::max(m[c], dot(q, k + j * dim, dim) * scale);
        for (int64_t j = c * size; j < end; j++) {
            float p = expf(dot(q, k + j * dim, dim) * scale - (m[c] == -INFINITY ? 0.0f : m[c]));
            s[c] += p;
            for (int64_t d = 0; d < dim; d++) acc[c * dim + d] += p * v[j * dim + d];
        }
        top = std::max(top, m[c]);
    }
    std::fill(o, o + dim, 0.0f);
    for (int64_t c = 0; c < parts; c++) {
        if (c * size >= keys) continue;
        float share = expf(m[c] - top);
        total += share * s[c];
        for (int64_t d = 0; d < dim; d++) o[d] += share * acc[c * dim + d];
    }
    for (int64_t d = 0; d < dim; d++) o[d] /= total;
}""",
    ),
}


def _attention(name: str, body: str, *, causal: bool) -> str:
    return _ATTENTION.replace("BODY", body).replace("CAUSAL", "true" if causal else "false")


ENTRIES = (
    *(cpp(f"matmul-{name}", title, "matmul", _HEAD + code, MATMUL_FORWARD) for name, (title, code) in _MATMULS.items()),
    cpp("matmul-split-k", "Split K with float32 partials in workspaces kept by shape", "matmul", _SPLIT_K,
        _SPLIT_FORWARD, init=_SPLIT_INIT),
    cpp("linear-four-chains", "Four chains for each dot product, the weight read in place", "linear", _GELU_LINEAR,
        _LINEAR_FORWARD.replace("LAYER", "layer").replace("ACT", "0"), init=_LINEAR_INIT),
    cpp("linear-gelu-fused", "Linear and GELU in one kernel", "small_matmul_bias_gelu", _GELU_LINEAR,
        _LINEAR_FORWARD.replace("LAYER", "linear").replace("ACT", "1"), init=_FUSED_INIT),
    *(
        cpp(f"attention-{name}", title, "attention", _attention(name, body, causal=False), ATTENTION_FORWARD)
        for name, (title, body) in _ATTENTIONS.items()
    ),
    *(
        cpp(f"causal-{name}", title, "small_attention_causal", _attention(name, body, causal=True), ATTENTION_FORWARD)
        for name, (title, body) in _ATTENTIONS.items()
    ),
)  # fmt: skip
"""Honest products and attentions."""
