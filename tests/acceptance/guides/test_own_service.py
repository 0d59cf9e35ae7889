"""How-to pages that start what they need themselves, beside servers that their reader has."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.acceptance.guides.reading import home_with_network, model, read_with, servers
from tests.support.guides.plan import BESIDE


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", BESIDE)
def test_a_page_passes_as_printed(name: str) -> None:
    with ExitStack() as stack:
        home, network = stack.enter_context(home_with_network())
        given = {"servers": lambda: servers(home), "model": lambda: model(home, network)}
        yours = stack.enter_context(given[BESIDE[name]]()) if BESIDE[name] else {}
        read_with(name, home, network, yours)
