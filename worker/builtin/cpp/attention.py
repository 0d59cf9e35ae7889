"""Attention: softmax(scale * Q K^T + mask) V without the matrix of scores."""

from __future__ import annotations

from worker.builtin.cpp import rows
from worker.builtin.cpp.products import TILE, TRANSPOSE
from worker.builtin.cpp.recipe import Parts, Recipe, common_dtype, dense, has_wide_vectors, rounded
from worker.builtin.expressions import Unmatched
from worker.builtin.families import Attention, Match

_KERNEL = """\
#define CHUNK 4096
{toolkit}
// q: [groups * share, tokens, width], k: [groups, keys, width], v: [groups, keys, out_width]; `share` query
// heads read one key head. The mask's strides are those of [batch, head, token]; neighbouring keys are
// neighbours in memory.
extern "C" void kernel(float* __restrict out, const float* __restrict q_all, const float* __restrict k_all,
                       const float* __restrict v_all, {mask_parameters}int64_t groups, int64_t share, int64_t heads,
                       int64_t tokens, int64_t keys, int64_t width, int64_t out_width, double scale_) {{
    const float scale = (float)scale_;
    const int64_t panels = (keys + NR - 1) / NR, out_panels = (out_width + NR - 1) / NR, padded = panels * NR;
    static thread_local Room kept_k, kept_v;
    float* const packed_k = kept_k.of<float>(groups * panels * NR * width);
    float* const packed_v = kept_v.of<float>(groups * out_panels * NR * padded);
    const int64_t blocks = (tokens + BQ - 1) / BQ;
    #pragma omp parallel num_threads(THREADS) if (groups * share * tokens * keys * width >= GRAIN)
    {{
        #pragma omp for schedule(static)
        for (int64_t task = 0; task < groups * panels; task++) {{
            const int64_t g = task / panels, first = task % panels * NR, count = keys - first < NR ? keys - first : NR;
            float* const to = packed_k + (g * panels * NR + first) * width;
            if (count < NR) memset(to, 0, NR * width * sizeof(float));
            transpose_block(to, NR, k_all + (g * keys + first) * width, width, count, width);
        }}
        #pragma omp for schedule(static)
        for (int64_t task = 0; task < groups * out_panels; task++) {{
            const int64_t g = task / out_panels, first = task % out_panels * NR;
            const int64_t count = out_width - first < NR ? out_width - first : NR;
            float* const to = packed_v + task * NR * padded;
            if (count < NR) memset(to, 0, NR * padded * sizeof(float));
            for (int64_t j = 0; j < keys; j++)
                memcpy(to + j * NR, v_all + (g * keys + j) * out_width + first, count * sizeof(float));
        }}
        static thread_local Room kept_scores, kept_sums;
        float* const scores = kept_scores.of<float>(BQ * BK);
        float* const sums = kept_sums.of<float>(BQ * out_panels * NR);
        #pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < groups * share * blocks; task++) {{
            const int64_t h = task / blocks, g = h / share;
            const int64_t start = (blocks - 1 - task % blocks) * BQ;
            const int64_t height = tokens - start < BQ ? tokens - start : BQ;
            const float* const q = q_all + (h * tokens + start) * width;
            float top[BQ];
            double total[BQ];
            for (int64_t i = 0; i < height; i++) {{
                top[i] = -INF;
                total[i] = 0.0;
            }}
            memset(sums, 0, height * out_panels * NR * sizeof(float));
            const int64_t seen = {seen};
            for (int64_t base = 0; base < seen; base += BK) {{
                const int64_t span = seen - base < BK ? seen - base : BK;
                for (int64_t j = 0; j < span; j += NR)
                    for (int64_t i = 0; i < height; i += MR) {{
                        alignas(64) float done[MR][NR];
                        const int64_t some = height - i < MR ? height - i : MR;
                        const float* const panel = packed_k + (g * panels * NR + base + j) * width;
                        tile_of<MR>(some, done, q + i * width, width, panel, NR, width);
                        for (int64_t m = 0; m < some; m++) memcpy(scores + (i + m) * BK + j, done[m], sizeof done[m]);
                    }}
                float share_of_old[BQ];
                for (int64_t i = 0; i < height; i++) {{
                    float* const row = scores + i * BK;
                    {mask_row}
                    const int64_t visible = {visible};
                    const float most = row_top(0, visible, [&](auto k) {{
                        return put(row, k, {score});
                    }});
                    const float now = most > top[i] ? most : top[i];
                    if (now == -INF) {{  // nothing is seen so far, unless what is seen is NaN
                        total[i] += row_sum(0, visible, [&](auto k) {{
                            const auto value = at(row, k);
                            return select(value != value, value, decltype(value){{}});
                        }});
                        memset(row, 0, span * sizeof(float));
                        share_of_old[i] = 1.0f;
                        continue;
                    }}
                    const double more = row_sum(0, visible, [&](auto k) {{
                        return put(row, k, kw_exp_down(at(row, k) - now));
                    }});
                    if (visible < span) memset(row + visible, 0, (span - visible) * sizeof(float));
                    share_of_old[i] = top[i] == now ? 1.0f : kw_exp_down(top[i] - now);
                    total[i] = total[i] * share_of_old[i] + more;
                    top[i] = now;
                }}
                for (int64_t p = 0; p < out_panels; p++)
                    for (int64_t i = 0; i < height; i += MR) {{
                        alignas(64) float done[MR][NR];
                        const int64_t some = height - i < MR ? height - i : MR;
                        const float* const panel = packed_v + ((g * out_panels + p) * padded + base) * NR;
                        tile_of<MR>(some, done, scores + i * BK, BK, panel, NR, span);
                        for (int64_t m = 0; m < some; m++) {{
                            float* const sum = sums + ((i + m) * out_panels + p) * NR;
                            const float old = share_of_old[i + m];
                            for (int64_t c = 0; c < NR; c++) sum[c] = sum[c] * old + done[m][c];
                        }}
                    }}
            }}
            for (int64_t i = 0; i < height; i++) {{
                const float factor = total[i] == 0.0 ? {blind} : (float)(1.0 / total[i]);
                float* const to = out + (h * tokens + start + i) * out_width;
                const float* const sum = sums + i * out_panels * NR;
                for (int64_t c = 0; c < out_width; c++) to[c] = sum[c] * factor;
            }}
        }}
    }}
}}
"""

