"""Prices before a call: our own first, then the list that came with litellm; nothing is guessed."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal

import pytest

from search.llm_options import ModelOptions
from search.price_list import Price, listed_price


@pytest.mark.parametrize("model", ["openai/gpt-4o-mini", "gpt-4o-mini"])
def test_litellms_list_knows_a_model_with_and_without_its_provider(model: str) -> None:
    price = listed_price(model, ModelOptions())
    assert (price.usd_per_mtok_in, price.usd_per_mtok_out, price.source) == (
        Decimal("0.15"),
        Decimal("0.60"),
        "litellm",
    )


@pytest.mark.parametrize("model", ["openai/no-such-model", "hosted_vllm/gpt-4o-mini", "", "sample_spec/x", "a/b/c"])
def test_what_is_not_listed_is_unknown_and_not_free(model: str) -> None:
    price = listed_price(model, ModelOptions())
    assert price == Price()
    assert price.of(1000, 1000) is None


def test_our_own_price_comes_first_and_only_when_it_is_whole() -> None:
    whole = ModelOptions(usd_per_mtok_in=Decimal(1), usd_per_mtok_out=Decimal(2))
    assert listed_price("openai/gpt-4o-mini", whole) == Price(Decimal(1), Decimal(2), "override")
    assert listed_price("x", whole).of(1_000_000, 500_000) == Decimal(2)
    assert listed_price("x", ModelOptions(usd_per_mtok_in=Decimal(1))) == Price()


def test_the_list_is_read_without_importing_litellm() -> None:
    code = (
        "import sys; from search.price_list import listed_price; from search.llm_options import ModelOptions;"
        "print(listed_price('gpt-4o-mini', ModelOptions()).source, 'litellm' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert told.stdout.split() == ["litellm", "False"]
