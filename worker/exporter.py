"""Serves what the workers of this node counted, at /metrics: `python -m worker.exporter`.

`kernelwright up` and `kernelwright worker` run it where KERNELWRIGHT_METRICS_PORT is set. It only reads the files that
the workers write (`worker.metrics`), so it needs no database and no queue, and a worker that dies takes no count along.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import make_wsgi_app
from prometheus_client.multiprocess import MultiProcessCollector
from pydantic import SecretStr

from db.scraping import may_scrape
from db.settings import Settings

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


class _Server(ThreadingMixIn, WSGIServer):
    """One thread for each scrape: a scraper that hangs holds up no other."""

    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    """A line for each scrape says nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""

    def address_string(self) -> str:
        """The address itself: its name would be asked for at every scrape."""
        return str(self.client_address[0])


def exporter_app(directory: str, token: SecretStr | None) -> WSGIApplication:
    """The metrics of what was counted below this directory, for those who may read them (`db.scraping`)."""
    registry = CollectorRegistry()
    # The library gives it no types.
    MultiProcessCollector(registry, path=directory)  # type: ignore[no-untyped-call]  # the library gives it no types
    metrics: WSGIApplication = make_wsgi_app(registry)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if may_scrape(environ.get("REMOTE_ADDR"), environ.get("HTTP_AUTHORIZATION"), token):
            return metrics(environ, start_response)
        start_response("401 Unauthorized", [("Content-Type", "text/plain"), ("WWW-Authenticate", "Bearer")])
        return [b"From another machine, send Authorization: Bearer with the token of KERNELWRIGHT_METRICS_TOKEN.\n"]

    return app


def main() -> int:
    """Serve until SIGTERM. Exits 2 when a setting is missing, with a sentence that says which."""
    settings = Settings()
    directory = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if settings.metrics_port is None or not directory:
        sys.stderr.write("Set KERNELWRIGHT_METRICS_PORT, and PROMETHEUS_MULTIPROC_DIR as for the workers.\n")
        return 2
    app = exporter_app(directory, settings.metrics_token)
    with make_server(settings.metrics_host, settings.metrics_port, app, _Server, _Quiet) as server:
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
