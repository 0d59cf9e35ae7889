"""A container is healthy when each queue that it is to serve is served."""

from __future__ import annotations

import pytest

from cli.health import unserved


@pytest.mark.parametrize(
    ("wanted", "served", "missing"),
    [
        (("llm", "gpu"), {"llm", "gpu.nvidia-h100"}, []),
        (("llm", "gpu"), {"gpu.nvidia-h100"}, ["llm"]),
        (("gpu",), {"cpu"}, ["gpu"]),
        (("control", "cpu"), set(), ["control", "cpu"]),
    ],
)
def test_unserved(wanted: tuple[str, ...], served: set[str], missing: list[str]) -> None:
    assert unserved(wanted, served) == missing
