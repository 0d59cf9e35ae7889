"""The ban on sockets in unit tests holds."""

from __future__ import annotations

import socket

import pytest
from pytest_socket import SocketBlockedError


def test_a_socket_of_the_network_is_refused() -> None:
    with pytest.warns(UserWarning, match="tried to use socket"), pytest.raises(SocketBlockedError):
        socket.socket(socket.AF_INET)


def test_a_pair_for_an_event_loop_is_not() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    theirs.close()
