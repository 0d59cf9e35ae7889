"""`kernelwright keys`: API keys and what their jobs may use together. Works on the database itself, for its operator.

kernelwright keys                                   what each key may use and has used
kernelwright keys ranking --create --usd 50         a new key; its token is printed once
kernelwright keys ranking --usd 80 --calls 5000     other caps
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated

import typer
from sqlalchemy.orm import Session

from cli import show
from cli.commands.submit import usd_of
from cli.errors import CliError
from cli.service import JsonOption
from db.account_models import ApiKey
from db.budgets import CAPS, key_spent
from db.keys import Cap, create_key, list_keys, set_caps
from db.session import make_engine, make_sessions
from db.settings import get_settings

Name = Annotated[str | None, typer.Argument(metavar="NAME", help="Whose key; left out: list them.")]
Create = Annotated[bool, typer.Option("--create", help="Make the key, and print its token.")]
Usd = Annotated[str | None, typer.Option("--usd", help="Dollars for models.")]
Tokens = Annotated[int | None, typer.Option("--tokens", min=1, help="Tokens of all calls.")]
Calls = Annotated[int | None, typer.Option("--calls", min=1, help="Calls of models.")]
GpuS = Annotated[float | None, typer.Option("--gpu-s", min=0, help="Seconds of devices.")]
WallS = Annotated[float | None, typer.Option("--wall-s", min=0, help="Seconds of running jobs.")]
Candidates = Annotated[int | None, typer.Option("--candidates", min=1, help="Candidates.")]


class KeyTaken(CliError):
    """There is a key {name} already: leave --create out to change its caps, or take another name."""

    exit_code = 2


class NoKey(CliError):
    """There is no key {name}: add --create to make it."""

    exit_code = 2


def keys(
    name: Name = None,
    create: Create = False,
    usd: Usd = None,
    tokens: Tokens = None,
    calls: Calls = None,
    gpu_s: GpuS = None,
    wall_s: WallS = None,
    candidates: Candidates = None,
    json: JsonOption = False,
) -> None:
    """List API keys with what they used, make one, or change its caps."""
    dollars = None if usd is None else Decimal(usd_of(usd))
    said: dict[str, Cap] = {
        "usd": dollars,
        "tokens": tokens,
        "calls": calls,
        "gpu_s": gpu_s,
        "wall_s": wall_s,
        "candidates": candidates,
    }
    caps = {cap: value for cap, value in said.items() if value is not None}
    engine = make_engine(get_settings().sqlalchemy_url, "kernelwright keys", pooled=False)
    try:
        with make_sessions(engine).begin() as session:
            if name is None:
                _list(session, as_json=json)
            elif create:
                _create(session, name, caps)
            elif not set_caps(session, name, caps):
                raise NoKey(name=name)
    finally:
        engine.dispose()


def _create(session: Session, name: str, caps: Mapping[str, Cap]) -> None:
    if any(key.name == name for key in list_keys(session)):
        raise KeyTaken(name=name)
    typer.echo(create_key(session, name, caps))
    show.note("this token is shown once: send it as `Authorization: Bearer …`, or set KERNELWRIGHT_KEY")


def _list(session: Session, *, as_json: bool) -> None:
    rows = [(key, key_spent(session, key.id)) for key in list_keys(session)]
    if as_json:
        for key, spent in rows:
            used = {cap: str(value) if cap == "usd" else value for cap, value in _of(spent)}
            show.put_json({"id": key.id, "name": key.name, "caps": _caps(key), "used": used})
        return
    lines = [
        [key.name, *(f"{_shown(used)} of {_shown(getattr(key, f'budget_{cap}'))}" for cap, used in _of(spent))]
        for key, spent in rows
    ]
    show.table(("key", *CAPS), lines, empty="no keys yet: kernelwright keys NAME --create")


def _of(spent: object) -> list[tuple[str, Cap]]:
    return [(cap, getattr(spent, cap)) for cap in CAPS]


def _caps(key: ApiKey) -> dict[str, object]:
    found = {cap: getattr(key, f"budget_{cap}") for cap in CAPS}
    return found | {"usd": None if key.budget_usd is None else str(key.budget_usd)}


def _shown(value: Cap) -> str:
    return "-" if value is None else f"{value:.2f}" if isinstance(value, Decimal | float) else str(value)
