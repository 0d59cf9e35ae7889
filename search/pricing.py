"""What a call cost: what the provider says, else our own price, else litellm's map. Unknown is not zero."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from search.llm_options import ModelOptions

MILLION = Decimal(1_000_000)
PRECISION = Decimal("0.00000001")
MAX_USD = 10_000
"""No single call costs this much: a provider that says so is not believed."""

PROVIDER, OVERRIDE, LITELLM, UNKNOWN = "provider", "override", "litellm", "unknown"

Tokens = tuple[int | None, int | None]
"""Of the prompt and of the answer; None where the provider did not count them."""


def cost_of(
    litellm: Any, model: str, options: ModelOptions, response: Any, tokens: Tokens
) -> tuple[Decimal | None, str]:
    """The cost of a response in USD, and where the number comes from."""
    billed_usd = getattr(getattr(response, "usage", None), "cost", None)  # OpenRouter and LiteLLM's proxy name it
    if isinstance(billed_usd, int | float) and 0 <= billed_usd < MAX_USD:
        return _usd(billed_usd), PROVIDER
    tokens_in, tokens_out = tokens
    if tokens_in is None or tokens_out is None:
        return None, UNKNOWN
    if options.usd_per_mtok_in is not None and options.usd_per_mtok_out is not None:
        usd = (tokens_in * options.usd_per_mtok_in + tokens_out * options.usd_per_mtok_out) / MILLION
        return _usd(usd), OVERRIDE
    # Whatever goes wrong with a price, the answer is paid for and must not be lost.
    unmapped = litellm.exceptions.ModelNotMappedError
    bad_price = (unmapped, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
    try:
        return _usd(litellm.completion_cost(completion_response=response, model=model)), LITELLM
    except bad_price:
        return None, UNKNOWN


def _usd(amount: float | Decimal) -> Decimal:
    return Decimal(str(amount)).quantize(PRECISION)
