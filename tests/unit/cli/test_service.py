"""How a command ends when the API refuses, fails or is not there: one line that says what to do, and an exit status."""

from __future__ import annotations

import pytest

from cli.client import ApiError, Unreachable
from cli.errors import CliError
from cli.service import NoService, RefusedByService, ServiceFailed, UnusableInput, checked_url, key_value, service

URL = "http://127.0.0.1:8080"


def _ended_by(error: Exception) -> CliError:
    with pytest.raises(CliError) as caught, service(URL):
        raise error
    return caught.value


def test_a_refusal_names_the_fields_once_and_on_one_line() -> None:
    problem = {
        "detail": "#/seed: must not be negative",
        "errors": [
            {"pointer": "#/seed", "detail": "must not be negative"},
            {"pointer": "#/budget/usd", "detail": "is no amount"},
        ],
    }
    ended = _ended_by(ApiError(422, problem))
    assert isinstance(ended, RefusedByService)
    assert str(ended) == "#/seed: must not be negative; #/budget/usd: is no amount"
    assert ended.exit_code == 2


def test_a_failing_service_is_not_the_readers_fault() -> None:
    ended = _ended_by(ApiError(503, {"detail": "cannot reach its database now"}))
    assert isinstance(ended, ServiceFailed)
    assert ended.exit_code == 4
    assert "cannot reach its database now" in str(ended)


def test_silence_says_what_to_start() -> None:
    ended = _ended_by(Unreachable(URL, "connection refused"))
    assert isinstance(ended, NoService)
    assert ended.exit_code == 4
    assert all(word in str(ended) for word in (URL, "kernelwright up", "--url", "KERNELWRIGHT_URL"))
    assert "\n" not in str(ended)


def test_braces_in_an_answer_are_shown_as_they_are() -> None:
    assert "{line} 3" in str(_ended_by(ApiError(422, {"detail": "{line} 3"})))


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8080", "foo", "ftp://host", "http://", "http://host:99999", "http://h:x"]
)
def test_what_is_no_url_is_refused_before_it_is_tried(url: str) -> None:
    with pytest.raises(UnusableInput, match="is no URL"):
        checked_url(url)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080", "https://kernels.example/base", "http://[::1]:80"])
def test_a_url_is_kept_as_it_is(url: str) -> None:
    assert checked_url(url) == url


def test_labels() -> None:
    assert key_value("team=a=b") == ("team", "a=b")
    for bad in ("team", "=x", ""):
        with pytest.raises(UnusableInput, match="KEY=VALUE"):
            key_value(bad)
