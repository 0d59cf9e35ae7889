"""Who may call what: each route of the application before each kind of key, by one table. A route that is not in the
table fails, so nobody adds one without saying whose it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from urllib.parse import urlsplit

import httpx2
import pytest
from fastapi import FastAPI
from pydantic import SecretStr
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session, sessionmaker

from api.app import create_app
from cli.embedded.postgres import EmbeddedPostgres
from cli.embedded.valkey import EmbeddedValkey
from db import keys
from db.settings import Settings
from db.vocabulary import Scope
from tests.integration.api.conftest import BODY, DATABASE, Bells
from tests.integration.api.routes import MOUNTED, routes_of
from tests.integration.api.server import serving

TABLE = """
open    MOUNT  /static
open    GET    /healthz
open    GET    /readyz
open    GET    /metrics
open    GET    /openapi.json
open    HEAD   /openapi.json
open    GET    /docs

read    GET    /
read    GET    /jobs
read    GET    /jobs/{job_id}
read    GET    /candidates/{candidate_id}
read    GET    /candidates/{candidate_id}/code/{kind}
read    GET    /compare
read    GET    /fleet
read    GET    /knowledge
read    GET    /knowledge/lessons/{lesson_id}
read    GET    /uplift
read    GET    /spending
read    GET    /submit
submit  POST   /submit
submit  POST   /jobs/{job_id}/cancel

read    GET    /v1/jobs
submit  POST   /v1/jobs
read    GET    /v1/jobs/{job_id}
submit  POST   /v1/jobs/{job_id}/cancel
submit  POST   /v1/jobs/{job_id}/rerun
submit  POST   /v1/jobs/{job_id}/ask
submit  POST   /v1/jobs/{job_id}/tell
submit  POST   /v1/jobs/{job_id}/renew
read    GET    /v1/jobs/{job_id}/events
read    GET    /v1/jobs/{job_id}/candidates
read    GET    /v1/jobs/{job_id}/best
read    GET    /v1/jobs/{job_id}/certificate
read    GET    /v1/jobs/{job_id}/package
read    GET    /v1/jobs/{job_id}/decisions
read    GET    /v1/jobs/{job_id}/proposals
read    GET    /v1/jobs/{job_id}/tree
read    GET    /v1/jobs/{job_id}/judging
submit  POST   /v1/requests
read    GET    /v1/requests/{request_id}
submit  POST   /v1/requests/{request_id}/confirm
read    GET    /v1/candidates
read    GET    /v1/candidates/{candidate_id}
read    GET    /v1/candidates/{candidate_id}/source
read    GET    /v1/candidates/{candidate_id}/log
read    GET    /v1/candidates/{candidate_id}/ttgir
read    GET    /v1/candidates/{candidate_id}/llvm
read    GET    /v1/candidates/{candidate_id}/ptx
read    GET    /v1/candidates/{candidate_id}/sass
read    GET    /v1/candidates/{candidate_id}/assembly
read    GET    /v1/candidates/{candidate_id}/compare/{other_id}
read    GET    /v1/candidates/{candidate_id}/package
read    GET    /v1/candidates/{candidate_id}/proposal
read    GET    /v1/candidates/{candidate_id}/knowledge
read    GET    /v1/problems
read    GET    /v1/problems/{name}
read    GET    /v1/problems/{name}/leaderboard
read    GET    /v1/knowledge
read    GET    /v1/knowledge/lessons
read    GET    /v1/knowledge/lessons/{lesson_id}
read    GET    /v1/knowledge/uplift
read    GET    /v1/summary
read    GET    /v1/queues
read    GET    /v1/workers
admin   PATCH  /v1/workers/{worker_id}

read    GET    /v1/webhooks
submit  POST   /v1/webhooks
read    GET    /v1/webhooks/{webhook_id}                                     owner
submit  PATCH  /v1/webhooks/{webhook_id}                                     owner
submit  DELETE /v1/webhooks/{webhook_id}                                     owner
submit  POST   /v1/webhooks/{webhook_id}/rotate                              owner
submit  POST   /v1/webhooks/{webhook_id}/test                                owner
read    GET    /v1/webhooks/{webhook_id}/deliveries                          owner
read    GET    /v1/webhooks/{webhook_id}/deliveries/{delivery_id}            owner
submit  POST   /v1/webhooks/{webhook_id}/deliveries/{delivery_id}/retry      owner

