"""Cross-entropy in CUDA: a block a row, one online pass over the logits."""

from __future__ import annotations

from worker.builtin.cuda.recipe import Parts, Recipe
from worker.builtin.cuda.rows import LANES
from worker.builtin.expressions import Unmatched
from worker.builtin.families import CrossEntropy, Match

# Each thread keeps a maximum and a sum of exponentials below it, and rescales the sum once a pack. Where it saw only
# -inf, exponentials are taken around 0: -inf - -inf would be NaN. A bad target that is not ignored makes its loss NaN.
_KERNEL = """\
extern "C" __global__ void __launch_bounds__(LANES) losses(
    const T0* __restrict__ logits, const TI* __restrict__ target, TL* __restrict__ loss, float* __restrict__ counted,
    long long stride, long long classes, long long ignore, float smoothing
) {
    const long long row = blockIdx.x;
    const T0* from = logits + row * stride;
    float top = -INF, total = 0.0f, plain = 0.0f;
    for (long long at = threadIdx.x * VEC; at < classes; at += LANES * VEC) {
        const Pack<T0> pack = fetch(from + at);
        float higher = top;
        #pragma unroll
        for (int j = 0; j < VEC; j++) higher = kw_max(higher, value(pack.v[j]));
        const float base = higher == -INF ? 0.0f : higher;
        total *= expf(top - base);
        #pragma unroll
        for (int j = 0; j < VEC; j++) total += expf(value(pack.v[j]) - base);
        if (SMOOTHED) {
            #pragma unroll
            for (int j = 0; j < VEC; j++) plain += value(pack.v[j]);
        }
        top = higher;
    }
    const float highest = joined<Max>(top), base = highest == -INF ? 0.0f : highest;
    const float lse = logf(joined<Sum>(total * expf(top - base))) + base;
    const float sum = SMOOTHED ? joined<Sum>(plain) : 0.0f;
    if (threadIdx.x == 0) {
        const long long label = target[row];
        const bool inside = label >= 0 && label < classes, ignored = label == ignore;
        float result = inside ? lse - value(from[label]) : NOT_A_NUMBER;
        if (SMOOTHED) result = (1.0f - smoothing) * result + smoothing * (lse - sum / (float)classes);
        put(loss[row], ignored ? 0.0f : result);
        counted[row] = ignored ? 0.0f : 1.0f;
    }
}

extern "C" __global__ void __launch_bounds__(LANES) finish(
    const float* __restrict__ loss, const float* __restrict__ counted, T0* __restrict__ out, long long rows
) {
    float total = 0.0f, count = 0.0f;
    for (long long at = threadIdx.x; at < rows; at += LANES) {
        total += loss[at];
        count += counted[at];
    }
    total = joined<Sum>(total);
    count = joined<Sum>(count);
    if (threadIdx.x == 0) put(*out, MEAN ? total / count : total);
}
"""


def _write(match: Match) -> Parts:
    bindings = match.bindings
    if not isinstance(bindings, CrossEntropy):
        raise Unmatched("not a cross-entropy")
    none, mean = bindings.reduction == "none", int(bindings.reduction == "mean")
    smoothed = int(bindings.label_smoothing > 0)
    body = [
        "rows, classes = logits.shape",
        "logits = logits if logits.stride(1) == 1 else logits.contiguous()",
        "target = target.reshape(rows).contiguous()",
        f"loss = torch.empty(rows, dtype={'logits.dtype' if none else 'torch.float32'}, device=logits.device)",
        "counted = torch.empty(rows, dtype=torch.float32, device=logits.device)",
        "library = _library(",
        '    ("T0", _TYPES[logits.dtype]), ("TI", _TYPES[target.dtype]), ("TL", _TYPES[loss.dtype]),',
        f'    ("VEC", _vectors(classes, logits)), ("LANES", THREADS), ("SMOOTHED", {smoothed}), ("MEAN", {mean}),',
        ")",
        "if rows:",
        "    library.losses[(rows,), (THREADS,)](",
        f"        logits, target, loss, counted, logits.stride(0), classes, {bindings.ignore_index},",
        f"        {bindings.label_smoothing!r},",
        "    )",
    ]
    if none:
        body.append("return loss")
    else:
        body += [
            "out = torch.empty((), dtype=logits.dtype, device=logits.device)",
            "library.finish[(1,), (THREADS,)](loss, counted, out, rows)",
            "return out",
        ]
    return Parts(
        kernels=f"{LANES}\n{_KERNEL}",
        inputs=[("logits", bindings.logits.text), ("target", bindings.target.text)],
        body=body,
        tunables={"THREADS": [128, 256, 512, 1024]},
        defaults={"THREADS": 512},
    )


RECIPES = (
    Recipe(
        "cross_entropy_block",
        "cross_entropy",
        "A block a row reads its logits once in packs of 16 bytes, each thread with its own running maximum and sum; "
        "the threads' results meet by shuffles, and a second kernel averages the rows in a fixed order.",
        _write,
    ),
)
