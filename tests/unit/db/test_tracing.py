"""Tests of `db.tracing` where nothing is traced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from db import tracing
from db.settings import Settings
from tests.unit.test_repository import ROOT

HIDDEN = """
import importlib.abc, sys


class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter")):
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Hidden())
"""


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KERNELWRIGHT_", "OTEL_"))}
    told = {
        "PYTHONPATH": str(ROOT),
        "KERNELWRIGHT_REDIS_URL": "unix:///nowhere",
        "KERNELWRIGHT_DATABASE_URL": "postgresql://nobody@localhost/none",
    }
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=kept | told | env, capture_output=True, text=True, timeout=60, check=False)


def test_without_an_endpoint_everything_does_nothing() -> None:
    tracing.check(Settings(otlp_endpoint=""))
    tracing.start(Settings(otlp_endpoint=""), "tests")
    with tracing.span("a", {"b": "c"}) as span:
        span.note({"d": 1})
        span.rename("e")
        span.fail("f")
        span.end()
        tracing.note({"g": 1})
        tracing.past("h", 0, 1)
        assert not tracing.on() and tracing.traceparent() is None
    tracing.stop()


API = "from api.app import create_app; create_app()"
WORKER = "from worker import runtime, tasks; runtime.identify('w', ('cpu',)); runtime.current(); runtime.close()"
# FastAPI imports the interfaces of OpenTelemetry by itself, and redis its metrics where they are installed.
IMPORTED = """
import sys
makers = {"db.otlp", "opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http"}
print(len(makers & set(sys.modules)))
"""


@pytest.mark.parametrize("made", [API, WORKER])
def test_what_makes_and_sends_spans_is_imported_where_an_endpoint_is_set_and_need_not_be_installed_elsewhere(
    made: str,
) -> None:
    off = run(f"{HIDDEN}\n{made}{IMPORTED}")
    on = run(f"{made}{IMPORTED}", KERNELWRIGHT_OTLP_ENDPOINT="http://[::1]:9")
    assert (off.stdout.split(), on.stdout.split()) == (["0"], ["3"]), (off.stderr, on.stderr)


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("from api.__main__ import main; sys.exit(main([]))", 2),
        ("from cli.main import main; sys.argv[1:] = ['worker', '--queues', 'llm']; main()", 2),
        ("from cli.main import main; sys.argv[1:] = ['up', '--queues', 'llm']; main()", 2),
        ("from worker.app import app; app.conf.broker_url", 1),
    ],
)
def test_an_endpoint_without_opentelemetry_is_an_error_that_names_the_extra(
    command: str, status: int, tmp_path: Path
) -> None:
    env = {"KERNELWRIGHT_OTLP_ENDPOINT": "http://collector:4318", "KERNELWRIGHT_HOME": str(tmp_path)}
    done = run(f"{HIDDEN}\n{command}", **env)
    assert done.returncode == status, done.stderr
    assert "pip install 'kernelwright[telemetry]'" in " ".join(done.stderr.split())


@pytest.mark.parametrize("endpoint", ["collector:4318", "grpc://collector:4317", "http://a b"])
def test_what_is_no_url_of_http_is_refused(endpoint: str) -> None:
    with pytest.raises(ValidationError, match="otlp_endpoint"):
        Settings(otlp_endpoint=endpoint)