admin   GET    /v1/keys
admin   POST   /v1/keys
admin   POST   /v1/keys/{name}/rotate
admin   DELETE /v1/keys/{name}
admin   GET    /v1/audit
"""
"""The scope that a route needs (`open`: no key), its method and path, and `owner` where only the owner's key, or an
admin's, finds what is there. Jobs and all that follows from them are every key's."""

Headers = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Right:
    """A row of the table."""

    needs: str
    method: str
    path: str
    owned: bool

    def may(self, who: str) -> bool:
        """Whether a key of this scope (or none: any other word) is let through."""
        return self.needs == "open" or who == "admin" or who == self.needs

    def target(self, **names: str) -> str:
        """The address, with these names and `x` for all others."""
        own = "/app.css" if self.method == MOUNTED else ""
        return re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], "x"), self.path) + own


RIGHTS = [Right(*row[:3], "owner" in row[3:]) for row in map(str.split, TABLE.splitlines()) if row]
SCOPED = [scope.value for scope in Scope]
SHUT = ("nobody", "wrong", "expired", "revoked", "rotated")


@pytest.fixture(scope="module")
def app(api_database: Engine, postgres: EmbeddedPostgres, valkey: EmbeddedValkey, api_bells: Bells) -> FastAPI:
    database_url, redis_url = SecretStr(postgres.url_for(DATABASE)), SecretStr(valkey.url)
    unlimited = {"rate_limit": "", "rate_limit_address": ""}
    return create_app(
        Settings(auth="required", database_url=database_url, redis_url=redis_url, **unlimited), ring=api_bells
    )


@pytest.fixture(scope="module")
def closed_url(app: FastAPI) -> Iterator[str]:
    with serving(app) as url:
        yield url


@pytest.fixture
def http(closed_url: str, database_url: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=closed_url, timeout=30) as client:
        yield client


@pytest.fixture
def headers(sessions: sessionmaker[Session]) -> dict[str, dict[str, str]]:
    """What each sends: a key of each scope, `mine` and `other` with all that is no admin's, and what opens nothing."""
    everything = [*SCOPED, "mine", "other", "expired", "revoked", "rotated"]
    with sessions.begin() as session:
        tokens = {name: keys.create_key(session, name, {}, scopes=_scopes(name)) for name in everything}
        for name in ("revoked", "rotated"):
            key = keys.get_key(session, name)
            assert key is not None
            keys.revoke_key(session, key) if name == "revoked" else keys.rotate_key(session, key, 0)
        session.execute(text("UPDATE api_keys SET expires_at = now() WHERE name = 'expired'"))
    tokens["wrong"] = f"{tokens['admin'][:-1]}{'A' if tokens['admin'][-1] != 'A' else 'B'}"
    return {"nobody": {}} | {name: {"Authorization": f"Bearer {token}"} for name, token in tokens.items()}


def _scopes(name: str) -> list[Scope]:
    """What would be let through everywhere, were the key not over."""
    if name in ("mine", "other"):
        return [Scope.SUBMIT, Scope.READ]
    return [Scope(name)] if name in SCOPED else [Scope.ADMIN]


def test_the_table_has_every_route_and_no_other(app: FastAPI) -> None:
    listed = {(right.method, right.path) for right in RIGHTS}
    assert len(listed) == len(RIGHTS)
    assert routes_of(app) == listed
    documented = {(method.upper(), path) for path, each in app.openapi()["paths"].items() for method in each}
    assert documented <= listed and len(documented) > 50


@pytest.mark.parametrize("who", [*SHUT, *SCOPED])
def test_each_route_is_for_whom_the_table_says(http: httpx2.Client, headers: Headers, who: str) -> None:
    for right in RIGHTS:
        method = "GET" if right.method == MOUNTED else right.method
        answer = http.request(method, right.target(), headers=headers[who])
        expected = () if right.may(who) else (401,) if who in SHUT else (403,)
        what = (who, right.method, right.path, answer.status_code, answer.text[:200])
        if expected:
            assert answer.status_code in expected, what
            assert answer.json()["type"].endswith(("-key", "missing-scope")), what
            continue
        # Past the door it is a matter of the route: nothing is found under `x`, or nothing was sent that it could take.
        assert answer.status_code in (200, 303, 404, 415, 422), what


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT"])
def test_no_other_method_gets_round_the_door(http: httpx2.Client, headers: Headers, method: str) -> None:
    offered = {(right.method, right.path) for right in RIGHTS}
    for right in RIGHTS:
        if right.needs == "open" or (method, right.path) in offered:
            continue
        assert http.request(method, right.target()).status_code == 401, (method, right.path)
        assert http.request(method, right.target(), headers=headers["admin"]).status_code in (404, 405)
    for path in ("/v1/keys", "/v1/keys/x", "/v1/audit"):
        assert http.request(method, path, headers=headers["other"]).status_code == 403, (method, path)


