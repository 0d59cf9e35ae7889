"""Out by the network: TCP, UDP, Unix sockets by path and by name, raw sockets, addresses of clouds and of Docker."""

from __future__ import annotations

import socket
from functools import partial

from tests.hostile.attempt import Attempt
from tests.hostile.traps import Listener, Told

_INET = "the host's network, without a filter of system calls"
_NO_NETWORK = {"process": _INET}
_UNIX = {"process": "Unix sockets that every user may connect to"}

_TCP = partial(Listener, family=socket.AF_INET, kind=socket.SOCK_STREAM)
_UDP = partial(Listener, family=socket.AF_INET, kind=socket.SOCK_DGRAM)
_PATH = partial(Listener, family=socket.AF_UNIX, kind=socket.SOCK_STREAM)
_ABSTRACT = partial(Listener, family=socket.AF_UNIX, kind=socket.SOCK_STREAM)

_CONNECT = """
s = socket.socket({family}, socket.SOCK_STREAM)  # by hand: create_connection wants a codec from the disk
s.connect((T["address"], T["port"]))
s.sendall({payload!r})
"""
_UNIX_CONNECT = """
s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
s.connect(T["address"].replace("@", chr(0)))
s.sendall({payload!r})
"""
_POSTGRES_HELLO = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"
_QUERY = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x07invalid\x00\x00\x01\x00\x01"


def _tcp(payload: bytes, family: str = "socket.AF_INET") -> str:
    return _CONNECT.format(family=family, payload=payload)


_FROM_CPP = r'''
from kernelwright import load_cpp
SOURCE = """
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>
static struct Calls {
    Calls() {
        int s = socket(AF_INET, SOCK_STREAM, 0);
        sockaddr_in to{};
        to.sin_family = AF_INET;
        to.sin_port = htons(PORT);
        inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
        connect(s, (sockaddr*)&to, sizeof to);
    }
} at_load;
extern "C" void nothing() {}
"""
load_cpp(SOURCE, flags=(f"-DPORT={T['port']}",)).nothing
'''

_IO_URING = """
parameters = ctypes.create_string_buffer(120)
if call(425, 8, parameters) >= 0:
    told()
"""


def _sees(family: str, kind: str, protocol: str = "0") -> str:
    return f"socket.socket({family}, {kind}, {protocol})\ntold()\n"


ATTEMPTS = (
    Attempt("tcp-loopback", "network", "connects to a port of the host's loopback", _tcp(b"out"),
            _TCP, _NO_NETWORK),
    Attempt("tcp-all-addresses", "network", "connects to a service that listens on all addresses",
            _tcp(b"out").replace('T["address"]', '"127.0.0.2"'), partial(_TCP, address="0.0.0.0"),
            _NO_NETWORK),
    Attempt("tcp-ipv6", "network", "connects by IPv6", _tcp(b"out", "socket.AF_INET6"),
            partial(Listener, family=socket.AF_INET6, kind=socket.SOCK_STREAM, address="::1"), _NO_NETWORK),
    Attempt("tcp-from-cpp", "network", "connects in the constructor of a C++ library that the build broker built",
            _FROM_CPP, _TCP, _NO_NETWORK),
    Attempt("udp-loopback", "network", "sends a datagram",
            'socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"out", (T["address"], T["port"]))', _UDP,
            _NO_NETWORK),
    Attempt("dns-query", "network", "carries data out in a DNS query",
            f'socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto({_QUERY!r}, (T["address"], T["port"]))', _UDP,
            _NO_NETWORK),
    Attempt("postgres-tcp", "network", "greets a Postgres on the loopback", _tcp(_POSTGRES_HELLO),
            _TCP, _NO_NETWORK),
    Attempt("valkey-tcp", "network", "sends FLUSHALL to a Valkey on the loopback",
            _tcp(b"*1\r\n$8\r\nFLUSHALL\r\n"), _TCP, _NO_NETWORK),
    Attempt("postgres-socket", "network", "greets a Postgres on its Unix socket",
            _UNIX_CONNECT.format(payload=_POSTGRES_HELLO), partial(_PATH, folder=".s.PGSQL.5432"), _UNIX),
    Attempt("docker-socket", "network", "asks Docker's socket for a container",
            _UNIX_CONNECT.format(payload=b"POST /containers/create HTTP/1.0\r\n\r\n"),
            partial(_PATH, folder="docker.sock"), _UNIX),
    Attempt("unix-abstract", "network", "connects to an abstract Unix socket", _UNIX_CONNECT.format(payload=b"out"),
            _ABSTRACT, _UNIX),
    Attempt("unix-datagram", "network", "sends a datagram to a Unix socket by its path",
            'socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"out", T["address"])',
            partial(Listener, family=socket.AF_UNIX, kind=socket.SOCK_DGRAM, folder="notify"), _UNIX),
    Attempt("unix-datagram-from-pair", "network", "sends a datagram to a Unix socket from one half of a socket pair",
            'socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b"out", T["address"])',
            partial(Listener, family=socket.AF_UNIX, kind=socket.SOCK_DGRAM, folder="notify"), _UNIX),
    Attempt("cloud-metadata", "network", "starts a connection to 169.254.169.254, where clouds keep credentials", """
s = socket.socket()
s.setblocking(False)
import errno
if s.connect_ex(("169.254.169.254", 80)) in (0, errno.EINPROGRESS):
    told()
""", Told, _NO_NETWORK),
    Attempt("raw-socket", "network", "opens a raw IP socket",
            _sees("socket.AF_INET", "socket.SOCK_RAW", "socket.IPPROTO_ICMP"), Told),
    Attempt("packet-socket", "network", "opens a packet socket to listen on the wire",
            _sees("socket.AF_PACKET", "socket.SOCK_RAW"), Told),
    Attempt("netlink", "network", "asks the kernel by netlink for interfaces and routes",
            _sees("socket.AF_NETLINK", "socket.SOCK_RAW"), Told, _NO_NETWORK),
    Attempt("vsock", "network", "opens a socket to the hypervisor", _sees("40", "socket.SOCK_STREAM"), Told,
            _NO_NETWORK),
    Attempt("io-uring", "network", "makes an io_uring, which opens sockets past a filter of system calls", _IO_URING,
            Told, {"process": "no filter of system calls"}),
)  # fmt: skip
