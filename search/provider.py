"""One request to a language model through litellm: an answer, or a `ProviderFailure` that says whether to ask again.

litellm takes 2 s to import and is imported with the first request. It is told not to retry: `search.retrying` does.
"""

from __future__ import annotations

import asyncio
import importlib
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any

from search.llm_options import ModelOptions
from search.model_names import NotAModelName, check_model_name
from search.pricing import Tokens, cost_of
from search.retrying import ProviderFailure

RETRYABLE_STATUS = frozenset({408, 409, 425, 429})
MAX_ERROR = 500
MAX_TOKENS = 2**31
"""A count above this is nonsense, and would not fit the ledger."""

_SECRET_NAME = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS)(?:_|$)", re.IGNORECASE)
SHORTEST_SECRET = 8
"""Characters. A dummy key such as `none` is a word of error messages too."""


class LitellmMissing(RuntimeError):
    """Language models need litellm. Install it with `pip install 'kernelwright[llm]'`."""


class ContentFiltered(ProviderFailure):
    """The provider refused the request for its content. Ask another model."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What one request brought. `tokens` are those of the prompt and of the answer."""

    text: str | None
    finish_reason: str | None
    tokens: Tokens
    cost_usd: Decimal | None
    cost_source: str


def ask(model: str, messages: list[dict[str, str]], options: ModelOptions, timeout_s: float) -> Reply:
    """One request, no retries. Raises ProviderFailure for what the provider does, LitellmMissing without litellm."""
    try:
        check_model_name(model)
    except NotAModelName as error:
        raise ProviderFailure(f"{model} {error}", retryable=False) from error
    litellm, openai = load_litellm(), importlib.import_module("openai")
    # After an answer litellm runs a coroutine. Where the thread has no event loop it would have asyncio make one (until
    # Python 3.13), which nobody closes; told that there is none it takes `asyncio.run`.
    asyncio.set_event_loop(None)
    try:
        response = litellm.completion(
            model=model,
            messages=messages,
            timeout=timeout_s,
            num_retries=0,
            max_retries=0,  # the client under litellm would retry twice on its own
            **_arguments(options),
        )
    except openai.OpenAIError as error:  # the base of all that litellm raises
        raise failure_of(error, options) from error
    text, finish_reason = _content(response)
    text = None if text is None else redacted(text, options)
    tokens = tokens_of(response, text)
    cost_usd, cost_source = cost_of(litellm, model, options, response, tokens)
    return Reply(text, finish_reason, tokens, cost_usd, cost_source)


@lru_cache(maxsize=1)
def load_litellm() -> Any:
    """litellm, told what we want of it. Raises LitellmMissing."""
    # Before the import: litellm would otherwise fetch its price map from the network when it is imported.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        litellm: Any = importlib.import_module("litellm")
    except ModuleNotFoundError as error:
        raise LitellmMissing from error
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.DEFAULT_MAX_RETRIES = 0  # `embedding` takes `max_retries=0` for unset, and this in its place
    litellm.drop_params = True  # a model that knows no temperature is asked without one
    return litellm


def _arguments(options: ModelOptions) -> dict[str, Any]:
    """The model's options as litellm names them; what is not set is not sent."""
    arguments = {
        "api_base": options.api_base,
        "api_key": next(iter(keys_of(options)), None),
        "max_tokens": options.max_output_tokens,
        "temperature": options.temperature,
        "reasoning_effort": options.reasoning_effort,
    }
    return {name: value for name, value in arguments.items() if value is not None} | options.extra


def keys_of(options: ModelOptions) -> list[str]:
    """The model's own key, if it has one."""
    if options.api_key is not None:
        return [options.api_key.get_secret_value()]
    key = os.environ.get(options.api_key_env) if options.api_key_env else None
    return [key] if key else []


def redacted(text: str, options: ModelOptions) -> str:
    """The text without keys: some providers and gateways quote them, and what they say is stored and shown."""
    further = {**os.environ, **{name: str(value) for name, value in options.extra.items()}}
    secrets = [*keys_of(options), *(value for name, value in further.items() if _SECRET_NAME.search(name))]
    # The longest first: one may begin with another.
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, "***")
    return text


def _content(response: Any) -> tuple[str | None, str | None]:
    """The answer's text and why it ended."""
    try:
        choice = response.choices[0]
        text, finish_reason = choice.message.content, choice.finish_reason
        # litellm keeps what is not in its own message type apart.
        refusal = (getattr(choice.message, "provider_specific_fields", None) or {}).get("refusal")
    except (AttributeError, IndexError, TypeError) as error:
        raise ProviderFailure(f"the provider's answer has no choices: {error}", retryable=True) from error
    if refusal:
        text, finish_reason = str(refusal), "refusal"
    if text is not None and not isinstance(text, str):
        raise ProviderFailure("the provider's answer is not text", retryable=True)
    return text, finish_reason


def tokens_of(response: Any, text: str | None) -> Tokens:
    """The tokens that a response counts; None for what the provider did not count."""
    usage = getattr(response, "usage", None)
    tokens_in, tokens_out = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    # litellm writes zeros where the provider counted nothing. A prompt of no tokens is none.
    return (tokens_in, tokens_out) if tokens_in and (tokens_out or not text) else (None, None)


def _count(usage: Any, name: str) -> int | None:
    value = getattr(usage, name, None)
    return value if isinstance(value, int) and 0 <= value < MAX_TOKENS else None


def failure_of(error: Any, options: ModelOptions) -> ProviderFailure:
    """What the client under litellm raised, without secrets, and whether asking again may help."""
    status = getattr(error, "status_code", None)
    message = redacted(" ".join(str(error).partition("Traceback (")[0].split()), options)[:MAX_ERROR]
    if type(error).__name__ == "ContentPolicyViolationError":
        return ContentFiltered(message, retryable=False, status=status)
    # A missing key comes as a 500 from the client itself; waiting will not bring one.
    retryable = "Missing credentials" not in message and (status is None or status >= 500 or status in RETRYABLE_STATUS)
    return ProviderFailure(message, retryable=retryable, status=status, retry_after_s=_retry_after_s(_headers(error)))


def _headers(error: Any) -> Mapping[str, str]:
    response_headers = getattr(getattr(error, "response", None), "headers", None) or {}
    return getattr(error, "litellm_response_headers", None) or response_headers


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """What Retry-After asks for: seconds, or a date compared with the answer's own, so that clocks need not agree."""
    asked = headers.get("retry-after")
    if asked is None:
        return None
    try:
        seconds = float(asked)
        return None if math.isnan(seconds) else max(seconds, 0.0)
    except ValueError:
        pass
    try:
        sent = headers.get("date")
        now = parsedate_to_datetime(sent) if sent else datetime.now(UTC)
        return max((parsedate_to_datetime(asked) - now).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return None
