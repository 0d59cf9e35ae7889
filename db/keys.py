"""API keys: who they are (by the hash of a token), what they may do, and what their jobs may use together.

UnusableKey
├── NoSuchToken     nobody was given this token
├── KeyExpired      its time is over
├── TokenRotated    another token took its place, and the time to change over is over too
└── KeyRevoked      it was ended
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session

from db.account_models import ApiKey
from db.budgets import CAPS, QUOTAS
from db.ids import new_id
from db.vocabulary import Scope

PREFIX: Final = "kw_live_"
"""Begins every token, so that scanners for leaked secrets can know one."""
SHOWN: Final = len(PREFIX) + 4
"""So much of a token is kept to be shown; 39 random characters stay secret."""
DEFAULT_SCOPES: Final = (Scope.SUBMIT, Scope.READ)
USED_WITHIN_S: Final = 60.0
"""`last_used_at` is written at most so often: a poll a second must not be a write a second."""

CHANNEL: Final = "kernelwright_keys"
"""LISTEN on this channel to hear that some key was rotated, revoked or may do other things."""

Cap = Decimal | float | int | None


class UnusableKey(Exception):
    """This token opens nothing; each kind's docstring says why and what to do."""

    def __str__(self) -> str:
        return str(self.__doc__)


class NoSuchToken(UnusableKey):
    """Nobody was given this token: check that it is whole."""


class KeyExpired(UnusableKey):
    """This key has expired: have an admin rotate it with a later end."""


class TokenRotated(UnusableKey):
    """This key was rotated and this is its old token: send the new one."""


class KeyRevoked(UnusableKey):
    """This key was revoked: ask an admin for another."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose token it is and what it may do."""

    id: str
    name: str
    scopes: frozenset[Scope]
    stale: bool = False
    """Whether `last_used_at` is to be written again."""
    good_for_s: float = math.inf
    """Until the key, or this token of it, ends by the clock."""

    def may(self, scope: Scope) -> bool:
        """Whether the key has this scope; `admin` has all."""
        return scope in self.scopes or Scope.ADMIN in self.scopes


_IDENTIFY: Final = text(
    f"""
    SELECT id, name, scopes, revoked_at IS NOT NULL AS revoked,
           token_hash = :sought OR coalesce(previous_until > now(), false) AS current,
           coalesce(last_used_at < now() - make_interval(secs => {USED_WITHIN_S}), true) AS late,
           coalesce(extract(epoch FROM least(
               expires_at, CASE WHEN token_hash <> :sought THEN previous_until END) - now()), 'infinity') AS good_for_s
    FROM api_keys WHERE token_hash = :sought OR previous_hash = :sought
    """
)
_CHANGED: Final = text("SELECT pg_notify(:channel, '')").bindparams(channel=CHANNEL)


def token_hash(token: str) -> str:
    """SHA-256 in hex. No salt: a token has 256 random bits, which no table of hashes covers."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def identify(session: Session, token: str) -> Identity:
    """Whose token this is, by the clock of Postgres. Raises UnusableKey."""
    sought = token_hash(token)
    found = session.execute(_IDENTIFY, {"sought": sought}).one_or_none()
    if found is None:
        raise NoSuchToken
    if found.revoked:
        raise KeyRevoked
    if not found.current:
        raise TokenRotated
    if found.good_for_s <= 0:
        raise KeyExpired
    scopes = frozenset(Scope(scope) for scope in found.scopes)
    return Identity(found.id, found.name, scopes, stale=found.late, good_for_s=float(found.good_for_s))


def find_key(session: Session, token: str) -> str | None:
    """The id of the key with this token; None when it opens nothing."""
    try:
        return identify(session, token).id
    except UnusableKey:
        return None


def touch(session: Session, key_id: str) -> None:
    """Write down that the key is used now."""
    late = func.coalesce(ApiKey.last_used_at < func.now() - timedelta(seconds=USED_WITHIN_S), True)
    session.execute(update(ApiKey).where(ApiKey.id == key_id, late).values(last_used_at=func.now()))


def get_key(session: Session, name: str, *, lock: bool = False) -> ApiKey | None:
    """The key of this name."""
    query = select(ApiKey).where(ApiKey.name == name).execution_options(populate_existing=True)
    return session.scalar(query.with_for_update(key_share=True) if lock else query)


def create_key(
    session: Session,
    name: str,
    caps: Mapping[str, Cap],
    *,
    scopes: Collection[Scope] = DEFAULT_SCOPES,
    expires_at: datetime | None = None,
) -> str:
    """Make a key; returns its token, which nobody can read again. Raises IntegrityError when the name is taken."""
    token = _new_token()
    session.add(
        ApiKey(
            id=new_id("key"),
            name=name,
            token_hash=token_hash(token),
            prefix=token[:SHOWN],
            scopes=_words(scopes),
            expires_at=expires_at,
            **_columns(caps),
        )
    )
    session.flush()
    return token


def rotate_key(session: Session, key: ApiKey, grace_s: float, *, expires_at: datetime | None = None) -> str:
    """Give the key another token, and `expires_at` when one is named; the old token is good for `grace_s` more.

    Of two rotations within the grace only the last two tokens are good. Returns the token.
    """
    token = _new_token()
    key.previous_hash = key.token_hash if grace_s > 0 else None
    key.token_hash, key.prefix = token_hash(token), token[:SHOWN]
    session.flush()
    until = func.now() + timedelta(seconds=grace_s) if grace_s > 0 else None
    session.execute(update(ApiKey).where(ApiKey.id == key.id).values(previous_until=until))
    if expires_at is not None:
        key.expires_at = expires_at
    session.flush()
    session.execute(_CHANGED)
    session.refresh(key)
    return token


def revoke_key(session: Session, key: ApiKey) -> bool:
    """End the key at once and for good; its name stays taken, for the record. False when it was ended before."""
    ended = update(ApiKey).where(ApiKey.id == key.id, ApiKey.revoked_at.is_(None)).values(revoked_at=func.now())
    changed = session.execute(ended.returning(ApiKey.id)).one_or_none() is not None
    session.execute(_CHANGED)
    session.refresh(key)
    return changed


def set_caps(session: Session, name: str, caps: Mapping[str, Cap]) -> bool:
    """Change the caps that are named; those that are not stay. False when there is no key of this name."""
    key = get_key(session, name)
    if key is None:
        return False
    for column, cap in _columns(caps).items():
        setattr(key, column, cap)
    return True


def set_access(session: Session, name: str, scopes: Collection[Scope], expires_at: datetime | None) -> bool:
    """Change scopes and end, where they are given. False when there is no key of this name."""
    key = get_key(session, name)
    if key is None:
        return False
    if scopes:
        key.scopes = _words(scopes)
    if expires_at is not None:
        key.expires_at = expires_at
    session.execute(_CHANGED)
    return True


def list_keys(session: Session) -> Sequence[ApiKey]:
    """The keys, oldest first."""
    return session.scalars(select(ApiKey).order_by(ApiKey.id)).all()


def _new_token() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def _words(scopes: Collection[Scope]) -> list[str]:
    return [scope.value for scope in Scope if scope in scopes]


def _columns(caps: Mapping[str, Cap]) -> dict[str, Cap]:
    unknown = set(caps) - {*CAPS, *QUOTAS}
    if unknown:
        raise ValueError(f"no such cap: {', '.join(sorted(unknown))}")
    return {f"budget_{name}": cap for name, cap in caps.items()}
