"""Unit tests open no sockets: one that tries fails. Unix sockets stay allowed: asyncio makes pairs of them."""

from __future__ import annotations

import pytest
import pytest_socket


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """After pytest-socket's own setup; its teardown lifts the ban again."""
    pytest_socket.disable_socket(allow_unix_socket=True)
