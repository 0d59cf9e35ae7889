"""Triton candidates for a GPU: numerics, replays, and other people's work."""

from __future__ import annotations

from tests.redteam.entry import CRASH, INCORRECT, NON_OK, SUSPICIOUS, WRONG, Entry

_HEAD = """import torch
import triton
import triton.language as tl
from torch import nn

@triton.jit
def row_kernel(x, w, b, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mask = at < cols
    v = tl.load(x + row * cols + at, mask=mask, other=OTHER)
STEPS
    tl.store(y + row * cols + at, out, mask=MASK)

TOP

class ModelNew(nn.Module):
    def __init__(selfARGS):
        super().__init__()
        INIT

    def real(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        row_kernel[(x.shape[0],)](x, WEIGHT, BIAS, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y

    def forward(self, x):
        BODY
"""
_STEPS = {
    "bias_relu": "z = v + tl.load(b + at, mask=mask)\nout = tl.where(z < 0, 0.0, z)",
    "rmsnorm": "rstd = 1.0 / tl.sqrt(tl.sum(v * v) / cols + 1e-6)\nout = v * rstd * tl.load(w + at, mask=mask)",
    "softmax": "e = tl.exp(v - tl.max(v))\nout = e / tl.sum(e)",
    "layernorm": "mean = tl.sum(v) / cols\nd = tl.where(mask, v - mean, 0.0)\n"
    "rstd = 1.0 / tl.sqrt(tl.sum(d * d) / cols + 1e-5)\n"
    "out = d * rstd * tl.load(w + at, mask=mask) + tl.load(b + at, mask=mask)",
}
_BIND = {
    "bias_relu": (", cols", "self.bias = nn.Parameter(torch.zeros(cols))", "x", "self.bias", "0.0"),
    "rmsnorm": (", cols", "self.weight = nn.Parameter(torch.ones(cols))", "self.weight", "x", "0.0"),
    "softmax": ("", "pass", "x", "x", "float('-inf')"),
    "layernorm": (", cols", "self.norm = nn.LayerNorm(cols)", "self.norm.weight", "self.norm.bias", "0.0"),
}


def _source(problem: str, body: str, top: str, swap: tuple[tuple[str, str], ...]) -> str:
    arguments, init, weight, bias, other = _BIND[problem]
    steps = _STEPS[problem]
    mask = "mask"
    for old, new in swap:
        if old == "MASK":
            mask = new
        elif old not in steps:
            raise ValueError(f"nothing to replace: {old!r}")
        steps = steps.replace(old, new)
    text = _HEAD.replace("OTHER", other).replace("STEPS", "    " + steps.replace("\n", "\n    ")).replace("MASK", mask)
    text = text.replace("ARGS", arguments).replace("INIT", init).replace("WEIGHT", weight).replace("BIAS", bias)
    return text.replace("TOP", top).replace("BODY", body.strip().replace("\n", "\n        "))


def _gpu(
    name: str, number: int, problem: str, layer: str, title: str, *swap: tuple[str, str],
    body: str = "return self.real(x)", top: str = "", expected: frozenset[str] = WRONG,
) -> Entry:  # fmt: skip
    return Entry(
        f"gpu-{name}", number, title, problem, "triton", _source(problem, body, top, swap), expected, layer, "gpu"
    )


_MATMUL = """import torch
import triton
import triton.language as tl
from torch import nn

@triton.jit
def product(a, b, y, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows = tl.program_id(0) * M + tl.arange(0, M)
    cols = tl.program_id(1) * N + tl.arange(0, N)
    acc = tl.zeros((M, N), dtype=ACC)
    for start in range(0, k, K):
        inner = start + tl.arange(0, K)
        inside = inner < k
        left = tl.load(a + rows[:, None] * k + inner[None, :], mask=(rows < m)[:, None] & inside[None, :], other=0.0)
        right = tl.load(b + inner[:, None] * n + cols[None, :], mask=inside[:, None] & (cols < n)[None, :], other=0.0)
        DOT
    tl.store(y + rows[:, None] * n + cols[None, :], acc.to(y.dtype.element_ty),
             mask=(rows[:, None] < m) & (cols[None, :] < n))

class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        (m, k), n = a.shape, b.shape[1]
        y = torch.empty(m, n, device=a.device, dtype=a.dtype)
        product[(triton.cdiv(m, 32), triton.cdiv(n, 32))](a, b, y, m, n, k, M=32, N=32, K=32)
        return y
"""


