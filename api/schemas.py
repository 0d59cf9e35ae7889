"""What the resources have in common: the field types, and two base models: what comes in, and what goes out.

Times are RFC 3339 in UTC, durations end in `_s` or `_us`, money is a decimal string in US dollars.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, get_args

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import PydanticCustomError

_MONEY_TEXT = 'money is a decimal string of US dollars, such as "5.00"'
# NUMERIC(18, 9) holds it; nobody searches for a billion dollars.


class Body(BaseModel):
    """What a client sends. An unknown field is refused by name, so that a typing error never passes silently."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Pydantic would read `true` as 1, which the schema does not allow and nobody means."""
        kind = cls.model_fields[info.field_name or ""].annotation
        kinds = {getattr(each, "__origin__", each) for each in (kind, *get_args(kind))}  # without Annotated
        if isinstance(value, bool) and {int, float} & kinds:
            raise PydanticCustomError("number", "send a number, not true or false")
        return value


class Resource(BaseModel):
    """What the API answers."""

    model_config = ConfigDict(frozen=True)


def storable(text: str) -> str:
    """Refuse what PostgreSQL cannot store as text: NUL characters and lone surrogates, both legal in JSON."""
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise PydanticCustomError("not_text", "holds a lone surrogate, which is no character") from error
    if b"\0" in encoded:
        raise PydanticCustomError("not_text", "holds a NUL character")
    return text


def _money(value: Any) -> Decimal:
    # A JSON number is a binary float by the time it gets here: 0.1 would already be another amount.
    if not isinstance(value, str):
        raise PydanticCustomError("money", _MONEY_TEXT)
    try:
        amount = Decimal(value)
    except InvalidOperation as error:
        raise PydanticCustomError("money", _MONEY_TEXT) from error
    if not _MONEY_IN.fullmatch(value):
        raise PydanticCustomError("money", f"{_MONEY_TEXT}: from 0 to 1000000, at most six decimals")
    return amount


def money_text(amount: Decimal) -> str:
    """An amount as the API writes it: plain digits, at least two decimals and no more than are needed."""
    plain = format(amount, "f")
    whole, _, cents = plain.partition(".")
    return f"{whole}.{cents.rstrip('0').ljust(2, '0')}"


def _utc(at: datetime) -> datetime:
    return at.astimezone(UTC)


def _written_out(at: object) -> object:
    if isinstance(at, str) and not _DATE.match(at):  # pydantic takes 0.5 for a moment of 1970
        raise PydanticCustomError("moment", "should be a datetime such as 2026-11-21T00:00:00Z")
    return at


_DATE = re.compile(r"\d{4}-\d\d-\d\d")


_MONEY_SCHEMA: dict[str, Any] = {"type": "string", "format": "decimal", "examples": ["5.00"]}

Text = Annotated[str, AfterValidator(storable)]
"""A string that can be stored."""

_MONEY_IN = re.compile(r"^([0-9]{1,6}(\.[0-9]{1,6})?|1000000(\.0{1,6})?)$")
_MONEY_IN_SCHEMA = _MONEY_SCHEMA | {"pattern": _MONEY_IN.pattern}

UsdIn = Annotated[Decimal, BeforeValidator(_money), PlainSerializer(money_text), WithJsonSchema(_MONEY_IN_SCHEMA)]
"""US dollars as a client sends them."""

Usd = Annotated[Decimal, PlainSerializer(money_text, when_used="json"), WithJsonSchema(_MONEY_SCHEMA)]
"""US dollars as the API answers them."""

TimeIn = Annotated[AwareDatetime, BeforeValidator(_written_out)]
"""A moment as a client sends it: RFC 3339, no number of seconds."""

UtcTime = Annotated[AwareDatetime, AfterValidator(_utc)]
"""A moment; whatever its zone was, it is answered in UTC."""
