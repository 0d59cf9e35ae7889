"""What a newcomer reads first, from `kernelwright up` to a certified kernel. Each searches, for a minute or two."""

from __future__ import annotations

import pytest

from tests.acceptance.guides.reading import read_alone
from tests.support.guides.plan import ALONE


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ALONE)
def test_a_page_passes_as_printed(name: str) -> None:
    read_alone(name)
