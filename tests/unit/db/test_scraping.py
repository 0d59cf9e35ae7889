"""Tests of `db.scraping`."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from db.scraping import may_scrape

TOKEN = SecretStr("s3cret")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_this_machine_needs_no_token(host: str) -> None:
    assert may_scrape(host, None, None)
    assert may_scrape(host, "Bearer wrong", TOKEN)


@pytest.mark.parametrize("host", ["10.0.0.7", "::ffff:10.0.0.7", "2001:db8::1", "localhost", "", None])
def test_everybody_else_needs_the_token(host: str | None) -> None:
    assert may_scrape(host, "Bearer s3cret", TOKEN)
    assert may_scrape(host, "bearer  s3cret ", TOKEN)
    for given in (None, "", "Bearer", "Bearer s3cre", "Basic s3cret", "Bearer \xff"):
        assert not may_scrape(host, given, TOKEN)
    assert not may_scrape(host, "Bearer s3cret", None)
    assert not may_scrape(host, "Bearer ", SecretStr(""))
