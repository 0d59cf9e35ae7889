"""/healthz says that the process answers; /readyz that it can do its work, and if not, what is missing."""

from __future__ import annotations

import asyncio
import functools
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import structlog
from alembic.script import ScriptDirectory
from fastapi import APIRouter, Depends
from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

import db
from api import examples
from api.deps import ServicesDep, known_parameters
from api.errors import FieldError, NotReady
from api.openapi import answers, example
from api.schemas import Resource
from api.store import Store
from db.settings import Settings, SettingsError

# An orchestrator's own probe times out after a second or a few; ours must say what is missing before that.
PROBE_S = 2.0

router = APIRouter(tags=["health"], dependencies=[Depends(known_parameters)])
log = structlog.get_logger("api")


class Health(Resource):
    status: str
    version: str


class Ready(Resource):
    ready: bool
    migration: str


@router.get("/healthz", summary="Is the process alive", responses=answers({200: example("It is", examples.HEALTH)}))
async def healthz() -> Health:
    """Says nothing about the database or Redis: restarting this process would not mend those."""
    return Health(status="ok", version=own_version())


@router.get(
    "/readyz",
    summary="Can the process do its work",
    responses=answers({200: example("It can", examples.READY)}, NotReady),
)
async def readyz(services: ServicesDep) -> Ready:
    """503 names what is missing: `database`, `migration` or `redis`."""
    found = await asyncio.gather(_database(services.store), _redis(services.settings))
    missing = [error for errors in found for error in errors]
    if missing:
        raise NotReady(errors=missing)
    return Ready(ready=True, migration=newest_migration())


@functools.cache
def own_version() -> str:
    """The version of the installed distribution; a bare checkout has none."""
    try:
        return version("kernelwright")
    except PackageNotFoundError:
        return "0+checkout"


@functools.cache
def newest_migration() -> str:
    """The revision that this code was written for."""
    folder = Path(db.__file__).parent.parent / "migrations"
    return ScriptDirectory(str(folder)).get_current_head() or "none"


async def _database(store: Store) -> list[FieldError]:
    try:
        async with asyncio.timeout(PROBE_S):
            found = await store.read(_migration)
    except (SQLAlchemyError, TimeoutError) as error:
        return _missing("database", "cannot be reached", error)
    if found == newest_migration():
        return []
    detail = f"the schema is at {found}, this version needs {newest_migration()}: run the migrations"
    return [FieldError(pointer="migration", detail=detail)]


def _migration(session: Session) -> str:
    if session.scalar(text("SELECT to_regclass('alembic_version')")) is None:
        return "nothing"
    return session.scalar(text("SELECT version_num FROM alembic_version")) or "nothing"


async def _redis(settings: Settings) -> list[FieldError]:
    try:
        async with asyncio.timeout(PROBE_S), Redis.from_url(settings.redis_client_url) as redis:
            await redis.ping()
    except (RedisError, OSError, TimeoutError, SettingsError) as error:
        return _missing("redis", "cannot be reached: jobs are stored but start late", error)
    return []


def _missing(what: str, detail: str, error: Exception) -> list[FieldError]:
    # The server's own words name hosts and users; those are for the log.
    log.warning("ready.missing", what=what, why=str(error).partition("\n")[0] or type(error).__name__)
    return [FieldError(pointer=what, detail=detail)]
