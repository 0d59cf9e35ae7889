"""Pages whose reader has a service that runs, read one after another against the same one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.guides.reading import SERVICE, home_with_network, model, read_with
from tests.support.guides.plan import LONG, QUICK
from tests.support.guides.reader import Reader

Place = tuple[Path, list[str]]


@pytest.fixture(scope="module")
def service() -> Iterator[Place]:
    """The home and the network of somebody who typed `kernelwright up`."""
    with home_with_network() as (home, network), Reader(home, network) as reader:
        reader.read(SERVICE)
        yield home, network


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", QUICK)
def test_a_page_passes_as_printed(service: Place, name: str) -> None:
    home, network = service
    read_with(name, home, network, {})


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", LONG)
def test_a_longer_page_passes_as_printed(service: Place, name: str) -> None:
    home, network = service
    with model(home, network) as yours:
        read_with(name, home, network, yours)
