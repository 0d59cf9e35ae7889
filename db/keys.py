"""API keys: who they are (by the hash of a token) and what their jobs may use together."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from db.account_models import ApiKey
from db.budgets import CAPS
from db.ids import new_id

PREFIX: Final = "kw_live_"
"""Begins every token, so that scanners for leaked secrets can know one."""

Cap = Decimal | float | int | None


def token_hash(token: str) -> str:
    """SHA-256 in hex. No salt: a token has 256 random bits, which no table of hashes covers."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def find_key(session: Session, token: str) -> str | None:
    """The id of the key with this token."""
    return session.scalar(select(ApiKey.id).where(ApiKey.token_hash == token_hash(token)))


def create_key(session: Session, name: str, caps: Mapping[str, Cap]) -> str:
    """Make a key; returns its token, which nobody can read again. Raises IntegrityError when the name is taken."""
    token = PREFIX + secrets.token_urlsafe(32)
    session.add(ApiKey(id=new_id("key"), name=name, token_hash=token_hash(token), **_columns(caps)))
    session.flush()
    return token


def set_caps(session: Session, name: str, caps: Mapping[str, Cap]) -> bool:
    """Change the caps that are named; those that are not stay. False when there is no key of this name."""
    key = session.scalar(select(ApiKey).where(ApiKey.name == name))
    if key is None:
        return False
    for column, cap in _columns(caps).items():
        setattr(key, column, cap)
    return True


def list_keys(session: Session) -> Sequence[ApiKey]:
    """The keys, oldest first."""
    return session.scalars(select(ApiKey).order_by(ApiKey.id)).all()


def _columns(caps: Mapping[str, Cap]) -> dict[str, Cap]:
    unknown = set(caps) - set(CAPS)
    if unknown:
        raise ValueError(f"no such cap: {', '.join(sorted(unknown))}")
    return {f"budget_{name}": cap for name, cap in caps.items()}
