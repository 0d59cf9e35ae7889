"""Tests of `db.settings`."""

from __future__ import annotations

from pathlib import Path

import pytest

from db.settings import (
    MissingDatabaseUrl,
    MissingRedisUrl,
    Settings,
    broker_url,
    get_settings,
    redis_client_url,
    sqlalchemy_url,
)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "REDIS_URL", "HOME", "LEASE_S", "LOG_LEVEL"):
        monkeypatch.delenv(f"KERNELWRIGHT_{name}", raising=False)


@pytest.mark.parametrize(
    ("given", "celery", "client"),
    [
        ("redis://host:6379/1", "redis://host:6379/1", "redis://host:6379/1"),
        ("rediss://:pw@host/0", "rediss://:pw@host/0", "rediss://:pw@host/0"),
        ("unix:///run/v.sock", "redis+socket:///run/v.sock", "unix:///run/v.sock"),
        ("unix:///run/v.sock?db=2", "redis+socket:///run/v.sock?virtual_host=2", "unix:///run/v.sock?db=2"),
        ("redis+socket:///v.sock?virtual_host=2", "redis+socket:///v.sock?virtual_host=2", "unix:///v.sock?db=2"),
        ("unix://:pw@/run/v.sock", "redis+socket://:pw@/run/v.sock", "unix://:pw@/run/v.sock"),
    ],
)
def test_either_spelling_of_a_redis_url_gives_both(given: str, celery: str, client: str) -> None:
    assert (broker_url(given), redis_client_url(given)) == (celery, client)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_the_driver_is_psycopg(scheme: str) -> None:
    assert sqlalchemy_url(f"{scheme}://u@/db?host=/run") == "postgresql+psycopg://u@/db?host=/run"


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWRIGHT_DATABASE_URL", "postgresql://u:secret@h/db")
    monkeypatch.setenv("KERNELWRIGHT_REDIS_URL", "unix:///v.sock")
    monkeypatch.setenv("KERNELWRIGHT_HOME", "~/kw")
    monkeypatch.setenv("KERNELWRIGHT_LEASE_S", "3")
    settings = Settings()
    assert settings.sqlalchemy_url == "postgresql+psycopg://u:secret@h/db"
    assert (settings.broker_url, settings.redis_client_url) == ("redis+socket:///v.sock", "unix:///v.sock")
    assert settings.home_path == Path.home() / "kw"
    assert settings.lease_s == 3


def test_a_password_does_not_show() -> None:
    assert "secret" not in repr(Settings(database_url="postgresql://u:secret@h/db"))


def test_what_is_missing_is_named() -> None:
    settings = Settings()
    with pytest.raises(MissingDatabaseUrl, match="KERNELWRIGHT_DATABASE_URL"):
        _ = settings.sqlalchemy_url
    with pytest.raises(MissingRedisUrl, match="KERNELWRIGHT_REDIS_URL"):
        _ = settings.broker_url
    with pytest.raises(MissingRedisUrl, match="KERNELWRIGHT_REDIS_URL"):
        _ = settings.redis_client_url


def test_settings_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    get_settings.cache_clear()
    first = get_settings()
    monkeypatch.setenv("KERNELWRIGHT_LOG_LEVEL", "DEBUG")
    assert get_settings() is first
    get_settings.cache_clear()
    assert get_settings().log_level == "DEBUG"
    get_settings.cache_clear()
