"""`kernelwright webhooks`: made, listed, tested against a real receiver, switched, removed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from ipaddress import ip_network

import pytest
from sqlalchemy.orm import Session, sessionmaker

from api.app import create_app
from db.settings import Settings
from tests.integration.api.server import serving
from tests.integration.cli.commands.conftest import Kernelwright
from tests.support.receiver import Receiver, Reply
from worker.delivering import Deliverer

HERE = (ip_network("127.0.0.0/8"),)


@pytest.fixture
def url(settings: Settings, sessions: sessionmaker[Session]) -> Iterator[str]:
    """A service that may send to this machine, with what sends."""
    deliverer = Deliverer(sessions, HERE, poll_s=0.05)
    deliverer.start()
    with serving(create_app(settings.model_copy(update={"webhook_allow": HERE}), ring=lambda *_: True)) as url:
        yield url
    deliverer.stop()


def test_from_the_first_to_the_last_command(kernelwright: Kernelwright) -> None:
    with Receiver(Reply(500, body=b"not yet"), Reply(204)) as receiver:
        added = kernelwright(
            "webhooks", "add", receiver.url, "--type", "job.improved", "--label", "team=a", "--all-jobs"
        )
        secret = added.stdout.strip()
        assert added.returncode == 0 and secret.startswith("whsec_"), added.stderr
        webhook = added.stderr.split(":")[0]
        assert "shown once" in added.stderr
        refused = kernelwright("webhooks", "test", webhook)
        assert refused.returncode == 3 and "answered 500" in refused.stdout and "tried again" in refused.stderr
        tested = kernelwright("webhooks", "test", webhook, "--json")
        delivery = json.loads(tested.stdout)
        assert (tested.returncode, delivery["state"], delivery["status"]) == (0, "succeeded", 204)
        assert receiver.got[1].verified(secret)["type"] == "webhook.test"
        again = kernelwright("webhooks", "retry", webhook, delivery["id"])
        assert again.returncode == 0 and receiver.wait(3)
    heads, line = kernelwright("webhooks", "list").stdout.splitlines()
    row = dict(zip(heads.split("\t"), line.split("\t"), strict=True))
    assert (row["webhook"], row["types"], row["labels"], row["jobs"]) == (webhook, "job.improved", "team=a", "all")
    shown = kernelwright("webhooks", "show", webhook).stdout
    assert f"url\t{receiver.url}" in shown and "whsec_" not in shown
    listed = kernelwright("webhooks", "deliveries", webhook).stdout.splitlines()
    assert len(listed) == 3 and "webhook.test" in listed[1]
    assert kernelwright("webhooks", "rotate", webhook).stdout.strip() not in (secret, "")
    assert "disabled (owner)" in kernelwright("webhooks", "disable", webhook).stderr
    off = kernelwright("webhooks", "test", webhook)
    assert off.returncode == 2 and "PATCH" in off.stderr
    assert json.loads(kernelwright("webhooks", "enable", webhook, "--json").stdout)["enabled"] is True
    assert kernelwright("webhooks", "remove", webhook).returncode == 0
    assert "no webhooks" in kernelwright("webhooks", "list").stderr


def test_what_is_refused_is_one_sentence(kernelwright: Kernelwright) -> None:
    refused = kernelwright("webhooks", "add", "https://10.0.0.1/hook")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "#/url" in refused.stderr and "KERNELWRIGHT_WEBHOOK_ALLOW" in refused.stderr
    assert kernelwright("webhooks", "--help").returncode == 0
