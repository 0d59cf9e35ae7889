"""How models are reached, from the environment."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path

import pytest

from search.llm_options import LlmOptions, LlmSettingsError, ModelOptions

MODELS = json.dumps(
    {
        "*": {"api_base": "http://proxy/v1", "api_key": "sk-shared", "timeout_s": 60},
        "openai/local": {"api_base": "http://local/v1", "usd_per_mtok_in": "0.2"},
    }
)


def test_without_settings_everything_is_left_to_litellm() -> None:
    options = LlmOptions.from_environment({})
    assert options.model("openai/gpt-5") == ModelOptions()
    assert options.timeout_s < options.deadline_s


def test_settings_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "models.json").write_text(MODELS)
    for value in [MODELS, str(tmp_path / "models.json")]:
        options = LlmOptions.from_environment({"KERNELWRIGHT_LLM_MODELS": value, "KERNELWRIGHT_LLM_TIMEOUT_S": "2.5"})
        assert options.timeout_s == 2.5
        assert options.model("openai/gpt-5").api_base == "http://proxy/v1"
        local = options.model("openai/local")
        assert (local.api_base, local.timeout_s, local.usd_per_mtok_in) == ("http://local/v1", 60, Decimal("0.2"))


def test_keys_do_not_show() -> None:
    assert "sk-shared" not in repr(LlmOptions.from_environment({"KERNELWRIGHT_LLM_MODELS": MODELS}))


@pytest.mark.parametrize(
    "models",
    [
        '{"m": {"api_key": "sk-canary-1", "timeout_s": "sk-canary-2"}}',
        '{"m": {"api_key": ["sk-canary-1"]}}',
        '{"m": "sk-canary-1"}',
        '{"m": {"api_key": "sk-canary-1"}',
        '[{"api_key": "sk-canary-1"}]',
        '"m": {"api_key": "sk-canary-1"}',
    ],
)
def test_what_is_wrong_with_the_models_is_said_without_quoting_them(models: str) -> None:
    with pytest.raises(LlmSettingsError) as refused:
        LlmOptions.from_environment({"KERNELWRIGHT_LLM_MODELS": models})
    assert "sk-canary" not in str(refused.value)
    assert re.search("valid|JSON", str(refused.value))


@pytest.mark.parametrize(
    "environment",
    [
        {"KERNELWRIGHT_LLM_TIMEOUT_S": "soon"},
        {"KERNELWRIGHT_LLM_DEADLINE_S": "-1"},
        {"KERNELWRIGHT_LLM_MAX_ATTEMPTS": "0"},
        {"KERNELWRIGHT_LLM_MODELS": "{"},
        {"KERNELWRIGHT_LLM_MODELS": "/no/such/file.json"},
        {"KERNELWRIGHT_LLM_MODELS": '{"m": {"api_bse": "typo"}}'},
    ],
)
def test_unusable_settings_are_refused(environment: dict[str, str]) -> None:
    with pytest.raises(LlmSettingsError):
        LlmOptions.from_environment(environment)
