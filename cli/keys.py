"""`kernelwright keys`: API keys, what they may do and use. Works on the database itself, for its operator.

kernelwright keys                                   what each key may do, may use and has used
kernelwright keys ranking --create --usd 50         a new key; its token is printed once
kernelwright keys ops --create --scope admin --expires 90d
kernelwright keys ranking --usd 80 --calls 5000     other caps
kernelwright keys ranking --rotate --grace 24h      another token; the old one is good for a day more
kernelwright keys ranking --revoke                  the end of it

The database is KERNELWRIGHT_DATABASE_URL, or that of `kernelwright up` in KERNELWRIGHT_HOME while it runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated

import typer
from sqlalchemy.orm import Session

from cli import show
from cli.commands.submit import usd_of
from cli.database import database
from cli.errors import CliError
from cli.options import JsonOption
from db import audit
from db.account_models import ApiKey
from db.budgets import CAPS, QUOTAS, jobs_in_flight, jobs_of_today, key_spent
from db.keys import (
    DEFAULT_SCOPES,
    Cap,
    create_key,
    get_key,
    list_keys,
    revoke_key,
    rotate_key,
    set_access,
    set_caps,
)
from db.vocabulary import AuditAction, Scope

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

Name = Annotated[str | None, typer.Argument(metavar="NAME", help="Whose key; left out: list them.")]
Create = Annotated[bool, typer.Option("--create", help="Make the key, and print its token.")]
Scopes = Annotated[
    list[Scope] | None, typer.Option("--scope", help="What it may do, once for each; submit and read as it comes.")
]
Expires = Annotated[str | None, typer.Option("--expires", help="When it ends: 90d, 12h, or 2027-01-31.")]
Rotate = Annotated[bool, typer.Option("--rotate", help="Give it another token, and print that.")]
Grace = Annotated[str, typer.Option("--grace", help="With --rotate: how long the old token is good; 0s ends it now.")]
Revoke = Annotated[bool, typer.Option("--revoke", help="End it at once and for good.")]
Usd = Annotated[str | None, typer.Option("--usd", help="Dollars for models.")]
Tokens = Annotated[int | None, typer.Option("--tokens", min=1, help="Tokens of all calls.")]
Calls = Annotated[int | None, typer.Option("--calls", min=1, help="Calls of models.")]
GpuS = Annotated[float | None, typer.Option("--gpu-s", min=0, help="Seconds of devices.")]
WallS = Annotated[float | None, typer.Option("--wall-s", min=0, help="Seconds of running jobs.")]
Candidates = Annotated[int | None, typer.Option("--candidates", min=1, help="Candidates.")]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Jobs in flight at once.")]
JobsPerDay = Annotated[int | None, typer.Option("--jobs-per-day", min=1, help="Jobs submitted within 24 hours.")]


class KeyTaken(CliError):
    """There is a key {name} already: leave --create out to change its caps, or take another name."""

    exit_code = 2


class NoKey(CliError):
    """There is no key {name}: add --create to make it."""

    exit_code = 2


class KeyEnded(CliError):
    """The key {name} is revoked, and that is for good: make another with --create."""

    exit_code = 2


class UnusableTime(CliError):
    """{option} {text!r} is no time to come: write 90d, 12h, 30m, 45s{or_date}."""

    exit_code = 2


def keys(
    name: Name = None,
    create: Create = False,
    scope: Scopes = None,
    expires: Expires = None,
    rotate: Rotate = False,
    grace: Grace = "24h",
    revoke: Revoke = False,
    usd: Usd = None,
    tokens: Tokens = None,
    calls: Calls = None,
    gpu_s: GpuS = None,
    wall_s: WallS = None,
    candidates: Candidates = None,
    jobs: Jobs = None,
    jobs_per_day: JobsPerDay = None,
    json: JsonOption = False,
) -> None:
    """List API keys with what they used; make, change, rotate or revoke one."""
    said: dict[str, Cap] = {
        "usd": None if usd is None else Decimal(usd_of(usd)),
        "tokens": tokens,
        "calls": calls,
        "gpu_s": gpu_s,
        "wall_s": wall_s,
        "candidates": candidates,
        "jobs": jobs,
        "jobs_per_day": jobs_per_day,
    }
    caps = {cap: value for cap, value in said.items() if value is not None}
    end = None if expires is None else _moment(expires)
    grace_s = _seconds("--grace", grace)
    with database("kernelwright keys") as session:
        if name is None:
            _list(session, as_json=json)
        elif create:
            _tell(session, name, _create(session, name, caps, scope or DEFAULT_SCOPES, end), as_json=json)
        elif rotate:
            _tell(session, name, _rotate(session, name, grace_s, end), as_json=json)
        else:
            if revoke:
                _revoke(session, name)
            else:
                _change(session, name, caps, scope or (), end)
            if json:
                show.put_json(_one(session, name))


def _create(session: Session, name: str, caps: Mapping[str, Cap], scopes: Sequence[Scope], end: datetime | None) -> str:
    if get_key(session, name) is not None:
        raise KeyTaken(name=name)
    token = create_key(session, name, caps, scopes=scopes, expires_at=end)
    audit.note(session, audit.CLI, AuditAction.KEY_CREATE, name, {"scopes": [each.value for each in scopes]})
    return token


def _rotate(session: Session, name: str, grace_s: float, end: datetime | None) -> str:
    key = _named(session, name)
    if key.revoked_at is not None:
        raise KeyEnded(name=name)
    token = rotate_key(session, key, grace_s, expires_at=end)
    audit.note(session, audit.CLI, AuditAction.KEY_ROTATE, name, {"grace_s": grace_s})
    return token


def _revoke(session: Session, name: str) -> None:
    if revoke_key(session, _named(session, name)):
        audit.note(session, audit.CLI, AuditAction.KEY_REVOKE, name)


def _change(
    session: Session, name: str, caps: Mapping[str, Cap], scopes: Sequence[Scope], end: datetime | None
) -> None:
    _named(session, name)
    set_caps(session, name, caps)
    set_access(session, name, scopes, end)
    what = {cap: str(value) for cap, value in caps.items()} | {"scopes": [each.value for each in scopes]}
    audit.note(session, audit.CLI, AuditAction.KEY_CHANGE, name, what)


def _named(session: Session, name: str) -> ApiKey:
    key = get_key(session, name, lock=True)
    if key is None:
        raise NoKey(name=name)
    return key


def _tell(session: Session, name: str, token: str, *, as_json: bool) -> None:
    if as_json:
        show.put_json({"key": _one(session, name), "token": token})
    else:
        typer.echo(token)
    show.note("this token is shown once: send it as `Authorization: Bearer …`, or set KERNELWRIGHT_KEY")


def _seconds(option: str, text: str, or_date: str = "") -> float:
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if found is None:
        raise UnusableTime(option=option, text=text, or_date=or_date)
    return float(found[1]) * _SECONDS[found[2]]


def _moment(text: str) -> datetime:
    now = datetime.now(UTC)
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    except ValueError:
        moment = now + timedelta(seconds=_seconds("--expires", text, " or 2027-01-31"))
    if moment <= now:
        raise UnusableTime(option="--expires", text=text, or_date=" or 2027-01-31")
    return moment


def _list(session: Session, *, as_json: bool) -> None:
    rows = [(key, _used(session, key)) for key in list_keys(session)]
    if as_json:
        for key, used in rows:
            show.put_json(_line(key, used))
        return
    lines = [
        [
            key.name,
            f"{key.prefix or '?'}…",
            ",".join(key.scopes),
            _state(key),
            *(f"{_shown(value)} of {_shown(getattr(key, f'budget_{cap}'))}" for cap, value in used.items()),
        ]
        for key, used in rows
    ]
    head = ("key", "token", "scopes", "state", *CAPS, *QUOTAS)
    show.table(head, lines, empty="no keys yet: kernelwright keys NAME --create")


def _one(session: Session, name: str) -> dict[str, object]:
    key = _named(session, name)
    return _line(key, _used(session, key))


def _line(key: ApiKey, used: Mapping[str, Cap]) -> dict[str, object]:
    caps = {cap: getattr(key, f"budget_{cap}") for cap in (*CAPS, *QUOTAS)}
    return {
        "id": key.id,
        "name": key.name,
        "prefix": key.prefix,
        "scopes": key.scopes,
        "state": _state(key),
        "caps": caps | {"usd": None if key.budget_usd is None else str(key.budget_usd)},
        "used": {cap: str(value) if cap == "usd" else value for cap, value in used.items()},
    }


def _used(session: Session, key: ApiKey) -> dict[str, Cap]:
    spent = key_spent(session, key.id)
    used: dict[str, Cap] = {cap: getattr(spent, cap) for cap in CAPS}
    return used | {"jobs": jobs_in_flight(session, key.id), "jobs_per_day": jobs_of_today(session, key.id)}


def _state(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is not None and key.expires_at <= datetime.now(UTC):
        return "expired"
    return "active"


def _shown(value: Cap) -> str:
    return "-" if value is None else f"{value:.2f}" if isinstance(value, Decimal | float) else str(value)
