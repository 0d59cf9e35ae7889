"""The audit log: who changed what, when and from where. An entry is written in the transaction of what it tells of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import bindparam, select, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from db.account_models import ApiKey, AuditEntry
from db.paging import InvalidCursor, Page, decode_cursor, encode_cursor
from db.storable import storable_json
from db.vocabulary import AuditAction

_MOST_SEQ = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Actor:
    """Who did it: a key, or nobody's on this machine; `address` is the client's, or `cli` for the command line."""

    key_id: str | None = None
    address: str | None = None
    request_id: str | None = None

    def entry(self, action: AuditAction, data: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of an entry that is stored in one statement with its subject (`db.creating`)."""
        return asdict(self) | {"action": action.value, "data": storable_json(dict(data))}


CLI = Actor(address="cli")


_NOTE: Final = text(
    """
    INSERT INTO audit (key_id, address, request_id, action, subject, data)
    VALUES (:key_id, :address, :request_id, :action, :subject, :data)
    """
).bindparams(bindparam("data", type_=JSONB))


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries to list; None means any."""

    action: str | None = None
    subject: str | None = None
    key_name: str | None = None


def note(
    session: Session, actor: Actor, action: AuditAction, subject: str, data: Mapping[str, Any] | None = None
) -> None:
    """Write down that `actor` did this to `subject` (an id, or the name of a key)."""
    session.flush()
    session.execute(
        _NOTE,
        {
            "key_id": actor.key_id,
            "address": actor.address,
            "request_id": actor.request_id,
            "action": action.value,
            "subject": subject,
            "data": storable_json(dict(data or {})),
        },
    )


def list_entries(
    session: Session, where: AuditFilter, *, limit: int = 50, cursor: str | None = None
) -> Page[tuple[AuditEntry, str | None]]:
    """Entries with the name of their key, newest first. Raises InvalidCursor."""
    query = select(AuditEntry, ApiKey.name).outerjoin(ApiKey, ApiKey.id == AuditEntry.key_id)
    wanted = {AuditEntry.action: where.action, AuditEntry.subject: where.subject, ApiKey.name: where.key_name}
    for column, value in wanted.items():
        if value is not None:
            query = query.where(column == value)
    if cursor is not None:
        query = query.where(AuditEntry.seq < _seq_in(cursor))
    rows = session.execute(query.order_by(AuditEntry.seq.desc()).limit(limit + 1)).all()
    following = encode_cursor(rows[limit - 1][0].seq) if len(rows) > limit else None
    return Page(tuple((entry, name) for entry, name in rows[:limit]), following)


def _seq_in(cursor: str) -> int:
    (seq,) = decode_cursor(cursor, 1)
    if not isinstance(seq, int) or not 0 <= seq <= _MOST_SEQ:
        raise InvalidCursor
    return seq
