"""Tests of `db.storable`."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from db.storable import storable_json, storable_text


@pytest.mark.parametrize(
    ("raw", "stored"),
    [("plain é 漢", "plain é 漢"), ("a\x00b", "a\ufffdb"), ("a\udcffb", "a?b"), ("", "")],
)
def test_text_loses_only_what_postgres_refuses(raw: str, stored: str) -> None:
    assert storable_text(raw) == stored


@pytest.mark.parametrize(
    ("raw", "stored"),
    [
        (math.nan, None),
        (-math.inf, None),
        (1.5, 1.5),
        (True, True),
        (None, None),
        ((1, 2), [1, 2]),
        ({"a\x00": {"b": [math.inf, "c\x00"]}, 3: ()}, {"a\ufffd": {"b": [None, "c\ufffd"]}, "3": []}),
    ],
)
def test_json_becomes_json(raw: Any, stored: Any) -> None:
    assert storable_json(raw) == stored
    json.dumps(storable_json(raw), allow_nan=False)
