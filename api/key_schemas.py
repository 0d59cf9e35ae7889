"""API keys and the audit log on the wire."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field, field_validator
from pydantic_core import PydanticCustomError

from api.schemas import Body, Resource, Usd, UsdIn, UtcTime
from db.vocabulary import AuditAction, Scope

_DAY_S = 86_400
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
KeyName = Annotated[str, Field(pattern=NAME_PATTERN, examples=["ranking"])]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Seconds = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]


class CapsBody(Body):
    """What the key's jobs may use together. What is left out has no cap."""

    usd: UsdIn | None = None
    tokens: Annotated[int, Field(ge=1, le=10**15)] | None = None
    calls: Count | None = None
    gpu_s: Seconds | None = None
    wall_s: Seconds | None = None
    candidates: Count | None = None
    jobs: Annotated[Count, Field(description="that have not ended, at once")] | None = None
    jobs_per_day: Annotated[Count, Field(description="submitted within 24 hours")] | None = None


def _future(at: datetime | None) -> datetime | None:
    if at is not None and at <= datetime.now(UTC):
        raise PydanticCustomError("expires_at", "is over already: name a moment to come, such as 2027-01-31T00:00:00Z")
    return at


Expiry = Annotated[AwareDatetime | None, Field(description="never, when left out", examples=["2027-01-31T00:00:00Z"])]


class KeyBody(Body):
    """A key to be made."""

    name: KeyName
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=3)] = [Scope.SUBMIT, Scope.READ]
    expires_at: Expiry = None
    caps: CapsBody = CapsBody()

    _to_come = field_validator("expires_at")(_future)


class RotateBody(Body):
    """How the old token ends, and perhaps another end of the key."""

    grace_s: Annotated[
        float,
        Field(ge=0, le=30 * _DAY_S, allow_inf_nan=False, description="how long the old token is still good"),
    ] = _DAY_S
    expires_at: Annotated[AwareDatetime | None, Field(description="the key's end; left out, it stays")] = None

    _to_come = field_validator("expires_at")(_future)


class Caps(Resource):
    """Caps, or what is used of them."""

    usd: Usd | None
    tokens: int | None
    calls: int | None
    gpu_s: float | None
    wall_s: float | None
    candidates: int | None
    jobs: int | None
    jobs_per_day: int | None


class Key(Resource):
    """A key without its token. `prefix` is how that begins, `previous_until` when the one before it ends."""

    id: str
    name: str
    prefix: str | None
    scopes: list[Scope]
    state: Literal["active", "expired", "revoked"]
    caps: Caps
    used: Caps
    created_at: UtcTime
    expires_at: UtcTime | None
    last_used_at: UtcTime | None
    revoked_at: UtcTime | None
    previous_until: UtcTime | None


class KeyList(Resource):
    data: list[Key]


class KeyWithToken(Resource):
    """The token is shown here and never again."""

    key: Key
    token: str


class KeyRevoked(Resource):
    changed: bool
    key: Key


class AuditEntry(Resource):
    """Who did what. `key` is None where none is needed, on loopback; `address` is `cli` for the command line."""

    seq: int
    at: UtcTime
    action: AuditAction
    subject: str
    key: str | None
    address: str | None
    request_id: str | None
    data: dict[str, Any]


class AuditPage(Resource):
    data: list[AuditEntry]
    next_cursor: str | None
    has_more: bool


def given(caps: CapsBody) -> dict[str, Decimal | float | int | None]:
    """The caps that a body names."""
    return {name: getattr(caps, name) for name in caps.model_fields_set}
