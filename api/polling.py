"""Polls that find nothing new, answered before anything is routed: most requests of a service that is watched.

Finding the operation and the values of its parameters takes a framework two thirds of such a request. Who asks, whether
they may and how often was settled before (`api.access`); what is known of the job is what `api.jobs` answered last.
"""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from api.deps import Services
from api.negotiation import matches

_FOLDER: Final = "/v1/jobs/"


class PollMiddleware:
    """Answers 304 where that is known; everything else is passed on. `route` is the operation it stands in for."""

    def __init__(self, app: ASGIApp, route: BaseRoute) -> None:
        self._app = app
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = self._unchanged(scope) if scope["type"] == "http" and scope["method"] == "GET" else None
        if headers is None:
            await self._app(scope, receive, send)
        else:
            await Response(status_code=304, headers=headers)(scope, receive, send)

    def _unchanged(self, scope: Scope) -> dict[str, str] | None:
        path: str = scope["path"]
        if not path.startswith(_FOLDER) or scope["query_string"]:
            return None
        services: Services = scope["app"].state.services
        job_id = path.removeprefix(_FOLDER)
        known = services.glances.of(job_id)
        if known is None or not matches(Headers(scope=scope).get("if-none-match"), known.tag):
            return None
        # For logs, metrics and traces, as the router would say it.
        scope["path_params"], scope["route"] = {"job_id": job_id}, self._route
        return known.headers