STRANGE = [
    "/nothing",
    "/v1",
    "/v1/nothing",
    "//healthz",
    "/healthz/",
    "/healthz/../v1/jobs",
    "/%2e/healthz/x",
    "/docs/",
    "/docs/oauth2-redirect",
    "/redoc",
    "/openapi.json/x",
    "/static",
    "/STATIC/app.css",
    "/v1/keys/",
    "/V1/KEYS",
    "/v1/./keys",
    "//v1/keys",
    "/v1/jobs;x",
    "/v1/jobs%00",
]


@pytest.mark.parametrize("target", STRANGE)
def test_an_address_that_is_no_route_asks_for_a_key_too(closed_url: str, target: str) -> None:
    assert _raw(closed_url, target)[0] == 401


@pytest.mark.parametrize(
    "target",
    ["/static/../frame.py", "/static/%2e%2e/frame.py", "/static/..%2fframe.py", "/static//etc/passwd", "/static/"],
)
def test_the_open_folder_leads_nowhere_else(closed_url: str, target: str) -> None:
    status, body = _raw(closed_url, target)
    assert status == 404 and b"import" not in body


def test_an_upgrade_to_a_websocket_is_no_way_in(closed_url: str) -> None:
    wish = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    assert _raw(closed_url, "/v1/jobs", wish)[0] in (401, 403)


def _raw(url: str, target: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """The very target: a client of more manners would tidy it up."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        connection.putrequest("GET", target, skip_accept_encoding=True)
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_what_has_an_owner_is_not_there_for_other_keys(http: httpx2.Client, headers: Headers) -> None:
    mine, other, admin = headers["mine"], headers["other"], headers["admin"]
    made = http.post("/v1/webhooks", headers=mine, json={"url": "https://192.0.32.7/hook"})
    assert made.status_code == 201, made.text
    hook = made.json()["webhook"]["id"]
    sent = http.post(f"/v1/webhooks/{hook}/test", headers=mine).json()["id"]
    owned = [right for right in RIGHTS if right.owned]
    assert len(owned) >= 8
    for right in owned:
        target = right.target(webhook_id=hook, delivery_id=sent)
        body = {"json": {}} if right.method in ("POST", "PATCH") else {}
        assert http.request(right.method, target, headers=other, **body).status_code == 404, target
    assert http.get("/v1/webhooks", headers=other).json()["data"] == []
    for who in (admin, mine):
        for right in owned:
            if right.method != "DELETE":
                target = right.target(webhook_id=hook, delivery_id=sent)
                body = {"json": {}} if right.method in ("POST", "PATCH") else {}
                assert http.request(right.method, target, headers=who, **body).status_code in (200, 202), target
    assert http.delete(f"/v1/webhooks/{hook}", headers=mine).json()["deleted"] is True


def test_an_idempotency_key_is_its_owners_alone(http: httpx2.Client, headers: Headers) -> None:
    """Nobody is handed another's job for it, or kept from using it."""

    def submit(who: str, **changes: int) -> httpx2.Response:
        sent = {**headers[who], "Idempotency-Key": "nightly"}
        return http.post("/v1/jobs", headers=sent, json={**BODY, **changes})

    first, other, changed = submit("mine"), submit("other"), submit("admin", seed=1)
    assert [each.status_code for each in (first, other, changed)] == [202] * 3
    assert len({each.json()["id"] for each in (first, other, changed)}) == 3
    assert submit("mine").json()["id"] == first.json()["id"]
    assert submit("mine", seed=1).status_code == 422
    again = [
        http.post(f"/v1/jobs/{first.json()['id']}/rerun", headers={**headers[who], "Idempotency-Key": "again"})
        for who in ("mine", "other", "mine")
    ]
    assert again[0].json()["id"] == again[2].json()["id"] != again[1].json()["id"]
