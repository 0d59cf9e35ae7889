"""The candidates of the showcase, in the order in which they were made."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_REPORT: dict[str, Any] = json.loads((Path(__file__).parent / "report.json").read_text(encoding="utf-8"))
GPT, CLAUDE = "openai/gpt-5", "anthropic/claude-sonnet-4-5"
BUILD_LOG = """kernel.cpp: In function 'void softmax(const float*, float*, int64_t, int64_t)':
kernel.cpp:23:29: error: 'row_count' was not declared in this scope
"""


@dataclass(frozen=True, slots=True)
class Step:
    """One candidate: how it was made, what became of it. Parents are ordinals; `verdict` may be a failure."""

    operator: str
    model: str | None
    parents: tuple[int, ...]
    verdict: str
    speedup: float | None
    plan: str
    reason: str = ""
    line: str = ""


STEPS = (
    Step("seed", None, (), "ok", 0.91, "One pass per row, as the compiler lowers it."),
    Step("seed", GPT, (), "ok", 1.04, "Three passes per row: maximum, sum of exponentials, scale."),
    Step("seed", CLAUDE, (), "build_error", None, "An online maximum in one pass, eight lanes.",
         "BuildError: kernel.cpp:23:29: 'row_count' was not declared in this scope", "    row_count += 1;"),
    Step("refine", GPT, (2,), "ok", 1.22, "Write the exponentials once and scale them in place.",
         line="    // in place"),
    Step("repair", CLAUDE, (3,), "ok", 1.13, "Count rows by the argument, not by a name of its own."),
    Step("refine", CLAUDE, (4,), "incorrect", None, "Sum in float32 with four accumulators.",
         "odd/tiny/output0: the result is biased: it is -1.6e-05 of the true one too large on average (bound 3.8e-06)",
         "        // four float accumulators"),
    Step("tune", None, (4,), "ok", 1.37, "tune: THREADS=2, UNROLL=4", line="    // UNROLL=4"),
    Step("rewrite", GPT, (4,), "ok", 1.18, "Blocks of rows that stay in the second cache.",
         line="    // blocks of rows"),
    Step("repair", GPT, (6,), "ok", 1.41, "Keep the four accumulators, and add them up in double.",
         line="        // four double accumulators"),
    Step("refine", CLAUDE, (9,), "suspicious", None, "Remember the last input and its result.",
         "results are kept between calls: an input changed in place gave the old result", "    static float last;"),
    Step("crossover", GPT, (7, 9), "ok", 1.66, "The tuned loop with the accumulators of candidate 9.",
         line="    // tuned, with accumulators"),
    Step("refine", CLAUDE, (11,), "ok", 1.58, "Prefetch the next row while this one is scaled.",
         line="    // prefetch"),
    Step("refine", GPT, (11,), "duplicate", None, "The tuned loop with the accumulators of candidate 9."),
    Step("tune", None, (11,), "ok", 1.83, "tune: THREADS=2, UNROLL=8, BLOCK=4", line="    // UNROLL=8, BLOCK=4"),
    Step("refine", CLAUDE, (14,), "timeout", None, "Wait for both halves of a row with a spinning flag.",
         "no answer within 60 s", "    while (!ready) {}"),
    Step("rewrite", CLAUDE, (14,), "ok", 1.71, "A polynomial for exp, exact to half a unit in the last place.",
         line="    // polynomial"),
    Step("refine", GPT, (14,), "no_code", None, ""),
    Step("crossover", CLAUDE, (14, 16), "ok", 2.09, "The polynomial inside the tuned blocks.", line="    // both"),
    Step("refine", GPT, (18,), "illegal_access", None, "Read sixteen lanes at the row's end as well.",
         "wrote 28 bytes behind out: the page after it is guarded", "    // no tail"),
    Step("repair", GPT, (19,), "ok", 2.02, "A masked tail.", line="    // masked tail"),
    Step("refine", CLAUDE, (18,), "ok", 2.14, "Scale by a multiplication and stream the stores.", line="    // stream"),
    Step("tune", None, (21,), "ok", 2.31, "tune: THREADS=2, UNROLL=8, BLOCK=8, NT=1", line="    // NT=1, BLOCK=8"),
)  # fmt: skip


def source(ordinal: int, lines: tuple[str, ...]) -> str:
    """A candidate's file; the lines are what its ancestors and itself changed."""
    changed = "\n".join(lines)
    return f'''"""Candidate {ordinal}: softmax over the last dimension."""

import torch
from torch import nn

from kernelwright import load_cpp

TUNABLES = {{"THREADS": [1, 2], "UNROLL": [1, 2, 4, 8]}}

SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void softmax(const float* x, float* out, int64_t rows, int64_t cols) {{
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {{
        const float* in = x + row * cols;
        float* to = out + row * cols;
        float top = -INFINITY;
        #pragma omp simd reduction(max : top)
        for (int64_t i = 0; i < cols; i++) top = in[i] > top ? in[i] : top;
        double sum = 0.0;  // in double: a bias of 1e-5 is refused
{changed}
        for (int64_t i = 0; i < cols; i++) sum += to[i] = std::exp(in[i] - top);
        const float scale = (float)(1.0 / sum);
        for (int64_t i = 0; i < cols; i++) to[i] *= scale;
    }}
}}
"""
lib = load_cpp(SOURCE, flags=["-fno-math-errno"])


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        lib.softmax(x, out, x.shape[0], x.shape[1])
        return out
'''


ASSEMBLY = """\
# cpp source 1 of 1, flags: -fno-math-errno
0000000000001230 <softmax._omp_fn.0>:
    1230:\tvmaxps (%rcx,%rax,4),%ymm0,%ymm0
    1235:\tadd    $0x8,%rax
    1239:\tcmp    %rdx,%rax
    123c:\tjb     1230 <softmax._omp_fn.0>
"""


def report(step: Step) -> dict[str, Any]:
    """What the judge says of it."""
    found = copy.deepcopy(_REPORT)
    if step.speedup is not None:
        return _scaled(found, step.speedup)
    checks = found["checks"][:9] if step.verdict != "build_error" else []
    if checks:
        checks[-1] |= {"passed": False, "detail": step.reason.partition(": ")[2] or step.reason}
    bare: dict[str, Any] = {"timed": False, "latency_us": None, "speedup": None, "ci95": None, "baseline": None}
    bare |= {"workloads": [], "profile": {}, "speedups": {}, "baselines_us": {}, "gpu_s": 1.9, "wall_s": 2.6}
    log = BUILD_LOG if step.verdict == "build_error" else ""
    return found | bare | {"verdict": step.verdict, "reason": step.reason, "checks": checks, "log": log}


def _scaled(found: dict[str, Any], speedup: float) -> dict[str, Any]:
    factor = speedup / found["speedup"]
    for row in found["workloads"]:
        row["latency_us"] /= factor
        row["speedup"] *= factor
        row["ci95"] = [end * factor for end in row["ci95"]]
        row["sol_fraction"] *= factor
        row["samples_us"]["candidate"] = [each / factor for each in row["samples_us"]["candidate"]]
    found["ci95"] = [speedup * 0.955, speedup * 1.04]
    found["speedups"] = {name: value * factor for name, value in found["speedups"].items()}
    found["latency_us"] /= factor
    return found | {"speedup": speedup}
