"""What the service has on record of a search, fetched whole: for `kernelwright replay`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from cli.client import Client, Json

_EVENTS = 200
_DECISIONS = 200
_PROPOSALS = 20
"""What the API gives at once; a proposal carries its whole prompt."""


def decisions(client: Client, job_id: str) -> list[Json]:
    """All decisions of the job's search."""
    return list(_pages(lambda cursor: client.decisions(job_id, limit=_DECISIONS, cursor=cursor)))


def proposals(client: Client, job_id: str) -> list[Json]:
    """How all of the job's candidates were made."""
    return list(_pages(lambda cursor: client.proposals(job_id, limit=_PROPOSALS, cursor=cursor)))


def elsewhere(client: Client, made: Sequence[Json]) -> dict[str, str]:
    """The sources of parents that are candidates of other jobs, by id: what was ported."""
    own = {each["candidate_id"] for each in made}
    foreign = dict.fromkeys(parent for each in made for parent in each["parents"] if parent not in own)
    sources = {parent: client.candidate(parent)["source"] for parent in foreign}
    return {parent: source for parent, source in sources.items() if source is not None}


def events(client: Client, job_id: str) -> list[Json]:
    """All events of the job so far."""
    found: list[Json] = []
    after, more = 0, True
    while more:
        page = client.events(job_id, after=after, limit=_EVENTS)
        found += cast(list[Json], page["data"])
        after, more = page["next_after"], page["has_more"]
    return found


def _pages(page: Callable[[str | None], Any]) -> Iterator[Json]:
    cursor: str | None = None
    while True:
        answer = page(cursor)
        yield from answer["data"]
        cursor = answer["next_cursor"]
        if cursor is None:
            return
