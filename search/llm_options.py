"""How language models are reached: time limits, and for each model where it is, its key and its price.

Keys come from the environment as litellm knows them (`OPENAI_API_KEY`, `ANTHROPIC_API_KEY`, ...). What is particular
to a model is a JSON object in `KERNELWRIGHT_LLM_MODELS`, or in the file that it names:

    {"openai/qwen3": {"api_base": "http://gpu7:8000/v1", "api_key_env": "QWEN_KEY", "usd_per_mtok_in": "0.2"}}

The key `*` holds what is meant for every model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter, ValidationError

from search.prompts.limits import MIN_PROMPT_TOKENS

PREFIX = "KERNELWRIGHT_LLM_"


class LlmSettingsError(ValueError):
    """KERNELWRIGHT_LLM_... cannot be used. Times are positive seconds; KERNELWRIGHT_LLM_MODELS is JSON or its file."""


class ModelOptions(BaseModel):
    """What is particular to one model. What is not set is left to litellm and the provider."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    api_base: str | None = None
    """Where it is served, as an OpenAI-compatible address with its version: http://host:8000/v1."""
    api_key: SecretStr | None = None
    """Its key; better `api_key_env`, so that the file holds no secret."""
    api_key_env: str | None = None
    """The name of an environment variable that holds the key."""
    timeout_s: float | None = Field(None, gt=0)
    """For one request; a reasoning model may need more than others."""
    max_output_tokens: int | None = Field(None, gt=0)
    """Of one answer."""
    max_prompt_tokens: int | None = Field(None, ge=MIN_PROMPT_TOKENS)
    """For a model with a small context: less of what was looked up, shorter logs and sources."""
    temperature: float | None = None
    """Of its sampling."""
    reasoning_effort: str | None = None
    """low, medium, high, or what else the provider knows."""
    usd_per_mtok_in: Decimal | None = None
    """USD for a million tokens. With both prices set they override litellm's map."""
    usd_per_mtok_out: Decimal | None = None
    """The same for what it answers."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of litellm's `completion`."""

    def over(self, base: ModelOptions) -> ModelOptions:
        """These options, and the other's where these say nothing."""
        return base.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})


# An error says what is wrong and where, and quotes nothing: there are keys in it.
_MODELS = TypeAdapter(dict[str, ModelOptions], config=ConfigDict(hide_input_in_errors=True))


class LlmOptions(BaseModel):
    """Time limits for all models, and what is particular to some."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    timeout_s: float = Field(300.0, gt=0)
    """For one request. A large reasoning model takes minutes for a kernel."""
    deadline_s: float = Field(900.0, gt=0)
    """For one proposal: all tries and the waits between them."""
    max_attempts: int = Field(6, ge=1)
    """Tries of one call. Only what may pass is tried again: limits of rates, a server in trouble, a lost connection."""
    models: Mapping[str, ModelOptions] = Field(default_factory=dict)
    """Where models are, their keys and prices: see below."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> LlmOptions:
        """The options in the environment's KERNELWRIGHT_LLM_ variables. Raises LlmSettingsError."""
        values: dict[str, Any] = {
            name: environment[PREFIX + name.upper()]
            for name in ("timeout_s", "deadline_s", "max_attempts")
            if environment.get(PREFIX + name.upper())
        }
        try:
            models = environment.get(PREFIX + "MODELS", "").strip() or "{}"
            text = models if "{" in models else Path(models).read_text()
            values["models"] = _MODELS.validate_json(text)
            return cls.model_validate(values)
        except (ValidationError, OSError) as error:
            raise LlmSettingsError(str(error)) from error

    def model(self, name: str) -> ModelOptions:
        """The options of a model, with those of `*` where it has none of its own."""
        return self.models.get(name, ModelOptions()).over(self.models.get("*", ModelOptions()))
