"""Keys are remembered for moments: what changes one is heard, and what ends by the clock ends by the clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import httpx2
import pytest
from sqlalchemy.orm import Session, sessionmaker

from api.identities import REMEMBERED_S, Identities
from api.store import Store
from db import keys
from db.keys import Identity, KeyRevoked
from db.vocabulary import Scope


@pytest.fixture
def token(sessions: sessionmaker[Session]) -> str:
    with sessions.begin() as session:
        return keys.create_key(session, "team", {}, scopes=(Scope.READ,))


def status(http: httpx2.Client, token: str) -> int:
    return http.get("/v1/jobs", headers={"Authorization": f"Bearer {token}"}).status_code


def test_a_key_that_is_revoked_elsewhere_ends_before_it_is_forgotten(
    http: httpx2.Client, token: str, sessions: sessionmaker[Session]
) -> None:
    assert [status(http, token) for _ in range(3)] == [200, 200, 200]
    with sessions.begin() as session:
        key = keys.get_key(session, "team", lock=True)
        assert key is not None and keys.revoke_key(session, key)
    until = time.monotonic() + REMEMBERED_S - 1
    while status(http, token) == 200:
        assert time.monotonic() < until
        time.sleep(0.005)
    assert status(http, token) == 401


def test_a_key_is_not_remembered_beyond_its_end(http: httpx2.Client, sessions: sessionmaker[Session]) -> None:
    end = datetime.now(UTC) + timedelta(seconds=4)
    with sessions.begin() as session:
        token = keys.create_key(session, "guest", {}, scopes=(Scope.READ,), expires_at=end)
    assert status(http, token) == 200
    time.sleep(4.1)
    assert status(http, token) == 401


class Asked:
    """Stands where the database stands, and counts how often it is asked; `change` may happen while it is."""

    def __init__(self) -> None:
        self.times = 0
        self.revoked = False
        self.change: Callable[[], None] = lambda: None

    def read(self, _query: object, _token: str) -> Awaitable[Identity]:
        return self._answer()

    async def _answer(self) -> Identity:
        self.times += 1
        if self.revoked:
            raise KeyRevoked
        self.change()
        return Identity("key_1", "team", frozenset({Scope.READ}))


@pytest.mark.parametrize(("listening", "asked"), [(True, 1), (False, 3)])
def test_it_is_remembered_only_while_changes_are_heard(listening: bool, asked: int) -> None:
    store = Asked()
    identities = Identities(cast(Store, store), lambda: listening)

    async def ask() -> None:
        for _ in range(3):
            await identities.of("kw_live_x")

    asyncio.run(ask())
    assert store.times == asked


def test_what_was_read_before_a_change_is_not_remembered_after_it() -> None:
    store = Asked()
    identities = Identities(cast(Store, store), lambda: True)
    store.change = identities.forget

    async def ask() -> Any:
        await identities.of("kw_live_x")
        store.revoked = True
        with pytest.raises(KeyRevoked):
            await identities.of("kw_live_x")

    asyncio.run(ask())
