"""What all pages share: the templates, the headers of an answer, the entity tag, and the form that a browser sends."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from fastapi import Request, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.staticfiles import StaticFiles

from api.negotiation import etag, matches
from api.pages import words

_HERE = Path(__file__).parent
STATIC = StaticFiles(directory=_HERE / "static")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""No inline script and no inline style runs: whatever a candidate writes stays text."""

_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-cache",
    "Vary": "Accept",
}
_FORM = "application/x-www-form-urlencoded"


def _edition() -> str:
    """What the pages are made of, as a short digest: a new release is never mistaken for what a browser has."""
    digest = hashlib.sha256()
    for path in sorted(_HERE.rglob("*")):
        if path.suffix in (".py", ".j2", ".css", ".js", ".svg"):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


EDITION = _edition()


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("api.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= words.FILTERS
    made.globals["edition"] = EDITION
    return made


_TEMPLATES = _environment()


def render(request: Request, template: str, *, status: int = 200, tag: str | None = None, **context: Any) -> Response:
    """A page, or 304 where the browser has it. `tag` is what it depends on; left out, it is the page's own digest."""
    body = _TEMPLATES.get_template(template).render(path=request.url.path, **context).encode()
    known = page_tag(tag) if tag is not None else etag(hashlib.sha256(body).hexdigest()[:20])
    headers = {**_HEADERS, "ETag": known} if status == 200 else _HEADERS
    if status == 200 and matches(request.headers.get("if-none-match"), known):
        return Response(status_code=304, headers=headers)
    return Response(body, status, headers=headers, media_type="text/html; charset=utf-8")


def unchanged(request: Request, tag: str) -> Response | None:
    """304 where the browser has the page that this tag stands for: asked before the page is put together."""
    known = page_tag(tag)
    if not matches(request.headers.get("if-none-match"), known):
        return None
    return Response(status_code=304, headers={**_HEADERS, "ETag": known})


def page_tag(tag: str) -> str:
    """The entity tag of a page that depends on this and on the code of the pages."""
    return etag(tag.replace('"', "") + f".{EDITION}")


def see_other(path: str) -> Response:
    """Go on to another page after a form."""
    return Response(status_code=303, headers={**_HEADERS, "Location": path})


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form; of a repeated one the last. `api.access` has refused those of other sites."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        return {}
    text = (await request.body()).decode("utf-8", "replace")
    return {name: values[-1] for name, values in parse_qs(text, keep_blank_values=True, max_num_fields=100).items()}
