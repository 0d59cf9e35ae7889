"""Text that we did not write, on its way into a prompt: fenced, cut to size, and without what a server would obey.

Outside of fences foreign text is a single line without backticks, or a word. Everywhere it loses what is no text:
the markers of chat templates (a self-hosted server may read them as the end of the user's turn wherever they stand)
and characters that do not show or that turn the reading order (Boucher and Anderson, "Trojan Source",
arXiv 2111.00169).
"""

from __future__ import annotations

import re
from itertools import accumulate

CHARACTERS_PER_TOKEN = 4
"""Of ASCII. Of other characters hardly more than one goes into a token, so `weight` counts them as four."""

MAX_LINE = 160
MAX_WORD = 60

_MARKERS = re.compile(
    r"<(?=[|｜][^<>\n]{1,40}[|｜]>)"  # <|im_start|>, <|eot_id|>, <｜User｜>: Qwen, Llama 3, Phi, gpt-oss, DeepSeek
    r"|<(?=(?:start|end)_of_turn>)"  # Gemma
    r"|<(?=</?SYS>>)"  # Llama 2
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS)\])"  # Mistral, Llama 2
)
_UNSEEN = dict.fromkeys(
    [*range(0x200B, 0x2010), *range(0x202A, 0x202F), 0x2060, *range(0x2066, 0x206A), 0xFEFF, *range(0xE0000, 0xE0080)]
)


def weight(text: str) -> int:
    """How much of a prompt the text takes: its characters, those beyond ASCII counted as four."""
    others = len(text) - len(text.encode("ascii", "ignore"))
    return len(text) + (CHARACTERS_PER_TOKEN - 1) * others


def plain(text: str) -> str:
    """The text as it can be shown to a model: markers of chat templates are broken up, unseen characters left out."""
    return _MARKERS.sub(lambda marker: f"{marker[0]} ", text.translate(_UNSEEN).replace("\r\n", "\n"))


def fenced(text: str, limit: int, tag: str = "") -> str:
    """The text between fences that it cannot close, shortened in the middle to a weight of `limit`."""
    text = _shortened(plain(text), limit).rstrip("\n")
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{tag}\n{text}\n{fence}"


def line(text: str, limit: int = MAX_LINE) -> str:
    """Outside of fences text is one line without backticks: it can neither start a heading nor a fence."""
    text = " ".join(plain(text[: 4 * limit]).replace("`", "'").split())
    return text[: _fitting(text, limit)]


def word(text: str) -> str:
    """A name: letters, digits and `_.-` only, so that a name cannot be a sentence."""
    return re.sub(r"[^\w.-]+", "_", text[: 4 * MAX_WORD], flags=re.ASCII)[:MAX_WORD]


def _fitting(text: str, limit: int) -> int:
    """How many characters from the text's beginning weigh no more than the limit."""
    text = text[: max(limit, 0)]
    return len(text) if text.isascii() else sum(total <= limit for total in accumulate(map(weight, text)))


def _shortened(text: str, limit: int) -> str:
    if weight(text) <= limit:
        return text
    head = _fitting(text, limit // 3)
    tail = _fitting(text[-limit:][::-1], limit - limit // 3)
    return f"{text[:head]}\n[... {len(text) - head - tail} characters left out ...]\n{text[len(text) - tail :]}"
