"""Secrets stay where they belong: one of each kind is planted, everything that can go wrong around it does, and then
it is searched for wherever something was written, answered, sent or handed on."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
from sqlalchemy.orm import Session

from cli.client import ApiError
from db import keys
from db.vocabulary import Scope
from tests.acceptance.planted import (
    DSN,
    LLM,
    LLM_VARIABLE,
    METRICS,
    METRICS_VARIABLE,
    REDIS,
    Guarded,
    Processes,
    found_in,
    found_in_files,
    found_in_tables,
    responses,
)
from tests.acceptance.rig import MODEL, body, until
from tests.support.fake_openai import Answer
from tests.support.ledger import PROBLEM
from tests.support.people import home_of
from tests.support.receiver import Receiver, Reply

OWN = {"name": "rows", "source": PROBLEM}
MISTYPED = "kw_live_planted-mistyped-4Hj2pl"
CURIOUS = """
import os
import pathlib

import torch


def told():
    yield repr(sorted(os.environ.items()))
    for pid in sorted(os.listdir("/proc")):
        if pid.isdigit():
            for name in ("environ", "cmdline"):
                try:
                    yield pathlib.Path("/proc", pid, name).read_bytes().decode(errors="replace")
                except OSError as error:
                    yield repr(error)


raise RuntimeError("what the candidate saw: " + " | ".join(told())[-6000:])


class ModelNew(torch.nn.Module):
    pass
