"""The case to get right first: an embedding gradient that is added up in bf16 is rejected, its fp32 twin is accepted.

Eight settings (vocabulary, width, tokens, Zipf or uniform ids), two candidates that differ in nothing but the type of
the running sum, judged like any other candidate. Prints one row per judgement; ends with 1 when a verdict is wrong.

    python -m tests.redteam.embedding_gradient --home FOLDER [--hardware nvidia-h200 --language triton] [--only 0 3]
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from problems.catalog import bundled
from worker.judge.client import Judge, JudgeOptions
from worker.judge.report import EvaluationRequest

PROBLEM = "embedding_grad_rmsnorm_backward"
BROKEN, TWIN = "bfloat16", "float32"
_SKEW = {"zipf": 1.1, "uniform": 0.0}


@dataclass(frozen=True, slots=True)
class Setting:
    """One size and distribution of tokens. The table, weight and gradients are stored in bf16 unless said otherwise."""

    vocab: int
    hidden: int
    tokens: int
    ids: str
    dtype: str = "bfloat16"

    @property
    def name(self) -> str:
        return f"V={self.vocab} D={self.hidden} T={self.tokens} {self.dtype} {self.ids}"

    @property
    def params(self) -> dict[str, int | float | str]:
        """What the problem's get_inputs is called with."""
        sizes = {"vocab": self.vocab, "hidden": self.hidden, "tokens": self.tokens}
        return {**sizes, "dtype": self.dtype, "skew": _SKEW[self.ids]}


def _both(*sizes: tuple[int, int, int, str]) -> tuple[Setting, ...]:
    return tuple(Setting(vocab, hidden, tokens, ids, dtype) for vocab, hidden, tokens, dtype in sizes for ids in _SKEW)


SETTINGS = {
    "cpu": _both(
        (512, 64, 4096, "float32"),
        (301, 33, 2051, "bfloat16"),
        (2000, 128, 8192, "bfloat16"),
        (8000, 96, 8192, "bfloat16"),
    ),
    "gpu": _both(
        (32000, 128, 16384, "bfloat16"),
        (32000, 1024, 16384, "bfloat16"),
        (50257, 771, 8191, "bfloat16"),
        (128256, 512, 32768, "bfloat16"),
    ),
}
"""Eight for each kind of device."""


def problem_source(setting: Setting) -> str:
    """The bundled problem with this setting as its only workload."""
    source = bundled()[PROBLEM].source
    statement = next(node for node in ast.parse(source).body if _is_spec(node))
    spec = ast.literal_eval(statement.value)  # type: ignore[attr-defined]
    spec["workloads"] = [{"name": "only", "for": "any", "params": setting.params}]
    lines = source.splitlines()
    lines[statement.lineno - 1 : statement.end_lineno] = [f"SPEC = {spec!r}"]
    return "\n".join(lines) + "\n"


