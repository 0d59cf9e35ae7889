"""The site: every page, and the files that they need."""

from __future__ import annotations

from fastapi import FastAPI

from api.pages import candidate, compare, fleet, generated, jobs, knowledge, one_job, reference, spending, submit
from api.pages.frame import STATIC

_PAGES = (jobs, submit, one_job, candidate, generated, compare, fleet, knowledge, spending, reference)


def install(app: FastAPI) -> None:
    """Add the pages to the application; they are not part of its OpenAPI document."""
    app.mount("/static", STATIC, name="static")
    for page in _PAGES:
        app.include_router(page.router, include_in_schema=False)
