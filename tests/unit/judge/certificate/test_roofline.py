"""The roofline holds each workload against the peak of the type that its products may take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from problems.catalog import Precision
from worker.judge.certificate import roofline as module
from worker.judge.certificate.roofline import roofline

PEAKS = {torch.bfloat16: 8e14, torch.float32: 5e13}


def exhibit(name: str, dtype: torch.dtype, compute: str = "float32") -> Any:
    """One whose product of 512 x 512 is followed by a float32 loss."""
    like = (torch.ones(512, 512, dtype=dtype),)
    instance = SimpleNamespace(
        like=like, model=torch.nn.Module(), call=lambda value: ((value @ value).sum(dtype=torch.float32),)
    )
    truth = SimpleNamespace(precision=Precision(compute=compute))
    case = SimpleNamespace(eager=(torch.ones(()),))
    return SimpleNamespace(name=name, instance=instance, truth=truth, cases=[case], input_bytes=8, output_bytes=4)


def test_a_loss_in_float32_does_not_lower_the_peak_of_bf16_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "copy_bytes_per_s", lambda _device: 3e12)
    monkeypatch.setattr(module.Ceilings, "flops_per_s", lambda _self, dtype, tf32: PEAKS[dtype])
    workloads = [
        exhibit("narrow", torch.bfloat16),
        exhibit("wide", torch.float32),
        exhibit("by policy", torch.float32, "bfloat16"),
    ]
    rows = [SimpleNamespace(name=each.name, latency_us=100.0) for each in workloads]
    evaluation: Any = SimpleNamespace(workloads=rows)
    found = roofline(workloads, evaluation, "cuda:0")
    assert found is not None
    work = 2 * 512**3
    floors = [point.floor_us for point in found.points]
    assert floors == pytest.approx(
        [work / PEAKS[each] * 1e6 for each in (torch.bfloat16, torch.float32, torch.bfloat16)]
    )
    assert (found.precision, found.flops_per_s) == ("bfloat16", 8e14)
    assert "its own type" in found.note
