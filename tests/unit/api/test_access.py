"""Which scope a request needs, and who counts as being on this machine. No request is served here."""

from __future__ import annotations

import base64

import pytest
from starlette.datastructures import Headers

from api import access
from api.app import create_app
from db.settings import NoAuth, Settings, check_bind
from db.vocabulary import Scope

DOCUMENT = create_app(Settings(auth="required")).openapi()


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "/healthz", None),
        ("GET", "/static/app.css", None),
        ("GET", "/v1/jobs", Scope.READ),
        ("POST", "/v1/jobs", Scope.SUBMIT),
        ("POST", "/v1/jobs/job_1/cancel", Scope.SUBMIT),
        ("GET", "/v1/workers", Scope.READ),
        ("PATCH", "/v1/workers/worker_1", Scope.ADMIN),
        ("GET", "/v1/keys", Scope.ADMIN),
        ("DELETE", "/v1/keys/team", Scope.ADMIN),
        ("GET", "/v1/keysmith", Scope.READ),
        ("GET", "/", Scope.READ),
        ("GET", "/metrics", None),
        ("GET", "//healthz", Scope.READ),
    ],
)
def test_what_a_request_needs(method: str, path: str, scope: Scope | None) -> None:
    assert access.needed_scope(method, path) == scope


@pytest.mark.parametrize(
    ("address", "headers", "here"),
    [
        ("127.0.0.1", {"host": "127.0.0.1:8080"}, True),
        ("::1", {"host": "[::1]:8080"}, True),
        ("::ffff:127.0.0.1", {"host": "localhost"}, True),
        ("127.0.0.1", {"host": "kernels.example.com"}, False),
        ("127.0.0.1", {"host": "127.0.0.1.example.com"}, False),
        ("127.0.0.1", {"host": "[::1"}, False),
        ("127.0.0.1", {}, False),
        ("127.0.0.1", {"host": "localhost", "x-forwarded-for": "10.0.0.9"}, False),
        ("10.0.0.9", {"host": "localhost"}, False),
        (None, {"host": "localhost"}, False),
    ],
)
def test_who_speaks_from_this_machine(address: str | None, headers: dict[str, str], here: bool) -> None:
    assert access.spoken_here(address, Headers(headers)) is here


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer kw_live_x", "kw_live_x"),
        ("bearer  kw_live_x ", "kw_live_x"),
        ("Basic " + base64.b64encode(b"me:kw_live_x").decode(), "kw_live_x"),
        ("Basic " + base64.b64encode(b"kw_live_x").decode(), None),
        ("Basic abc", None),
        ("Bearer", None),
        ("Digest x", None),
    ],
)
def test_where_the_token_stands(header: str, token: str | None) -> None:
    assert access._token(header) == token


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "gpu7", "127.0.0.1.example.com"])
def test_an_address_that_others_reach_wants_keys(host: str) -> None:
    with pytest.raises(NoAuth, match=r"KERNELWRIGHT_AUTH=required, or listen on 127\.0\.0\.1"):
        check_bind(Settings(auth="loopback"), host)
    check_bind(Settings(auth="required"), host)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.3.2.1"])
def test_loopback_wants_none(host: str) -> None:
    check_bind(Settings(auth="loopback"), host)


def test_the_document_says_of_every_operation_which_scope_it_needs() -> None:
    assert DOCUMENT["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    for path, operations in DOCUMENT["paths"].items():
        for operation in operations.values():
            if path.startswith("/v1/"):
                ((name, scopes),) = operation["security"][0].items()
                assert name == "key" and scopes[0] in list(Scope)
                assert {"401", "403"} <= set(operation["responses"])
            else:
                assert operation["security"] == []
    assert DOCUMENT["paths"]["/v1/jobs"]["post"]["security"] == [{"key": ["submit"]}]


def test_where_keys_are_optional_the_document_says_so() -> None:
    on_loopback = create_app(Settings(auth="loopback")).openapi()
    assert on_loopback["paths"]["/v1/jobs"]["get"]["security"] == [{"key": ["read"]}, {}]
