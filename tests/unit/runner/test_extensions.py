"""What of `load_inline` goes to the build broker, and what comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils import cpp_extension

from worker.runner import extensions

BODY = "torch::Tensor twice(torch::Tensor x) { return x * 2; }"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What the broker, which builds nothing, was asked; what torch was asked goes there as `torch`."""
    seen: list[Any] = []

    def by_torch(*what: Any, **more: Any) -> None:
        seen.append(("torch", what, more))

    monkeypatch.setattr(cpp_extension, "load_inline", by_torch)

    def build(language: str, source: str, flags: Any) -> str:
        seen.append((language, json.loads(source), flags))
        raise RuntimeError("nothing is built here")

    extensions.install(build)
    extensions.install(build)  # each subject of a runner does it
    yield seen


def test_what_torch_would_compile_goes_to_the_broker(asked: list[Any]) -> None:
    with pytest.raises(RuntimeError, match="nothing is built here"):
        cpp_extension.load_inline(
            name="twice",
            cpp_sources=BODY,
            cuda_sources=["__global__ void a() {}"],
            functions=["twice"],
            extra_cflags=["-O3"],
            extra_cuda_cflags=["--use_fast_math"],
            verbose=True,
        )
    what = {"name": "twice", "cpp_sources": [BODY], "cuda_sources": ["__global__ void a() {}"], "functions": ["twice"]}
    assert asked == [("extension", what, ("c:-O3", "cuda:--use_fast_math"))]


@pytest.mark.parametrize(
    "more", [{"extra_ldflags": ["-lcublas"]}, {"extra_include_paths": ["here"]}, {"build_directory": "here"}]
)
def test_what_the_broker_does_not_do_torch_does(asked: list[Any], more: dict[str, Any]) -> None:
    cpp_extension.load_inline("twice", BODY, functions=["twice"], **more)
    assert asked == [("torch", ("twice", BODY, None), {"functions": ["twice"], **more})]


def test_a_name_that_is_no_module_is_torchs_business(asked: list[Any]) -> None:
    cpp_extension.load_inline("../twice", BODY)
    assert [each[0] for each in asked] == ["torch"]


def test_only_candidates_that_name_extensions_pay_for_them() -> None:
    proposals = Path(__file__).parents[3] / "benchmarks" / "record" / "proposals"
    assert extensions.wanted((proposals / "swiglu" / "extension.py").read_text())
    assert not extensions.wanted((proposals / "conv1d" / "tensor_cores.py").read_text())
