"""The doorbell: one id in a message, never an error, and no more rings than there are rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from redis import Redis

from db.settings import Settings
from tests.integration.worker.conftest import forget_settings
from worker import client


def messages(broker: Redis, queue: str) -> list[str]:
    """The bodies that wait on a queue."""
    raw = broker.lrange(f"{client.KEY_PREFIX}{queue}", 0, -1)
    assert isinstance(raw, list)
    return [json.loads(message)["headers"]["argsrepr"] for message in raw]


def calls(broker: Redis) -> int:
    """Messages pushed since the server started."""
    found = broker.info("commandstats")
    assert isinstance(found, dict)
    return int(found["cmdstat_lpush"]["calls"]) if "cmdstat_lpush" in found else 0


def test_a_ring_is_a_message_with_one_work_id_on_the_works_queue(configured: Settings, broker: Redis) -> None:
    assert client.ring("work_1", "gpu.nvidia-h100", "evaluate")
    assert messages(broker, "gpu.nvidia-h100") == ["['work_1']"]
    (raw,) = broker.lrange(f"{client.KEY_PREFIX}gpu.nvidia-h100", 0, -1)
    assert json.loads(raw)["headers"]["task"] == "kernelwright.evaluate"


def test_all_keys_have_our_prefix(configured: Settings, broker: Redis) -> None:
    client.ring("work_1", "cpu", "evaluate")
    assert {str(key).split(":")[0] for key in broker.scan_iter()} == {"kernelwright"}


def test_several_are_rung_for_in_one_trip(configured: Settings, broker: Redis) -> None:
    before = calls(broker)
    assert (
        client.ring_all([("work_1", "cpu", "evaluate"), ("work_2", "control", "advance"), ("work_3", "cpu", "admit")])
        == 3
    )
    assert messages(broker, "cpu") == ["['work_3']", "['work_1']"]
    assert messages(broker, "control") == ["['work_2']"]
    assert calls(broker) == before + 3
    assert client.ring_all([]) == 0


def test_a_connection_that_was_closed_meanwhile_loses_no_ring(configured: Settings, broker: Redis) -> None:
    assert client.ring("work_1", "cpu", "evaluate")
    broker.client_kill_filter(_type="normal", skipme=True)
    assert client.ring("work_2", "cpu", "evaluate")
    assert messages(broker, "cpu") == ["['work_2']", "['work_1']"]


def test_ringing_without_redis_is_no_error(
    configured: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KERNELWRIGHT_REDIS_URL", f"unix://{tmp_path}/nobody.sock")
    forget_settings()
    assert not client.ring("work_1", "cpu", "evaluate")
    assert client.ring_all([("work_1", "cpu", "evaluate"), ("work_2", "cpu", "evaluate")]) == 0
    assert client.ring_missing([("work_1", "cpu", "evaluate")]) == 0
    assert not client.ring_once(("a", "llm", "embed"), 60)
    client.heard("embed")


def test_only_what_is_not_waiting_is_rung(configured: Settings, broker: Redis) -> None:
    bells = [(f"work_{number}", "cpu", "evaluate") for number in range(4)]
    assert client.ring_missing(bells[:2]) == 2
    assert client.ring_missing([*bells, ("work_9", "llm", "propose")]) == 3
    assert len(messages(broker, "cpu")) == 4
    assert client.ring_missing(bells) == 0
    broker.flushall()
    assert client.ring_missing(bells) == 4


def test_what_is_no_row_is_rung_for_once_until_it_was_heard(configured: Settings, broker: Redis) -> None:
    bell = ("a model", "llm", "embed")
    assert [client.ring_once(bell, 60) for _ in range(2)] == [True, False]
    client.heard("another")
    assert not client.ring_once(bell, 60)
    client.heard("embed")
    assert client.ring_once(bell, 60)
    assert messages(broker, "llm") == ["['a model']"] * 2
    (mark,) = [key for key in broker.scan_iter() if "rung" in str(key)]
    left_s = broker.ttl(mark)
    assert isinstance(left_s, int), "redis types it as an int or something to await"
    assert str(mark).startswith(client.KEY_PREFIX) and 0 < left_s <= 60
