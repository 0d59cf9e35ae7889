"""What clients were told, held against the rows: keys, ends, cancels and every event that a client saw."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, text

from tests.chaos.checker.violations import Violation, violation
from tests.chaos.journal import Journal, Line

Seen = tuple[int, str, Any]
"""An event: seq, type, data."""


def check_told(connection: Connection, journal: Journal) -> list[Violation]:
    """What clients were told that is not so."""
    jobs = {row.id: dict(row._mapping) for row in connection.execute(text("SELECT * FROM jobs"))}
    return [
        *_keys(connection, journal, jobs),
        *violation("promises are kept", "a client was refused what is right", journal.read("refused", "missing")),
        *violation("promises are kept", "a job ended other than its client was told", _ends(journal, jobs)),
        *violation("promises are kept", "a job whose cancel was accepted ended otherwise", _cancels(journal, jobs)),
        *_events(connection, journal),
    ]


def _keys(connection: Connection, journal: Journal, jobs: Mapping[str, Any]) -> list[Violation]:
    rows = connection.execute(text("SELECT key, job_id FROM idempotency_keys"))
    # Of the one API key that all clients have: `<key id> <what the client sent>`.
    stored = {key.rpartition(" ")[2]: job_id for key, job_id in rows}
    accepted = journal.read("accepted")
    asked = {line["key"] for line in journal.read("submitting")}
    by_key: dict[str, set[str]] = defaultdict(set)
    for line in accepted:
        by_key[line["key"]].add(line["job_id"])
    lost = [line for line in accepted if line["job_id"] not in jobs]
    other = [line for line in accepted if stored.get(line["key"]) != line["job_id"]]
    extra = [job_id for job_id in jobs if job_id not in set(stored.values())]
    unasked = [key for key in stored if key not in asked]
    return [
        *violation("nothing accepted is lost", "a client was given a job that is not there", lost),
        *violation("one job for a key", "a key stands for another job than its client was told", other),
        *violation("one job for a key", "a key was answered with two jobs", _many(by_key)),
        *violation("one job for a key", "a job is there that no key stands for", extra),
        *violation("one job for a key", "a key is there that no client sent", unasked),
    ]


def _many(by_key: Mapping[str, set[str]]) -> Iterator[str]:
    return (f"{key}: {sorted(ids)}" for key, ids in by_key.items() if len(ids) > 1)


def _ends(journal: Journal, jobs: Mapping[str, Any]) -> Iterator[str]:
    for line in journal.read("ended"):
        job = jobs.get(line["job_id"], {})
        if (line["state"], line["stop_reason"]) != (job.get("state"), job.get("stop_reason")):
            yield f"{line} {job.get('state')} {job.get('stop_reason')}"


def _cancels(journal: Journal, jobs: Mapping[str, Any]) -> Iterator[str]:
    for line in journal.read("cancelled"):
        state = jobs.get(line["job_id"], {}).get("state")
        if line["changed"] and state != "cancelled":
            yield f"{line} {state}"


def _events(connection: Connection, journal: Journal) -> list[Violation]:
    stored: dict[str, list[Seen]] = defaultdict(list)
    for row in connection.execute(text("SELECT job_id, seq, type, data FROM events ORDER BY job_id, seq")):
        stored[row.job_id].append((row.seq, row.type, row.data))
    seen: dict[str, list[Line]] = defaultdict(list)
    for line in journal.read("event"):
        seen[line["job_id"]].append(line)
    unordered, gaps = [], []
    for job_id, lines in seen.items():
        told = [(line["seq"], line["type"], line["data"]) for line in lines]
        if [seq for seq, _, _ in told] != sorted({seq for seq, _, _ in told}):
            unordered.append(f"{job_id}: {[seq for seq, _, _ in told]}")
        elif told != _until(stored[job_id], told[-1][0]):
            gaps.append(f"{job_id}: told {_short(told)}, stored {_short(_until(stored[job_id], told[-1][0]))}")
    return [
        *violation("events are in order", "a client was told of events twice or out of order", unordered),
        *violation("events have no gap", "a client was not told of an event, or of one that is not there", gaps),
    ]


def _until(events: Sequence[Seen], last: int) -> list[Seen]:
    return [event for event in events if event[0] <= last]


def _short(events: Sequence[Seen]) -> list[str]:
    return [f"{seq} {type}" for seq, type, _ in events]
