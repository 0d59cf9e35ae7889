"""What the service has on record of a search, fetched whole: for `kernelwright replay`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypedDict, cast
from urllib.parse import quote

from cli.client import Client, Target

_EVENTS = 200
_DECISIONS = 200
_PROPOSALS = 20
"""What the API gives at once; a proposal carries its whole prompt."""

Json = dict[str, Any]


class Problem(TypedDict):
    name: str
    hash: str
    source: str


class Judging(TypedDict):
    """What the judge is asked about a job's candidates. `seed` is null while the job runs."""

    job_id: str
    problem: Problem
    target: Target
    own_kernel_share: float
    seed: int | None


def judging(client: Client, job_id: str) -> Judging:
    """What the job's judge is asked, beside the candidate."""
    return cast(Judging, _get(client, _job(job_id, "judging")))


def tree(client: Client, job_id: str) -> list[Json]:
    """The job's nodes as the search sees them now."""
    return cast(list[Json], _get(client, _job(job_id, "tree"))["nodes"])


def decisions(client: Client, job_id: str) -> list[Json]:
    """All decisions of the job's search."""
    return list(_pages(client, _job(job_id, "decisions"), _DECISIONS))


def proposals(client: Client, job_id: str) -> list[Json]:
    """How all of the job's candidates were made."""
    return list(_pages(client, _job(job_id, "proposals"), _PROPOSALS))


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


def _pages(client: Client, path: str, limit: int) -> Iterator[Json]:
    cursor: str | None = None
    while True:
        page = _get(client, path, limit=limit, **({} if cursor is None else {"cursor": cursor}))
        yield from page["data"]
        cursor = page["next_cursor"]
        if cursor is None:
            return


def _get(client: Client, path: str, **params: Any) -> Json:
    return cast(Json, client.send("GET", path, params=params).json())


def _job(job_id: str, what: str) -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}/{what}"