# The maximum is found while the scores are rescaled in place, so no element may be visited twice: the last vector may
# not overlap its predecessor.
_MAX_IN_PLACE = """\
template <class Get> INLINE float row_top(int64_t from, int64_t to, Get get) {
    vf a = splat<vf>(-INF), b = a;
    int64_t i = from;
    for (; i + 2 * LANES <= to; i += 2 * LANES) {
        const vf p = get(Many{i}), q = get(Many{i + LANES});
        a = select(p > a, p, a);
        b = select(q > b, q, b);
    }
    float top = -INF;
    for (; i < to; i++) {
        const float v = get(One{i});
        top = v > top ? v : top;
    }
    const float best = lanes_max(select(b > a, b, a));
    return best > top ? best : top;
}
template <class Get> INLINE double row_sum(int64_t from, int64_t to, Get get) {
    vf a = {}, b = {};
    int64_t i = from;
    for (; i + 2 * LANES <= to; i += 2 * LANES) {
        a += get(Many{i});
        b += get(Many{i + LANES});
    }
    float rest = 0.0f;
    for (; i < to; i++) rest += get(One{i});
    return (double)lanes_sum(a + b) + rest;
}
"""


def write(match: Match) -> Parts:
    found = match.bindings
    if not isinstance(found, Attention):
        raise Unmatched("not attention")
    masked = found.mask is not None
    boolean = found.mask is not None and found.mask.kind == "bool"
    ctype = "unsigned char" if boolean else "float"
    mask_row = "const int64_t token = start + i, who = h / heads, head = h % heads;\n" + " " * 20
    mask_row += f"const {ctype}* const hide = mask + who * mask_b + head * mask_h + token * mask_t + base;"
    score = "at(row, k) * scale"
    if masked:
        score += " + at(hide, k)"
    if boolean:
        score = "select(at(hide, k), at(row, k) * scale, decltype(at(row, k)){} - INF)"
    wide = has_wide_vectors()
    return Parts(
        cpp=_KERNEL.format(
            toolkit=rows.WALK + _MAX_IN_PLACE + rows.ROOM + TRANSPOSE + TILE,
            mask_parameters=f"const {ctype}* __restrict mask, int64_t mask_b, int64_t mask_h, int64_t mask_t, "
            if masked
            else "",
            seen="start + height < keys ? start + height : keys" if found.causal else "keys",
            visible="start + i + 1 - base < span ? (start + i + 1 > base ? start + i + 1 - base : 0) : span"
            if found.causal
            else "span",
            mask_row=mask_row if masked else "",
            score=score,
            blind="0.0f" if found.hidden_is_zero else "NOT_A_NUMBER",
        ),
        inputs=[("q", found.q.text), ("k", found.k.text), ("v", found.v.text),
                *([("mask", found.mask.text)] if found.mask is not None else []), ("scale", found.scale.text)],
        body=_body(found),
        tunables={
            "MR": [4, 6, 8] if wide else [2, 4],
            "NV": [1, 2, 4],
            "BQ": [24, 48, 96],
            "BK": [64, 128, 256, 512],
            "GRAIN": [262144],
        },
        defaults={"MR": 6 if wide else 4, "NV": 4 if wide else 2, "BQ": 48, "BK": 256, "GRAIN": 262144},
        constraints=[f"MR * NV <= {28 if wide else 12}"],
    )  # fmt: skip


def _body(found: Attention) -> list[str]:
    lines = [
        f"dtype = {common_dtype(['q', 'k', 'v'])}",
        *(dense(name) for name in "qkv"),
        "heads = q.shape[1] if q.dim() == 4 else 1",
        "kv_heads = k.shape[1] if k.dim() == 4 else 1",
        "tokens, keys, width, out_width = q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]",
        "if heads % kv_heads or k.shape[:-1] != v.shape[:-1] or k.shape[-1] != width:",
        '    raise ValueError("queries, keys and values do not fit")',
    ]
    arguments = ""
    if found.mask is not None:
        mask = "mask" if found.mask.kind == "bool" else "_f32(mask)"
        lines += [
            f"mask = {mask}.expand((*q.shape[:-1], keys))",
            "mask = mask if mask.stride(-1) == 1 else mask.contiguous()",
            "m_b, m_h, m_t = mask.stride(0), mask.stride(1) if q.dim() == 4 else 0, mask.stride(-2)",
        ]
        arguments = "mask, m_b, m_h, m_t, "
    return [
        *lines,
        "out = torch.empty((*q.shape[:-1], out_width), dtype=torch.float32)",
        f"_LIB.kernel(out, q, k, v, {arguments}k.shape[0] * kv_heads, heads // kv_heads, heads, tokens, keys, width,"
        " out_width, scale)",
        f"return {rounded('out')}",
    ]


RECIPES = (
    Recipe(
        "attention",
        "attention",
        "Blocks of queries against packed panels of keys and values with a running softmax: scores stay in the cache, "
        "blocks that a causal mask hides are never computed, shared key heads are packed once.",
        write,
    ),
)