"""

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(900)]


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with pytest.MonkeyPatch.context() as patch, home_of("self") as home:
        # As a person's shell has it, so that who passes what on is seen too.
        patch.setenv(LLM_VARIABLE, LLM)
        patch.setenv(METRICS_VARIABLE, METRICS)
        with Guarded(home) as running:
            yield running


def test_a_planted_secret_is_nowhere_but_in_its_store(guarded: Guarded) -> None:
    secrets = {"dsn": DSN, "redis": REDIS, "llm": LLM, "metrics": METRICS, "mistyped": MISTYPED}
    with Session(guarded.database) as session, session.begin():
        secrets["key"] = keys.create_key(session, "planted", {}, scopes=[Scope.ADMIN])
    echo = [
        Answer(status=401, error=f"Incorrect API key provided: {LLM}. Header was: Authorization: Bearer {LLM}"),
        Answer(status=500, error=f"upstream said: Authorization=Bearer {LLM}", headers={"Retry-After": "0"}),
        Answer(status=500, body=f"<html>Authorization: Bearer {LLM}</html>", headers={"Retry-After": "0"}),
        Answer(status=200, body=f"Bearer {LLM} is what you sent", headers={"Retry-After": "0"}),
        Answer(content=f"You sent `Bearer {LLM}`.\n\n```python\nKEY = '{LLM}'\n```\n"),
        Answer(source=CURIOUS),
        Answer(status=403, error=f"{LLM} may not do this", repeat=True),
    ]
    processes = Processes(secrets)
    with (
        Receiver(Reply(500, {"X-Echo": "planted"}, b"no")) as receiver,
        httpx2.Client(base_url=guarded.url, timeout=30) as http,
        guarded.model(*echo, api_key=None, api_key_env=LLM_VARIABLE) as provider,
        processes.watched(),
    ):
        made = http.post(
            "/v1/webhooks", json={"url": receiver.url, "types": ["job.created", "job.finished"], "jobs": "all"}
        ).json()
        secrets["webhook"] = made["secret"].removeprefix("whsec_")
        old = secrets["webhook"]
        rotated = http.post(f"/v1/webhooks/{made['webhook']['id']}/rotate").json()
        secrets |= {"webhook": rotated["secret"].removeprefix("whsec_"), "webhook before": old}
        by_key = {"Authorization": f"Bearer {secrets['key']}"}
        job = http.post("/v1/jobs", json=body(4, models=[MODEL], problem=OWN), headers=by_key).json()
        _knock(http)
        guarded.wait_for_event(job["id"], "candidate.evaluating")
        _without_servers(guarded, http, by_key)
        guarded.finished(job["id"], patience_s=600)
        until(lambda: len(receiver.got) > 0, "the webhook was tried")
        judged = [row[0] for row in guarded.rows("SELECT id FROM candidates WHERE state = 'evaluated' ORDER BY id")]
        told = [http.get(f"/v1/candidates/{candidate}/log").content for candidate in judged]
        names = {"job_id": job["id"], "candidate_id": judged[0], "webhook_id": made["webhook"]["id"], "name": "rows"}
        answers = responses(guarded, http, names)
        answers += [("a log", each) for each in told]
        answers.append(("exporter", httpx2.get(guarded.metrics_url).content))
    assert {request.authorization for request in provider.requests} == {f"Bearer {LLM}"}, "it was used"
    assert any(b"what the candidate saw" in each for each in told), told
    errors = [row[0] for row in guarded.rows("SELECT error FROM llm_calls WHERE error IS NOT NULL")]
    assert any("***" in error for error in errors), errors

    stores = {guarded.home / "postgres", guarded.home / "models.json"}
    in_files = found_in_files(secrets, guarded.home, stores)
    in_tables, looked_at = found_in_tables(secrets, guarded)
    in_answers = [f"{name} in {path}" for path, what in answers for name in found_in(secrets, what)]
    sent = [str(request.body).encode() for request in provider.requests]
    in_prompts = [name for what in sent for name in found_in(secrets, what)]
    in_traces = [name for what in guarded.collector.bodies for name in found_in(secrets, what)]
    assert looked_at > 200 and len(answers) > 40 and guarded.collector.bodies and sent
    kept = {f"{name} in webhooks.{column}" for name, column in WEBHOOKS.items()}
    assert set(in_tables) <= kept, in_tables
    assert in_files == in_answers == in_prompts == in_traces == []
    _check_processes(processes, guarded)


WEBHOOKS = {"webhook": "secret", "webhook before": "previous_secret"}


def _knock(http: httpx2.Client) -> None:
    """With what opens nothing, in each place where somebody may put it."""
    assert http.get("/v1/jobs", headers={"Authorization": f"Bearer {MISTYPED}"}).status_code == 401
    assert http.get("/v1/jobs", auth=("me", MISTYPED)).status_code == 401
    assert http.get("/", auth=("me", MISTYPED), headers={"Accept": "text/html"}).status_code == 401
    assert http.get("/v1/keys", headers={"Authorization": MISTYPED}).status_code == 401


def _without_servers(guarded: Guarded, http: httpx2.Client, by_key: dict[str, str]) -> None:
    """Both servers are killed, one after the other, and started again."""
    assert guarded.valkey.pid is not None and guarded.postgres.pid is not None
    os.kill(guarded.valkey.pid, signal.SIGKILL)
    guarded.valkey.stop()
    assert http.post("/v1/jobs", json=body(1, problem=OWN), headers=by_key).status_code == 202
    guarded.valkey.start()
    guarded.set_redis_password()
    with pytest.raises(ApiError) as away:
        os.kill(guarded.postgres.pid, signal.SIGKILL)
        guarded.postgres.stop()
        guarded.client.jobs()
    assert away.value.status == 503
    assert http.get("/v1/jobs", headers=by_key | {"X-Away": "1"}).status_code == 503
    guarded.postgres.start()
    # Who met Valkey before its password was set again has ended, as for any password that is wrong.
    for name in ("worker-control", "worker-llm", "worker-cpu"):
        with suppress(ProcessLookupError):
            guarded.kill(name)
        guarded.restart(name)


def _check_processes(processes: Processes, guarded: Guarded) -> None:
    """Only our own programs were given secrets, each those that it needs; what they start has none."""
    judged = [words for words, _, _ in processes.seen.values() if re.search(r"worker\.(judge|runner)", words)]
    assert judged, [words for words, _, _ in processes.seen.values()]
    for words, shown, held in processes.seen.values():
        assert shown == frozenset(), words
        may = {"dsn", "redis"} if re.search(r"worker\.app|cli\.serve|worker\.exporter", words) else set()
        may |= {"metrics"} if re.search(r"cli\.serve|worker\.exporter", words) else set()
        may |= {"llm"} if "--queues llm" in words else set()
        assert held <= may, (words, held)


@pytest.mark.parametrize(
    "spelled", ["{}", "Bearer {}", "redis://:{}@h", "eDpwbGFudGVkL3NlY3JldC0x", "planted%2Fsecret-1"]
)
def test_what_searches_sees_a_secret_however_it_is_spelled(tmp_path: Path, spelled: str) -> None:
    """As it is, in a URL, as the password of a login in base64."""
    secrets = {"it": "planted/secret-1", "another": "planted/secret-2"}
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.log").write_bytes(b"\xff" + spelled.format("planted/secret-1").encode() + b"\n")
    assert found_in_files(secrets, tmp_path, set()) == ["it in deep/a.log"]
    assert found_in_files(secrets, tmp_path, {tmp_path / "deep"}) == []
