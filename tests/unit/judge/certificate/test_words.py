"""The verdict in words states the figures that a reader would look up first."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from tests.unit.judge.certificate.samples import certificate, value_check
from worker.judge.certificate.layers import grouped
from worker.judge.certificate.words import paragraph


def said(**changed: Any) -> str:
    sample = certificate()
    fields: dict[str, Any] = {
        "name": "softmax",
        "hardware": "cpu",
        "language": "cpp",
        "reason": "",
        "layers": sample.layers,
        "timing": sample.timing,
        "roofline": sample.roofline,
        "own": sample.own_kernels,
        "reservations": sample.reservations,
    }
    return paragraph(**(fields | changed))


def test_a_certified_kernel() -> None:
    text = said()
    assert text.startswith("This cpp kernel for softmax on cpu is certified.")
    assert "passed 7 of 8 checks in 3 layers; 1 did not apply" in text
    assert "30% of what is allowed (large/normal/output0), and 4 of 5 comparisons" in text
    assert "1.50x as fast (95 % interval 1.46 to 1.54)" in text
    assert "fresh processes gave 1.52x" in text
    assert "63% of the speed of light (large, memory bound)" in text
    assert "97% of the kernel time" in text
    assert text.endswith("One reservation: torch.compile: could not be made.")


def test_a_refused_kernel_says_why_first() -> None:
    text = said(reason="leak slope: memory grows.", timing=None, roofline=None, reservations=())
    assert text.startswith("This cpp kernel for softmax on cpu is not certified: leak slope: memory grows. ")
    assert "It was not timed." in text
    assert "reservation" not in text


def test_special_values_have_no_share_of_a_threshold() -> None:
    special = value_check("small/special/output0", 1.0)
    infinite = dataclasses.replace(special, figures={**special.figures, "error": math.inf, "threshold": math.inf})
    layers = grouped([infinite, value_check("small/normal/output0", 0.25)], [])
    assert "25% of what is allowed (small/normal/output0), and 1 of 1 comparisons" in said(layers=layers)
