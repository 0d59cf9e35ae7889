"""Makes what came out of a compiler, a model or a candidate fit for Postgres.

Postgres refuses NUL characters and lone surrogates in text, and NaN and infinities in JSON. All four turn up in honest
compiler logs and numbers, and a result that cannot be stored is a result lost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def storable_text(value: str) -> str:
    """The text with NULs and lone surrogates replaced by U+FFFD."""
    return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def storable_json(value: Any) -> Any:
    """The value with non-finite floats as None, texts storable, keys as text, and tuples and sets as lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, Mapping):
        return {storable_text(str(key)): storable_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [storable_json(item) for item in value]
    return value
