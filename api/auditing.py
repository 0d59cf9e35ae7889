"""/v1/audit: who did what, when and from where. For admins."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from sqlalchemy.orm import Session

from api import key_examples as examples
from api.deps import StoreDep, known_parameters
from api.errors import invalid
from api.key_schemas import AuditEntry, AuditPage
from api.openapi import answers, example
from api.paging import Cursor, Limit, link_next
from db import audit
from db.audit import AuditFilter
from db.paging import InvalidCursor
from db.vocabulary import AuditAction

router = APIRouter(prefix="/v1/audit", tags=["keys"], dependencies=[Depends(known_parameters)])


@router.get("", summary="Read the audit log", responses=answers({200: example("Newest first", examples.AUDIT_PAGE)}))
async def read_audit_log(
    request: Request,
    response: Response,
    store: StoreDep,
    action: AuditAction | None = None,
    subject: Annotated[str | None, Query(max_length=256, description="the id of a job, or the name of a key")] = None,
    key: Annotated[str | None, Query(max_length=64, description="the name of who did it")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> AuditPage:
    """Submissions, cancels, changes of keys and of the fleet. Entries are only ever added."""
    page = await store.read(_page, AuditFilter(action, subject, key), limit, cursor)
    link_next(request, response, page.next_cursor)
    return page


def _page(session: Session, where: AuditFilter, limit: int, cursor: str | None) -> AuditPage:
    try:
        page = audit.list_entries(session, where, limit=limit, cursor=cursor)
    except InvalidCursor as error:
        raise invalid("?cursor", str(error)) from error
    data = [
        AuditEntry(
            seq=row.seq,
            at=row.at,
            action=AuditAction(row.action),
            subject=row.subject,
            key=name,
            address=row.address,
            request_id=row.request_id,
            data=row.data,
        )
        for row, name in page.items
    ]
    return AuditPage(data=data, next_cursor=page.next_cursor, has_more=page.has_more)
