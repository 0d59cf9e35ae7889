"""`kernelwright request`, `confirm` and `keys` as a person runs them, against a real API with its real Postgres."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from cli import main
from cli.client import ApiError, Client
from cli.keys import KeyEnded, KeyTaken, NoKey, UnusableTime
from db.settings import Settings, get_settings
from tests.integration.cli.commands.conftest import BODY, Kernelwright


def test_words_are_shown_as_a_proposal_and_confirmed_by_its_id(kernelwright: Kernelwright, client: Client) -> None:
    asked = kernelwright("request", "row-wise softmax in fp16, in C++ on my CPU", "--budget-candidates", "3")
    assert asked.returncode == 0, asked.stderr
    request_id = asked.stdout.strip()
    assert "class Model(nn.Module)" in asked.stderr
    assert "softmax_fp16 on cpu:cpp, by the matcher" in asked.stderr
    assert "also near: attention_causal" in asked.stderr
    assert client.jobs()["data"] == []

    preview = kernelwright("confirm", request_id, "--dry-run")
    assert preview.stdout.startswith("estimate: "), preview.stderr
    confirmed = kernelwright("confirm", request_id)
    job = client.job(confirmed.stdout.strip())
    assert (job["problem"]["name"], job["budget"]["candidates"]) == ("softmax_fp16", 3)


def test_what_is_like_nothing_is_one_line(kernelwright: Kernelwright) -> None:
    done = kernelwright("request", "a poem", "--yes")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("kernelwright: #/request: no bundled problem is like it")


@pytest.fixture
def keys(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """`kernelwright keys` in this process: it speaks to the database itself, and a process for each call is dear."""
    monkeypatch.setenv("KERNELWRIGHT_DATABASE_URL", settings.sqlalchemy_url)
    get_settings.cache_clear()
    yield lambda *arguments: CliRunner().invoke(main.app, ["keys", *arguments])
    get_settings.cache_clear()


def made(told: Result) -> str:
    """The new token. The server is a thread of this process, and may log between the lines."""
    (token,) = (line for line in told.stdout.splitlines() if line.startswith("kw_live_"))
    return token


def test_a_key_is_made_once_counts_its_jobs_and_takes_other_caps(
    keys: Callable[..., Result], url: str, client: Client
) -> None:
    token = made(keys("ranking", "--create", "--usd", "50"))
    assert isinstance(keys("ranking", "--create").exception, KeyTaken)
    assert isinstance(keys("nobody", "--usd", "1").exception, NoKey)
    with Client(url, token) as team:
        job = team.submit(BODY)
    assert (job["key_id"] or "").startswith("key_")
    assert client.submit(BODY)["key_id"] is None
    assert keys("ranking", "--calls", "7").exit_code == 0
    (said,) = (line for line in keys("--json").stdout.splitlines() if line.startswith("{"))
    key = json.loads(said)
    assert (key["id"], key["name"]) == (job["key_id"], "ranking")
    assert (key["caps"]["usd"], key["caps"]["calls"], key["caps"]["gpu_s"]) == ("50.000000", 7, None)
    free = {"usd": "0", "tokens": 0, "calls": 0, "gpu_s": 0.0, "wall_s": 0.0, "candidates": 0}
    assert key["used"] == free | {"jobs": 1, "jobs_per_day": 1}
    assert "0 of 7" in keys().stdout


def test_a_key_is_narrowed_rotated_and_revoked(keys: Callable[..., Result], url: str, client: Client) -> None:
    token = made(keys("ops", "--create", "--scope", "admin", "--expires", "90d"))
    new = made(keys("ops", "--rotate", "--grace", "0s"))
    for old, opens in ((token, False), (new, True)):
        with Client(url, old) as ops:
            assert opens is (_status(lambda: ops.get("/v1/keys")) == 200)
    assert keys("ops", "--scope", "read").exit_code == 0
    with Client(url, new) as ops:
        assert _status(lambda: ops.submit(BODY)) == 403
        assert keys("ops", "--revoke").exit_code == 0
        # The server that did not revoke it hears of it: milliseconds later.
        until = time.monotonic() + 5
        while (status := _status(ops.jobs)) == 200 and time.monotonic() < until:
            time.sleep(0.01)
        assert status == 401
    assert isinstance(keys("ops", "--rotate").exception, KeyEnded)
    assert isinstance(keys("ops", "--expires", "yesterday").exception, UnusableTime)
    done = [each["action"] for each in client.get("/v1/audit")["data"]]
    assert done == ["key.revoke", "key.change", "key.rotate", "key.create"]
    shown = CliRunner().invoke(main.app, ["audit", "--url", url, "--action", "key.rotate"]).stdout
    assert "key.rotate" in shown and "cli" in shown and "key.create" not in shown


def test_keys_are_json_for_scripts_token_and_all(keys: Callable[..., Result], url: str) -> None:
    made = _said(keys("ops", "--create", "--usd", "5", "--json"))
    with Client(url, made["token"]) as ops:
        assert ops.jobs()["data"] == []
    assert (made["key"]["state"], float(made["key"]["caps"]["usd"])) == ("active", 5.0)
    changed = _said(keys("ops", "--usd", "80", "--scope", "read", "--json"))
    assert (float(changed["caps"]["usd"]), changed["scopes"]) == (80.0, ["read"])
    turned = _said(keys("ops", "--rotate", "--json"))
    assert (
        turned["token"] != made["token"] and turned["key"]["prefix"] == turned["token"][: len(turned["key"]["prefix"])]
    )
    assert _said(keys("ops", "--revoke", "--json"))["state"] == "revoked"


def _said(result: Result) -> dict[str, Any]:
    # The API's server logs to the same stdout: it is a thread of this process.
    told: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return told


def _status(call: Callable[[], object]) -> int:
    try:
        call()
    except ApiError as error:
        return error.status
    return 200
