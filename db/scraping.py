"""Who may read metrics: whoever is on this machine, and from elsewhere who sends KERNELWRIGHT_METRICS_TOKEN.

Behind a proxy on the same machine everyone seems to be on it, unless the proxy says for whom it asks: do not have a
proxy pass /metrics on.
"""

from __future__ import annotations

import hmac
import ipaddress

from pydantic import SecretStr


def may_scrape(host: str | None, authorization: str | None, token: SecretStr | None) -> bool:
    """Whether a scrape from this address, with this Authorization header, is answered."""
    return _is_loopback(host) or (token is not None and _is_token(authorization or "", token.get_secret_value()))


def _is_loopback(host: str | None) -> bool:
    try:
        address = ipaddress.ip_address(host or "")
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _is_token(authorization: str, token: str) -> bool:
    scheme, _, given = authorization.partition(" ")
    return bool(token) and scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())
