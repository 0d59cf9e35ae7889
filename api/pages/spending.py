"""What jobs cost: dollars, calls, tokens and seconds of a device, one by one and together."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response

from api import jobs
from api.deps import StoreDep
from api.pages.frame import render
from api.paging import Cursor
from db import summary

PAGE_SIZE = 50


class Period(StrEnum):
    """The jobs that were submitted within."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    ALL = "all"


_DAYS: Final = {Period.DAY: 1, Period.WEEK: 7, Period.MONTH: 30}
_BEGINNING: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""Before the first job of anybody."""

router = APIRouter()


@router.get("/spending")
async def show_spending(
    request: Request,
    store: StoreDep,
    period: Annotated[Period, Query()] = Period.MONTH,
    cursor: Cursor = None,
) -> Response:
    """Newest first, page by page; the sums are of all jobs of the period."""
    days = _DAYS.get(period)
    since = _BEGINNING if days is None else datetime.now(UTC) - timedelta(days=days)
    page = await jobs.list_jobs(request, Response(), store, created_after=since, limit=PAGE_SIZE, cursor=cursor)
    own = f"/spending?{urlencode({'period': period.value})}"
    return render(
        request,
        "spending.html.j2",
        jobs=page.data,
        total=await store.read(summary.spent_on_jobs, since),
        period=period,
        periods=list(Period),
        first=own if cursor is not None else None,
        following=f"{own}&{urlencode({'cursor': page.next_cursor})}" if page.next_cursor else None,
    )
