"""What a newcomer reads first, from `kernelwright up` to a certified kernel. Each of them searches, for a minute or two."""

from __future__ import annotations

import pytest

from tests.acceptance.guides.reading import read_alone

ALONE = ("README.md", "docs/tutorial.md")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ALONE)
def test_a_page_passes_as_printed(name: str) -> None:
    read_alone(name)
