"""`kernelwright knowledge`: what is known for a task, the lessons learned, and what knowing them was worth."""

from __future__ import annotations

from typing import Annotated, cast

import typer

from cli import completion, show
from cli.client import Client, Language
from cli.client.types import Difference, FoundItem, ItemLift, LessonState, Lift
from cli.service import DEFAULT_URL, JsonOption, UnusableInput, UrlOption, service

Words = Annotated[str | None, typer.Argument(help="Words, code or an error message to look for.", show_default=False)]
TargetOption = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="HARDWARE:LANGUAGE",
        help="For whom: cpu:cpp, nvidia-h100:triton, ...",
        autocompletion=completion.targets,
    ),
]
ProblemOption = Annotated[
    str | None,
    typer.Option("--problem", help="For this bundled problem, in place of words.", autocompletion=completion.problems),
]
FamilyOption = Annotated[str | None, typer.Option("--op-family", help="What kind of operation it is.")]
Lessons = Annotated[bool, typer.Option("--lessons", help="List the lessons, whatever their standing.")]
StateOption = Annotated[LessonState | None, typer.Option("--state", help="With --lessons, only those.")]
Uplift = Annotated[bool, typer.Option("--uplift", help="Say what retrieval was worth, overall and item by item.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=50, help="At most so many, of each kind.")]


def knowledge(
    words: Words = None,
    target: TargetOption = "cpu:cpp",
    problem: ProblemOption = None,
    op_family: FamilyOption = None,
    lessons: Lessons = False,
    state: StateOption = None,
    uplift: Uplift = False,
    limit: Limit = 5,
    url: UrlOption = DEFAULT_URL,
    json: JsonOption = False,
) -> None:
    """Look up what is known for a task, as a proposal would: certified kernels, confirmed lessons, facts."""
    hardware, _, language = target.partition(":")
    if not hardware or not language:
        raise UnusableInput(problem=f"--target {target!r} is no HARDWARE:LANGUAGE")
    with service(url) as client:
        if uplift:
            _show_uplift(client, limit, json)
        elif lessons:
            _show_lessons(client, limit, json, state=state, op_family=op_family)
        else:
            _show_items(
                client.knowledge(
                    hardware, cast(Language, language), q=words, problem=problem, op_family=op_family, limit=limit
                ),
                json,
            )


def _show_items(items: list[FoundItem], json: bool) -> None:
    if json:
        for item in items:
            show.put_json(item)
        return
    rows = [
        (item["kind"], str(item["rank"]), f"{item['score']:.3f}", _ranks(item["ranks"]), item["title"], item["id"])
        for item in items
    ]
    heads = ("kind", "rank", "score", "rank in each part", "what it says", "id")
    show.table(heads, rows, empty="nothing is known for this")


def _show_lessons(client: Client, limit: int, json: bool, *, state: LessonState | None, op_family: str | None) -> None:
    found = client.lessons(limit=limit, state=state, op_family=op_family)["data"]
    if json:
        for lesson in found:
            show.put_json(lesson)
        return
    rows = [
        (
            lesson["id"],
            "retired" if lesson["retired"] else lesson["state"],
            f"{lesson['supporting']} for, {lesson['opposing']} against",
            show.moment(lesson["last_confirmed"]),
            lesson["title"],
        )
        for lesson in found
    ]
    show.table(("lesson", "standing", "jobs", "last confirmed", "what it says"), rows, empty="no such lessons")


def _show_uplift(client: Client, limit: int, json: bool) -> None:
    found = client.uplift(limit=limit)
    if json:
        show.put_json(found)
        return
    rows = [_lift_cells("all retrieval", found["overall"], None)]
    rows += [_lift_cells(item["title"], item, item["retired"]) for item in found["items"]]
    heads = ("what was shown", "with", "without", "correct", "log-speedup gained", "USD", "retired")
    show.table(heads, rows, empty="nothing was measured yet")


def _lift_cells(title: str, lift: Lift | ItemLift, retired: str | None) -> tuple[str, ...]:
    groups = (f"{group['correct']}/{group['proposals']}" for group in (lift["shown"], lift["withheld"]))
    differences = map(_difference, (lift["correctness"], lift["gained"], lift["cost_usd"]))
    return (title, *groups, *differences, retired or "-")


def _difference(difference: Difference | None) -> str:
    if difference is None:
        return "-"
    low, high = difference["ci95"]
    return f"{difference['estimate']:+.3f} [{low:+.3f}, {high:+.3f}]"


def _ranks(ranks: dict[str, int]) -> str:
    return ", ".join(f"{part} {rank}" for part, rank in sorted(ranks.items()))
