"""How-to pages that start what they need themselves, beside servers that their reader has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.acceptance.guides.reading import home_with_network, model, read_with, servers

Given = Callable[[Path, Sequence[str]], AbstractContextManager[dict[str, str]]]


@contextmanager
def _nothing(_home: Path, _network: Sequence[str]) -> Iterator[dict[str, str]]:
    yield {}


WITH: dict[str, Given] = {
    "docs/howto/gpu-fleet.md": lambda home, _network: servers(home),
    "docs/howto/model-endpoint.md": model,
    "docs/howto/own-op.md": _nothing,
    "docs/howto/read-a-certificate.md": _nothing,
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", WITH)
def test_a_page_passes_as_printed(name: str) -> None:
    with home_with_network() as (home, network), WITH[name](home, network) as yours:
        read_with(name, home, network, yours)
