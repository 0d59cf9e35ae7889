"""Cross-entropy of logits against class indices: the logits are read once and nothing of their size is written."""

from __future__ import annotations

from worker.builtin.expressions import Unmatched
from worker.builtin.families import CrossEntropy, Match
from worker.builtin.triton.recipe import Parts, Recipe

# A row that sees only -inf takes its exponentials around 0: -inf - -inf would be NaN. A target out of range that is not
# ignored makes its loss NaN.
_KERNEL = """\
@triton.jit
def _losses(logits, target, loss, counted, stride, classes, ignore, SMOOTHING: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(target + row).to(tl.int64)
    logits += row * stride
    inside = (label >= 0) & (label < classes)
    chosen = tl.load(logits + tl.where(inside, label, 0)).to(tl.float32)
    top = float("-inf")
    total = tl.full([BLOCK], 0.0, tl.float32)
    plain = tl.full([BLOCK], 0.0, tl.float32)
    for start in range(0, classes, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(logits + at, mask=at < classes, other=float("-inf")).to(tl.float32)
        higher = _nan_max(top, tl.reduce(v, 0, _nan_max))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(top - base) + tl.exp(v - base)
        top = higher
        if SMOOTHING > 0:
            plain += tl.where(at < classes, v, 0.0)
    base = tl.where(top == float("-inf"), 0.0, top)
    lse = tl.log(tl.sum(total, axis=0)) + base
    value = lse - chosen
    if SMOOTHING > 0:
        value = (1.0 - SMOOTHING) * value + SMOOTHING * (lse - tl.sum(plain, axis=0) / classes)
    ignored = label == ignore
    value = tl.where(ignored, 0.0, tl.where(inside, value, float("nan")))
    tl.store(loss + row, value)
{store_count}
"""

_STORE_COUNT = "    tl.store(counted + row, tl.where(ignored, 0.0, 1.0))"

_FINISH = """\
@triton.jit
def _finish(loss, counted, out, rows, MEAN: tl.constexpr, BLOCK: tl.constexpr):
    total = tl.full([BLOCK], 0.0, tl.float32)
    count = tl.full([BLOCK], 0.0, tl.float32)
    for start in range(0, rows, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(loss + at, mask=at < rows, other=0.0)
        if MEAN:
            count += tl.load(counted + at, mask=at < rows, other=0.0)
    result = tl.sum(total, axis=0)
    if MEAN:
        result = result / tl.sum(count, axis=0)
    tl.store(out, result)
"""


def write(match: Match) -> Parts:
    bindings = match.bindings
    if not isinstance(bindings, CrossEntropy):
        raise Unmatched("not a cross-entropy")
    mean, none = bindings.reduction == "mean", bindings.reduction == "none"
    loss = "torch.empty(rows, dtype=logits.dtype if NONE else torch.float32, device=logits.device)"
    body = [
        "rows, classes = logits.shape",
        "if logits.stride(1) != 1:",
        "    logits = logits.contiguous()",
        "target = target.reshape(rows).contiguous()",
        f"loss = {loss.replace('NONE', str(none))}",
        "counted = torch.empty_like(loss)" if mean else "counted = loss",
        "block = min(BLOCK, triton.next_power_of_2(max(classes, 1)))",
        "warps = min(max(block // 128, 1), WARPS)",
        "_losses[(rows,)](",
        f"    logits, target, loss, counted, logits.stride(0), classes, {bindings.ignore_index},",
        f"    {bindings.label_smoothing!r}, block, num_warps=warps,",
        ")",
    ]
    if none:
        body.append("return loss")
    else:
        body += [
            "out = torch.empty((), dtype=logits.dtype, device=logits.device)",
            f"_finish[(1,)](loss, counted, out, rows, {mean}, 2048, num_warps=8)",
            "return out",
        ]
    kernels = _KERNEL.format(store_count=_STORE_COUNT if mean else "")
    return Parts(
        kernels=kernels if none else f"{kernels}\n\n{_FINISH}",
        inputs=[("logits", bindings.logits.text), ("target", bindings.target.text)],
        body=body,
        tunables={"BLOCK": [1024, 2048, 4096, 8192, 16384, 32768], "WARPS": [4, 8, 16, 32]},
        defaults={"BLOCK": 8192, "WARPS": 16},
        constraints=["BLOCK <= WARPS * 2048"],
    )


RECIPES = (
    Recipe(
        "cross_entropy_online",
        "cross_entropy",
        "One online pass over each row of logits: running maximum and sum of exponentials, no softmax in memory; a "
        "second kernel averages the rows in a fixed order.",
        write,
    ),
)
