"""Addresses and listening sockets, on real ones."""

from __future__ import annotations

import socket

import pytest

from cli.preflight import AddressUnusable, PortTaken, listen, url_of


def test_port_0_takes_a_free_one_and_the_url_names_it() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert listener.get_inheritable()
        with socket.create_connection(listener.getsockname()):
            pass


def test_every_address_is_reachable_as_this_machine() -> None:
    with listen("0.0.0.0", 0) as listener:
        assert url_of(listener).startswith("http://127.0.0.1:")


def test_a_taken_port_says_so() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(PortTaken, match=r"--port 0"):
        listen("127.0.0.1", taken.getsockname()[1])


def test_an_address_of_another_machine_says_so() -> None:
    with pytest.raises(AddressUnusable, match="Cannot listen on 192.0.2.1:0"):
        listen("192.0.2.1", 0)
