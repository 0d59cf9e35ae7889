"""A model's name names no server."""

from __future__ import annotations

import pytest

from search.model_names import NotAModelName, check_model_name


@pytest.mark.parametrize(
    "name",
    [
        "openai/gpt-5",
        "gpt-4o",
        "ask/tell",
        "anthropic/claude-sonnet-4-5@20250929",
        "openai/ft:gpt-4o-mini:acme::9X1",
        "together_ai/meta-llama/Llama-3.3-70B-Instruct-Turbo",
        "cloudflare/@cf/meta/llama-3.1-8b-instruct",
        "hosted_vllm/Qwen/Qwen3-32B",
        "bedrock/us-east-1/anthropic.claude-v2:1",
        "bedrock/arn:aws:bedrock:us-east-1:123456789012:provisioned-model/abc123",
        "bedrock/converse/arn:aws-us-gov:bedrock:us-gov-west-1:123456789012:imported-model/x",
    ],
)
def test_a_name_is_taken_as_it_is(name: str) -> None:
    assert check_model_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "huggingface/https://evil.example.com/",
        "huggingface/http://169.254.169.254/latest",
        "oobabooga/http://127.0.0.1:6379",
        "https://evil.example.com/v1",
        "openai/../../admin",
        "docker_model_runner/x/..",
        "gemini//evil.example.com",
        "openai/gpt-5?key=x",
        "openai/gpt-5#x",
        "openai/gpt%2f5",
        "openai/gpt-5\\x",
        "bedrock/arn:aws:bedrock:evil.example.com/:1:provisioned-model/x",
        "bedrock/arn:aws:bedrock:evil.example.com:1:provisioned-model/x",
        "bedrock/arn:aws:bedrock:us-east-1",
        "bedrock/arn:x",
        "openai/gpt 5",
        "openai/gpt-5\n",
        "/gpt-5",
        "openai/",
        "",
        "x" * 201,
    ],
)
def test_what_says_more_than_which_model_it_is_is_refused(name: str) -> None:
    with pytest.raises(NotAModelName, match="where it is served is the operator's to say"):
        check_model_name(name)
