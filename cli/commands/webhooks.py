"""`kernelwright webhooks`: be told what became of jobs, by signed requests to an address of yours.

kernelwright webhooks add https://example.com/hooks/kernelwright --type job.finished --label team=ranking
kernelwright webhooks test webhook_019aa5e0c1d27c4f8f3a5b6c7d8e9f11
kernelwright webhooks deliveries webhook_019aa5e0c1d27c4f8f3a5b6c7d8e9f11 --state failed

How a receiver verifies what it gets: docs/webhooks.md.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from cli import show
from cli.client import Client
from cli.client.types import Delivery, DeliveryDetail, DeliveryState, Webhook, WebhookWithSecret
from cli.errors import CliError
from cli.service import DEFAULT_URL, JsonOption, UrlOption, key_value, service

webhooks = typer.Typer(
    help="Be told what became of jobs, by signed requests to an address of yours.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Address = Annotated[str, typer.Argument(metavar="ADDRESS", help="Where to: https://…")]
WebhookArgument = Annotated[str, typer.Argument(metavar="WEBHOOK", help="The id of a webhook, webhook_… .")]
DeliveryArgument = Annotated[str, typer.Argument(metavar="DELIVERY", help="The id of a delivery, delivery_… .")]
Types = Annotated[
    list[str] | None, typer.Option("--type", help="Of what, once for each: job.finished as it comes, job.improved, ...")
]
LabelOption = Annotated[
    list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="Only of jobs with this label; all must match.")
]
AllJobs = Annotated[bool, typer.Option("--all-jobs", help="Of everybody's jobs, not only those of the same key.")]
Description = Annotated[str | None, typer.Option("--description", help="What it is for.")]
State = Annotated[DeliveryState | None, typer.Option("--state", help="Only those.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=200, help="At most so many.")]
Grace = Annotated[float, typer.Option("--grace-s", min=0, help="Seconds for which the old secret signs too.")]

_TEST_S = 45.0
"""A second until it is looked for, and twenty for an endpoint that takes its time, twice over."""
_POLL_S = 0.3


class NotTaken(CliError):
    """{what}; it is tried again by itself: kernelwright webhooks deliveries {webhook}"""

    exit_code = 3


@webhooks.command()
def add(
    address: Address,
    types: Types = None,
    label: LabelOption = None,
    all_jobs: AllJobs = False,
    description: Description = None,
    url: UrlOption = DEFAULT_URL,
    json: JsonOption = False,
) -> None:
    """Make a webhook. stdout gets its secret, which is shown this once."""
    body: dict[str, Any] = {"url": address, "labels": dict(map(key_value, label or []))}
    body |= {"jobs": "all"} if all_jobs else {}
    body |= {name: value for name, value in (("types", types), ("description", description)) if value}
    with service(url) as client:
        made = client.make_webhook(body)
    _tell_secret(made, as_json=json)


@webhooks.command("list")
def list_(limit: Limit = 50, url: UrlOption = DEFAULT_URL, json: JsonOption = False) -> None:
    """List your webhooks, the newest first; an admin sees all."""
    with service(url) as client:
        found = client.webhooks(limit=limit)["data"]
    if json:
        for each in found:
            show.put_json(each)
        return
    rows = [
        (
            each["id"],
            each["url"],
            ",".join(each["types"]),
            ",".join(f"{key}={value}" for key, value in each["labels"].items()) or "-",
            each["jobs"],
            _state(each),
        )
        for each in found
    ]
    heads = ("webhook", "url", "types", "labels", "jobs", "state")
    show.table(heads, rows, empty="no webhooks: kernelwright webhooks add https://...")


@webhooks.command("show")
def show_(webhook: WebhookArgument, url: UrlOption = DEFAULT_URL, json: JsonOption = False) -> None:
    """Show a webhook."""
    with service(url) as client:
        found = client.webhook(webhook)
    if json:
        show.put_json(found)
        return
    told = {name: value for name, value in found.items() if name not in ("links", "enabled", "disabled_why")}
    for name, value in (told | {"state": _state(found)}).items():
        if value not in (None, {}, []):
            show.say(f"{name}\t{show.fields(value) if isinstance(value, dict) else _words(value)}")


@webhooks.command()
def test(webhook: WebhookArgument, url: UrlOption = DEFAULT_URL, json: JsonOption = False) -> None:
    """Send a test event and say what was answered. Exit 3: it was not taken."""
    with service(url) as client:
        sent = client.test_webhook(webhook)
        found = _attempted(client, webhook, sent["id"])
    if json:
        show.put_json(found)
    else:
        show.say(f"{found['id']}\t{_outcome(found)}")
    if found["state"] != "succeeded":
        raise NotTaken(what=_outcome(found), webhook=webhook)


@webhooks.command()
def rotate(
    webhook: WebhookArgument, grace_s: Grace = 86_400.0, url: UrlOption = DEFAULT_URL, json: JsonOption = False
) -> None:
    """Give a webhook another secret, and print that. For a day both sign."""
    with service(url) as client:
        made = client.rotate_webhook(webhook, grace_s=grace_s)
    _tell_secret(made, as_json=json)


@webhooks.command()
def enable(webhook: WebhookArgument, url: UrlOption = DEFAULT_URL, json: JsonOption = False) -> None:
    """Have a disabled webhook be told again, of what happens from now on."""
    _switch(webhook, url, enabled=True, as_json=json)


@webhooks.command()
def disable(webhook: WebhookArgument, url: UrlOption = DEFAULT_URL, json: JsonOption = False) -> None:
    """Tell a webhook nothing until it is enabled again."""
    _switch(webhook, url, enabled=False, as_json=json)


@webhooks.command()
def remove(webhook: WebhookArgument, url: UrlOption = DEFAULT_URL, json: JsonOption = False) -> None:
    """Remove a webhook with its deliveries."""
    with service(url) as client:
        gone = client.remove_webhook(webhook)
    if json:
        show.put_json(gone)
    else:
        show.note(f"{webhook} is told nothing any more")


@webhooks.command()
def deliveries(
    webhook: WebhookArgument,
    state: State = None,
    limit: Limit = 20,
    url: UrlOption = DEFAULT_URL,
    json: JsonOption = False,
) -> None:
    """List what a webhook was told and what it answered, the newest first."""
    with service(url) as client:
        found = client.deliveries(webhook, state=state, limit=limit)["data"]
    if json:
        for each in found:
            show.put_json(each)
        return
    rows = [
        (
            each["id"],
            show.moment(each["created_at"]),
            each["type"],
            each["job_id"] or "-",
            each["state"],
            str(each["attempts"]),
            _outcome(each),
            show.moment(each["next_attempt_at"]),
        )
        for each in found
    ]
    heads = ("delivery", "created", "type", "job", "state", "attempts", "last", "next")
    show.table(heads, rows, empty="no deliveries: it was told nothing within 30 days")


@webhooks.command()
def retry(
    webhook: WebhookArgument, delivery: DeliveryArgument, url: UrlOption = DEFAULT_URL, json: JsonOption = False
) -> None:
    """Send a delivery again at once, whatever became of it."""
    with service(url) as client:
        found = client.retry_delivery(webhook, delivery)
    if json:
        show.put_json(found)
    else:
        show.note(f"{delivery} will be sent within seconds")


def _switch(webhook: str, url: str, *, enabled: bool, as_json: bool) -> None:
    with service(url) as client:
        found = client.change_webhook(webhook, {"enabled": enabled})
    if as_json:
        show.put_json(found)
    else:
        show.note(f"{webhook} is {_state(found)}")


def _tell_secret(made: WebhookWithSecret, *, as_json: bool) -> None:
    if as_json:
        show.put_json(made)
        return
    typer.echo(made["secret"])
    show.note(f"{made['webhook']['id']}: this secret is shown once; docs/webhooks.md says how to verify with it")


def _attempted(client: Client, webhook: str, delivery: str) -> DeliveryDetail:
    """The delivery once an attempt has ended, or as it is when nobody has made one in time."""
    until = time.monotonic() + _TEST_S
    while True:
        found = client.delivery(webhook, delivery)
        if found["attempted_at"] is not None or found["state"] != "waiting" or time.monotonic() >= until:
            return found
        time.sleep(_POLL_S)


def _outcome(delivery: Delivery | DeliveryDetail) -> str:
    """`204 in 0.03 s`, or the error."""
    if delivery["attempted_at"] is None:
        return delivery["error"] or "not sent yet"
    took = f" in {delivery['wall_s']:.2f} s" if delivery["wall_s"] is not None else ""
    answered = None if delivery["status"] is None else f"answered {delivery['status']}{took}"
    return ": ".join(filter(None, (answered, delivery["error"])))


def _state(webhook: Webhook) -> str:
    if not webhook["enabled"]:
        return f"disabled ({webhook['disabled_why']})"
    since = show.moment(webhook["failing_since"])
    return f"enabled, failing since {since}" if webhook["failures"] else "enabled"


def _words(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
