"""The HTTP headers by which a client says what it wants: Accept, Prefer and If-None-Match."""

from __future__ import annotations

import re
from collections.abc import Iterator

_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,6})", re.IGNORECASE)
_ETAG = re.compile(r'(?:W/)?"[^"]*"|\*')


def negotiate(accept: str | None, *offers: str) -> str:
    """The offered media type that the client likes best; the first offer when it has no opinion, or none fits."""
    if not accept:
        return offers[0]
    ranges = list(_ranges(accept))
    # max() keeps the first of equals, so the order of the offers decides a tie such as */*.
    return max(offers, key=lambda offer: _quality(offer, ranges))


def preferred_wait_s(prefer: str | None) -> float | None:
    """N of `Prefer: wait=N`, in seconds (RFC 7240), or None."""
    found = _WAIT.search(prefer or "")
    return float(found[1]) if found else None


def etag(version: str) -> str:
    """A strong entity tag."""
    return f'"{version}"'


def matches(if_none_match: str | None, tag: str) -> bool:
    """Whether the client has this representation already; a proxy may have weakened the tag it was given."""
    return any(each in ("*", tag, f"W/{tag}") for each in _ETAG.findall(if_none_match or ""))


def _ranges(accept: str) -> Iterator[tuple[str, float]]:
    for part in accept.split(","):
        media_range, *parameters = (piece.strip().lower() for piece in part.split(";"))
        quality = next((each[2:] for each in parameters if each.startswith("q=")), "1")
        try:
            yield media_range, float(quality)
        except ValueError:
            yield media_range, 0.0


def _quality(offer: str, ranges: list[tuple[str, float]]) -> float:
    """The quality that the most specific range gives."""
    for candidate in (offer, offer.partition("/")[0] + "/*", "*/*"):
        for media_range, quality in ranges:
            if media_range == candidate:
                return quality
    return 0.0
