"""Triton's interpreter, mended: each kernel in triton_kernels.py runs once, in one process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

from worker.runner.triton_interpret import round_to_bf16, round_to_tf32  # noqa: E402

KERNELS = Path(__file__).parent / "triton_kernels.py"
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run([sys.executable, str(KERNELS)], env=environment, capture_output=True, text=True, check=True)
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


@pytest.mark.parametrize(
    "name",
    [
        "elementwise_bf16", "reduction_bf16", "bits_bf16", "atomic_bf16", "cast_fp32_bf16", "cast_bf16_fp16",
        "cast_bf16_fp32", "cast_int32_bf16", "cast_fp32_fp8", "cast_fp16_fp8", "cast_bf16_fp8", "cast_fp8_fp32",
        "cast_fp8_fp16", "cast_fp8_bf16", "masked_in_bounds", "through_addresses", "tuned",
    ],
)  # fmt: skip
def test_exact(outcome: dict[str, Any], name: str) -> None:
    assert outcome["results"][name] == 0.0


@pytest.mark.parametrize("name", ["dot_bf16", "dot_fp32"])
def test_dot_is_as_good_as_float32(outcome: dict[str, Any], name: str) -> None:
    # 48 products of about 1: float32 leaves some 1e-6; raw bit patterns left 6e10.
    assert outcome["results"][name] < 1e-5


def test_tf32_dot_has_the_hardwares_error(outcome: dict[str, Any]) -> None:
    # Ten bits of mantissa: some 1e-3 of each of 48 products. Triton's interpreter gives 1e-6, which no GPU does.
    assert 1e-4 < outcome["results"]["dot_tf32"] < 0.1


def test_accesses_outside_the_tensors_are_caught(outcome: dict[str, Any]) -> None:
    results = outcome["results"]
    assert results["unmasked_load"].startswith("unmasked_kernel, program (1, 0, 0), loads from 58 of 64 addresses")
    assert results["unmasked_store"].startswith("unmasked_store_kernel, program (1, 0, 0), stores to 58 of 64")


def test_a_nan_is_lost_where_a_gpu_loses_it(outcome: dict[str, Any]) -> None:
    assert outcome["results"]["kept_nans"] == [0, 0, 0, 4, 4]


def test_an_atomic_sum_has_no_subnormal_numbers(outcome: dict[str, Any]) -> None:
    assert outcome["results"]["atomic_pairs"] == [-2.0, 0.0, 0.0, 0.5]


def test_notes_say_what_was_not_checked(outcome: dict[str, Any]) -> None:
    notes = " ".join(outcome["notes"])
    assert "autotune of tuned_kernel: the first of 2 configurations was checked (BLOCK: 32" in notes
    assert "through_addresses_kernel makes pointers of integers" in notes


def test_rounding_to_bf16_is_to_nearest_even() -> None:
    ulp = 2.0**-7
    values = np.array([1 + ulp / 2, 1 + 3 * ulp / 2, 1 + 0.49 * ulp, -1 - 0.51 * ulp, np.inf, 3.4e38], np.float32)
    assert round_to_bf16(values).tolist() == [1.0, 1 + 2 * ulp, 1.0, -1 - ulp, np.inf, np.inf]
    assert np.isnan(round_to_bf16(np.array([np.nan], np.float32))).all()


def test_rounding_to_tf32_keeps_ten_bits() -> None:
    ulp = 2.0**-10
    values = np.array([1 + ulp / 2, 1 + 0.49 * ulp, -1 - ulp, np.inf], np.float32)
    assert round_to_tf32(values).tolist() == [1 + ulp, 1.0, -1 - ulp, np.inf]
    assert np.isnan(round_to_tf32(np.array([np.nan], np.float32))).all()
