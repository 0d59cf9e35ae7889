"""Bodies that pass, bodies that are refused with a pointer, and how money and times are written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from api.handlers import field_errors
from api.job_schemas import EXAMPLE_BODY, OWN_PROBLEM_BODY, JobBody
from api.schemas import Usd, UtcTime, money_text

MINIMAL: dict[str, Any] = {"problem": "softmax", "target": {"hardware": "cpu", "language": "cpp"}}


def refusals(body: Any) -> dict[str, str]:
    with pytest.raises(ValidationError) as refused:
        JobBody.model_validate(body)
    errors = [error | {"loc": ("body", *error["loc"])} for error in refused.value.errors()]
    return {error["pointer"]: error["detail"] for error in field_errors(errors)}


@pytest.mark.parametrize("body", [MINIMAL, EXAMPLE_BODY, OWN_PROBLEM_BODY])
def test_a_good_body_passes(body: dict[str, Any]) -> None:
    JobBody.model_validate(body)


def test_defaults_bound_the_search_by_candidates_only() -> None:
    body = JobBody.model_validate(MINIMAL)
    unset = {"usd": None, "wall_s": None, "gpu_s": None, "calls": None, "tokens": None}
    assert body.budget.model_dump() == {"candidates": 20} | unset
    assert (body.models, body.labels, body.priority, body.seed) == ([], {}, 0, 0)


@pytest.mark.parametrize(
    ("change", "pointer", "text"),
    [
        ({"budgte": {}}, "#/budgte", "unknown field"),
        ({"budget": {"dollars": 1}}, "#/budget/dollars", "unknown field"),
        ({"budget": {"usd": 5.0}}, "#/budget/usd", "decimal string"),
        ({"budget": {"usd": "five"}}, "#/budget/usd", "decimal string"),
        ({"budget": {"usd": "-1"}}, "#/budget/usd", "from 0 to"),
        ({"budget": {"usd": "NaN"}}, "#/budget/usd", "from 0 to"),
        ({"budget": {"usd": "0.0000001"}}, "#/budget/usd", "six decimals"),
        ({"budget": {"usd": "1e999999"}}, "#/budget/usd", "from 0 to"),
        ({"budget": {"calls": 0}}, "#/budget/calls", "greater than or equal to 1"),
        ({"budget": {"tokens": 0}}, "#/budget/tokens", "greater than or equal to 1"),
        ({"budget": {"candidates": 0}}, "#/budget/candidates", "greater than or equal to 1"),
        ({"budget": {"wall_s": float("inf")}}, "#/budget/wall_s", ""),
        ({"budget": {"wall_s": float("nan")}}, "#/budget/wall_s", ""),
        ({"target": {"hardware": "cpu"}}, "#/target/language", "is missing"),
        ({"target": {"hardware": "h100", "language": "cuda"}}, "#/target/hardware", "nvidia-h100"),
        ({"target": {"hardware": "cpu", "language": "cuda"}}, "#/target/language", "on cpu use cpp or triton"),
        ({"target": {"hardware": "nvidia-h100", "language": "cpp"}}, "#/target/language", "use triton or cuda"),
        ({"target": {"hardware": "amd-mi300x", "language": "cuda"}}, "#/target/language", "use triton"),
        ({"target": {"hardware": "cpu", "language": "rust"}}, "#/target/language", "cpp or triton"),
        ({"policy": {"search": "ucb"}}, "#/policy/search", "use default or uct or islands or archive or greedy or"),
        ({"problem": 7}, "#/problem", "name of a bundled problem"),
        ({"problem": {"source": "x"}}, "#/problem/name", "is missing"),
        ({"problem": "../etc/passwd"}, "#/problem/name", "pattern"),
        ({"labels": {"a:b": "c"}}, "#/labels/a:b", "pattern"),
        ({"labels": {"a": "b\0"}}, "#/labels/a", "NUL"),
        ({"labels": {"a": "\ud800"}}, "#/labels/a", "surrogate"),
        ({"labels": {f"k{n}": "" for n in range(33)}}, "#/labels", "32"),
        ({"models": ["a b"]}, "#/models/0", "pattern"),
        ({"seed": -1}, "#/seed", "greater than or equal to 0"),
        ({"stop": {"target_speedup": 0}}, "#/stop/target_speedup", "greater than 0"),
    ],
)
def test_a_bad_field_is_named(change: dict[str, Any], pointer: str, text: str) -> None:
    found = refusals(MINIMAL | change)
    assert list(found) == [pointer]
    assert text in found[pointer]


def test_a_body_that_is_no_object_is_named_too() -> None:
    assert refusals([1]) == {"#": "must be a JSON object"}
    assert refusals(MINIMAL | {"budget": []}) == {"#/budget": "must be a JSON object"}


@pytest.mark.parametrize(
    ("amount", "text"),
    [("0", "0.00"), ("5", "5.00"), ("1.5", "1.50"), ("0.001230", "0.00123"), ("1E+2", "100.00"), ("10.000", "10.00")],
)
def test_money_is_written_plainly(amount: str, text: str) -> None:
    assert money_text(Decimal(amount)) == text
    assert TypeAdapter(Usd).dump_json(Decimal(amount)).decode() == f'"{text}"'


def test_times_are_answered_in_utc() -> None:
    east = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2)))
    adapter = TypeAdapter(UtcTime)
    assert adapter.validate_python(east) == datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC)
    assert adapter.dump_json(adapter.validate_python(east)).decode() == '"2026-01-02T01:04:05Z"'