def _is_spec(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "SPEC"


_CPP = '''
import torch
from torch import nn
from kernelwright import load_cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <omp.h>
#include <vector>

struct bf16 { uint16_t bits; };
static inline float wide(float v) { return v; }
static inline float wide(bf16 v) { uint32_t u = uint32_t(v.bits) << 16; float f; memcpy(&f, &u, 4); return f; }
static inline void keep(float v, float& to) { to = v; }
static inline void keep(float v, bf16& to) {  // round to nearest, ties to even; a NaN stays one
  uint32_t u; memcpy(&u, &v, 4);
  to.bits = std::isnan(v) ? uint16_t((u >> 16) | 0x40) : uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

// One row of the table at a time: its tokens are a list, so that no two threads add into one row.
template <class Stored, class Sum>
static void backward(const Stored* dy, const int64_t* ids, const Stored* table, const Stored* weight, Stored* dtable,
                     Stored* dweight, int64_t vocab, int64_t hidden, int64_t tokens, float eps) {
  std::vector<int64_t> first(vocab, -1), next(tokens);
  for (int64_t t = tokens - 1; t >= 0; t--) { next[t] = first[ids[t]]; first[ids[t]] = t; }
  int most = omp_get_max_threads();
  std::vector<float> parts(most * hidden, 0.0f);
  #pragma omp parallel num_threads(most)
  {
    std::vector<Sum> sum(hidden);
    std::vector<float> normed(hidden), scaled(hidden);
    float* part = &parts[omp_get_thread_num() * hidden];
    #pragma omp for schedule(static)
    for (int64_t v = 0; v < vocab; v++) {
      const Stored* x = table + v * hidden;
      float square = 0;
      for (int64_t i = 0; i < hidden; i++) square += wide(x[i]) * wide(x[i]);
      float scale = 1.0f / std::sqrt(square / hidden + eps);
      for (int64_t i = 0; i < hidden; i++) { normed[i] = wide(x[i]) * scale; keep(0.0f, sum[i]); }
      for (int64_t t = first[v]; t >= 0; t = next[t]) {
        const Stored* g = dy + t * hidden;
        float dot = 0;
        for (int64_t i = 0; i < hidden; i++) {
          scaled[i] = wide(g[i]) * wide(weight[i]);
          dot += scaled[i] * normed[i];
          part[i] += wide(g[i]) * normed[i];
        }
        dot /= hidden;
        for (int64_t i = 0; i < hidden; i++) keep(wide(sum[i]) + scale * (scaled[i] - normed[i] * dot), sum[i]);
      }
      for (int64_t i = 0; i < hidden; i++) keep(wide(sum[i]), dtable[v * hidden + i]);
    }
  }
  for (int64_t i = 0; i < hidden; i++) {
    float total = 0;
    for (int p = 0; p < most; p++) total += parts[p * hidden + i];
    keep(total, dweight[i]);
  }
}

extern "C" void run(const void* dy, const int64_t* ids, const void* table, const void* weight, void* dtable,
                    void* dweight, int64_t vocab, int64_t hidden, int64_t tokens, double eps, int64_t half) {
  if (half) backward<bf16, SUM>((const bf16*)dy, ids, (const bf16*)table, (const bf16*)weight, (bf16*)dtable,
                                (bf16*)dweight, vocab, hidden, tokens, (float)eps);
  else backward<float, SUM>((const float*)dy, ids, (const float*)table, (const float*)weight, (float*)dtable,
                            (float*)dweight, vocab, hidden, tokens, (float)eps);
}
"""
lib = load_cpp(SOURCE.replace("SUM", "@SUM@"))


class ModelNew(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, dy, ids, table, weight):
        dy, ids, table, weight = dy.contiguous(), ids.contiguous(), table.contiguous(), weight.contiguous()
        dtable, dweight = torch.empty_like(table), torch.empty_like(weight)
        sizes = (table.shape[0], table.shape[1], ids.numel())
        lib.run(dy, ids, table, weight, dtable, dweight, *sizes, self.eps, int(table.dtype == torch.bfloat16))
        return dtable, dweight
'''

_TRITON = """
import torch
import triton
import triton.language as tl
from torch import nn

SUM = torch.@SUM@
PARTS = 512


@triton.jit
def scatter(dy, ids, table, weight, sums, parts, tokens, hidden, eps, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    mask = at < hidden
    w = tl.load(weight + at, mask=mask, other=0.0).to(tl.float32)
    part = tl.zeros([BLOCK], tl.float32)
    for token in range(tl.program_id(0), tokens, tl.num_programs(0)):
        row = tl.load(ids + token)
        g = tl.load(dy + token * hidden + at, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(table + row * hidden + at, mask=mask, other=0.0).to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / hidden + eps)
        normed = x * scale
        scaled = g * w
        dx = scale * (scaled - normed * (tl.sum(scaled * normed, 0) / hidden))
        tl.atomic_add(sums + row * hidden + at, dx.to(sums.dtype.element_ty), mask=mask)
        part += g * normed
    tl.store(parts + tl.program_id(0) * hidden + at, part, mask=mask)


@triton.jit
def finish(parts, dweight, count, hidden, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < hidden
    total = tl.zeros([BLOCK], tl.float32)
    for place in range(count):
        total += tl.load(parts + place * hidden + at, mask=mask, other=0.0)
    tl.store(dweight + at, total.to(dweight.dtype.element_ty), mask=mask)


@triton.jit
def narrow(sums, dtable, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    tl.store(dtable + at, tl.load(sums + at, mask=mask).to(dtable.dtype.element_ty), mask=mask)


@triton.jit
def clear(sums, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(sums + at, tl.zeros([BLOCK], sums.dtype.element_ty), mask=at < count)


class ModelNew(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, dy, ids, table, weight):
        dy, ids, table, weight = dy.contiguous(), ids.contiguous(), table.contiguous(), weight.contiguous()
        hidden, tokens, count = table.shape[1], ids.numel(), table.numel()
        dtable, dweight = torch.empty_like(table), torch.empty_like(weight)
        sums = torch.empty(table.shape, dtype=SUM, device=table.device)
        parts = torch.empty(PARTS, hidden, dtype=torch.float32, device=table.device)
        clear[(triton.cdiv(count, 4096),)](sums, count, BLOCK=4096)
        block = triton.next_power_of_2(hidden)
        scatter[(PARTS,)](dy, ids, table, weight, sums, parts, tokens, hidden, self.eps, BLOCK=block)
        narrow[(triton.cdiv(count, 4096),)](sums, dtable, count, BLOCK=4096)
        finish[(triton.cdiv(hidden, 128),)](parts, dweight, PARTS, hidden, BLOCK=128)
        return dtable, dweight
"""


def candidate_source(language: str, kept: str) -> str:
    """A candidate whose running sums are kept in `kept`: "float32" (honest) or "bfloat16" (broken)."""
    if language == "cpp":
        return _CPP.replace("@SUM@", {"float32": "float", "bfloat16": "bf16"}[kept])
    return _TRITON.replace("@SUM@", kept)


@dataclass(frozen=True, slots=True)
class Row:
    """One judgement."""

    setting: str
    kept: str
    verdict: str
    reason: str
    wall_s: float

    @property
    def right(self) -> bool:
        """Whether the judge said what it must: bf16 sums are incorrect, fp32 sums are ok."""
        return self.verdict == ("ok" if self.kept == TWIN else "incorrect")


def judged(judge: Judge, hardware: str, language: str, settings: tuple[Setting, ...]) -> Iterator[Row]:
    """Judge both candidates at every setting."""
    for number, setting in enumerate(settings):
        source = problem_source(setting)
        for kept in (BROKEN, TWIN):
            candidate = candidate_source(language, kept)
            request = EvaluationRequest(f"{kept}-{number}", candidate, PROBLEM, source, hardware, language)
            report = judge.evaluate(request)
            yield Row(setting.name, kept, report["verdict"], report["reason"], report["wall_s"])


def main() -> int:
    """Run as a program; 1 when any verdict is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--hardware", default="cpu")
    parser.add_argument("--language", default="cpp")
    parser.add_argument("--only", type=int, nargs="*")
    arguments = parser.parse_args()
    settings = SETTINGS["cpu" if arguments.hardware == "cpu" else "gpu"]
    if arguments.only is not None:
        settings = tuple(settings[number] for number in arguments.only)
    rows = []
    with Judge(JudgeOptions(home=arguments.home, hardware=arguments.hardware, eager_only=True)) as judge:
        for row in judged(judge, arguments.hardware, arguments.language, settings):
            rows.append(row)
            mark = "right" if row.right else "WRONG"
            sys.stdout.write(
                f"{mark}  {row.setting:44} {row.kept:9} {row.verdict:12} {row.wall_s:5.1f} s  {row.reason}\n"
            )
            sys.stdout.flush()
    wrong = sum(not row.right for row in rows)
    sys.stdout.write(f"{len(rows) - wrong} of {len(rows)} as they must be\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
