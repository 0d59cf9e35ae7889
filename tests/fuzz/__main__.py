"""Every operation of the OpenAPI document before generated requests, right and wrong ones: `python -m tests.fuzz`.

Schemathesis asks a real server before a real Postgres and holds each answer against the document: no 5xx, no status,
content type, header or body that is not declared, nothing invalid accepted, nothing valid refused.

Three rounds: without a key from this machine, with the ids of a job, candidates, a request and a webhook that exist;
with an admin's key where keys are required, with made-up ids; and there without a key. The server has no workers, so
what is submitted stays queued. Exit code 1: something failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import httpx2
from pydantic import SecretStr
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from api.app import create_app
from cli.embedded.postgres import EmbeddedPostgres
from cli.embedded.valkey import EmbeddedValkey
from db import keys
from db.settings import Settings
from db.vocabulary import Scope
from tests.integration.api.history import History
from tests.integration.api.server import serving
from tests.support.schema import migrate

CASES, QUICK_CASES = 10_000, 1_500
"""Requests in both rounds together, at least."""
EXAMPLES, QUICK_EXAMPLES = 120, 5
"""Requests per operation and round that fuzzing makes; the coverage phase adds 50 of its own."""
REQUEST_LIMIT_S = 20.0
NO_LIMIT = "1000000/minute"
RULED_BY_MORE = (
    r"^/v1/jobs$",  # CUDA does not run on a cpu; what a problem's source must be
    r"^/v1/(jobs|candidates)/[^/]+/package$",  # what goes into one package beside the first is of the same problem
    r"^/v1/requests$",  # words that are like no bundled problem, and no model to write one
    r"^/v1/jobs/[^/]+/tell$",  # a plan goes with a source, and not with an answer
    r"^/v1/jobs/[^/]+/rerun$",  # an Idempotency-Key stands for one body
    r"^/v1/keys(/[^/]+/rotate)?$",  # an end that is over already
    r"^/v1/(jobs/[^/]+/(candidates|decisions|proposals)|candidates|knowledge/lessons|audit)$",  # whose cursor it is
    r"^/v1/webhooks(/[^/]+(/deliveries)?)?$",  # where a URL leads, and cursors again
)
"""Operations with rules that no JSON schema states: there 422 may answer what the schema allows."""
_BODY = {"problem": "softmax", "target": {"hardware": "cpu", "language": "cpp"}}


def main() -> int:
    """Fuzz, and say how many requests there were."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the requests, in under five minutes")
    parser.add_argument("--examples", type=int, help="requests per operation and round")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    examples = options.examples or (QUICK_EXAMPLES if options.quick else EXAMPLES)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        folder = Path(scratch)
        with _stores(folder) as (database_url, redis_url):
            with _serving(database_url, redis_url, "loopback") as url:
                known = _filled(url, database_url)
                done = [_round(url, folder, "known", known, examples, options.seed)]
            with _serving(database_url, redis_url, "required") as url:
                done.append(_round(url, folder, "made_up", {}, examples, options.seed, _admin(database_url)))
                done.append(_round(url, folder, "keyless", known, 1, options.seed))
    cases, failed = sum(cases for cases, _ok in done), sum(not ok for _cases, ok in done)
    wanted = QUICK_CASES if options.quick else CASES
    sys.stdout.write(f"{cases} requests, at least {wanted} wanted; {failed} of {len(done)} rounds failed\n")
    return int(bool(failed) or cases < wanted)


@contextmanager
def _stores(folder: Path) -> Iterator[tuple[str, str]]:
    """The addresses of a migrated Postgres and of a Valkey."""
    with EmbeddedPostgres(folder / "postgres") as postgres, EmbeddedValkey(folder / "valkey") as valkey:
        database_url = postgres.url_for("postgres")
        migrate(database_url)
        yield database_url, valkey.url


@contextmanager
def _serving(database_url: str, redis_url: str, auth: Literal["required", "loopback"]) -> Iterator[str]:
    """The API on a port of its own."""
    settings = Settings(
        database_url=SecretStr(database_url),
        redis_url=SecretStr(redis_url),
        auth=auth,
        rate_limit=NO_LIMIT,
        rate_limit_address=NO_LIMIT,
    )
    with serving(create_app(settings, ring=lambda _bells: None)) as url:
        yield url


