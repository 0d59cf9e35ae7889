"""`kernelwright watch JOB`: a job as it goes on, until it ends. Exit 0 when it succeeded, 1 failed, 3 cancelled.

On a terminal a live table, when piped one line for each event, with --json each event as a JSON object and at last the
job. Ctrl-C stops the watching, never the job.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime

import typer
from rich.live import Live

from cli import show
from cli.board import Board
from cli.client import Client, Event, Job, Unreachable
from cli.service import DEFAULT_URL, JobArgument, JsonOption, UrlOption, service

EXIT_BY_STATE = {"succeeded": 0, "failed": 1, "cancelled": 3}

# An event of now is worth a fresh look at the job; while an old history is replayed, one look in this time is enough.
_FRESH_S = 10.0
_LOOK_EVERY_S = 0.5


def watch(job: JobArgument, url: UrlOption = DEFAULT_URL, json: JsonOption = False) -> None:
    """Watch a job until it ends. Exit 0: succeeded, 1: failed, 3: cancelled."""
    with service(url) as client:
        watch_job(client, client.job(job), as_json=json)


def watch_job(client: Client, job: Job, *, as_json: bool) -> None:
    """Show the job until it ends, then leave with the exit status of its state.

    Raises typer.Exit, and what `Client.follow` raises when the service stays away.
    """
    try:
        show_events(client, job, as_json=as_json)
    except KeyboardInterrupt:
        show.note(f"\n{job['id']} goes on; stop it with: kernelwright cancel {job['id']}")
        raise typer.Exit(130) from None
    ended = client.job(job["id"])
    if as_json:
        show.put_json(ended)
    else:
        show.say(show.outcome(ended))
        if ended["best"] is not None:
            show.note(f"kernelwright best {ended['id']} --output kernel.py")
    raise typer.Exit(EXIT_BY_STATE.get(ended["state"], 1))


def show_events(client: Client, job: Job, *, as_json: bool = False) -> None:
    """Show what happens to the job until it has ended. Raises what `Client.follow` raises."""
    events = client.follow(job["id"])
    if as_json:
        _as_json(events)
    elif show.on_terminal():
        _as_board(client, job, events)
    else:
        _as_lines(events)


def _as_json(events: Iterable[Event]) -> None:
    for event in events:
        show.put_json(event)


def _as_lines(events: Iterable[Event]) -> None:
    for event in events:
        show.say(f"{show.moment(event['at'])} {event['type']} {show.fields(event['data'])}".rstrip())


def _as_board(client: Client, job: Job, events: Iterable[Event]) -> None:
    board = Board(job, _elapsed_s)
    looked_at = datetime.now(UTC)
    with Live(board, console=show.console(), refresh_per_second=4) as live:
        for event in events:
            board.apply(event)
            if _age_s(event["at"]) < _FRESH_S or (datetime.now(UTC) - looked_at).total_seconds() >= _LOOK_EVERY_S:
                # Away for a moment: `follow` waits for it, the picture keeps the last numbers meanwhile.
                with suppress(Unreachable):
                    board.job = client.job(job["id"])
                looked_at = datetime.now(UTC)
        board.job = client.job(job["id"])
        live.refresh()


def _elapsed_s(job: Job) -> float:
    if job["started_at"] is None:
        return 0.0
    ended_s_ago = _age_s(job["finished_at"]) if job["finished_at"] else 0.0
    return max(0.0, _age_s(job["started_at"]) - ended_s_ago)


def _age_s(at: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds()
