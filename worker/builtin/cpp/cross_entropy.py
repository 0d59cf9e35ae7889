"""Cross entropy of logits and class indices, without writing the log-softmax."""

from __future__ import annotations

from worker.builtin.cpp import rows
from worker.builtin.cpp.recipe import Parts, Recipe, dense, rounded
from worker.builtin.expressions import Unmatched
from worker.builtin.families import CrossEntropy, Match

_KERNEL = """\
{toolkit}
// losses[r], and in *bad the number of targets that are out of range.
extern "C" void kernel(float* __restrict losses, const float* __restrict logits, const int64_t* __restrict targets,
                       int64_t* bad, int64_t rows, int64_t n, int64_t ignored, double smoothing) {{
    int64_t wrong = 0;
    #pragma omp parallel for schedule(static) num_threads(THREADS) if (rows * n >= GRAIN) reduction(+ : wrong)
    for (int64_t r = 0; r < rows; r++) {{
        const int64_t target = targets[r];
        losses[r] = 0.0f;
        if (target == ignored) continue;
        if (target < 0 || target >= n) {{
            wrong++;
            continue;
        }}
        const float* __restrict x = logits + r * n;
        {body}
    }}
    *bad = wrong;
}}
"""

_TWO_WALKS = """\
const float top = row_top(0, n, [&](auto k) { return at(x, k); });
        const double total = row_sum(0, n, [&](auto k) {
            NEXT_ROW(x, k);
            return kw_exp_down(at(x, k) - top);
        });
        const double log_total = __builtin_log(total);
        double loss = log_total - ((double)x[target] - (double)top);
        if (smoothing != 0.0) {
            const double mean = row_sum(0, n, [&](auto k) { return at(x, k) - top; }) / (double)n;
            loss = (1.0 - smoothing) * loss + smoothing * (log_total - mean);
        }
        losses[r] = (float)loss;"""


def write(match: Match) -> Parts:
    found = match.bindings
    if not isinstance(found, CrossEntropy):
        raise Unmatched("not a cross entropy")
    finish = {
        "none": f"return {rounded('losses')}",
        "sum": "return losses.sum(dtype=torch.float64).to(dtype)",
        "mean": f"return (losses.sum(dtype=torch.float64) / (target != {found.ignore_index}).sum()).to(dtype)",
    }[found.reduction]
    return Parts(
        cpp=_KERNEL.format(toolkit=rows.WALK + rows.SUM + rows.MAX + rows.AHEAD, body=_TWO_WALKS),
        inputs=[("logits", found.logits.text), ("target", found.target.text)],
        body=[
            "dtype = logits.dtype",
            dense("logits"),
            "target = target.to(torch.int64).contiguous()",
            "rows, cols = logits.shape",
            "losses = torch.empty(rows, dtype=torch.float32)",
            "bad = torch.zeros((), dtype=torch.int64)",
            f"_LIB.kernel(losses, logits, target, bad, rows, cols, {found.ignore_index}, {found.label_smoothing!r})",
            "if int(bad):",
            '    raise IndexError("a target is out of bounds")',
            finish,
        ],
        tunables={**rows.TUNABLES, "AHEAD": [0, 1]},
        defaults={**rows.DEFAULTS, "AHEAD": 1},
    )


RECIPES = (
    Recipe(
        "cross_entropy",
        "cross_entropy",
        "Each row of logits is read once from memory: its maximum, then the sum of its powers out of the cache; the "
        "log-softmax is never written.",
        write,
    ),
)
