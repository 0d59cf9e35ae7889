"""The error tree and the problem documents that it makes."""

from __future__ import annotations

import pytest

from api import errors
from api.errors import ApiError, Invalid, NotFound, NotJson, Unavailable, WrongMethod, from_status, invalid, responses


def every_kind(kind: type[ApiError] = ApiError) -> list[type[ApiError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in every_kind(child))]


def test_a_document_has_what_rfc_9457_asks_for_and_the_request_id() -> None:
    document = invalid("#/budget/usd", "is negative").document("/v1/jobs", "req_1")
    assert document == {
        "type": "urn:kernelwright:error:invalid",
        "title": "Invalid request",
        "status": 422,
        "detail": "#/budget/usd: is negative",
        "instance": "/v1/jobs",
        "request_id": "req_1",
        "errors": [{"pointer": "#/budget/usd", "detail": "is negative"}],
    }


def test_without_fields_at_fault_there_is_no_errors_member() -> None:
    assert "errors" not in NotFound().document("/", "req_1")


def test_every_error_has_its_own_slug_and_says_something() -> None:
    kinds = every_kind()
    assert len({kind.slug for kind in kinds}) == len(kinds)
    assert all(len(kind.default_detail()) > 15 and "\n" not in kind.default_detail() for kind in kinds)


def test_every_error_is_in_the_drawn_tree() -> None:
    drawing = errors.__doc__ or ""
    assert [kind.__name__ for kind in every_kind() if kind.__name__ not in drawing] == []


def test_the_415_says_what_to_type() -> None:
    assert NotJson().detail == "send JSON: curl --json @job.json, or add -H 'Content-Type: application/json'"


@pytest.mark.parametrize(
    ("status", "kind"), [(404, NotFound), (405, WrongMethod), (415, NotJson), (422, Invalid), (400, errors.BrokenJson)]
)
def test_a_bare_status_becomes_the_error_of_that_status(status: int, kind: type[ApiError]) -> None:
    assert type(from_status(status, "text", None)) is kind


def test_an_unusual_status_keeps_itself_and_its_headers() -> None:
    error = from_status(418, "a teapot", {"X-Tea": "green"})
    assert (error.status, error.detail, error.headers) == (418, "a teapot", {"X-Tea": "green"})
    assert ApiError.status == 500


def test_unavailable_says_when_to_come_back() -> None:
    assert Unavailable().headers["Retry-After"] == "2"


def test_openapi_responses_join_errors_of_one_status() -> None:
    described = responses(errors.UnknownJob, errors.NoBestYet, Invalid)
    assert set(described) == {404, 422}
    assert set(described[404]["content"]["application/problem+json"]["examples"]) == {"unknown-job", "no-best-yet"}
