"""Each kind of limit while Valkey is stopped: which of them fail open, which stand, and that they come back with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import structlog
from pydantic import SecretStr
from sqlalchemy.orm import Session, sessionmaker

from api import limiting
from api.app import create_app
from cli.embedded.valkey import EmbeddedValkey
from db import keys
from db.settings import Settings
from tests.integration.api.conftest import BODY, Bells
from tests.integration.api.server import serving

PATIENCE_S = 20.0


pytestmark = pytest.mark.exhaustive


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    with EmbeddedValkey(tmp_path / "valkey") as server:
        yield server


@pytest.fixture
def http(
    own_valkey: EmbeddedValkey, database_url: str, bells: Bells, monkeypatch: pytest.MonkeyPatch
) -> Iterator[httpx2.Client]:
    """A server that lets a key send five requests an hour and a stranger three, and soon asks Valkey again."""
    monkeypatch.setattr(limiting, "_LEFT_ALONE_S", 0.2)
    settings = Settings(
        auth="required",
        rate_limit="5/hour",
        rate_limit_address="3/hour",
        streams_per_key=1,
        database_url=SecretStr(database_url),
        redis_url=SecretStr(own_valkey.url),
    )
    with serving(create_app(settings, ring=bells)) as url, httpx2.Client(base_url=url, timeout=PATIENCE_S) as client:
        yield client


def statuses(http: httpx2.Client, times: int, headers: dict[str, str]) -> list[int]:
    return [http.get("/v1/jobs", headers=headers).status_code for _ in range(times)]


def test_requests_fail_open_and_what_is_counted_in_postgres_stands(
    http: httpx2.Client, own_valkey: EmbeddedValkey, sessions: sessionmaker[Session]
) -> None:
    with sessions.begin() as session:
        token = keys.create_key(session, "one", {"jobs": 1})
    mine, wrong = {"Authorization": f"Bearer {token}"}, {"Authorization": "Bearer kw_live_nobody"}
    assert statuses(http, 6, mine) == [200] * 5 + [429]
    assert statuses(http, 4, wrong) == [401] * 3 + [429]

    with structlog.testing.capture_logs() as lines:
        own_valkey.stop()
        assert statuses(http, 8, mine) == [200] * 8, "open: a doorbell that is away must not close the service"
        assert statuses(http, 5, wrong) == [401] * 5, "open too; a key is still asked for"
        assert statuses(http, 2, {}) == [401] * 2
    said = [line for line in lines if line["event"] == "limits.unavailable"]
    assert said and said[0]["log_level"] == "warning"
    job = http.post("/v1/jobs", headers=mine, json=BODY)
    assert job.status_code == 202
    assert "ratelimit-limit" not in job.headers
    refused = http.post("/v1/jobs", headers=mine, json=BODY)
    assert (refused.status_code, refused.json()["type"]) == (429, "urn:kernelwright:error:quota-used"), "it stands"
    stream = mine | {"Accept": "text/event-stream"}
    path = f"/v1/jobs/{job.json()['id']}/events"
    with http.stream("GET", path, headers=stream) as first:
        events = first.iter_bytes()
        assert next(events)
        assert http.get(path, headers=stream).status_code == 429, "counted by the server itself"

    own_valkey.start()
    deadline = time.monotonic() + PATIENCE_S
    while http.get("/v1/jobs", headers=mine).status_code != 429:
        assert time.monotonic() < deadline, "the limit did not come back"
