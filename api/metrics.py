"""/metrics: what this process served, and the state of the service as a whole, for Prometheus.

From this machine it needs no key. From elsewhere it needs the token of KERNELWRIGHT_METRICS_TOKEN as a bearer token:
who spends how much is not for everybody.
"""

from __future__ import annotations

import os
import re
from typing import Final

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CollectorRegistry, Counter, Histogram, Info, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.process_collector import ProcessCollector
from starlette.types import Scope

from api import examples
from api.deps import ServicesDep, known_parameters
from api.errors import ScrapeRefused
from api.gauges import ServiceGauges
from api.openapi import answers, example
from db.scraping import may_scrape

DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"
METHODS: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
SECONDS: Final = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
UNMATCHED: Final = "unmatched"
"""The route of what leads nowhere: an address that anybody invents must not become a label."""

# A time stamp beside each counter would double the series, and Prometheus has no use for it. The library
# gives this function no types.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library gives it no types

_WAITS: Final = re.compile(rb"(?:^|&)wait=")

router = APIRouter(tags=["health"], dependencies=[Depends(known_parameters)])


class ServiceMetrics:
    """The registry of one application: what it served, its process, and the gauges from SQL."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        self.gauges = ServiceGauges()
        self.registry.register(self.gauges)
        counted = self.registry
        if DIRECTORY in os.environ:  # one of several processes on one port: a scrape of any of them tells of all
            MultiProcessCollector(self.registry)  # type: ignore[no-untyped-call]  # the library gives it no types
            counted = CollectorRegistry()
        else:
            ProcessCollector(namespace="kernelwright", registry=self.registry)
        Info("kernelwright_build", "What is running.", registry=self.registry).info({"version": version})
        self._requests = Counter(
            "kernelwright_http_requests",
            "Requests served, by the template of their route.",
            ["method", "route", "status"],
            registry=counted,
        )
        self._seconds = Histogram(
            "kernelwright_http_request_duration_seconds",
            "From a request to the first byte of its answer, without those that asked to wait.",
            ["method", "route"],
            buckets=SECONDS,
            registry=counted,
        )

    def served(self, scope: Scope, status: int | None, answered_s: float | None) -> None:
        """Count a request. `status` None: nothing was answered; `answered_s`: until the answer began."""
        method = scope["method"] if scope["method"] in METHODS else "OTHER"
        path = getattr(scope.get("route"), "path", UNMATCHED)
        self._requests.labels(method, path, str(status or 0)).inc()
        if answered_s is not None and not _asked_to_wait(scope):
            self._seconds.labels(method, path).observe(answered_s)


def _asked_to_wait(scope: Scope) -> bool:
    if _WAITS.search(scope.get("query_string", b"")):
        return True
    return any(name == b"prefer" and b"wait" in value for name, value in scope["headers"])


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses=answers({200: example("All of them", examples.METRICS, "text/plain")}, ScrapeRefused),
)
async def metrics(request: Request, services: ServicesDep) -> Response:
    """What this process served, and gauges of the whole service (the same from every replica), at most 5 s old. The
    spending is at most a minute old. Scrapes from the server's own machine need no token.

    Raises:
        ScrapeRefused: from elsewhere without the token.
    """
    host = request.client.host if request.client else None
    if not may_scrape(host, request.headers.get("authorization"), services.settings.metrics_token):
        raise ScrapeRefused(headers={"WWW-Authenticate": "Bearer"})
    found: ServiceMetrics = request.app.state.metrics
    await found.gauges.refresh(services.store)
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(found.registry), headers={"Content-Type": content_type, "Cache-Control": "no-store"})