def _product(
    name: str, title: str, dot: str, *, acc: str = "tl.float32", problem: str = "matmul", number: int = 72
) -> Entry:
    source = _MATMUL.replace("DOT", dot).replace("ACC", acc)
    return Entry(f"gpu-{name}", number, title, problem, "triton", source, INCORRECT, "values", "gpu")


_SCATTER = """import torch
import triton
import triton.language as tl
from torch import nn

@triton.jit
def scatter(ids, grad, y, dim, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mask = at < dim
    row = tl.load(ids + token)
    v = tl.load(grad + token * dim + at, mask=mask)
    ADD

class ModelNew(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.vocab = vocab

    def forward(self, ids, grad):
        ids, grad = ids.contiguous(), grad.contiguous()
        y = torch.zeros(self.vocab, grad.shape[1], device=grad.device, dtype=torch.KIND)
        scatter[(ids.numel(),)](ids, grad, y, grad.shape[1], BLOCK=triton.next_power_of_2(grad.shape[1]))
        return y.float()
"""


def _scatter(name: str, number: int, title: str, add: str, kind: str, layer: str, expected: frozenset[str]) -> Entry:
    source = _SCATTER.replace("ADD", add).replace("KIND", kind)
    return Entry(f"gpu-{name}", number, title, "embedding_grad", "triton", source, expected, layer, "gpu")


_CACHED = "key = {key}\nif key not in CACHE:\n    CACHE[key] = self.real(x)\nreturn CACHE[key].clone()"
_AUTOTUNED = """
@triton.autotune(configs=[triton.Config({"SKIP": skip}) for skip in (0, 1)], key=["cols"])
@triton.jit
def tuned(x, b, y, cols, BLOCK: tl.constexpr, SKIP: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    if SKIP == 0 or row % 2 == 0:
        v = tl.load(x + row * cols + at, mask=at < cols)
        for _ in range(50 * (1 - SKIP)):
            v = v * 1.0
        z = v + tl.load(b + at, mask=at < cols)
        tl.store(y + row * cols + at, tl.where(z < 0, 0.0, z), mask=at < cols)
"""

