"""`kernelwright ask JOB` and `kernelwright tell JOB FILE.jsonl`: take a job's open questions away, bring answers back.

A line of `ask` is a question as the API gives it: candidate_id, token, lease_expires_at, messages and more. A line for
`tell` has candidate_id, token and one of `answer`, `source` and `"exhausted": true`; what else it has is left alone, so
that an answer may simply be added to the line of its question.
"""

from __future__ import annotations

import json as text
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from cli import show
from cli.client import ApiError, Told
from cli.service import DEFAULT_URL, JobArgument, JsonOption, UnusableInput, UrlOption, service

Limit = Annotated[int, typer.Option("--limit", min=1, max=64, help="At most so many questions.")]
LeaseS = Annotated[float | None, typer.Option("--lease-s", help="Seconds for which they are yours: 900 unless said.")]
AgentOption = Annotated[str | None, typer.Option("--agent", help="Who asks; it is kept in the job's events.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE.jsonl", help="Write them to this file.")]
Answers = Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="Answers, one JSON object a line; - is stdin.")]

AsEver = Annotated[bool, typer.Option("--json", help="Changes nothing: questions are JSON, one object a line.")]

_ONE_OF = ("answer", "source", "exhausted")
_SAID = (*_ONE_OF, "plan", "agent")
_REFUSED = 1
_SERVER_FAULT = 500


class Answer(NamedTuple):
    """One line for `tell`."""

    number: int
    candidate_id: str
    token: str
    said: dict[str, Any]


def ask(
    job: JobArgument,
    limit: Limit = 1,
    lease_s: LeaseS = None,
    agent: AgentOption = None,
    out: Out = None,
    url: UrlOption = DEFAULT_URL,
    json: AsEver = False,
) -> None:
    """Take open questions of a job that has ask/tell among its models: prompts as JSON, one object a line."""
    if out is not None:
        _check_folder(out)  # before anything is leased
    with service(url) as client:
        questions = client.ask(job, limit=limit, lease_s=lease_s, agent=agent)
    lines = [text.dumps(question, ensure_ascii=False) for question in questions]
    if out is None:
        for line in lines:
            show.say_source(line)
    else:
        out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    if not questions:
        show.note("nothing is open now: ask again when the job has judged more")
        return
    until = show.moment(min(question["lease_expires_at"] for question in questions))
    show.note(f"{len(questions)} asked; tell before {until}: kernelwright tell {job} FILE.jsonl")


def tell(
    job: JobArgument,
    answers: Answers,
    agent: AgentOption = None,
    url: UrlOption = DEFAULT_URL,
    json: JsonOption = False,
) -> None:
    """Answer questions. Exit 1 when the service refused one of them; the others are told all the same."""
    said = list(read_answers(_text(answers), str(answers)))
    refused = 0
    with service(url) as client:
        for each in said:
            words = ({"agent": agent} if agent else {}) | each.said
            try:
                told = client.tell(job, each.candidate_id, each.token, **words)
            except ApiError as error:
                if error.status >= _SERVER_FAULT:
                    raise
                refused += 1
                show.note(f"line {each.number}: {each.candidate_id}: {error.title}: {error.detail}")
                continue
            _show(told, as_json=json)
    if refused:
        raise typer.Exit(_REFUSED)


def _show(told: Told, *, as_json: bool) -> None:
    if as_json:
        show.put_json(told)
    elif told["accepted"]:
        show.say(f"{told['candidate_id']}: accepted, to be judged")
    else:
        show.say(f"{told['candidate_id']}: {told['failure']}: {told['failure_detail']}")


def read_answers(lines: str, name: str) -> Iterator[Answer]:
    """The file's lines, all of them read before the first is told. Raises UnusableInput."""
    for number, line in enumerate(lines.splitlines(), 1):
        if line.strip():
            yield _answer(number, line, name)


def _answer(number: int, line: str, name: str) -> Answer:
    try:
        record: Any = text.loads(line)
        said = {field: record[field] for field in _SAID if record.get(field) is not None}
        answer = Answer(number, record["candidate_id"], record["token"], said)
    except (ValueError, KeyError, AttributeError, TypeError) as broken:
        raise UnusableInput(
            problem=f'{name}, line {number}: write {{"candidate_id": ..., "token": ..., "answer": ...}}'
        ) from broken
    if sum(bool(said.get(each)) for each in _ONE_OF) != 1:
        raise UnusableInput(problem=f"{name}, line {number}: it has to have an answer, a source or exhausted: true")
    return answer


def _text(path: Path) -> str:
    try:
        return typer.get_text_stream("stdin").read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except OSError as error:
        raise UnusableInput(problem=f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UnusableInput(problem=f"{path} is no UTF-8 text: byte {error.start}") from error


def _check_folder(out: Path) -> None:
    if not out.parent.is_dir():
        raise UnusableInput(problem=f"cannot write {out}: there is no folder {out.parent}")
