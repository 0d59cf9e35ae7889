"""`kernelwright diff A B`: two candidates side by side, then the diff of their sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from cli import show
from cli.client import Comparison
from cli.service import DEFAULT_URL, JsonOption, UrlOption, service

First = Annotated[str, typer.Argument(metavar="A", help="The id of a candidate, cand_… .")]
Second = Annotated[str, typer.Argument(metavar="B", help="The id of the one to compare it with.")]


def diff(first: First, second: Second, url: UrlOption = DEFAULT_URL, json: JsonOption = False) -> None:
    """Compare two candidates: the diff of their sources on stdout, their figures on stderr."""
    with service(url) as client:
        found = client.compare(first, second)
    if json:
        show.put_json(found)
        return
    for line in _figures(found):
        show.note(line)
    if found["diff"] is None:
        show.note("no diff: one of them has no source, or they are very long")
    elif not found["diff"]:
        show.note("their sources are the same")
    else:
        show.say_source(found["diff"])


def _figures(found: Comparison) -> list[str]:
    sides = [
        f"{name}: {each['id']}, {each['verdict'] or each['state']}, {_timing(each)}"
        for name, each in (("A", found["first"]), ("B", found["second"]))
    ]
    workloads = [
        f"{each['name']}: A {_timing(each['first'])}, B {_timing(each['second'])}{_times(each['ratio'])}"
        for each in found["workloads"]
    ]
    whole = [f"B against A{_times(found['ratio'])}"] if found["ratio"] else []
    others = [f"{key}: A {values[0]}, B {values[1]}" for key, values in found["environment"].items()]
    return [*sides, *whole, *workloads, *others, *(f"note: {note}" for note in found["notes"])]


def _timing(timed: Mapping[str, Any] | None) -> str:
    if timed is None:
        return "not timed"
    return (
        f"{show.latency(timed['latency_us'])} {show.speedup(timed['speedup'])} {show.interval(timed['ci95'])}".rstrip()
    )


def _times(ratio: Mapping[str, Any] | None) -> str:
    if ratio is None:
        return ""
    ends = None if ratio["low"] is None else (ratio["low"], ratio["high"])
    unclear = "" if ratio["clear"] else ", no clear difference"
    return f": {show.speedup(ratio['value'])} {show.interval(ends)}".rstrip() + unclear
