"""`kernelwright webhooks`: made, listed, tested against a real receiver, switched, removed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from ipaddress import ip_network

import pytest
from sqlalchemy.orm import Session, sessionmaker

from api.app import create_app
from cli.client import Client
from db.settings import Settings
from tests.integration.api.server import serving
from tests.integration.cli.commands.conftest import Kernelwright
from tests.support.receiver import Receiver, Reply
from worker.delivering import Deliverer

HERE = (ip_network("127.0.0.0/8"),)
HOOK = "http://127.0.0.1:9999/hook"


@pytest.fixture
def url(settings: Settings, sessions: sessionmaker[Session]) -> Iterator[str]:
    """A service that may send to this machine, with what sends."""
    deliverer = Deliverer(sessions, HERE, poll_s=0.05)
    deliverer.start()
    with serving(create_app(settings.model_copy(update={"webhook_allow": HERE}), ring=lambda _bells: None)) as url:
        yield url
    deliverer.stop()


def test_one_is_made_tested_and_told_again(kernelwright: Kernelwright) -> None:
    with Receiver(Reply(500, body=b"not yet"), Reply(204)) as receiver:
        added = kernelwright("webhooks", "add", receiver.url)
        secret = added.stdout.strip()
        assert added.returncode == 0 and secret.startswith("whsec_") and "shown once" in added.stderr, added.stderr
        webhook = added.stderr.split(":")[0]
        refused = kernelwright("webhooks", "test", webhook)
        assert refused.returncode == 3 and "answered 500" in refused.stdout and "tried again" in refused.stderr
        tested = kernelwright("webhooks", "test", webhook, "--json")
        delivery = json.loads(tested.stdout)
        assert (tested.returncode, delivery["state"], delivery["status"]) == (0, "succeeded", 204)
        assert receiver.got[1].verified(secret)["type"] == "webhook.test"
        assert kernelwright("webhooks", "retry", webhook, delivery["id"]).returncode == 0
        until = time.monotonic() + 15
        while [got.headers["webhook-id"] for got in receiver.got].count(delivery["id"]) < 2:
            assert time.monotonic() < until
            time.sleep(0.02)
    listed = kernelwright("webhooks", "deliveries", webhook).stdout.splitlines()
    assert len(listed) == 3 and "webhook.test" in listed[1]


def test_one_is_listed_switched_and_removed(kernelwright: Kernelwright, client: Client) -> None:
    body = {"url": HOOK, "types": ["job.improved"], "labels": {"team": "a"}, "jobs": "all"}
    made = client.make_webhook(body)
    webhook, secret = made["webhook"]["id"], made["secret"]
    heads, line = kernelwright("webhooks", "list").stdout.splitlines()
    row = dict(zip(heads.split("\t"), line.split("\t"), strict=True))
    assert (row["webhook"], row["types"], row["labels"], row["jobs"]) == (webhook, "job.improved", "team=a", "all")
    shown = kernelwright("webhooks", "show", webhook).stdout
    assert f"url\t{HOOK}\n" in shown and "labels\tteam=a\n" in shown and "whsec_" not in shown
    assert kernelwright("webhooks", "rotate", webhook).stdout.strip() not in (secret, "")
    assert "disabled (owner)" in kernelwright("webhooks", "disable", webhook).stderr
    off = kernelwright("webhooks", "test", webhook)
    assert off.returncode == 2 and "PATCH" in off.stderr
    assert json.loads(kernelwright("webhooks", "enable", webhook, "--json").stdout)["enabled"] is True
    assert kernelwright("webhooks", "remove", webhook).returncode == 0
    assert client.webhooks()["data"] == []


def test_what_is_refused_is_one_sentence(kernelwright: Kernelwright) -> None:
    refused = kernelwright("webhooks", "add", "https://10.0.0.1/hook")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "#/url" in refused.stderr and "KERNELWRIGHT_WEBHOOK_ALLOW" in refused.stderr
    assert kernelwright("webhooks", "--help").returncode == 0
