"""The normalised hash of a candidate's source: comments, blank lines and layout do not make a new kernel.

Covered: Python comments and whitespace. Not covered: renamed variables, and anything inside string literals (so C++ and
CUDA sources, which are strings, count as different when only their comments differ).
"""

from __future__ import annotations

import hashlib
import io
import tokenize
from collections.abc import Iterable
from typing import Final

_LAYOUT: Final = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER})
_BLOCKS: Final = frozenset({tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE})


def source_hash(source: str) -> str:
    """SHA-256 (hex) of the source's tokens; of its lines without surrounding blanks when it is not Python."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError):
        return _digest(stripped for line in source.splitlines() if (stripped := line.strip()))
    # Indentation counts as structure, not as text: four spaces or a tab open the same block.
    return _digest(
        tokenize.tok_name[token.type] if token.type in _BLOCKS else token.string
        for token in tokens
        if token.type not in _LAYOUT
    )


def _digest(parts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode("utf-8", "replace") + b"\x00")
    return digest.hexdigest()
