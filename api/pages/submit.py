"""The form that submits a job: what is wrong stands beside its field, and a check shows what the judge would say."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from api import jobs, submission
from api.deps import ActorDep, FeedDep, StoreDep
from api.errors import ApiError, FieldError, KeyReused
from api.handlers import field_errors
from api.job_schemas import DryRun, JobBody
from api.pages.frame import form_of, render, see_other
from db.vocabulary import Language, SearchPolicy
from problems.catalog import bundled

router = APIRouter()

_EMPTY: dict[str, str] = {
    "kind": "bundled",
    "bundled": "softmax",
    "name": "",
    "source": "",
    "hardware": "cpu",
    "language": "cpp",
    "candidates": "20",
    "usd": "",
    "wall_s": "",
    "target_speedup": "",
    "models": "",
    "search": SearchPolicy.DEFAULT.value,
}
_POINTERS = {
    "#/problem/source": "source",
    "#/problem/name": "name",
    "#/target/hardware": "hardware",
    "#/target/language": "language",
    "#/budget/candidates": "candidates",
    "#/budget/usd": "usd",
    "#/budget/wall_s": "wall_s",
    "#/stop/target_speedup": "target_speedup",
    "#/policy/search": "search",
}


class _Refused(Exception):
    """What the form says of a field is wrong; `errors` are by field, those of no field by the empty one."""

    def __init__(self, errors: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        self.errors = errors


@router.get("/submit")
async def show_form(request: Request) -> Response:
    """The empty form; a field may come in the query, as a link would set it."""
    given = {name: value for name, value in request.query_params.items() if name in _EMPTY}
    return _form(request, _EMPTY | given)


@router.post("/submit")
async def submit_form(request: Request, store: StoreDep, feed: FeedDep, actor: ActorDep) -> Response:
    """Check it, or store it and go to the job."""
    sent = await form_of(request)
    given = _EMPTY | {name: value for name, value in sent.items() if name in _EMPTY}
    try:
        body = _body_of(given)
        if sent.get("action") == "check":
            problem = await _resolved(body, given)
            return _form(request, given, checked=await store.read(submission.dry_run, body, problem))
        answer = Response()
        job = await jobs.submit_job(body, answer, store, feed, actor, idempotency_key=_key_in(sent))
    except _Refused as refused:
        return _form(request, given, errors=refused.errors)
    except KeyReused:
        return _form(request, given, errors={"": ["this form was sent before, with other fields: send it once more"]})
    except ApiError as error:
        return _form(request, given, errors=_by_field(error.errors, given, error.detail))
    assert not isinstance(job, DryRun)
    return see_other(f"/jobs/{job.id}")


async def _resolved(body: JobBody, given: Mapping[str, str]) -> Any:
    return await asyncio.to_thread(submission.resolve, body.problem, body.target.hardware)


def _key_in(sent: Mapping[str, str]) -> str | None:
    """The form's own key: sent twice by two clicks, it makes one job."""
    key = sent.get("key", "")
    return key if key.isalnum() and len(key) <= 64 else None


def _body_of(given: Mapping[str, str]) -> JobBody:
    """The very body that a client would post. Raises _Refused."""
    own = given["kind"] == "own"
    numbers = {name: _number(given[name]) for name in ("candidates", "wall_s", "target_speedup")}
    budget = {"candidates": numbers["candidates"], "usd": given["usd"].strip(), "wall_s": numbers["wall_s"]}
    raw = {
        "problem": {"name": given["name"].strip(), "source": given["source"]} if own else given["bundled"],
        "target": {"hardware": given["hardware"].strip(), "language": given["language"]},
        "budget": {name: value for name, value in budget.items() if value not in ("", None)},
        "stop": {"target_speedup": numbers["target_speedup"]},
        "policy": {"search": given["search"]},
        "models": [name for name in given["models"].replace(",", " ").split() if name],
    }
    try:
        return JobBody.model_validate(raw)
    except ValidationError as error:
        found = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
        raise _Refused(_by_field(field_errors(found), given)) from error


def _number(text: str) -> float | str | None:
    """A number as JSON would have it; what is none is left to the schema to refuse."""
    try:
        value = float(text) if text.strip() else None
    except ValueError:
        return text
    return int(value) if value is not None and value.is_integer() else value


def _by_field(errors: Sequence[FieldError], given: Mapping[str, str], whole: str = "") -> dict[str, list[str]]:
    """Each finding under the field that it is about, else above the form."""
    found: dict[str, list[str]] = {}
    for error in errors:
        pointer = error["pointer"]
        problem = "source" if given["kind"] == "own" else "bundled"
        models = "models" if pointer.startswith("#/models") else ""
        field = _POINTERS.get(pointer) or (problem if pointer == "#/problem" else models)
        found.setdefault(field, []).append(error["detail"])
    return found or {"": [whole]}


def _form(
    request: Request,
    given: Mapping[str, str],
    *,
    errors: Mapping[str, Sequence[str]] | None = None,
    checked: DryRun | None = None,
) -> Response:
    return render(
        request,
        "submit.html.j2",
        status=422 if errors else 200,
        given=given,
        errors=errors or {},
        checked=checked,
        key=secrets.token_hex(16),
        problems=list(bundled().values()),
        languages=list(Language),
        policies=list(SearchPolicy),
    )
