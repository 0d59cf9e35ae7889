"""Webhooks over HTTP, on a server that asks everybody for a key: whose they are, what they show, where they may go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from ipaddress import ip_network
from typing import Any

import httpx2
import pytest
import structlog
from pydantic import SecretStr
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session, sessionmaker

from api.app import create_app
from cli.embedded.postgres import EmbeddedPostgres
from cli.embedded.valkey import EmbeddedValkey
from db import keys, webhooks
from db.settings import Settings
from db.vocabulary import Scope, StopReason
from tests.integration.api.conftest import BODY, DATABASE, Bells
from tests.integration.api.history import History
from tests.integration.api.server import serving
from tests.support.receiver import Receiver, Reply
from worker.delivering import Deliverer

As = Callable[[str], httpx2.Client]
PROBLEM = "urn:kernelwright:error:"
HERE = (ip_network("127.0.0.0/8"),)
HOOK = "http://127.0.0.1:9999/hook"
SCOPES = {
    "mine": [Scope.SUBMIT, Scope.READ],
    "others": [Scope.SUBMIT, Scope.READ],
    "submit": [Scope.SUBMIT],
    "read": [Scope.READ],
    "admin": [Scope.ADMIN],
}


@pytest.fixture(scope="module")
def closed_url(
    api_database: Engine, postgres: EmbeddedPostgres, valkey: EmbeddedValkey, api_bells: Bells
) -> Iterator[str]:
    settings = Settings(
        auth="required",
        database_url=SecretStr(postgres.url_for(DATABASE)),
        redis_url=SecretStr(valkey.url),
        webhook_allow=HERE,
    )
    with serving(create_app(settings, ring=api_bells)) as url:
        yield url


@pytest.fixture
def by(closed_url: str, sessions: sessionmaker[Session]) -> Iterator[As]:
    """A client with the key of this name."""
    with sessions.begin() as session:
        tokens = {name: keys.create_key(session, name, {}, scopes=scopes) for name, scopes in SCOPES.items()}
    made: list[httpx2.Client] = []

    def client(who: str) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {tokens[who]}"}
        made.append(httpx2.Client(base_url=closed_url, headers=headers, timeout=30))
        return made[-1]

    yield client
    for each in made:
        each.close()


def kind(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].removeprefix(PROBLEM)


def make(client: httpx2.Client, url: str = HOOK, **fields: Any) -> tuple[dict[str, Any], str]:
    answer = client.post("/v1/webhooks", json={"url": url, **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()["webhook"], answer.json()["secret"]


def until(client: httpx2.Client, path: str, state: str) -> dict[str, Any]:
    end = time.monotonic() + 15
    while (found := client.get(path).json())["state"] != state:
        assert time.monotonic() < end, found
        time.sleep(0.02)
    return dict(found)


def test_a_webhook_is_made_shown_changed_and_removed(by: As) -> None:
    mine = by("mine")
    answer = mine.post("/v1/webhooks", json={"url": HOOK})
    made, secret = answer.json()["webhook"], answer.json()["secret"]
    assert answer.headers["location"] == made["links"]["self"] == f"/v1/webhooks/{made['id']}"
    assert secret.startswith("whsec_") and len(secret) == 50
    assert (made["types"], made["jobs"], made["labels"]) == (["job.finished"], "own", {})
    assert (made["enabled"], made["disabled_why"], made["failures"]) == (True, None, 0)
    assert mine.get(made["links"]["self"]).json() == made
    assert mine.get("/v1/webhooks").json() == {"data": [made], "next_cursor": None, "has_more": False}
    changes = {"types": ["job.improved", "job.improved"], "labels": {"team": "a"}, "description": "d", "jobs": "all"}
    changed = mine.patch(made["links"]["self"], json=changes).json()
    assert changed == made | changes | {"types": ["job.improved"]}
    assert mine.patch(made["links"]["self"], json={"description": ""}).json() == changed | {"description": None}
    disabled = mine.patch(made["links"]["self"], json={"enabled": False}).json()
    assert (disabled["enabled"], disabled["disabled_why"]) == (False, "owner")
    assert kind(mine.post(made["links"]["test"])) == (409, "webhook-off")
    assert mine.patch(made["links"]["self"], json={"enabled": True}).json()["disabled_why"] is None
    deleted = mine.delete(made["links"]["self"])
    assert (deleted.status_code, deleted.json()["deleted"], deleted.json()["webhook"]["id"]) == (200, True, made["id"])
    assert kind(mine.delete(made["links"]["self"])) == kind(mine.get(made["links"]["self"])) == (404, "unknown-webhook")
    assert make(mine, enabled=False)[0]["disabled_why"] == "owner"


def test_others_webhooks_are_not_there_and_admins_see_all(by: As) -> None:
    mine, others, admin = by("mine"), by("others"), by("admin")
    made, _ = make(mine)
    own = made["links"]["self"]
    delivery = mine.post(f"{own}/test").json()
    tried = [
        others.get(own),
        others.patch(own, json={"enabled": False}),
        others.delete(own),
        others.post(f"{own}/test"),
        others.post(f"{own}/rotate"),
        others.get(f"{own}/deliveries"),
        others.get(f"{own}/deliveries/{delivery['id']}"),
        others.post(f"{own}/deliveries/{delivery['id']}/retry"),
    ]
    assert {kind(answer) for answer in tried} == {(404, "unknown-webhook")}
    theirs, _ = make(others)
    crossed = mine.get(f"{own}/deliveries/{others.post(theirs['links']['test']).json()['id']}")
    assert kind(crossed) == (404, "unknown-delivery")
    assert others.get("/v1/webhooks").json()["data"] == [theirs]
    assert [each["id"] for each in admin.get("/v1/webhooks").json()["data"]] == [theirs["id"], made["id"]]
    assert admin.patch(own, json={"enabled": False}).json()["disabled_why"] == "owner"


def test_what_each_scope_may_do(by: As) -> None:
    reader, submitter = by("read"), by("submit")
    assert reader.get("/v1/webhooks").status_code == 200
    assert kind(reader.post("/v1/webhooks", json={"url": HOOK})) == (403, "missing-scope")
    assert kind(submitter.get("/v1/webhooks")) == (403, "missing-scope")
    made, _ = make(submitter)
    assert kind(submitter.post("/v1/webhooks", json={"url": HOOK, "jobs": "all"})) == (403, "missing-scope")
    assert kind(submitter.patch(made["links"]["self"], json={"jobs": "all"})) == (403, "missing-scope")
    assert submitter.delete(made["links"]["self"]).status_code == 200


def test_the_secret_is_in_no_answer_but_the_first_and_in_no_log(by: As, sessions: sessionmaker[Session]) -> None:
    mine = by("mine")
    with structlog.testing.capture_logs() as lines:
        made, secret = make(mine)
        own = made["links"]["self"]
        rotated = mine.post(f"{own}/rotate").json()
        assert rotated["secret"] not in (secret, "")
        delivery = mine.post(f"{own}/test").json()
        answers = [
            mine.get("/v1/webhooks"),
            mine.get(own),
            mine.patch(own, json={"description": "again"}),
            mine.get(f"{own}/deliveries"),
            mine.get(f"{own}/deliveries/{delivery['id']}"),
            mine.post(f"{own}/deliveries/{delivery['id']}/retry"),
            mine.patch(own, json={"url": "http://127.0.0.1:9999/token-of-the-owner"}),
            by("admin").get("/v1/audit?subject=" + made["id"]),
            mine.delete(own),
        ]
    assert {answer.status_code for answer in answers} == {200, 202}
    said = "".join(answer.text for answer in answers) + repr(lines)
    for each in (secret, rotated["secret"], "whsec_"):
        assert each not in said
    entries = answers[-2].json()["data"]
    assert [each["action"] for each in entries] == ["webhook.change"] * 2 + ["webhook.rotate", "webhook.create"]
    assert {each["key"] for each in entries} == {"mine"}
    assert "token-of-the-owner" not in answers[-2].text


_FAULTS: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({}, "#/url", "missing"),
    ({"url": "ftp://example.com/"}, "#/url", "pattern"),
    ({"url": "https://user:word@example.com/"}, "#/url", "user or a password"),
    ({"url": "https://example.com:25/"}, "#/url", "port 25"),
    ({"url": "https://10.0.0.1/"}, "#/url", "private network: an operator can open that network with KERNELWRIGHT"),
    ({"url": "https://169.254.169.254/latest/meta-data"}, "#/url", "where clouds have their metadata"),
    ({"url": "https://[::1]/"}, "#/url", "the server's own machine"),
    ({"url": "https://[::ffff:10.0.0.1]/"}, "#/url", "IPv6 clothes"),
    ({"url": "https://0x0a000001/"}, "#/url", "a private network"),
    ({"url": "http://1.1.1.1/"}, "#/url", "use https"),
    ({"url": HOOK, "types": []}, "#/types", "at least 1"),
    ({"url": HOOK, "types": ["job.exploded"]}, "#/types/0", "job.finished"),
    ({"url": HOOK, "labels": {"a:b": "c"}}, "#/labels", "pattern"),
    ({"url": HOOK, "jobs": "some"}, "#/jobs", "own"),
    ({"url": HOOK, "secret": "whsec_mine"}, "#/secret", ""),
)


def test_what_cannot_be_is_said_by_its_field(by: As) -> None:
    mine = by("mine")
    for body, pointer, why in _FAULTS:
        answer = mine.post("/v1/webhooks", json=body)
        assert kind(answer) == (422, "invalid"), answer.text
        (error,) = answer.json()["errors"]
        assert error["pointer"].startswith(pointer) and why in error["detail"], error
    assert mine.get("/v1/webhooks").json()["data"] == []


def test_a_name_that_cannot_be_resolved_just_now_is_looked_at_later(by: As) -> None:
    """On a machine without a name server every name is such a one; with one, `.invalid` is known to be none."""
    answer = by("mine").post("/v1/webhooks", json={"url": "https://no-such-host.invalid/"})
    assert answer.status_code == 201 or "no name server knows" in answer.json()["detail"]


def test_a_change_of_the_url_is_looked_at_too(by: As) -> None:
    mine = by("mine")
    made, _ = make(mine)
    answer = mine.patch(made["links"]["self"], json={"url": "https://192.168.0.1/"})
    assert kind(answer) == (422, "invalid") and answer.json()["errors"][0]["pointer"] == "#/url"
    assert mine.get(made["links"]["self"]).json()["url"] == HOOK


def test_a_key_has_so_many_and_no_more(by: As, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "MOST_PER_KEY", 5)
    mine = by("mine")
    for _ in range(5):
        make(mine)
    assert kind(mine.post("/v1/webhooks", json={"url": HOOK})) == (409, "too-many-webhooks")
    make(by("others"))
    page = mine.get("/v1/webhooks?limit=3")
    rest = mine.get("/v1/webhooks", params={"limit": 3, "cursor": page.json()["next_cursor"]}).json()
    assert 'rel="next"' in page.headers["link"]
    assert len({each["id"] for each in page.json()["data"] + rest["data"]}) == 5 and not rest["has_more"]
    assert kind(mine.get("/v1/webhooks?cursor=WzFd")) == (422, "invalid")


def test_a_job_is_told_of_tested_and_told_again(by: As, sessions: sessionmaker[Session]) -> None:
    mine, history = by("mine"), History(sessions)
    with Receiver(Reply(200, body=b"seen")) as receiver:
        made, secret = make(mine, receiver.url, types=["job.created", "job.finished"])
        own = made["links"]["self"]
        deliverer = Deliverer(sessions, HERE, poll_s=0.05)
        deliverer.start()
        try:
            job = mine.post("/v1/jobs", json=BODY | {"labels": {"team": "a"}}).json()
            by("others").post("/v1/jobs", json=BODY)
            history.finish(job["id"], StopReason.CANCELLED)
            told = {each.verified(secret)["type"]: each.verified(secret) for each in receiver.wait(2)}
            assert told["job.created"]["data"]["job"]["id"] == job["id"]
            last = told["job.finished"]["data"]["job"]
            assert (last["state"], last["stop_reason"], last["labels"]) == ("cancelled", "cancelled", {"team": "a"})
            assert mine.get(last["links"]["self"]).json()["version"] == last["version"]
            tested = mine.post(f"{own}/test")
            assert tested.status_code == 202
            delivery = until(mine, tested.headers["location"], "succeeded")
            assert (delivery["type"], delivery["status"], delivery["answer"]) == ("webhook.test", 200, "seen")
            assert (delivery["attempts"], delivery["next_attempt_at"]) == (1, None)
            assert receiver.wait(3)[2].verified(secret)["data"]["webhook"]["id"] == made["id"]
            again = mine.post(f"{tested.headers['location']}/retry")
            assert (again.status_code, again.json()["state"]) == (202, "waiting")
            assert receiver.wait(4)[3].headers["webhook-id"] == delivery["id"]
            until(mine, tested.headers["location"], "succeeded")
            listed = mine.get(f"{own}/deliveries?limit=2&state=succeeded").json()
            assert [each["type"] for each in listed["data"]] == ["webhook.test", "job.finished"] and listed["has_more"]
            assert "data" not in listed["data"][0]
        finally:
            deliverer.stop()


def test_after_a_rotation_both_secrets_verify_until_the_old_one_ends(by: As, sessions: sessionmaker[Session]) -> None:
    mine = by("mine")
    with Receiver() as receiver:
        made, old = make(mine, receiver.url)
        own = made["links"]["self"]
        deliverer = Deliverer(sessions, HERE, poll_s=0.05)
        deliverer.start()
        try:
            rotated = mine.post(f"{own}/rotate", json={"grace_s": 3600}).json()
            new = rotated["secret"]
            assert rotated["webhook"]["previous_until"]
            mine.post(f"{own}/test")
            (got,) = receiver.wait(1)
            assert got.verified(old) == got.verified(new)
            assert len(got.headers["webhook-signature"].split(" ")) == 2
            with sessions.begin() as session:
                session.execute(text("UPDATE webhooks SET previous_until = now()"))
            mine.post(f"{own}/test")
            got = receiver.wait(2)[1]
            assert got.verified(new) and len(got.headers["webhook-signature"].split(" ")) == 1
            newest = mine.post(f"{own}/rotate", json={"grace_s": 0}).json()
            assert newest["webhook"]["previous_until"] is None
            mine.post(f"{own}/test")
            got = receiver.wait(3)[2]
            assert got.verified(newest["secret"]) and len(got.headers["webhook-signature"].split(" ")) == 1
        finally:
            deliverer.stop()
