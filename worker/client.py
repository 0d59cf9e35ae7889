"""Rings the doorbell: one Celery message with one work id, after the commit that made the work.

A ring may be lost (Redis away, flushed, a worker killed at the wrong moment): the row in the ledger is what counts, and
the reaper rings again. So nothing here raises when Redis is away. The API imports this module and no other of `worker`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import structlog
from celery import Celery
from kombu.exceptions import BatchPublishError, OperationalError
from redis.exceptions import RedisError

from db.settings import get_settings

Doorbell = tuple[str, str, str]
"""Work id, queue, kind."""

KEY_PREFIX: Final = "kernelwright:"
"""Keeps our keys apart from those of others in one Redis."""
HARD_LIMIT_S: Final = 1800
"""Nothing may take longer. The judge's and the proposers' own deadlines are far shorter."""

_AWAY: Final = (BatchPublishError, OperationalError, RedisError, OSError)

log = structlog.get_logger(__name__)


def transport_options() -> dict[str, Any]:
    """How messages travel: the same for those who ring and those who answer."""
    return {
        # Redelivery recovers nothing here (leases do); a short timeout would only run long tasks twice.
        "visibility_timeout": HARD_LIMIT_S + 300,
        "socket_keepalive": True,
        "health_check_interval": 30,
        "unacked_restore_interval": 5,
        "unacked_restore_throttle": 1,
        "global_keyprefix": KEY_PREFIX,
    }


@lru_cache(maxsize=1)
def producer() -> Celery:
    """The Celery app that only sends. Raises MissingRedisUrl when no Redis is configured."""
    app = Celery("kernelwright-doorbell", broker=get_settings().broker_url, set_as_current=False)
    app.conf.update(
        broker_transport_options=transport_options() | {"socket_connect_timeout": 1, "socket_timeout": 2},
        task_serializer="json",
        task_ignore_result=True,
        task_default_queue="control",
        # A caller waits for this: one quick second try, then it is the reaper's.
        task_publish_retry_policy={"max_retries": 1, "interval_start": 0.05, "interval_max": 0.05},
    )
    return app


def ring(work_id: str, queue: str, kind: str) -> bool:
    """Say that there is work on a queue. False when Redis is away: logged, and rung again by the reaper."""
    return ring_all([(work_id, queue, kind)]) == 1


def ring_all(doorbells: Iterable[Doorbell]) -> int:
    """Ring for each, in one trip to Redis. Returns how many rang: all, or none when Redis is away."""
    bells = list(doorbells)
    if not bells:
        return 0
    try:
        try:
            _publish(bells)
        except BatchPublishError:  # an idle connection was closed; who is rung for twice is found done
            _publish(bells)
    except _AWAY as error:
        work_id, queue, kind = bells[0]
        why = str(error.__cause__ or error)
        log.warning("doorbell.lost", work_id=work_id, queue=queue, kind=kind, count=len(bells), error=why)
        return 0
    return len(bells)


def _publish(bells: Iterable[Doorbell]) -> None:
    app = producer()
    # Alone a message takes 0.9 ms of CPU, half of it for a connection from the pool and a trip; of ten together 0.4 ms.
    with app.producer_or_acquire() as publisher, publisher.batch():
        for work_id, queue, kind in bells:
            name = f"kernelwright.{kind}"
            app.send_task(name, args=[work_id], queue=queue, ignore_result=True, producer=publisher)


def ring_once(doorbell: Doorbell, every_s: int) -> bool:
    """Ring for something that is no row, unless that was done within `every_s` and nobody has `heard` it since.

    Redis remembers it, beside the message: what loses one loses the other.
    """
    try:
        with producer().connection_for_read() as connection, connection.channel() as channel:
            fresh = channel.client.set(_mark(doorbell[2]), "", nx=True, ex=every_s)
    except _AWAY as error:
        log.warning("doorbell.lost", queue=doorbell[1], kind=doorbell[2], error=str(error))
        return False
    return bool(fresh) and ring(*doorbell)


def heard(kind: str) -> None:
    """What `ring_once` rang for is done, and may be rung for again at once."""
    try:
        with producer().connection_for_read() as connection, connection.channel() as channel:
            channel.client.delete(_mark(kind))
    except _AWAY as error:
        log.warning("doorbell.not_reset", kind=kind, error=str(error))


def _mark(kind: str) -> str:
    return f"rung.{kind}"


def ring_missing(doorbells: Iterable[Doorbell]) -> int:
    """Ring only for what is not already waiting in Redis, so that a long backlog does not fill it with repeats.

    Any doorbell makes a worker take the first ready row of its queues, so it is their number that matters.
    """
    by_queue: dict[str, list[Doorbell]] = {}
    for doorbell in doorbells:
        by_queue.setdefault(doorbell[1], []).append(doorbell)
    waiting = depths(by_queue)
    return ring_all(bell for queue, bells in by_queue.items() for bell in bells[waiting.get(queue, 0) :])


def depths(queues: Iterable[str]) -> Mapping[str, int]:
    """How many messages wait in Redis, queue by queue; nothing for those it cannot tell."""
    found: dict[str, int] = {}
    try:
        with producer().connection_for_read() as connection, connection.channel() as channel:
            for queue in queues:
                # Not queue_declare(passive=True): kombu 5.7 forgets the key prefix there and finds no queue.
                found[queue] = int(channel.client.llen(queue))
    except _AWAY as error:
        log.warning("doorbell.depth_unknown", error=str(error))
    return found
