"""The application: what it is made of, and what lives as long as it does.

    python -m api --port 8080
    uvicorn --factory --http api.connections:BoundedProtocol api.app:create_app

Both need KERNELWRIGHT_DATABASE_URL and KERNELWRIGHT_REDIS_URL; `kernelwright up` runs it with servers of its own.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import structlog
from fastapi import FastAPI

from api import (
    archive,
    asking,
    auditing,
    candidates,
    certificates,
    comparing,
    events,
    generated,
    handlers,
    health,
    jobs,
    keys,
    knowledge,
    metrics,
    openapi,
    packages,
    problems,
    recording,
    requests,
    summary,
    webhooks,
    workers,
)
from api.access import AccessMiddleware
from api.deps import Services
from api.doorbell import Doorbell, Ring
from api.feed import Feed
from api.glances import Glances
from api.identities import Identities
from api.limiting import Limiter
from api.middleware import FrontMiddleware
from api.pages import site
from api.polling import PollMiddleware
from api.shutdown import release_on_signal
from api.store import Store
from api.streams import Streams
from api.tails import Tails
from db import tracing
from db.logging import configure_logging
from db.session import make_async_engine, make_async_sessions
from db.settings import Settings, get_settings

log = structlog.get_logger("api")

DESCRIPTION = """Give it a PyTorch operation, hardware, a kernel language and a budget; it gives back the fastest kernel
that survived the judge, with the evidence.

    curl --json '{"problem": "softmax", "target": {"hardware": "cpu", "language": "cpp"}}' $URL/v1/jobs
    curl "$URL/v1/jobs/$JOB?wait=30"
    curl -H 'Accept: text/x-python' $URL/v1/jobs/$JOB/best > kernel.py

Times are RFC 3339 in UTC, durations end in `_s` or `_us`, money is a decimal string. Errors are
application/problem+json; every answer has an X-Request-Id.
"""


def create_app(settings: Settings | None = None, *, ring: Ring | None = None) -> FastAPI:
    """The API for these settings. `ring` replaces the Celery doorbell.

    Left out, the settings are the environment's, and as this is then the server's own process, its logs are set up too.

    Raises:
        MissingDatabaseUrl: when it starts without a database to speak to.
        TelemetryMissing: traces are asked for that cannot be made.
    """
    own_process = settings is None
    if settings is None:
        settings = get_settings()
        configure_logging(settings.log_level, settings.log_format)
        tracing.start(settings, "kernelwright-api")
    chosen = settings

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with _services(chosen, ring or _celery_ring()) as services:
            app.state.services = services
            if own_process:
                # What lives as long as the process is not looked at again: a full collection stopped it for 0.2 s.
                gc.collect()
                gc.freeze()
            with release_on_signal(services.feed):
                yield
        await asyncio.to_thread(tracing.stop)

    app = FastAPI(
        title="Kernelwright",
        summary="A distributed kernel-search service with a judge that cannot be fooled",
        description=DESCRIPTION,
        version=health.own_version(),
        lifespan=lifespan,
        responses=openapi.COMMON_RESPONSES,
        redirect_slashes=False,
        # Traces are ours to make (`api.spans`): these would quote what was sent.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        # Their pages load scripts from elsewhere; `api.pages.reference` is at /docs.
        docs_url=None,
        redoc_url=None,
    )
    app.state.metrics = metrics.ServiceMetrics(health.own_version())
    app.add_middleware(PollMiddleware, route=jobs.polled())
    app.add_middleware(AccessMiddleware)
    app.add_middleware(FrontMiddleware, served=app.state.metrics.served)
    handlers.install(app)
    openapi.install(app, keyless=settings.auth == "loopback")
    resources = (
        jobs,
        requests,
        events,
        asking,
        archive,
        candidates,
        generated,
        comparing,
        certificates,
        packages,
        recording,
        problems,
        knowledge,
        workers,
        summary,
        webhooks,
        keys,
        auditing,
        health,
        metrics,
    )
    for resource in resources:
        app.include_router(resource.router)
    site.install(app)
    return app


@asynccontextmanager
async def _services(settings: Settings, ring: Ring) -> AsyncIterator[Services]:
    engine = make_async_engine(settings.sqlalchemy_url, "kernelwright-api")
    reading = make_async_engine(settings.sqlalchemy_url, "kernelwright-api-reads", read_only=True)
    doorbell = Doorbell(ring)
    store = Store(make_async_sessions(engine), doorbell, readers=make_async_sessions(reading))
    identities = Identities(store, lambda: feed.listening)
    glances = Glances(lambda: feed.listening)
    feed = Feed(engine, store, keys_changed=identities.forget, job_changed=glances.changed)
    limiter = Limiter(settings)
    running = asyncio.create_task(feed.run(), name="feed")
    running.add_done_callback(_feed_ended)
    try:
        yield Services(
            settings,
            store,
            feed,
            doorbell,
            limiter,
            identities,
            glances,
            Tails(store),
            Streams(settings.streams_per_key),
        )
    finally:
        await limiter.close()
        await feed.stop()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        doorbell.close()
        await engine.dispose()
        await reading.dispose()


def _feed_ended(feed: asyncio.Task[None]) -> None:
    # Waiters still look for themselves when their time is over, but somebody must know.
    if not feed.cancelled() and (error := feed.exception()) is not None:
        log.error("feed.ended", why=repr(error))


def _celery_ring() -> Ring:
    # Imported when the application starts: describing the API needs no Celery.
    from worker.client import ring_all

    return ring_all
