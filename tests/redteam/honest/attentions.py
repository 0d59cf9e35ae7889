"""Attention, causal or not: kept scores, online softmax, tiles of keys, split keys."""

from __future__ import annotations

from tests.redteam.honest.building import cpp

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
                int64_t from = (z * kv_heads + h / (heads / kv_heads)) * keys * dim,
                    at = ((z * heads + h) * length + i) * dim;
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
        for (int64_t j = 0; j < w; j++) { p[j] = dot(q, k + (b + j) * dim, dim) * scale;
            top = p[j] > top ? p[j] : top; }
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
    *(
        cpp(f"attention-{name}", title, "attention", _attention(name, body, causal=False), ATTENTION_FORWARD)
        for name, (title, body) in _ATTENTIONS.items()
    ),
    *(
        cpp(f"causal-{name}", title, "small_attention_causal", _attention(name, body, causal=True), ATTENTION_FORWARD)
        for name, (title, body) in _ATTENTIONS.items()
    ),
)
"""Honest attentions."""
