"""Paging parameters that lists share, and the Link header to the next page."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response

Limit = Annotated[int, Query(ge=1, le=200, description="at most this many")]
Cursor = Annotated[
    str | None, Query(max_length=500, pattern=r"^[A-Za-z0-9_-]+$", description="`next_cursor` of the page before")
]


def link_next(request: Request, response: Response, cursor: str | None) -> None:
    """Add `Link: <...>; rel="next"` when there is a next page; the filters stay as they were asked for."""
    if cursor is None:
        return
    url = request.url.include_query_params(cursor=cursor)
    response.headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
