"""Every test begins with the dispatch as it comes, and with nothing compiled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from .. import dispatch


@pytest.fixture(autouse=True)
def as_it_comes() -> Iterator[None]:
    dispatch.use("auto")
    torch.manual_seed(7)
    yield
    dispatch.use("auto")
    torch._dynamo.reset()