def _admin(database_url: str) -> str:
    """The token of a new admin's key."""
    engine = create_engine(database_url)
    try:
        with sessionmaker(engine).begin() as session:
            return keys.create_key(session, "fuzz", {}, scopes=[Scope.ADMIN])
    finally:
        engine.dispose()


def _filled(url: str, database_url: str) -> dict[str, str]:
    """Give every operation something to find; the path parameters that find it."""
    engine = create_engine(database_url)
    history = History(sessionmaker(engine))
    try:
        with httpx2.Client(base_url=url) as client:
            job_id = client.post("/v1/jobs", json=_BODY).raise_for_status().json()["id"]
            request = client.post("/v1/requests", json={"request": "a C++ kernel for softmax on a cpu"})
            made = client.post("/v1/webhooks", json={"url": "https://1.1.1.1/hook"}).raise_for_status().json()
            webhook_id = made["webhook"]["id"]
            delivery_id = client.post(f"/v1/webhooks/{webhook_id}/test").raise_for_status().json()["id"]
            history.start(job_id)
            candidate_id = history.evaluate(job_id, speedup=1.5, code={"assembly": "ret\n"})
            other = history.evaluate(job_id, verdict="incorrect", reason="wrong", timed=False)
            history.reject(job_id, "no_code")
        request_id = request.raise_for_status().json()["id"]
    finally:
        engine.dispose()
    return {"job_id": job_id, "candidate_id": candidate_id, "other_id": other, "request_id": request_id,
            "name": "softmax", "webhook_id": webhook_id, "delivery_id": delivery_id}  # fmt: skip


def _round(
    url: str, folder: Path, name: str, known: dict[str, str], examples: int, seed: int, token: str | None = None
) -> tuple[int, bool]:
    """One run of Schemathesis; how many requests it made, and whether all was well."""
    config, report = folder / f"{name}.toml", folder / f"{name}.ndjson"
    config.write_text(_config(known))
    program = Path(sys.executable).with_name("schemathesis")
    command = [str(program), "--config-file", str(config), "run", f"{url}/openapi.json", "--checks", "all"]
    command += ["--max-examples", str(examples), "--seed", str(seed), "--continue-on-failure", "--workers", "2"]
    command += ["--request-timeout", str(REQUEST_LIMIT_S), "--report", "ndjson", "--report-ndjson-path", str(report)]
    command += ["--suppress-health-check", "all", "--generation-database", "none"]
    command += [] if token is None else ["--header", f"Authorization: Bearer {token}"]
    done = subprocess.run(command, cwd=folder, env=os.environ | {"NO_COLOR": "1"}, check=False)
    return _requests(report), done.returncode == 0


def _config(known: dict[str, str]) -> str:
    """Nobody waits for what does not come: without workers no job moves."""
    parameters = known | {"wait": 0}
    lines = [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in parameters.items()]
    # As is the tool's own wont, and 414: what is 8 KiB long is refused before anybody looks what is in it.
    refused = ["400", "401", "403", "404", "405", "406", "409", "414", "415", "422", "428", "429", "5xx"]
    lines += [f"[checks.negative_data_rejection]\nexpected-statuses = {json.dumps(refused)}"]
    accepted = [200, 201, 202, 204, 304, 401, 403, 404, 409, 422, 429]
    for path in RULED_BY_MORE:
        lines += ["[[operations]]", f"include-path-regex = {json.dumps(path)}"]
        lines += [f"checks.positive_data_acceptance.expected-statuses = {accepted}"]
    if "webhook_id" in known:
        # The others are to find it. It is removed in the round with made-up ids.
        lines += ["[[operations]]", 'include-name = "DELETE /v1/webhooks/{webhook_id}"', "enabled = false"]
    return "\n".join(["[parameters]", *lines, ""])


def _requests(report: Path) -> int:
    return report.read_text().count('"request"') if report.exists() else 0


if __name__ == "__main__":
    sys.exit(main())
