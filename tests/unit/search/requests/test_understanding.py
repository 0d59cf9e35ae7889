"""What is read from plain words beside the operation: types, hardware, language, sizes; and the target that follows."""

from __future__ import annotations

from typing import Any

import pytest

from search.requests.targets import choose
from search.requests.understanding import understand
from search.types import Target


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("RMSNorm in bf16 on H100 with Triton", {"dtype": "bfloat16", "chip": "h100", "language": "triton"}),
        ("half precision on two A100s", {"dtype": "float16", "vendor": "nvidia", "chip": "a100"}),
        ("float32, CUDA, RTX 4090", {"dtype": "float32", "chip": "rtx-4090", "language": "cuda"}),
        ("rtx 4070 Ti Super", {"chip": "rtx-4070-ti-super"}),
        ("an MI300X in Triton", {"vendor": "amd", "chip": "mi300x", "language": "triton"}),
        ("C++ with AVX-512 on a Xeon", {"vendor": None, "chip": "cpu", "language": "cpp"}),
        ("fast on my GPU", {"vendor": None, "chip": "gpu"}),
        ("softmax in bf16 or fp16", {"dtype": "bfloat16"}),
        ("fp8 softmax, e4m3", {"dtype": None, "unsupported": ("fp8", "e4m3")}),
        ("hidden size 4096 and batch of 8", {"sizes": {"hidden": 4096, "batch": 8}}),
        ("rows=512, cols: 1000", {"sizes": {"rows": 512, "cols": 1000}}),
        ("128x1000 and 4096 × 4096", {"shape": (128, 1000)}),
        ("", {"dtype": None, "chip": None, "language": None, "sizes": {}, "shape": (), "concepts": frozenset()}),
    ],
)
def test_what_is_said_is_read(text: str, expected: dict[str, Any]) -> None:
    wish = understand(text)
    assert {name: getattr(wish, name) for name in expected} == expected


@pytest.mark.parametrize("text", ["alphabet soup", "highlight the platform", "discuss l2 norms", "t400"])
def test_words_that_only_look_like_hardware_are_none(text: str) -> None:
    assert understand(text).chip is None


@pytest.mark.parametrize("text", ["a" * 4000, "attention" * 400, "x 1" * 1300, "- " * 2000])
def test_long_texts_are_read_in_time(text: str) -> None:
    understand(text)


@pytest.mark.parametrize(
    ("text", "served", "target", "assumed"),
    [
        ("triton on H100", (), Target("nvidia-h100", "triton"), 0),
        ("triton on H100", ("nvidia-h100-nvl", "cpu"), Target("nvidia-h100-nvl", "triton"), 0),
        ("triton on H100", ("nvidia-h1000",), Target("nvidia-h100", "triton"), 0),
        ("softmax", (), Target("cpu", "cpp"), 2),
        ("softmax", ("cpu", "nvidia-h200"), Target("nvidia-h200", "triton"), 2),
        ("softmax in cuda", ("cpu",), Target("nvidia-h100", "cuda"), 1),
        ("softmax in c++", ("nvidia-h200",), Target("cpu", "cpp"), 1),
        ("softmax on the gpu", ("nvidia-l4", "cpu"), Target("nvidia-l4", "triton"), 2),
        ("softmax on a cpu", ("nvidia-l4",), Target("cpu", "cpp"), 1),
    ],
)
def test_the_target_is_what_is_said_and_else_what_is_there(
    text: str, served: tuple[str, ...], target: Target, assumed: int
) -> None:
    chosen = choose(understand(text), None, None, served)
    assert chosen.target == target
    assert len(chosen.notes) == assumed


def test_what_is_said_beside_the_words_wins() -> None:
    chosen = choose(understand("triton on h100"), "nvidia-h200", "cuda", ())
    assert (chosen.target, chosen.notes) == (Target("nvidia-h200", "cuda"), ())
