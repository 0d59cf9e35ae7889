"""Rows of one block of edges that go to the same node are merged on tensor cores, then added atomically in float32.

A product with the 0/1 matrix of equal ids adds the rows of a hub in one go, so that its node sees one addition a block.
Bound by memory and by the atomic additions; a few 16-bit types need a float32 buffer and a last pass over the nodes.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"EDGES": [32, 64, 128], "WARPS": [4, 8], "MERGE": [0, 1], "MERGE_WIDE": [0, 1]}
EDGES = 64
WARPS = 4
MERGE = 1
MERGE_WIDE = 0


@triton.jit
def _convert(x, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < count), mask=at < count)


@triton.jit
def _add(
    ids, rows, out, edges, dim, EDGES: tl.constexpr, DIM: tl.constexpr, MERGE: tl.constexpr, PRECISION: tl.constexpr
):
    edge = tl.program_id(0) * EDGES + tl.arange(0, EDGES)
    col = tl.program_id(1) * DIM + tl.arange(0, DIM)
    ok = (edge < edges)[:, None] & (col < dim)[None, :]
    node = tl.load(ids + edge, mask=edge < edges, other=-1)
    value = tl.load(rows + edge.to(tl.int64)[:, None] * dim + col[None, :], mask=ok, other=0.0)
    target = out + node.to(tl.int64)[:, None] * dim + col[None, :]
    if MERGE:
        twin = tl.program_id(0) * EDGES + tl.arange(0, EDGES)
        other = tl.load(ids + twin, mask=twin < edges, other=-2)
        same = node[:, None] == other[None, :]
        # Zero times infinity would reach other nodes: such a block is added edge by edge.
        wild = tl.max(tl.max((tl.abs(value.to(tl.float32)) < float("inf")).to(tl.int32) ^ 1, axis=1), axis=0)
        repeated = tl.max(tl.sum(same.to(tl.int32), axis=1), axis=0)
        if (wild == 0) & (repeated > 1):
            earlier = same & (twin[None, :] < edge[:, None])
            first = tl.sum(earlier.to(tl.int32), axis=1) == 0
            merged = tl.dot(same.to(value.dtype), value, input_precision=PRECISION)
            tl.atomic_add(target, merged, mask=ok & first[:, None], sem="relaxed")
        else:
            tl.atomic_add(target, value.to(tl.float32), mask=ok, sem="relaxed")
    else:
        tl.atomic_add(target, value.to(tl.float32), mask=ok, sem="relaxed")


class ModelNew(nn.Module):
    def forward(self, base, ids, rows):
        base, ids, rows = base.contiguous(), ids.contiguous(), rows.contiguous()
        edges, dim = rows.shape
        wide = base.dtype is torch.float32
        total = torch.empty(base.shape, dtype=torch.float32, device=base.device)
        count = base.numel()
        if not count:
            return torch.empty_like(base)
        copies = (triton.cdiv(count, 4096),)
        _convert[copies](base, total, count, BLOCK=4096, num_warps=8)
        if edges:
            width = max(16, min(128, triton.next_power_of_2(dim)))
            _add[(triton.cdiv(edges, EDGES), triton.cdiv(dim, width))](
                ids, rows, total, edges, dim, EDGES=EDGES, DIM=width, MERGE=MERGE_WIDE if wide else MERGE,
                PRECISION="tf32x3" if rows.dtype is torch.float32 else "tf32", num_warps=WARPS,
            )  # fmt: skip
        if wide:
            return total
        out = torch.empty_like(base)
        _convert[copies](total, out, count, BLOCK=4096, num_warps=8)
        return out
