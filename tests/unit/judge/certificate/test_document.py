"""The document: one JSON object whose hash covers every figure in it."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from tests.unit.judge.certificate.samples import certificate
from worker.judge.certificate.document import SCHEMA, document_hash, is_intact, plain


def test_a_document_is_strict_json_and_its_hash_fits() -> None:
    document = certificate().to_json()
    text = json.dumps(document, allow_nan=False)
    assert document["schema"] == SCHEMA
    assert is_intact(json.loads(text))


def test_the_hash_does_not_depend_on_the_order_of_keys() -> None:
    document = certificate().to_json()
    turned = dict(reversed(list(document.items())))
    assert document_hash(turned) == document["sha256"]


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.update(certified=False),
        lambda document: document["timing"].update(speedup=9.9),
        lambda document: document["layers"][0]["rows"][0]["figures"].update(error=0.0),
        lambda document: document["candidate"].update(source="other"),
        lambda document: document.pop("reservations"),
    ],
)
def test_any_change_breaks_the_hash(change: object) -> None:
    document = certificate().to_json()
    change(document)  # type: ignore[operator]
    assert not is_intact(document)


def test_numbers_that_json_lacks_become_words() -> None:
    assert plain({"a": math.inf, "b": (-math.inf, math.nan), "c": 1.5, "d": None, "e": True}) == {
        "a": "inf",
        "b": ["-inf", "nan"],
        "c": 1.5,
        "d": None,
        "e": True,
    }


def test_a_source_that_is_no_valid_unicode_still_has_a_hash() -> None:
    sample = certificate()
    odd = dataclasses.replace(sample, candidate=dataclasses.replace(sample.candidate, source="x = '\udc80'"))
    assert is_intact(odd.to_json())
