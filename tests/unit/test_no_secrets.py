"""No tracked file holds what looks like a key of somebody's. It knows shapes of keys, and no password by its looks,
and does not read the history."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.unit.test_repository import ROOT, TRACKED

SHAPES = {
    "a key of ours": r"\bkw_live_[A-Za-z0-9_-]{43}\b",
    "a webhook's secret": r"\bwhsec_[A-Za-z0-9+/]{32,}",
    "a private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----",
    "OpenAI, Anthropic and those like them": r"\bsk-(?:[a-z]+-)*[A-Za-z0-9_]{20,}",
    "AWS": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "Google": r"\bAIza[0-9A-Za-z_-]{35}\b",
    "GitHub": r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{40,})",
    "Hugging Face": r"\bhf_[A-Za-z0-9]{30,}\b",
    "Slack": r"\bxox[abeprs]-[A-Za-z0-9-]{10,}",
    "a signed token": r"\beyJ[A-Za-z0-9_-]{16,}\.eyJ[A-Za-z0-9_-]{16,}\.",
    "a password in a URL": r"\b(?:postgres(?:ql)?(?:\+psycopg)?|rediss?|amqp)://[^\s:@/'\"]*:(?![$<{%])[^\s:@/'\"]{12,}@",
}


HINTS = ("kw_live_", "whsec_", "PRIVATE KEY", "sk-", "AKIA", "ASIA", "AIza", "ghp_", "gho_", "ghu_", "ghs_", "ghr_")
HINTS += ("github_pat_", "hf_", "xox", "eyJ", "://")
"""Each shape has one of them; looking for them alone takes a twentieth of the time."""


def looks_like(text: str) -> Iterator[tuple[int, str]]:
    """The lines with something of such a shape, and which."""
    for number, line in enumerate(text.splitlines(), 1):
        if any(hint in line for hint in HINTS):
            yield from ((number, what) for what, shape in SHAPES.items() if re.search(shape, line))


def test_no_tracked_file_holds_what_looks_like_a_secret() -> None:
    found = []
    for name in TRACKED:
        text = (ROOT / name).read_bytes().decode("utf-8", "replace")
        found += [f"{name}:{number} {what}" for number, what in looks_like(text)]
    assert found == []


# Put together here, so that this file does not contain what it looks for.
@pytest.mark.parametrize(
    ("parts", "what"),
    [
        (("kw_live_", "x" * 43), "a key of ours"),
        (("whsec_", "A" * 44), "a webhook's secret"),
        (("-----BEGIN ", "RSA PRIVATE KEY-----"), "a private key"),
        (("-----BEGIN ", "PRIVATE KEY-----"), "a private key"),
        (("sk-", "proj-", "a1" * 20), "OpenAI, Anthropic and those like them"),
        (("AKIA", "ABCDEFGHIJKLMNOP"), "AWS"),
        (("AIza", "x" * 35), "Google"),
        (("ghp_", "x" * 36), "GitHub"),
        (("hf_", "x" * 34), "Hugging Face"),
        (("xoxb-", "1234567890-abc"), "Slack"),
        (("eyJ", "x" * 20, ".eyJ", "x" * 20, ".x"), "a signed token"),
        (("postgresql+psycopg://", "kernelwright:correct-horse-battery", "@db/x"), "a password in a URL"),
    ],
)
def test_each_shape_is_seen(parts: tuple[str, ...], what: str) -> None:
    assert list(looks_like("first\nKEY = '" + "".join(parts) + "'\n")) == [(2, what)]
