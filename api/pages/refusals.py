"""The API's errors for people: the same words as problem+json, on a page."""

from __future__ import annotations

from fastapi import Request, Response

from api.errors import MEDIA_TYPE, ApiError
from api.negotiation import negotiate
from api.pages.frame import render


def wants_page(request: Request) -> bool:
    """Whether a browser asked for a page: what is under /v1 answers programs, whatever they accept."""
    if request.url.path.startswith("/v1/"):
        return False
    return negotiate(request.headers.get("accept"), MEDIA_TYPE, "text/html") == "text/html"


def refusal(request: Request, error: ApiError) -> Response:
    """The page that says what was wrong and where to go."""
    document = error.document(request.url.path, request.state.request_id)
    answer = render(request, "error.html.j2", status=error.status, error=document)
    answer.headers.update(error.headers)
    return answer
