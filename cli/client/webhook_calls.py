"""Webhooks, and what became of what they were told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cli.client.calls import Call, operation
from cli.client.types import (
    Delivery,
    DeliveryDetail,
    DeliveryPage,
    DeliveryState,
    Webhook,
    WebhookBody,
    WebhookChange,
    WebhookDeleted,
    WebhookPage,
    WebhookWithSecret,
)

_ONE = "/v1/webhooks/{webhook_id}"


class WebhookCalls:
    """Those of the client's key; for an admin, all."""

    @operation
    def webhooks(self, *, limit: int | None = None, cursor: str | None = None) -> Call[WebhookPage]:
        """A page of the webhooks, newest first, without their secrets."""
        return Call("GET", "/v1/webhooks", query={"limit": limit, "cursor": cursor})

    @operation
    def make_webhook(self, body: WebhookBody | Mapping[str, Any]) -> Call[WebhookWithSecret]:
        """A new webhook with its secret, which nobody can read again."""
        return Call("POST", "/v1/webhooks", body=body)

    @operation
    def webhook(self, webhook_id: str) -> Call[Webhook]:
        """One webhook: whether it is enabled, or why not."""
        return Call("GET", _ONE, {"webhook_id": webhook_id})

    @operation
    def change_webhook(self, webhook_id: str, body: WebhookChange | Mapping[str, Any]) -> Call[Webhook]:
        """Change what it is told from now on, or where."""
        return Call("PATCH", _ONE, {"webhook_id": webhook_id}, body=body, again="safe")

    @operation
    def remove_webhook(self, webhook_id: str) -> Call[WebhookDeleted]:
        """Remove it with its deliveries."""
        return Call("DELETE", _ONE, {"webhook_id": webhook_id})

    @operation
    def rotate_webhook(self, webhook_id: str, *, grace_s: float | None = None) -> Call[WebhookWithSecret]:
        """Give it another secret; for `grace_s` requests are signed with both."""
        body = {} if grace_s is None else {"grace_s": grace_s}
        return Call("POST", f"{_ONE}/rotate", {"webhook_id": webhook_id}, body=body)

    @operation
    def test_webhook(self, webhook_id: str) -> Call[Delivery]:
        """Send it a test event; the delivery says what was answered."""
        return Call("POST", f"{_ONE}/test", {"webhook_id": webhook_id})

    @operation
    def deliveries(
        self,
        webhook_id: str,
        *,
        state: DeliveryState | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Call[DeliveryPage]:
        """A page of what it was told, newest first."""
        query = {"state": state, "limit": limit, "cursor": cursor}
        return Call("GET", f"{_ONE}/deliveries", {"webhook_id": webhook_id}, query=query)

    @operation
    def delivery(self, webhook_id: str, delivery_id: str) -> Call[DeliveryDetail]:
        """One delivery with its data."""
        where = {"webhook_id": webhook_id, "delivery_id": delivery_id}
        return Call("GET", f"{_ONE}/deliveries/{{delivery_id}}", where)

    @operation
    def retry_delivery(self, webhook_id: str, delivery_id: str) -> Call[Delivery]:
        """Send it again at once, whatever became of it."""
        where = {"webhook_id": webhook_id, "delivery_id": delivery_id}
        return Call("POST", f"{_ONE}/deliveries/{{delivery_id}}/retry", where)
