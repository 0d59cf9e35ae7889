"""docs/cli.md is what the commands say of themselves; each has an example that can be typed, and JSON for scripts."""

from __future__ import annotations

import shlex

import pytest

from cli.completion import LANGUAGES
from cli.examples import EXAMPLES
from cli.generate.reference import PATH, every_command, reference

COMMANDS = dict(every_command())

WITHOUT_JSON = {
    "up": "runs until it is stopped; its log lines are for people",
    "demo": "ends with one JSON line, below what is shown",
    "worker": "runs until it is stopped; its log is set by KERNELWRIGHT_LOG_FORMAT",
    "code": "prints code; `candidate` has what there is",
    "mcp": "speaks JSON-RPC with an agent",
}


def test_the_page_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PATH.read_text(encoding="utf-8") == reference(), "run: python -m cli.generate.reference"


@pytest.mark.parametrize("name", list(COMMANDS))
def test_each_command_has_an_example_that_parses(name: str) -> None:
    words = name.split()
    called, *arguments = shlex.split(EXAMPLES[name].partition(" | ")[0])
    assert [called, *arguments[: len(words)]] == ["kernelwright", *words]
    with COMMANDS[name].make_context(name, arguments[len(words) :]) as context:
        assert context.args == []
    assert EXAMPLES[name] in str(COMMANDS[name].epilog)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_each_command_has_json_or_a_reason(name: str) -> None:
    options = {flag for each in COMMANDS[name].params for flag in each.opts}
    assert ("--json" in options) == (name not in WITHOUT_JSON)


def test_the_languages_offered_are_those_of_the_service() -> None:
    from typing import get_args

    from cli.client import Language

    assert set(LANGUAGES) == set(get_args(Language))
