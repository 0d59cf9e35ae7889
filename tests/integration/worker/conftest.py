"""A worker's runtime in this process: the real database and the real Valkey, without Celery around it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from cli.embedded.valkey import EmbeddedValkey
from db.settings import Settings, get_settings
from worker import client
from worker.runtime import Runtime

OWNER = "worker_1"


@pytest.fixture
def broker(valkey: EmbeddedValkey) -> Iterator[Redis]:
    """The Valkey server, empty."""
    redis = Redis(unix_socket_path=str(valkey.socket), decode_responses=True)
    redis.flushall()
    yield redis
    redis.close()


@pytest.fixture
def configured(settings: Settings, broker: Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """The settings as this process would read them from its environment."""
    monkeypatch.setenv("KERNELWRIGHT_REDIS_URL", settings.redis_client_url)
    monkeypatch.setenv("KERNELWRIGHT_DATABASE_URL", settings.sqlalchemy_url)
    monkeypatch.setenv("KERNELWRIGHT_HOME", str(settings.home))
    forget_settings()
    yield settings
    client.producer().close()
    forget_settings()


def forget_settings() -> None:
    get_settings.cache_clear()
    client.producer.cache_clear()


@pytest.fixture
def here(configured: Settings) -> Iterator[Runtime]:
    """A worker that serves every queue of the cpu, with short leases."""
    settings = configured.model_copy(update={"lease_s": 2.0, "renew_s": 0.1})
    runtime = Runtime(settings, OWNER, ("control", "llm", "cpu"))
    yield runtime
    runtime.close()
