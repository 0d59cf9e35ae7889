"""Triton sums and scans: lanes, autotuning, atomics, two stages, carries."""

from __future__ import annotations

from tests.redteam.honest.triton_building import LOOP, SAME, WHOLE, triton_candidate

REDUCED = SAME.replace("torch.empty_like(x)", "torch.empty(x.shape[:-1], dtype=x.dtype, device=x.device)")
_SUM = """
@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64) * n
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        total += tl.load(x + row + start + at, mask=start + at < n, other=0.0).to(tl.float32)
    tl.store(out + tl.program_id(0), tl.sum(total, 0))
"""
_SUM_ATOMIC = """
@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0).to(tl.int64) * n + at, mask=at < n, other=0.0)
    tl.atomic_add(out + tl.program_id(0), tl.sum(v, 0))  # float32, in any order
"""
_SUM_STAGES = """
@triton.jit
def partials(x, part, n, parts, BLOCK: tl.constexpr):
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0).to(tl.int64) * n + at, mask=at < n, other=0.0)
    tl.store(part + tl.program_id(0) * parts + tl.program_id(1), tl.sum(v, 0))


@triton.jit
def finish(part, out, parts, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.load(part + tl.program_id(0) * parts + at, mask=at < parts, other=0.0)
    tl.store(out + tl.program_id(0), tl.sum(v, 0))
"""
_CUMSUM = """
@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64) * n
    carry = tl.zeros((), tl.float32)
    for start in range(0, n, BLOCK):
        v = tl.load(x + row + start + at, mask=start + at < n, other=0.0).to(tl.float32)
        tl.store(out + row + start + at, tl.cumsum(v, 0) + carry, mask=start + at < n)
        carry += tl.sum(v, 0)
"""
_CUMSUM_SCAN = """
@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64) * n
    v = tl.load(x + row + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(out + row + at, tl.associative_scan(v, 0, plus), mask=at < n)
"""
_SUM_FORWARD = REDUCED.replace("LAUNCH", "kernel[(rows,)](x, out, n, BLOCK=BLOCK)")
_TUNED = """TUNABLES = {"BLOCK": [128, 256, 512]}
BLOCK = 256"""
_AUTOTUNED = _SUM.replace(
    "@triton.jit",
    '@triton.autotune(configs=[triton.Config({"BLOCK": size}, num_warps=size // 64) for size in (256, 512)],\n'
    '                 key=["n"])\n@triton.jit',
)

ENTRIES = (
    triton_candidate("sum-blocks", "Lanes over blocks of a tunable size", "row_sum", _SUM, _SUM_FORWARD, head=_TUNED),
    triton_candidate(
        "sum-autotuned",
        "triton.autotune among correct configurations",
        "row_sum",
        _AUTOTUNED,
        REDUCED.replace("LAUNCH", "kernel[(rows,)](x, out, n)"),
    ),
    triton_candidate(
        "sum-atomic",
        "Float32 atomics on a zeroed output",
        "row_sum",
        _SUM_ATOMIC,
        REDUCED.replace("torch.empty(", "torch.zeros(").replace(
            "LAUNCH", "kernel[(rows, triton.cdiv(n, 512))](x, out, n, BLOCK=512)"
        ),
    ),
    triton_candidate(
        "sum-two-stages",
        "Partials in a workspace, then their sum: deterministic",
        "row_sum",
        _SUM_STAGES,
        REDUCED.replace(
            "LAUNCH",
            """parts = triton.cdiv(n, 512)
        part = torch.empty(rows * parts, dtype=torch.float32, device=x.device)
        partials[(rows, parts)](x, part, n, parts, BLOCK=512)
        finish[(rows,)](part, out, parts, BLOCK=triton.next_power_of_2(parts))""",
        ),
    ),
    triton_candidate("sum-fp16", "float16 storage, float32 sum", "row_sum_fp16", _SUM, _SUM_FORWARD, head=_TUNED),
    triton_candidate("cumsum-carry", "Blocks with a carry", "cumsum", _CUMSUM, SAME.replace("LAUNCH", LOOP)),
    triton_candidate(
        "cumsum-scan", "associative_scan over a whole row", "cumsum", _CUMSUM_SCAN, SAME.replace("LAUNCH", WHOLE)
    ),
)
"""Honest Triton sums and scans."""
