"""Where a webhook may be sent: which URLs, and which addresses behind their names.

Whoever may register a webhook makes our machines send requests, so it must not reach what only our machines reach:
this machine, the site's networks, a cloud's metadata. The API looks when a webhook is registered, to say at once what
is wrong. What protects is the look at delivery: the name is resolved once, and the connection is made to the very
address that was looked at (`worker.posting`), so a name that changes in between gains nothing.

KERNELWRIGHT_WEBHOOK_ALLOW opens networks of the site, by http too.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

Network = IPv4Network | IPv6Network

MAX_URL: Final = 2_000
SETTING: Final = "KERNELWRIGHT_WEBHOOK_ALLOW"

_REFUSED_V4: Final = {
    "0.0.0.0/8": "no host's",
    "10.0.0.0/8": "on a private network",
    "100.64.0.0/10": "on a carrier's private network",
    "127.0.0.0/8": "the server's own machine",
    "168.63.129.16/32": "a cloud's metadata service",
    "169.254.0.0/16": "link-local, where clouds have their metadata",
    "172.16.0.0/12": "on a private network",
    "192.0.0.0/24": "set aside for protocols",
    "192.0.2.0/24": "set aside for examples",
    "192.88.99.0/24": "a relay to IPv6",
    "192.168.0.0/16": "on a private network",
    "198.18.0.0/15": "set aside for benchmarks",
    "198.51.100.0/24": "set aside for examples",
    "203.0.113.0/24": "set aside for examples",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
}
_REFUSED_V6: Final = {
    "::1/128": "the server's own machine",
    "::ffff:0:0/96": "an IPv4 address in IPv6 clothes",
    "::/96": "an IPv4 address in IPv6 clothes",
    "64:ff9b::/96": "an IPv4 address behind a translator (NAT64)",
    "64:ff9b:1::/48": "an IPv4 address behind a translator (NAT64)",
    "2001::/23": "set aside for protocols, tunnels (Teredo) among them",
    "2001:db8::/32": "set aside for examples",
    "2002::/16": "an IPv4 address in a tunnel (6to4)",
    "3fff::/20": "set aside for examples",
    "fc00::/7": "on a private network",
    "fe80::/10": "link-local",
    "ff00::/8": "multicast",
}
_REFUSED: Final = tuple((ip_network(text), why) for text, why in (_REFUSED_V4 | _REFUSED_V6).items())
_GLOBAL_V6: Final = ip_network("2000::/3")
"""All of IPv6 that is given out to be reached; what is beyond it is reserved or special."""

_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST: Final = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*")
_PRINTABLE: Final = re.compile(r"[!-~]+")
_PORTS: Final = {"http": 80, "https": 443}


class Refused(ValueError):
    """A webhook is not sent there; the message says why and what would do."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A URL in its parts. `target` is path and query, as they are sent."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """What the Host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def read_url(url: str) -> Destination:
    """The parts of a URL that may be sent to, as far as the URL itself tells. Raises Refused."""
    if len(url) > MAX_URL or not _PRINTABLE.fullmatch(url):
        raise Refused(f"is no URL: at most {MAX_URL} printable ASCII characters; encode others (%20, xn--)")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        if host is not None and "[" in parts.netloc:
            ip_address(host)
    except ValueError as error:
        raise Refused(f"is no URL ({error}): write it like https://example.com/hooks/kernelwright") from error
    if parts.scheme not in _PORTS or host is None:
        raise Refused("begins with https:// and a host")
    if parts.username is not None or parts.password is not None:
        raise Refused("holds a user or a password: leave them out, the signature says who sends it")
    if "#" in url:
        raise Refused("holds a fragment (#...), which is never sent: leave it out")
    if ":" not in host and not _HOST.fullmatch(host):
        raise Refused(f"names the host {host!r}, which is none: write a name, or an address")
    port = _PORTS[parts.scheme] if port is None else port
    if port not in _PORTS.values() and port <= 1024:
        raise Refused(f"names port {port}: 443, 80 and those above 1024 are served")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Destination(parts.scheme, host, port, target)


def check_address(address: str, scheme: str, allowed: Sequence[Network]) -> None:
    """Raises Refused for an address that is not on the internet, unless its network is allowed by name."""
    found = ip_address(address)
    if any(found in network for network in allowed):
        return
    why = next((why for network, why in _REFUSED if found in network), None)
    if why is None and found.version == 6 and found not in _GLOBAL_V6:
        why = "reserved"
    if why is not None:
        # Not the address itself: whoever asks need not learn the numbers behind the site's names.
        raise Refused(f"leads to an address that is {why}: an operator can open that network with {SETTING}")
    if scheme != "https":
        raise Refused(f"is plain http: use https (http is for networks in {SETTING})")


def usable(addresses: Iterable[str], scheme: str, allowed: Sequence[Network]) -> list[str]:
    """Those of a host's addresses that may be connected to. Raises Refused when there is none."""
    good: list[str] = []
    refusal = Refused("names a host that has no address")
    for address in dict.fromkeys(addresses):
        try:
            check_address(address, scheme, allowed)
        except Refused as error:
            refusal = error
        else:
            good.append(address)
    if not good:
        raise refusal
    return good


def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, as the system's resolver has them; takes as long as that takes. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]
