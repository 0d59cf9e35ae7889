"""A certificate with every part filled in, for tests of the document and of its page."""

from __future__ import annotations

import random
from typing import Any

from worker.judge.certificate.document import (
    Certificate,
    Outcome,
    OwnShare,
    ProblemPart,
    Roofline,
    RoofPoint,
    Subject,
    TimingPart,
    WorkloadTime,
)
from worker.judge.certificate.layers import grouped
from worker.judge.verdict import Check

SOURCE = "class ModelNew:\n    pass\n"


def value_check(name: str, share: float, *, passed: bool = True, sees: bool = True) -> Check:
    """A comparison whose error is `share` of its threshold."""
    return Check(
        name,
        passed,
        "" if passed else "relative error is over the threshold",
        {
            "error": share * 1e-4,
            "threshold": 1e-4,
            "accept_error": 2e-6,
            "reject_error": 5e-3 if sees else 4e-6,
            "sees_precision": str(sees),
            "worst_slice": "row 7",
        },
    )


def certificate(**changed: Any) -> Certificate:
    """A certified kernel with two workloads, one reservation and one check that does not apply."""
    rng = random.Random(4)
    names = ("normal", "mixed", "heavy", "integers")
    checks = [value_check(f"small/{name}/output0", 0.02 * (index + 1)) for index, name in enumerate(names)]
    checks += [value_check("large/normal/output0", 0.3, sees=False), Check("small/repeats", True, "bitwise equal")]
    system = [
        Check("system: leak slope", True, "12 bytes", {"leak_bytes_per_call": 12.0, "limit_bytes_per_call": 1024.0}),
        Check("system: side stream", True, "a CPU has no streams", {"outcome": str(Outcome.NOT_APPLICABLE)}),
        Check("system: torch.compile", False, "could not be made", {"outcome": str(Outcome.RESERVATION)}),
    ]  # fmt: skip
    workloads = tuple(
        WorkloadTime(
            name,
            size,
            {"eager": 2 * size, "compile": 1.5 * size},
            "compile",
            1.5,
            (1.45, 1.55),
            {
                contender: tuple(size * factor * rng.lognormvariate(0, 0.05) for _round in range(15))
                for contender, factor in (("candidate", 1.0), ("eager", 2.0), ("compile", 1.5))
            },
        )
        for name, size in (("small", 120.0), ("large", 2400.0))
    )
    points = (
        RoofPoint("small", 1e6, 4e5, 120.0, 50.0, 0.41, "memory"),
        RoofPoint("large", 3e7, 2e8, 2400.0, 1500.0, 0.63, "memory"),
    )
    steps = [0.0, 100.0, 200.0, 300.0]
    run = {
        "name": "SGD",
        "steps": steps,
        "candidate": [10.3, 7.0, 6.0, 5.5],
        "null_low": [10.2, 6.9, 5.9, 5.4],
        "null_high": [10.4, 7.1, 6.1, 5.6],
        "statistic": 1.2,
    }
    fields: dict[str, Any] = {
        "issued_at": "2026-01-02T03:04:05+00:00",
        "certified": True,
        "verdict": "ok",
        "reason": "",
        "summary": "It passed.",
        "reservations": ("torch.compile: could not be made",),
        "candidate": Subject("c1", "cpp", "ab" * 32, SOURCE),
        "problem": ProblemPart("softmax", "cd" * 32, ({"name": "small", "params": {}, "inputs": ["float32 8 x 8"]},)),
        "hardware": "cpu",
        "layers": grouped(checks, system),
        "timing": TimingPart(
            1.5,
            (1.46, 1.54),
            {"eager": 2.0, "compile": 1.5},
            workloads,
            {"ratio": 1.001},
            {"speedup": 1.52, "ci95_low": 1.48, "ci95_high": 1.56},
        ),
        "roofline": Roofline(2e10, 2e11, "float32", points),
        "own_kernels": OwnShare(0.97, 0.9, "three kernels"),
        "dynamics": {"sentence": "Trains as the reference does.", "runs": [run]},
        "environment": {"device": "cpu", "sandbox": "namespaces", "cores": 2},
        "judge": {"code_sha256": "ef" * 32, "judged_s": 12.0, "certified_s": 40.0},
        "provenance": {"timing": "the judge's clock"},
    }
    return Certificate(**(fields | changed))
