"""Texts to vectors by a model, through litellm: one request for many texts.

    found = embed_texts("openai/text-embedding-3-small", texts, 60.0)
    found.vectors, found.cost_usd

Where the model is, its key and its price are read as for any other (search.llm_options). Nothing is retried here:
vectors are help that nobody waits for, and who wants them asks again later.
"""

from __future__ import annotations

import asyncio
import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from search.llm_options import LlmOptions, ModelOptions
from search.pricing import cost_of
from search.provider import failure_of, keys_of, load_litellm, tokens_of
from search.retrying import ProviderFailure

REFUSED_STATUS = frozenset({400, 413, 422})
"""The provider says that it is the request: one of its texts, or all of them together."""


class TextsRefused(ProviderFailure):
    """The provider will not embed these texts, or answered with something else. Ask for fewer at once."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """One vector for each text, in order, and what they cost together. None is unknown, never zero."""

    vectors: tuple[tuple[float, ...], ...]
    cost_usd: Decimal | None


def embed_texts(model: str, texts: Sequence[str], longest_s: float) -> Embedded:
    """Ask for the vectors of some texts, once, for `longest_s` at most.

    Raises ProviderFailure for what the provider does (TextsRefused among them), LitellmMissing without litellm,
    LlmSettingsError.
    """
    settings = LlmOptions.from_environment()
    options = settings.model(model)
    timeout_s = min(options.timeout_s or longest_s, longest_s)
    # What `*` adds to every call is meant for chats: only what is said of this very model goes along.
    extra = settings.models.get(model, ModelOptions()).extra
    return _read(model, texts, options, _response(model, texts, options, timeout_s, extra))


def _response(model: str, texts: Sequence[str], options: ModelOptions, timeout_s: float, extra: dict[str, Any]) -> Any:
    litellm, openai = load_litellm(), importlib.import_module("openai")
    asyncio.set_event_loop(None)  # search.provider says why
    given = {"api_base": options.api_base, "api_key": next(iter(keys_of(options)), None)}
    try:
        return litellm.embedding(
            model=model,
            input=list(texts),
            timeout=timeout_s,
            num_retries=0,
            max_retries=0,
            **{name: value for name, value in given.items() if value is not None} | extra,
        )
    except openai.OpenAIError as error:
        failure = failure_of(error, options)
        if failure.status in REFUSED_STATUS:
            raise TextsRefused(str(failure), retryable=False, status=failure.status) from error
        raise failure from error


def _read(model: str, texts: Sequence[str], options: ModelOptions, response: Any) -> Embedded:
    try:
        data = sorted(response.data, key=lambda each: int(each["index"]))
        vectors = tuple(tuple(float(value) for value in each["embedding"]) for each in data)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TextsRefused(f"the provider's answer has no vectors: {error}", retryable=False) from error
    lengths = {len(vector) for vector in vectors}
    if len(vectors) != len(texts) or len(lengths) != 1 or 0 in lengths:
        raise TextsRefused("the provider's answer does not have a vector for each text", retryable=False)
    if not all(math.isfinite(value) for vector in vectors for value in vector):
        raise TextsRefused("the provider's answer has a vector that is not finite", retryable=False)
    # A vector has no tokens of an answer, and need not have a price for them.
    priced = options.model_copy(update={"usd_per_mtok_out": options.usd_per_mtok_out or Decimal(0)})
    cost_usd, _source = cost_of(load_litellm(), model, priced, response, tokens_of(response, None))
    return Embedded(vectors, cost_usd)
