"""Keys over HTTP, on a server that asks everybody for one: what opens, what does not, and what is on record."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session, sessionmaker

from api import limiting
from api.app import create_app
from cli.embedded.postgres import EmbeddedPostgres
from cli.embedded.valkey import EmbeddedValkey
from db import keys
from db.settings import Settings
from db.vocabulary import Scope
from tests.integration.api.conftest import BODY, DATABASE, Bells
from tests.integration.api.server import serving

As = Callable[..., httpx2.Client]
PROBLEM = "urn:kernelwright:error:"


@pytest.fixture(scope="module")
def closed_url(
    api_database: Engine, postgres: EmbeddedPostgres, valkey: EmbeddedValkey, api_bells: Bells
) -> Iterator[str]:
    settings = Settings(
        auth="required", database_url=SecretStr(postgres.url_for(DATABASE)), redis_url=SecretStr(valkey.url)
    )
    with serving(create_app(settings, ring=api_bells)) as url:
        yield url


@pytest.fixture
def tokens(sessions: sessionmaker[Session]) -> dict[str, str]:
    """A token for each scope."""
    with sessions.begin() as session:
        return {scope.value: keys.create_key(session, scope.value, {}, scopes=[scope]) for scope in Scope}


@pytest.fixture
def by(closed_url: str, tokens: dict[str, str]) -> Iterator[As]:
    """A client with the key of a scope, or with another token, or with none."""
    made: list[httpx2.Client] = []

    def client(who: str | None) -> httpx2.Client:
        headers = {} if who is None else {"Authorization": f"Bearer {tokens.get(who, who)}"}
        made.append(httpx2.Client(base_url=closed_url, headers=headers, timeout=30))
        return made[-1]

    yield client
    for each in made:
        each.close()


def kind(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].removeprefix(PROBLEM)


def test_no_operation_answers_without_a_key_or_with_a_wrong_one(by: As) -> None:
    nobody, wrong = by(None), by("kw_live_nobody")
    paths = nobody.get("/openapi.json").json()["paths"]
    asked = 0
    for path, operations in paths.items():
        for method in operations:
            if not path.startswith("/v1/"):
                continue
            for client, why in ((nobody, "missing-key"), (wrong, "unknown-key")):
                answer = client.request(method, re.sub(r"\{\w+\}", "x", path))
                assert kind(answer) == (401, why), (method, path)
                assert answer.headers["www-authenticate"] == "Bearer"
            asked += 1
    assert asked > 30
    assert "Authorization: Bearer" in nobody.get("/v1/jobs").json()["detail"]
    for path in ("/healthz", "/readyz", "/openapi.json", "/docs"):
        assert nobody.get(path).status_code == 200
    assert nobody.get("/v1/nothing").status_code == nobody.get("/").status_code == 401


def test_each_scope_opens_its_own_and_admin_everything(by: As) -> None:
    for who, may in {"read": {"read"}, "submit": {"submit"}, "admin": {"read", "submit", "admin"}}.items():
        client = by(who)
        answers = {
            "read": client.get("/v1/jobs"),
            "submit": client.post("/v1/jobs", json=BODY),
            "admin": client.get("/v1/keys"),
        }
        for needed, answer in answers.items():
            assert (answer.status_code < 300) is (needed in may), (who, needed)
            if needed not in may:
                assert kind(answer) == (403, "missing-scope")
                assert f'needs the scope "{needed}"' in answer.json()["detail"]


def test_a_key_is_made_used_rotated_and_revoked(by: As, sessions: sessionmaker[Session]) -> None:
    admin = by("admin")
    body = {"name": "ranking", "scopes": ["read"], "expires_at": "2999-01-01T00:00:00Z", "caps": {"usd": "5.00"}}
    made = admin.post("/v1/keys", json=body)
    assert made.status_code == 201
    key, token = made.json()["key"], made.json()["token"]
    assert token.startswith(key["prefix"]) and len(key["prefix"]) == 12
    assert (key["caps"]["usd"], key["state"], key["last_used_at"]) == ("5.00", "active", None)
    assert kind(admin.post("/v1/keys", json=body)) == (409, "key-exists")
    assert by(token).get("/v1/jobs").status_code == 200
    rotated = admin.post("/v1/keys/ranking/rotate").json()
    assert by(token).get("/v1/jobs").status_code == by(rotated["token"]).get("/v1/jobs").status_code == 200
    assert rotated["key"]["last_used_at"] and rotated["key"]["previous_until"]
    newest = admin.post("/v1/keys/ranking/rotate", json={"grace_s": 0}).json()["token"]
    assert [by(each).get("/v1/jobs").status_code for each in (token, rotated["token"], newest)] == [401, 401, 200]
    assert admin.delete("/v1/keys/ranking").json()["changed"] is True
    assert admin.delete("/v1/keys/ranking").json()["changed"] is False
    answer = by(newest).get("/v1/jobs")
    assert kind(answer) == (401, "unknown-key") and "was revoked" in answer.json()["detail"]
    assert kind(admin.post("/v1/keys/ranking/rotate")) == (409, "key-over")
    assert kind(admin.delete("/v1/keys/nobody")) == (404, "no-such-key")
    listed = {each["name"]: each for each in admin.get("/v1/keys").json()["data"]}
    assert listed["ranking"]["state"] == "revoked"
    with sessions.begin() as session:
        stored = session.execute(text("SELECT api_keys::text FROM api_keys")).scalars().all()
    assert not any(each in row for row in stored for each in (token, newest))


def test_time_ends_a_key_and_an_old_token(by: As, sessions: sessionmaker[Session], tokens: dict[str, str]) -> None:
    with sessions.begin() as session:
        key = keys.get_key(session, "read")
        assert key is not None
        new = keys.rotate_key(session, key, 3600)
        session.execute(text("UPDATE api_keys SET previous_until = now() WHERE name = 'read'"))
        session.execute(text("UPDATE api_keys SET expires_at = now() WHERE name = 'submit'"))
    assert by(new).get("/v1/jobs").status_code == 200
    assert "was rotated" in by("read").get("/v1/jobs").json()["detail"]
    assert "has expired" in by("submit").post("/v1/jobs", json=BODY).json()["detail"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"name": "a b"}, "#/name"),
        ({"name": "a", "scopes": []}, "#/scopes"),
        ({"name": "a", "scopes": ["root"]}, "#/scopes/0"),
        ({"name": "a", "expires_at": "2020-01-01T00:00:00Z"}, "#/expires_at"),
        ({"name": "a", "caps": {"jobs": 0}}, "#/caps/jobs"),
    ],
)
def test_a_key_that_cannot_be_made_says_why(by: As, body: dict[str, Any], pointer: str) -> None:
    answer = by("admin").post("/v1/keys", json=body)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)


def test_quotas_of_jobs_are_refused_at_submit(by: As, sessions: sessionmaker[Session]) -> None:
    admin, team = by("admin"), by("submit")
    with sessions.begin() as session:
        keys.set_caps(session, "submit", {"jobs": 1, "jobs_per_day": 2})
    first = team.post("/v1/jobs", json=BODY, headers={"Idempotency-Key": "k"})
    assert first.status_code == 202
    over = team.post("/v1/jobs", json=BODY)
    assert kind(over) == (429, "quota-used")
    assert "`jobs` of the API key is used up: it has 1 of 1" in over.json()["detail"]
    assert over.headers["retry-after"] == "30"
    assert team.post("/v1/jobs", json=BODY, headers={"Idempotency-Key": "k"}).json()["id"] == first.json()["id"]
    assert admin.post("/v1/jobs", json=BODY).status_code == 202, "another key's quota is its own"
    with sessions.begin() as session:
        session.execute(text("UPDATE jobs SET finished_at = now(), state = 'failed'"))
    assert team.post("/v1/jobs", json=BODY).status_code == 202
    with sessions.begin() as session:
        session.execute(text("UPDATE jobs SET finished_at = now(), state = 'failed'"))
    over = team.post("/v1/jobs", json=BODY)
    assert "`jobs_per_day`" in over.json()["detail"]
    assert 86_000 < int(over.headers["retry-after"]) <= 86_400
    used = next(each["used"] for each in admin.get("/v1/keys").json()["data"] if each["name"] == "submit")
    assert (used["jobs"], used["jobs_per_day"]) == (0, 2)


def test_what_was_done_is_on_record(by: As) -> None:
    admin, team = by("admin"), by("submit")
    job = team.post("/v1/jobs", json=BODY, headers={"X-Request-Id": "mine-1"}).json()["id"]
    for _ in range(2):
        team.post(f"/v1/jobs/{job}/cancel", json={"reason": "enough"})
    admin.post("/v1/keys", json={"name": "new"})
    entries = admin.get("/v1/audit").json()["data"]
    assert [(each["key"], each["action"], each["subject"]) for each in entries] == [
        ("admin", "key.create", "new"),
        ("submit", "job.cancel", job),
        ("submit", "job.submit", job),
    ]
    assert (entries[2]["request_id"], entries[2]["address"]) == ("mine-1", "127.0.0.1")
    assert "kw_live_" not in str(entries)
    page = admin.get("/v1/audit", params={"subject": job, "limit": 1}).json()
    rest = admin.get("/v1/audit", params={"subject": job, "cursor": page["next_cursor"]}).json()
    assert [each["action"] for each in page["data"] + rest["data"]] == ["job.cancel", "job.submit"]
    assert kind(team.get("/v1/audit")) == (403, "missing-scope")


def test_a_page_of_another_site_changes_nothing(http: httpx2.Client, url: str) -> None:
    """On loopback no key is needed, and any page in a browser on this machine can send there."""
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 404)):
        answer = http.post("/v1/jobs/job_1/cancel", headers={"Sec-Fetch-Site": site})
        assert answer.status_code == status
    assert http.get("/v1/jobs", headers={"Host": "rebound.example.com"}).status_code == 401
    assert http.get("/v1/jobs", headers={"X-Forwarded-For": "10.0.0.9"}).status_code == 401


@pytest.fixture
def narrow_url(
    database_url: str, valkey: EmbeddedValkey, bells: Bells, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., str]]:
    """A server that lets through five requests an hour, with its Redis or with none. A test that stands still for
    0.25 s must not be taken for a Redis that does."""
    monkeypatch.setattr(limiting, "_PATIENCE_S", 20.0)
    with ExitStack() as stack:

        def serve(redis_url: str = valkey.url) -> str:
            settings = Settings(
                auth="required",
                rate_limit="5/hour",
                rate_limit_address="3/hour",
                database_url=SecretStr(database_url),
                redis_url=SecretStr(redis_url),
            )
            return stack.enter_context(serving(create_app(settings, ring=bells)))

        yield serve


def test_a_key_that_sends_too_much_is_told_when_to_come_back(
    narrow_url: Callable[..., str], tokens: dict[str, str]
) -> None:
    with httpx2.Client(base_url=narrow_url(), headers={"Authorization": f"Bearer {tokens['read']}"}) as client:
        answers = [client.get("/v1/jobs") for _ in range(6)]
        assert [each.status_code for each in answers] == [200] * 5 + [429]
        assert [each.headers["ratelimit-remaining"] for each in answers] == ["4", "3", "2", "1", "0", "0"]
        assert kind(answers[-1]) == (429, "too-many-requests")
        assert 3500 < int(answers[-1].headers["retry-after"]) <= 3600
        assert answers[-1].headers["ratelimit-limit"] == "5"
        assert client.get("/healthz").status_code == 200
        others = client.get("/v1/jobs", headers={"Authorization": f"Bearer {tokens['admin']}"})
        assert others.status_code == 200, "each key has its own"
        guesses = [client.get("/v1/jobs", headers={"Authorization": "Bearer kw_live_x"}) for _ in range(4)]
        assert [each.status_code for each in guesses] == [401] * 3 + [429]


def test_without_redis_nobody_is_limited(
    narrow_url: Callable[..., str], tokens: dict[str, str], tmp_path: Path
) -> None:
    url = narrow_url(f"unix://{tmp_path}/none")
    with httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {tokens['read']}"}) as client:
        assert [client.get("/v1/jobs").status_code for _ in range(7)] == [200] * 7