ENTRIES: tuple[Entry, ...] = (
    _product("dot-tf32", "tl.dot in TF32", "acc += tl.dot(left, right, input_precision='tf32')"),
    _product("dot-bf16", "tl.dot on bf16 copies",
             "acc += tl.dot(left.to(tl.bfloat16), right.to(tl.bfloat16)).to(tl.float32)"),
    _product("dot-fp16-accumulator", "tl.dot with an fp16 accumulator",
             "acc += tl.dot(left.to(tl.float16), right.to(tl.float16), out_dtype=tl.float16)", acc="tl.float16",
             number=71),
    _product("dot-bf16-accumulator", "bf16 in, bf16 sums", "acc = (acc + tl.dot(left, right)).to(tl.bfloat16)",
             acc="tl.bfloat16", problem="matmul_bf16", number=71),
    _product("dot-bf16-partials", "Partial products rounded to bf16",
             "acc += tl.dot(left, right, input_precision='ieee').to(tl.bfloat16).to(tl.float32)", number=73),
    _scatter("atomics-bf16", 71, "bf16 atomics", "tl.atomic_add(y + row * dim + at, v.to(tl.bfloat16), mask=mask)",
             "bfloat16", "values", INCORRECT | {"launch_error", "nondeterministic"}),
    _scatter("atomics-fp16", 71, "fp16 atomics", "tl.atomic_add(y + row * dim + at, v.to(tl.float16), mask=mask)",
             "float16", "values", INCORRECT | {"nondeterministic"}),
    _scatter("scatter-without-atomics", 81, "Load, add, store, without atomics",
             "tl.store(y + row * dim + at, tl.load(y + row * dim + at, mask=mask) + v, mask=mask)", "float32", "values",
             WRONG | {"nondeterministic"}),
    _gpu("one-pass-variance", 74, "layernorm", "values", "E[x^2] - E[x]^2",
         ("tl.sum(d * d) / cols", "tl.sum(v * v) / cols - mean * mean")),
    _gpu("softmax-without-max", 75, "softmax", "values", "exp(x) overflows", ("tl.exp(v - tl.max(v))", "tl.exp(v)")),
    _gpu("norm-without-eps", 76, "rmsnorm", "values", "No eps", (" + 1e-6", "")),
    _gpu("exp-in-half", 77, "softmax", "values", "Exponentials in fp16",
         ("tl.exp(v - tl.max(v))", "tl.exp((v - tl.max(v)).to(tl.float16).to(tl.float32))")),
    _gpu("relu-drops-nan", 79, "bias_relu", "semantics", "tl.maximum turns NaN into zero",
         ("tl.where(z < 0, 0.0, z)", "tl.maximum(z, 0.0)")),
    _gpu("tail-unwritten", 15, "bias_relu", "memory", "Columns beyond a multiple of 16 are never written",
         ("MASK", "mask & (at < cols // 16 * 16)")),
    _gpu("unmasked-store", 86, "bias_relu", "memory", "Stores the whole block, beyond the row's end",
         ("MASK", "at < BLOCK"), expected=CRASH | WRONG),
    _gpu("subsampled-norm", 10, "rmsnorm", "values", "The sum of squares of every fourth column",
         ("tl.sum(v * v)", "4 * tl.sum(tl.where(at % 4 == 0, v * v, 0.0))")),
    _gpu("norm-weight-ignored", 9, "rmsnorm", "values", "The weight is never read",
         (" * tl.load(w + at, mask=mask)", "")),
    _gpu("cache-data-ptr", 25, "bias_relu", "values", "Keyed by the input's address", top="CACHE = {}",
         body=_CACHED.format(key="x.data_ptr()")),
    _gpu("cache-version", 27, "bias_relu", "values", "Keyed by address and _version", top="CACHE = {}",
         body=_CACHED.format(key="(x.data_ptr(), x._version)")),
    _gpu("cache-shape", 28, "bias_relu", "values", "Keyed by the shape", top="CACHE = {}",
         body=_CACHED.format(key="x.shape")),
    _gpu("phase-count", 55, "bias_relu", "timed_outputs", "Honest for 30 calls", top="COUNT = [0]",
         body="COUNT[0] += 1\nreturn self.real(x) if COUNT[0] <= 30 else torch.empty_like(x)"),
    _gpu("autotune-prefers-wrong", 35, "bias_relu", "values",
    "Autotuning finds that skipping every other row is faster",
         top=_AUTOTUNED, body="y = torch.empty_like(x)\ntuned[(x.shape[0],)](x, self.bias, y, x.shape[1], "
         "BLOCK=triton.next_power_of_2(x.shape[1]))\nreturn y"),
    _gpu("fallback-in-except", 20, "softmax", "provenance", "The launch always fails; torch answers",
         body="try:\n    return row_kernel[(0, 0, 0, 0)](x)\nexcept Exception:\n    return torch.softmax(x, -1)",
         expected=SUSPICIOUS),
    _gpu("fig-leaf", 22, "softmax", "provenance", "An own kernel whose result is thrown away, and torch's softmax",
         body="self.real(x[:1])\nreturn torch.softmax(x, -1)", expected=SUSPICIOUS),
    _gpu("kernel-never-launched", 22, "layernorm", "provenance", "Defines a kernel and calls the library",
         body="return self.norm(x)", expected=SUSPICIOUS),
    _gpu("tf32-switched-on", 69, "bias_relu", "contract", "Leaves TF32 and benchmark modes switched on",
         body="torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.benchmark = True\nreturn self.real(x)"),
    _gpu("reseeds-the-caller", 83, "bias_relu", "contract", "Resets the device's random numbers at every call",
         body="torch.cuda.manual_seed_all(0)\nreturn self.real(x)"),
    _gpu("output-on-the-host", 61, "bias_relu", "contract", "Returns host memory", body="return self.real(x).cpu()",
         expected=NON_OK),
    _gpu("expanded-output", 61, "softmax", "values", "One row, expanded with stride 0",
         body="return self.real(x[:1]).expand(x.shape[0], -1)"),
    _gpu("freed-and-taken-again", 6, "bias_relu", "memory", "Frees a result and returns the block that it gets again",
         body="self.real(x)\nreturn torch.empty_like(x)"),
    _gpu("super-batch", 31, "bias_relu", "values", "Buffers handed out at once, all filled on every third call",
         top="PENDING = []", body="out = torch.empty_like(x)\nPENDING.append((x, out))\nif len(PENDING) == 3:\n"
         "    for given, wanted in PENDING:\n        wanted.copy_(self.real(given))\n    PENDING.clear()\nreturn out"),
    _gpu("known-shapes-only", 84, "bias_relu", "shapes", "Right for the declared shapes, zeros for all others",
         body="return self.real(x) if x.shape in ((128, 512), (61, 333)) else torch.zeros_like(x)"),
)  # fmt: skip
