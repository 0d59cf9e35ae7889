"""`kernelwright audit`: who submitted, cancelled and changed what, newest first. Needs a key with the scope admin."""

from __future__ import annotations

from typing import Annotated

import typer

from cli import show
from cli.client.types import AuditAction
from cli.service import DEFAULT_URL, JsonOption, UrlOption, service

Action = Annotated[AuditAction | None, typer.Option("--action", help="Only these.")]
Subject = Annotated[str | None, typer.Option("--subject", help="Only of this job or key.")]
Key = Annotated[str | None, typer.Option("--key", help="Only what this key did.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=200, help="At most so many.")]


def audit(
    action: Action = None,
    subject: Subject = None,
    key: Key = None,
    limit: Limit = 50,
    url: UrlOption = DEFAULT_URL,
    json: JsonOption = False,
) -> None:
    """Read the audit log, newest first."""
    with service(url) as client:
        entries = client.audit(action=action, subject=subject, key=key, limit=limit)["data"]
    if json:
        for entry in entries:
            show.put_json(entry)
        return
    lines = [
        [entry["at"], entry["key"] or "-", entry["action"], entry["subject"], entry["address"] or "-"]
        for entry in entries
    ]
    show.table(("at", "key", "action", "subject", "from"), lines, empty="nothing is on record")
