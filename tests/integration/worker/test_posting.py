"""One attempt before real HTTP and HTTPS receivers on loopback: what is sent, where to, what is taken of the answer."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from standardwebhooks import WebhookVerificationError

from db.outbox import Sending
from db.webhooks import new_secret
from tests.support.receiver import Receiver, Reply, certificate_for
from worker import posting
from worker.posting import post

HERE = (ip_network("127.0.0.0/8"),)
BODY = {"type": "job.finished", "timestamp": "2026-11-22T12:00:00Z", "data": {"job": {"id": "job_1", "né": "é"}}}


def sending(url: str, *secrets: str) -> Sending:
    return Sending("delivery_1", "webhook_1", uuid4(), 1, url, secrets or (new_secret(),), BODY)


def test_the_library_verifies_what_arrives_with_either_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    new, old = new_secret(), new_secret()
    with Receiver(Reply(200, {"Content-Type": "text/plain"}, b"thanks\x00\n")) as receiver:
        attempt = post(sending(receiver.url, new, old), HERE)
        (got,) = receiver.got
    assert (attempt.ok, attempt.status, attempt.answer, attempt.error) == (True, 200, "thanks \n", None)
    assert 0 < attempt.wall_s < 5
    assert got.path == "/hook?team=a"
    assert got.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert (got.headers["content-type"], got.headers["webhook-id"]) == ("application/json", "delivery_1")
    assert got.verified(new) == got.verified(old) == BODY
    with pytest.raises(WebhookVerificationError):
        got.verified(new_secret())
    with pytest.raises(WebhookVerificationError):
        type(got)(got.path, got.headers, got.body.replace(b"job_1", b"job_2")).verified(new)
    assert "whsec_" not in repr(sending(receiver.url)) and receiver.url not in repr(sending(receiver.url))


def test_the_address_that_was_looked_at_is_the_one_connected_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name's owner answers with a good address first and with another ever after."""
    certificate = certificate_for(tmp_path, "hooks.example.com")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    asked: list[str] = []
    real = socket.getaddrinfo

    def rebinding(host: Any, port: Any, *rest: Any, **options: Any) -> Any:
        if host != "hooks.example.com":
            return real(host, port, *rest, **options)
        asked.append(host)
        return real("127.0.0.1" if len(asked) == 1 else "127.0.0.2", port, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    with Receiver(certificate=certificate) as good, Receiver(address="127.0.0.2") as bad:
        attempt = post(sending(f"https://hooks.example.com:{good.port}/hook"), (ip_network("127.0.0.1/32"),))
        assert (attempt.status, attempt.error) == (204, None)
        assert good.got[0].headers["host"] == f"hooks.example.com:{good.port}"
        assert good.names == ["hooks.example.com"], "TLS is agreed for the name, not for the address"
        assert asked == ["hooks.example.com"], "it is resolved once"
        refused = post(sending(f"https://hooks.example.com:{good.port}/hook"), (ip_network("127.0.0.1/32"),))
        assert refused.status is None and "own machine" in str(refused.error)
        assert len(good.got) == 1 and bad.got == []


def test_a_certificate_for_another_name_or_from_nobody_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = certificate_for(tmp_path, "127.0.0.1")
    with Receiver(certificate=certificate) as receiver:
        unknown = post(sending(receiver.url), HERE)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        known = post(sending(receiver.url), HERE)
    with Receiver(certificate=certificate_for(tmp_path, "other.example.com")) as receiver:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "other.example.com.pem"))
        other = post(sending(receiver.url), HERE)
    assert known.status == 204
    for attempt in (unknown, other):
        assert attempt.status is None and "certificate" in str(attempt.error).lower()


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/",
        "https://127.0.0.1:{port}/",
        "http://localhost:{port}/",
        "http://2130706433:{port}/",
        "http://0x7f000001:{port}/",
        "http://127.1:{port}/",
        "http://0177.0.0.1:{port}/",
        "http://017700000001:{port}/",
        "http://0x7f.1:{port}/",
        "http://LOCALHOST:{port}/",
        "http://[::ffff:7f00:1]:{port}/",
        "http://[0:0:0:0:0:ffff:127.0.0.1]:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/",
        "http://0.0.0.0:{port}/",
    ],
)
def test_nothing_reaches_this_machine_unless_it_is_opened(url: str) -> None:
    with Receiver() as receiver:
        attempt = post(sending(url.format(port=receiver.port)), ())
        assert receiver.got == []
    assert attempt.status is None
    assert "KERNELWRIGHT_WEBHOOK_ALLOW" in str(attempt.error)


def test_a_redirect_is_not_followed() -> None:
    with Receiver() as elsewhere, Receiver(Reply(302, {"Location": elsewhere.url})) as receiver:
        attempt = post(sending(receiver.url), HERE)
        assert elsewhere.got == []
    assert (attempt.ok, attempt.status) == (False, 302)
    assert "not followed" in str(attempt.error)


def test_only_the_beginning_of_an_answer_is_read() -> None:
    with Receiver(Reply(200, body=b"x" * 50_000_000)) as receiver:
        attempt = post(sending(receiver.url), HERE)
    assert attempt.answer == "x" * posting.READ_BYTES
    assert attempt.wall_s < posting.ANSWER_S


def test_of_an_answer_that_drips_the_status_counts_and_what_came_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(posting, "ANSWER_S", 3.0)
    with Receiver(Reply(200, body=b"x" * 100, drip_s=0.5)) as receiver:
        attempt = post(sending(receiver.url), HERE)
        assert len(receiver.got) == 1
    assert (attempt.ok, attempt.error) == (True, None)
    assert 1 <= len(str(attempt.answer)) < 20
    assert attempt.wall_s < 30, "all of it would take 50 s"


def test_who_does_not_answer_or_speaks_no_http_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posting, "ANSWER_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        attempt = post(sending(url), HERE)
        assert attempt.status is None and attempt.error and attempt.wall_s < 3
    refused = post(sending(url), HERE)
    assert refused.status is None and "refused" in str(refused.error).lower()
    unknown = post(sending("https://no-such-host.invalid/"), HERE)
    assert unknown.status is None and unknown.error


def test_all_that_is_allowed_is_tried_until_one_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with several addresses, of which the first does not listen."""
    with Receiver(address="127.0.0.3") as receiver:
        monkeypatch.setattr(posting.destinations, "resolve", lambda *_: ["10.0.0.9", "127.0.0.2", "127.0.0.3"])
        assert post(sending(f"http://hooks.example.com:{receiver.port}/"), HERE).status == 204


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (lambda _now: "120", 120.0),
        (lambda now: format_datetime(now + timedelta(seconds=90), usegmt=True), 90.0),
        (lambda _now: "soon", None),
        (lambda _now: "-5", None),
    ],
)
def test_when_to_come_back_is_read_as_seconds_or_a_date(said: Callable[[datetime], str], seconds: float | None) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    with Receiver(Reply(429, {"Retry-After": said(now)})) as receiver:
        attempt = post(sending(receiver.url), HERE, now)
    assert attempt.retry_after_s == seconds


def test_the_body_is_the_same_at_every_attempt_and_the_time_is_not() -> None:
    one = sending("")
    with Receiver() as receiver:
        to = Sending(one.id, one.webhook_id, one.token, 1, receiver.url, one.secrets, one.body)
        post(to, HERE)
        time.sleep(1.1)
        post(to, HERE)
        first, second = receiver.got
    assert first.body == second.body and json.loads(first.body)["type"] == "job.finished"
    assert first.headers["webhook-timestamp"] < second.headers["webhook-timestamp"]
