"""`kernelwright problems | leaderboard`: what the service can search by name, and who is fastest at it."""

from __future__ import annotations

from typing import Annotated

import typer

from cli import completion, show
from cli.client import Language
from cli.service import DEFAULT_URL, JsonOption, UrlOption, service

Name = Annotated[
    str,
    typer.Argument(
        metavar="PROBLEM", help="The name of a problem, bundled or your own.", autocompletion=completion.problems
    ),
]
Hardware = Annotated[
    str | None,
    typer.Option("--hardware", help="Only on this: cpu, nvidia-h100, ...", autocompletion=completion.hardware),
]
KernelLanguage = Annotated[Language | None, typer.Option("--language", help="Only in this.")]


def problems(url: UrlOption = DEFAULT_URL, json: JsonOption = False) -> None:
    """List the bundled problems."""
    with service(url) as client:
        found = client.problems()
    if json:
        for problem in found:
            show.put_json(problem)
        return
    rows = [(each["name"], each["op_family"], str(len(each["workloads"])), each["summary"]) for each in found]
    show.table(
        ("problem", "family", "workloads", "what it computes"), rows, empty="the service has no bundled problems"
    )


def leaderboard(
    problem: Name,
    hardware: Hardware = None,
    language: KernelLanguage = None,
    url: UrlOption = DEFAULT_URL,
    json: JsonOption = False,
) -> None:
    """Show who is fastest at a problem: one board for each of its sources and targets. On stderr, who is not on it."""
    with service(url) as client:
        found = client.leaderboard(problem, hardware=hardware, language=language)
    if json:
        show.put_json(found)
        return
    rows = []
    for board in found["boards"]:
        where = f"{board['target']['hardware']}:{board['target']['language']}"
        rows += [
            (
                board["hash"][:8],
                where,
                str(each["rank"]),
                show.speedup(each["speedup"]),
                show.interval(each["ci95"]) or "-",
                show.latency(each["latency_us"]),
                "certified" if each["certified"] else "-",
                each["model"] or each["proposer"],
                each["candidate_id"],
            )
            for each in board["entries"]
        ]
        for each in board["left_out"]:
            note = f"{where}: {each['candidate_id']}, {show.speedup(each['speedup'])}, is not on it: {each['verdict']}"
            show.note(f"{note}, {each['why']}")
    heads = ("source", "target", "rank", "speedup", "95 %", "latency", "certificate", "by", "candidate")
    show.table(heads, rows, empty=f"no job on {problem} has ended with a measured kernel yet")
