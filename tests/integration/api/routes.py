"""Every route of the application by its methods: all that a request can reach, whatever lists it or leaves it out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.routing import _IncludedRouter
from starlette.routing import Mount, Route

MOUNTED = "MOUNT"
"""Stands for the method of a mounted application: it answers whatever lies below its path."""


def routes_of(app: FastAPI) -> set[tuple[str, str]]:
    """Method and path of each. Fails for a kind of route that it cannot look into."""
    return set(_walk(app.routes))


def _walk(routes: Iterable[Any]) -> Iterator[tuple[str, str]]:
    for route in routes:
        if isinstance(route, _IncludedRouter):
            yield from _walk([*route.effective_candidates(), *route.effective_low_priority_routes()])
        elif isinstance(route, Mount):
            yield MOUNTED, route.path
        elif isinstance(route, Route) or hasattr(route, "original_route"):
            yield from ((method, route.path) for method in route.methods)
        else:
            raise AssertionError(f"a kind of route that the table of rights does not know: {route!r}")
