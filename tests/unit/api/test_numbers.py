"""A number is a number: true and false are refused where one is wanted, and taken where they are meant."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from api.job_schemas import JobBody
from api.key_schemas import KeyBody, RotateBody
from api.schemas import Body

WANTED = {"problem": "softmax", "target": {"hardware": "cpu", "language": "cpp"}}


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        *((KeyBody, ("caps", name)) for name in ("gpu_s", "wall_s", "calls", "tokens", "usd", "candidates", "jobs")),
        *((JobBody, ("budget", name)) for name in ("gpu_s", "wall_s", "calls", "tokens", "usd", "candidates")),
        *((JobBody, ("", name)) for name in ("priority", "seed")),
        (RotateBody, ("", "grace_s")),
    ],
)
def test_a_switch_is_no_number(kind: type[Body], body: tuple[str, str], value: bool) -> None:
    part, name = body
    own = {"name": "team"} if kind is KeyBody else WANTED if kind is JobBody else {}
    with pytest.raises(ValidationError) as refused:
        kind.model_validate({**own, **({part: {name: value}} if part else {name: value})})
    assert [error["loc"][-1] for error in refused.value.errors()] == [name]


def test_a_switch_stays_one() -> None:
    assert JobBody.model_validate({**WANTED, "admit": False, "priority": 3}).admit is False
