"""The registry of recognisers, most specific family first. See `families` for what each one binds."""

from __future__ import annotations

from worker.builtin import lowering_ops, lowering_reductions  # noqa: F401  they register each op's lowering
from worker.builtin.families import Recogniser
from worker.builtin.recognise_products import attention, matmul
from worker.builtin.recognise_rows import (
    column_reduction,
    full_reduction,
    layer_norm,
    pointwise,
    rms_norm,
    row_reduction,
    rowwise,
    softmax,
)
from worker.builtin.recognise_single import cross_entropy, embedding, group_norm, rope, scan, transpose

RECOGNISERS: dict[str, Recogniser] = {
    "attention": attention,
    "matmul": matmul,
    "cross_entropy": cross_entropy,
    "softmax": softmax,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "group_norm": group_norm,
    "rope": rope,
    "row_reduction": row_reduction,
    "column_reduction": column_reduction,
    "scan": scan,
    "embedding": embedding,
    "transpose": transpose,
    "full_reduction": full_reduction,
    "pointwise": pointwise,
    "rowwise": rowwise,
}
