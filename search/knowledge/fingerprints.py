"""Error fingerprints: what two failures have in common, whatever their files, numbers and variables are called.

The message is the most telling line of a log with places, numbers, addresses and private names taken out; names of
compilers' and libraries' interfaces stay, since they are what the error is about.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

MAX_MESSAGE = 300
MAX_LINE = 2_000
"""Characters of a line that are looked at: a mangled name may have a hundred thousand."""

MIN_WORDS = 3
"""Words that a message must have left: `error #` says nothing."""

VAGUE = frozenset({"incorrect", "nondeterministic"})
"""Verdicts whose reason says that values differ, and not why. Only what repaired them teaches something."""

_TELLING = (
    re.compile(r"\b(?:fatal )?error\b\s*(?:[A-Z]?\d+)?\s*:", re.IGNORECASE),
    re.compile(r"\b\w*(?:Error|Exception)\b\s*:"),
    re.compile(r"undefined (?:symbol|reference)|no kernel image|out of resource|illegal memory access", re.IGNORECASE),
)
_API = re.compile(r"^(?:_mm|__|tl\.|tl_|triton|torch|at::|c10::|std::|cuda|cu[A-Z]|omp_|wmma|wgmma|mma|nv|__m\d)")

_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PLACE = re.compile(
    r"^(?:In file included from )?\S*?[\w.-]+\.(?:py|cpp|cc|cuh?|h|hpp|ptx)[:(]\d+[:,)]{0,2}(?:\d+:?)?\s*"
)
_PATH = re.compile(r"(?:(?<=\s)|^|(?<=['\"(]))/[\w./+-]+")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+\b")
_QUOTED = re.compile(r"['\u2018\u2019\"`]([^'\u2018\u2019\"`]{1,120})['\u2018\u2019\"`]")
_SHAPE = re.compile(r"\b\d+(?:x\d+)+\b")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A failure without its accidents: `message` is for people, `digest` (16 hex digits) for comparing."""

    verdict: str
    message: str
    digest: str


def fingerprint(verdict: str, reason: str | None, log: str | None) -> Fingerprint | None:
    """The fingerprint of a failed evaluation, or None where what it says would fit any failure."""
    message = normalised(_telling_line(log) or reason or "")
    if len(re.findall(r"[A-Za-z_]{2,}", message)) < MIN_WORDS:
        return None
    digest = hashlib.sha256(f"{verdict} {message}".encode()).hexdigest()[:16]
    return Fingerprint(verdict, message, digest)


def normalised(line: str) -> str:
    """One line without places, numbers, addresses and private names."""
    line = _ESCAPES.sub("", line.split("\n", 1)[0][:MAX_LINE]).strip()
    line = _PATH.sub("<path>", _PLACE.sub("", line))
    line = _ADDRESS.sub("<address>", line)
    line = _QUOTED.sub(lambda match: f"'{_name(match[1])}'", line)
    return " ".join(_NUMBER.sub("#", _SHAPE.sub("#x#", line)).split())[:MAX_MESSAGE]


def _name(quoted: str) -> str:
    return quoted if _API.match(quoted) else "<name>"


def _telling_line(log: str | None) -> str | None:
    """The first line that is an error by its form; compilers repeat themselves after it."""
    lines = [_ESCAPES.sub("", line) for line in (log or "").splitlines()]
    for pattern in _TELLING:
        for line in lines:
            if pattern.search(line):
                return line
    return None
