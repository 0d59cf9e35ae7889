"""What each job cost: dollars, calls, tokens and seconds of a device."""

from __future__ import annotations

from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from api import jobs
from api.deps import StoreDep
from api.pages.frame import render
from api.paging import Cursor

PAGE_SIZE = 50

router = APIRouter()


@router.get("/spending")
async def show_spending(request: Request, store: StoreDep, cursor: Cursor = None) -> Response:
    """Newest first; the sums are of the jobs that are shown."""
    page = await jobs.list_jobs(request, Response(), store, limit=PAGE_SIZE, cursor=cursor)
    costs = [job.cost for job in page.data]
    return render(
        request,
        "spending.html.j2",
        jobs=page.data,
        total={
            "llm_usd": sum(cost.llm_usd for cost in costs),
            "llm_calls": sum(cost.llm_calls for cost in costs),
            "tokens": sum(cost.tokens_in + cost.tokens_out for cost in costs),
            "gpu_s": sum(cost.gpu_s for cost in costs),
        },
        first="/spending" if cursor is not None else None,
        following="/spending?" + urlencode({"cursor": page.next_cursor}) if page.next_cursor else None,
    )
