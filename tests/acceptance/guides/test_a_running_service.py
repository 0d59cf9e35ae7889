"""Pages whose reader has a service that runs, read one after another against the same one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.guides.reading import SERVICE, home_with_network, model, read_with
from tests.support.guides.pages import pages
from tests.support.guides.reader import Reader

QUICK = ("docs/keys.md", "docs/knowledge.md", "docs/requests-and-budgets.md")
"""Read by `make test`."""
LONG = ("docs/ask-tell.md", "docs/howto/air-gapped.md", "docs/operations.md", "docs/service.md")
"""In this order: the last looks at what the first did."""

Place = tuple[Path, list[str]]


@pytest.fixture(scope="module")
def service() -> Iterator[Place]:
    """The home and the network of somebody who typed `kernelwright up`."""
    with home_with_network() as (home, network), Reader(home, network) as reader:
        reader.read(SERVICE)
        yield home, network


@pytest.mark.parametrize("name", QUICK)
def test_a_page_passes_as_printed(service: Place, name: str) -> None:
    home, network = service
    read_with(name, home, network, {})


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LONG)
def test_a_longer_page_passes_as_printed(service: Place, name: str) -> None:
    home, network = service
    with model(home, network) as yours:
        read_with(name, home, network, yours)


def test_every_other_page_is_read_elsewhere() -> None:
    from tests.acceptance.guides import test_first_steps, test_own_service

    read = {*QUICK, *LONG, *test_first_steps.ALONE, *test_own_service.WITH}
    assert {page.name for page in pages() if page.runs} == read
