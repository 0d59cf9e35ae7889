"""The service itself: its workers, its queues, its keys and who did what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from cli.client.calls import Call, Flow, data, given, operation, steps
from cli.client.errors import ClientError
from cli.client.types import (
    AuditAction,
    AuditPage,
    CapsBody,
    Key,
    KeyRevoked,
    KeyWithToken,
    QueueDepth,
    Ready,
    Scope,
    ServiceSummary,
    Worker,
)


class ServiceCalls:
    """What its operators look at and change."""

    @operation
    def workers(self, *, include_gone: bool | None = None) -> Call[list[Worker]]:
        """The workers that the service knows, with what they run on and what they do now."""
        return Call("GET", "/v1/workers", query={"include_gone": include_gone}, read=data)

    @operation
    def set_worker(self, worker_id: str, state: Literal["draining", "active"]) -> Call[Worker]:
        """Drain a worker: it finishes what it does and claims nothing more. Or have it take work again."""
        return Call("PATCH", "/v1/workers/{worker_id}", {"worker_id": worker_id}, body={"state": state}, again="safe")

    @operation
    def summary(self) -> Call[ServiceSummary]:
        """The whole service at a glance: jobs, queues, workers, today's spending, waits."""
        return Call("GET", "/v1/summary")

    @operation
    def queues(self) -> Call[list[QueueDepth]]:
        """The queues with their depth, their workers and how long work waited there lately."""
        return Call("GET", "/v1/queues", read=data)

    @operation
    def keys(self) -> Call[list[Key]]:
        """All API keys with what they may use and have used. Needs the scope admin, as all that follows."""
        return Call("GET", "/v1/keys", read=data)

    @operation
    def make_key(
        self,
        name: str,
        *,
        scopes: Sequence[Scope] | None = None,
        expires_at: str | None = None,
        caps: CapsBody | Mapping[str, Any] | None = None,
    ) -> Call[KeyWithToken]:
        """A new key, with the only sight of its token. Conflict when the name is taken."""
        body = {"name": name} | given(scopes=scopes, expires_at=expires_at, caps=caps)
        return Call("POST", "/v1/keys", body=body)

    @operation
    def rotate_key(
        self, name: str, *, grace_s: float | None = None, expires_at: str | None = None
    ) -> Call[KeyWithToken]:
        """Another token for a key; the old one is good for `grace_s` more."""
        body = given(grace_s=grace_s, expires_at=expires_at) or None
        return Call("POST", "/v1/keys/{name}/rotate", {"name": name}, body=body)

    @operation
    def revoke_key(self, name: str) -> Call[KeyRevoked]:
        """End a key at once and for good. `changed` is false when it was revoked before."""
        return Call("DELETE", "/v1/keys/{name}", {"name": name})

    @operation
    def audit(
        self,
        *,
        action: AuditAction | None = None,
        subject: str | None = None,
        key: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Call[AuditPage]:
        """A page of who submitted, cancelled and changed what, newest first."""
        query = {"action": action, "subject": subject, "key": key, "limit": limit, "cursor": cursor}
        return Call("GET", "/v1/audit", query=query)

    @operation
    def readiness(self) -> Call[Ready]:
        """That the service can work, with the schema it has. ServerError says what it lacks."""
        return Call("GET", "/readyz", again="never")

    @steps
    def ready(self) -> Flow[bool]:
        """True when the API answers and has its database, its Redis and the newest schema."""
        try:
            yield ServiceCalls.readiness.describe(self)
        except ClientError:
            return False
        return True
