"""Triton attention: online softmax over tiles of keys, causal or not, half storage."""

from __future__ import annotations

from tests.redteam.honest.triton_building import triton_candidate

_FLASH = """
@triton.jit
def kernel(q, k, v, out, heads, kv_heads, length, keys, scale, CAUSAL: tl.constexpr, D: tl.constexpr, BM: tl.constexpr,
           BN: tl.constexpr):
    z, h = tl.program_id(1) // heads, tl.program_id(1) % heads
    source = (z * kv_heads + h // (heads // kv_heads)).to(tl.int64) * keys * D
    base = tl.program_id(1).to(tl.int64) * length * D
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    query = tl.load(q + base + i[:, None] * D + d[None, :], mask=i[:, None] < length, other=0.0)
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    end = tl.minimum(keys, (tl.program_id(0) + 1) * BM) if CAUSAL else keys
    for start in range(0, end, BN):
        j = start + tl.arange(0, BN)
        key = tl.load(k + source + j[None, :] * D + d[:, None], mask=j[None, :] < keys, other=0.0)
        s = tl.dot(query, key, input_precision="ieee") * scale
        s = tl.where((j[None, :] < keys) & ((j[None, :] <= i[:, None]) | (not CAUSAL)), s, float("-inf"))
        now = tl.maximum(top, tl.max(s, 1))
        base_of = tl.where(now == float("-inf"), 0.0, now)
        keep = tl.where(top == float("-inf"), 1.0, tl.exp(top - base_of))
        p = tl.exp(s - base_of[:, None])
        total = total * keep + tl.sum(p, 1)
        value = tl.load(v + source + j[:, None] * D + d[None, :], mask=j[:, None] < keys, other=0.0)
        acc = tl.dot(p.to(value.dtype), value, acc * keep[:, None], input_precision="ieee")
        top = now
    tl.store(out + base + i[:, None] * D + d[None, :], (acc / total[:, None]).to(out.dtype.element_ty),
             mask=i[:, None] < length)
"""
_FLASH_FORWARD = """
def forward(self, q, k, v):
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    heads, kv_heads, length, dim = q.shape[-3], k.shape[-3], q.shape[-2], q.shape[-1]
    if dim not in (16, 32, 64, 128) or heads % kv_heads or k.shape != v.shape:
        raise ValueError(f"heads of 16, 32, 64 or 128 are needed, not of {dim}")
    out = torch.empty_like(q)
    grid = (triton.cdiv(length, 32), q.numel() // max(1, length * dim))
    kernel[grid](q, k, v, out, heads, kv_heads, length, k.shape[-2], dim**-0.5, CAUSAL=FLAG, D=dim, BM=32, BN=16)
    return out
"""

ENTRIES = (
    triton_candidate(
        "flash", "Online softmax over tiles of 16 keys", "attention", _FLASH, _FLASH_FORWARD.replace("FLAG", "False")
    ),
    triton_candidate(
        "flash-causal",
        "Causal, tiles above the diagonal skipped",
        "small_attention_causal",
        _FLASH,
        _FLASH_FORWARD.replace("FLAG", "True"),
    ),
    triton_candidate(
        "flash-causal-half",
        "Causal, probabilities rounded to half before the product",
        "half_attention_causal",
        _FLASH,
        _FLASH_FORWARD.replace("FLAG", "True"),
    ),
)
"""Honest Triton attentions."""
