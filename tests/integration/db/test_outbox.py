"""The outbox of webhooks: written with the event or not at all, taken by one, settled by who holds it."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from db import events, jobs, keys, outbox, webhooks
from db.audit import AuditFilter, list_entries
from db.outbox import Attempt, Sending, SendingLost
from db.vocabulary import EventType, Scope, StopReason, WebhookType
from db.webhook_models import Webhook, WebhookDelivery
from db.webhooks import NewWebhook, Owner
from tests.support.ledger import evaluate as judge
from tests.support.ledger import make_candidates, make_job, propose

Sessions = sessionmaker[Session]
ALL = Owner(None, everybody=True)
OK = Attempt(0.01, status=200, answer="thanks")
BAD = Attempt(0.01, status=500, answer="oops")
FINISHED = (WebhookType.JOB_FINISHED,)


def make(sessions: Sessions, key_id: str | None = None, **fields: Any) -> str:
    new = NewWebhook(**{"url": "https://example.com/", "types": FINISHED, "labels": {}} | fields)
    with sessions.begin() as session:
        return webhooks.create_webhook(session, new, key_id).id


def make_key(sessions: Sessions, name: str, *scopes: Scope) -> str:
    with sessions.begin() as session:
        keys.create_key(session, name, {}, scopes=scopes or keys.DEFAULT_SCOPES)
        key = keys.get_key(session, name)
        assert key is not None
        return key.id


def finish(sessions: Sessions, job_id: str, why: StopReason = StopReason.EXHAUSTED) -> None:
    with sessions.begin() as session:
        jobs.finish_job(session, job_id, why)


def told(sessions: Sessions, webhook_id: str) -> list[WebhookDelivery]:
    with sessions.begin() as session:
        return list(reversed(webhooks.list_deliveries(session, webhook_id).items))


def claim(sessions: Sessions, most: int = 10, **options: Any) -> list[Sending]:
    with sessions.begin() as session:
        return outbox.claim(session, most, **options)


def settle(sessions: Sessions, sending: Sending, attempt: Attempt) -> str:
    with sessions.begin() as session:
        return outbox.settle(session, sending, attempt, random.Random(1)).value


def change(sessions: Sessions, statement: str) -> None:
    with sessions.begin() as session:
        session.execute(text(statement))


def the_webhook(sessions: Sessions, webhook_id: str) -> Webhook:
    with sessions.begin() as session:
        row = webhooks.get_webhook(session, webhook_id, ALL)
        assert row is not None
        return row


def test_an_event_and_its_deliveries_are_committed_together_or_not_at_all(sessions: Sessions) -> None:
    first, second = make(sessions), make(sessions)
    job = make_job(sessions)
    with pytest.raises(RuntimeError), sessions.begin() as session:
        jobs.finish_job(session, job.id, StopReason.EXHAUSTED)
        raise RuntimeError("killed before the commit")
    assert told(sessions, first) == []
    finish(sessions, job.id, StopReason.CANCELLED)
    with sessions.begin() as session:
        (event,) = (each for each in events.page(session, job.id) if each.type == "job.finished")
    for webhook_id in (first, second):
        (row,) = told(sessions, webhook_id)
        assert (row.type, row.job_id, row.event_seq, row.state) == ("job.finished", job.id, event.seq, "waiting")
        assert row.data["seq"] == event.seq
        assert row.data["job"]["state"] == "cancelled"
        assert row.data["job"]["links"]["self"] == f"/v1/jobs/{job.id}"


def test_a_delivery_holds_the_job_as_it_was_and_neither_sources_nor_secrets(sessions: Sessions) -> None:
    webhook_id = make(sessions, types=list(WebhookType))
    job = make_job(sessions, labels={"team": "ranking"})
    with sessions.begin() as session:
        jobs.start_job(session, jobs.fetch_job(session, job.id))
    (candidate_id,) = make_candidates(sessions, job)
    propose(sessions, candidate_id)
    judge(sessions, candidate_id, speedup=1.5)
    finish(sessions, job.id)
    rows = told(sessions, webhook_id)
    assert [row.type for row in rows] == ["job.created", "job.started", "job.improved", "job.finished"]
    assert [row.data["job"]["state"] for row in rows] == ["queued", "running", "running", "succeeded"]
    assert [row.data["job"]["best"] for row in rows[1:3]] == [None, {"candidate_id": candidate_id, "speedup": 1.5}]
    versions = [row.data["job"]["version"] for row in rows]
    assert versions == sorted(set(versions))
    assert rows[-1].data["job"]["labels"] == {"team": "ranking"}
    assert rows[-1].data["job"]["finished_at"].endswith("Z")
    whole = str([row.data for row in rows])
    assert "ModelNew" not in whole and "get_inputs" not in whole and "whsec_" not in whole


def test_only_what_is_wanted_is_told(sessions: Sessions) -> None:
    mine, others = make_key(sessions, "mine"), make_key(sessions, "others")
    no_reader = make_key(sessions, "no_reader", Scope.SUBMIT)
    wants = {
        "mine": make(sessions, mine),
        "everybody's": make(sessions, others, all_jobs=True),
        "others'": make(sessions, others),
        "nobody's": make(sessions),
        "may not read": make(sessions, no_reader, all_jobs=True),
        "labelled": make(sessions, mine, labels={"team": "a", "tier": "1"}),
        "otherwise labelled": make(sessions, mine, labels={"team": "b"}),
        "starts": make(sessions, mine, types=[WebhookType.JOB_STARTED]),
        "disabled": make(sessions, mine),
    }
    change(sessions, f"UPDATE webhooks SET enabled = false, disabled_why = 'owner' WHERE id = '{wants['disabled']}'")
    job = make_job(sessions, key_id=mine, labels={"team": "a", "tier": "1", "more": "x"})
    finish(sessions, job.id)
    heard = [name for name, webhook_id in wants.items() if told(sessions, webhook_id)]
    assert heard == ["mine", "everybody's", "labelled"]


@pytest.mark.parametrize("ended", ["revoked_at = now()", "expires_at = now()"])
def test_a_key_that_is_over_is_told_nothing_more(sessions: Sessions, ended: str) -> None:
    key_id = make_key(sessions, "leaver")
    webhook_id = make(sessions, key_id)
    first, second = make_job(sessions, key_id=key_id), make_job(sessions, key_id=key_id)
    finish(sessions, first.id)
    change(sessions, f"UPDATE api_keys SET {ended}")
    finish(sessions, second.id)
    with sessions.begin() as session:
        assert outbox.give_up(session) == 1
    (row,) = told(sessions, webhook_id)
    assert (row.state, row.job_id, row.error) == (
        "failed",
        first.id,
        "the API key of the webhook is revoked or has expired",
    )


def test_an_event_without_webhooks_costs_one_look_and_most_events_none(sessions: Sessions) -> None:
    job = make_job(sessions)
    with sessions.begin() as session:
        statements: list[str] = []
        connection = session.connection()
        from sqlalchemy import event

        event.listen(connection, "before_cursor_execute", lambda *args: statements.append(args[2]))
        events.append(session, job.id, EventType.CANDIDATE_EVALUATING)
        assert len(statements) == 2
        events.append(session, job.id, EventType.JOB_STARTED)
        assert len(statements) == 5 and "FROM webhooks" in statements[-1]


def test_of_many_senders_each_delivery_has_one(sessions: Sessions) -> None:
    ids = [make(sessions) for _ in range(6)]
    finish(sessions, make_job(sessions).id)
    with ThreadPoolExecutor(6) as pool:
        taken = [sending for found in pool.map(lambda _: claim(sessions, 2), range(6)) for sending in found]
    taken += claim(sessions)
    assert sorted(sending.webhook_id for sending in taken) == sorted(ids)
    assert len({sending.token for sending in taken}) == 6
    assert claim(sessions) == []


def test_one_endpoint_has_two_at_a_time_and_holds_up_no_other(sessions: Sessions) -> None:
    busy = make(sessions)
    for _ in range(5):
        finish(sessions, make_job(sessions).id)
    idle = make(sessions)
    finish(sessions, make_job(sessions).id)
    first = claim(sessions)
    assert sorted(sending.webhook_id for sending in first) == sorted([busy, busy, idle])
    assert claim(sessions) == []
    done = next(sending for sending in first if sending.webhook_id == busy)
    assert settle(sessions, done, OK) == "succeeded"
    (more,) = claim(sessions)
    assert more.webhook_id == busy and more.id != done.id


def test_who_lost_the_lease_is_fenced_and_the_id_stays(sessions: Sessions) -> None:
    webhook_id = make(sessions)
    finish(sessions, make_job(sessions).id)
    (lost,) = claim(sessions, lease_s=0)
    (again,) = claim(sessions)
    assert (again.id, again.attempt, again.body) == (lost.id, 2, lost.body)
    with pytest.raises(SendingLost), sessions.begin() as session:
        outbox.settle(session, lost, BAD, random.Random(1))
    assert the_webhook(sessions, webhook_id).failures == 0
    assert settle(sessions, again, OK) == "succeeded"
    (row,) = told(sessions, webhook_id)
    assert (row.state, row.attempt, row.status, row.answer) == ("succeeded", 2, 200, "thanks")


def test_failures_are_tried_again_later_and_later_until_none_is_left(sessions: Sessions) -> None:
    webhook_id = make(sessions)
    finish(sessions, make_job(sessions).id)
    waited = []
    for number in range(outbox.MAX_ATTEMPTS):
        (sending,) = claim(sessions)
        assert settle(sessions, sending, BAD) == ("waiting" if number < len(outbox.DELAYS_S) else "failed")
        assert claim(sessions) == []
        with sessions.begin() as session:
            delay = text("SELECT extract(epoch FROM not_before - attempted_at)::float8 FROM webhook_deliveries")
            waited.append(session.execute(delay).scalar_one())
        change(sessions, "UPDATE webhook_deliveries SET not_before = now() WHERE state = 'waiting'")
    for planned, was in zip(outbox.DELAYS_S, waited, strict=False):
        assert planned * 0.8 <= was <= planned * 1.2
    (row,) = told(sessions, webhook_id)
    assert (row.state, row.attempt, row.status) == ("failed", 8, 500) and row.finished_at is not None
    assert the_webhook(sessions, webhook_id).failures == 8


@pytest.mark.parametrize(("asked_s", "kept_s"), [(900.0, 900.0), (1.0, 4.0), (1e9, 86_400.0), (-5.0, 4.0)])
def test_what_the_endpoint_asks_for_is_kept(sessions: Sessions, asked_s: float, kept_s: float) -> None:
    webhook_id = make(sessions)
    finish(sessions, make_job(sessions).id)
    (sending,) = claim(sessions)
    settle(sessions, sending, Attempt(0.1, status=429, retry_after_s=asked_s))
    (row,) = told(sessions, webhook_id)
    assert row.attempted_at is not None
    assert kept_s - 1 <= (row.not_before - row.attempted_at).total_seconds() <= kept_s * 1.5


def test_an_endpoint_that_is_gone_is_disabled_and_what_waits_for_it_is_given_up(sessions: Sessions) -> None:
    webhook_id = make(sessions)
    for _ in range(2):
        finish(sessions, make_job(sessions).id)
    first, second = claim(sessions, lease_s=0)  # in whichever order an UPDATE returns them
    change(sessions, "UPDATE webhook_deliveries SET lease_token = NULL WHERE id <> '" + first.id + "'")
    assert settle(sessions, first, Attempt(0.1, status=410)) == "failed"
    row = the_webhook(sessions, webhook_id)
    assert (row.enabled, row.disabled_why) == (False, "gone")
    assert claim(sessions) == []
    with sessions.begin() as session:
        assert outbox.give_up(session) == 1
        (entry, _key) = list_entries(session, AuditFilter(action="webhook.disable")).items[0]
        assert (entry.subject, entry.data["why"]) == (webhook_id, "gone")
    errors = {each.id: each.error for each in told(sessions, webhook_id)}
    assert errors[second.id] == "the webhook was disabled before this was sent"


def test_an_endpoint_that_fails_for_days_is_disabled_and_one_success_forgets_it_all(sessions: Sessions) -> None:
    webhook_id = make(sessions)

    def fail_once_more(days: int) -> Webhook:
        finish(sessions, make_job(sessions).id)
        (sending,) = claim(sessions)
        change(sessions, f"UPDATE webhooks SET failures = 9, failing_since = now() - make_interval(days => {days})")
        settle(sessions, sending, BAD)
        change(sessions, "UPDATE webhook_deliveries SET state = 'failed' WHERE state = 'waiting'")
        return the_webhook(sessions, webhook_id)

    assert fail_once_more(days=2).enabled
    finish(sessions, make_job(sessions).id)
    (sending,) = claim(sessions)
    settle(sessions, sending, OK)
    row = the_webhook(sessions, webhook_id)
    assert (row.failures, row.failing_since) == (0, None)
    row = fail_once_more(days=3)
    assert (row.enabled, row.disabled_why) == (False, "failing")


def test_a_sender_that_is_killed_every_time_ends_it(sessions: Sessions) -> None:
    webhook_id = make(sessions)
    finish(sessions, make_job(sessions).id)
    for _ in range(outbox.MAX_ATTEMPTS):
        assert len(claim(sessions, lease_s=0)) == 1
    assert claim(sessions) == []
    with sessions.begin() as session:
        assert outbox.give_up(session) == 1
    (row,) = told(sessions, webhook_id)
    assert row.state == "failed" and "killed" in str(row.error)


def test_a_deleted_webhook_takes_its_deliveries_along_and_its_sender_finds_nothing(sessions: Sessions) -> None:
    webhook_id = make(sessions)
    finish(sessions, make_job(sessions).id)
    (sending,) = claim(sessions)
    with sessions.begin() as session:
        row = webhooks.get_webhook(session, webhook_id, ALL, lock=True)
        assert row is not None
        webhooks.delete_webhook(session, row)
    with pytest.raises(SendingLost):
        settle(sessions, sending, OK)
    assert told(sessions, webhook_id) == []


def test_deliveries_are_dropped_30_days_after_they_ended(sessions: Sessions) -> None:
    webhook_id = make(sessions)
    for age in (31, 29, 0):
        finish(sessions, make_job(sessions).id)
        (sending,) = claim(sessions)
        settle(sessions, sending, OK)
        change(
            sessions,
            f"UPDATE webhook_deliveries SET finished_at = now() - make_interval(days => {age})"
            f" WHERE id = '{sending.id}'",
        )
    with sessions.begin() as session:
        assert (outbox.prune(session), outbox.prune(session)) == (1, 0)
    assert len(told(sessions, webhook_id)) == 2


def test_the_gauges_count_what_waits_and_how_long_it_has_been_due(sessions: Sessions) -> None:
    make(sessions)
    make(sessions, types=[WebhookType.JOB_STARTED])
    for _ in range(2):
        finish(sessions, make_job(sessions).id)
    change(sessions, "UPDATE webhook_deliveries SET not_before = now() - interval '90 s'")
    claim(sessions, 1)
    change(sessions, "UPDATE webhooks SET enabled = false, disabled_why = 'owner' WHERE 'job.started' = ANY (types)")
    with sessions.begin() as session:
        depth = outbox.depth(session)
    assert (depth.waiting, depth.enabled, depth.disabled) == (2, 1, 1)
    assert 89 < depth.oldest_age_s < 100
