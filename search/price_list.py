"""What a model costs by the list, before anything is called: our own price file first, then litellm's map.

litellm itself takes 2 s and 160 MB to import, and the API has no other use for it: its map is read as the JSON file in
its package (litellm is pinned exactly). Without litellm, or for a model that it does not list, a price is unknown.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

from search.llm_options import ModelOptions
from search.pricing import LITELLM, MILLION, OVERRIDE, UNKNOWN

_MAP = "model_prices_and_context_window_backup.json"


@dataclass(frozen=True, slots=True)
class Price:
    """USD for a million tokens of the prompt and of the answer; both None where nobody knows."""

    usd_per_mtok_in: Decimal | None = None
    usd_per_mtok_out: Decimal | None = None
    source: str = UNKNOWN

    def of(self, tokens_in: float, tokens_out: float) -> Decimal | None:
        """What so many tokens cost in USD; None: unknown."""
        if self.usd_per_mtok_in is None or self.usd_per_mtok_out is None:
            return None
        millionths = Decimal(tokens_in) * self.usd_per_mtok_in + Decimal(tokens_out) * self.usd_per_mtok_out
        return millionths / MILLION


def listed_price(model: str, options: ModelOptions) -> Price:
    """The price of a model, named as litellm does; the options' own prices come first, as when a call is booked."""
    if options.usd_per_mtok_in is not None and options.usd_per_mtok_out is not None:
        return Price(options.usd_per_mtok_in, options.usd_per_mtok_out, OVERRIDE)
    return _listed(model, _litellm_map())


def _listed(model: str, prices: Mapping[str, Any]) -> Price:
    """Entries are under the whole name or, for a provider's own models, under the part after the slash."""
    provider, _, bare = model.partition("/")
    entry = prices.get(model)
    if entry is None and bare and _provider(prices.get(bare)) == provider:
        entry = prices[bare]
    if entry is None:
        return Price()
    each = [entry.get(name) for name in ("input_cost_per_token", "output_cost_per_token")]
    if not all(isinstance(usd, int | float) and usd >= 0 for usd in each):
        return Price()
    usd_in, usd_out = (Decimal(str(usd)) * MILLION for usd in each)
    return Price(usd_in, usd_out, LITELLM)


def _provider(entry: Any) -> str | None:
    return entry.get("litellm_provider") if isinstance(entry, Mapping) else None


@lru_cache(maxsize=1)
def _litellm_map() -> Mapping[str, Any]:
    found = importlib.util.find_spec("litellm")  # finds the package without importing it
    places = found.submodule_search_locations if found is not None else None
    try:
        prices: Mapping[str, Any] = json.loads((Path(next(iter(places or ()))) / _MAP).read_text(encoding="utf-8"))
    except (OSError, ValueError, StopIteration):
        return {}
    return prices
