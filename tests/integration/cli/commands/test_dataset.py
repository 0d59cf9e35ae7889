"""`kernelwright export dataset`: a process against a real API; connections that break cost nothing but time."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pyarrow import parquet

from cli.client import NO_RETRY, Client, Job
from cli.exchange import archive
from cli.exchange.archive import records
from problems.catalog import bundled
from tests.integration.api.history import History
from tests.integration.cli.commands.conftest import Kernelwright

REPORT = json.loads((Path(__file__).parents[3] / "support/showcase/report.json").read_text())


@pytest.fixture
def candidates(history: History, job: Job) -> list[str]:
    """Three judged ones and one that was not made."""
    made = [history.evaluate(job["id"], **REPORT), history.evaluate(job["id"], verdict="incorrect", timed=False)]
    return [*made, history.evaluate(job["id"], **REPORT), history.reject(job["id"], "no_code")]


def test_everything_as_parquet(kernelwright: Kernelwright, candidates: list[str], tmp_path: Path) -> None:
    out = tmp_path / "candidates.parquet"
    done = kernelwright("export", "dataset", "--out", out)
    assert (done.returncode, done.stdout) == (0, "")
    assert f"4 candidates, written to {out}" in done.stderr
    rows = parquet.read_table(out).to_pylist(maps_as_pydicts="strict")
    assert [row["candidate_id"] for row in rows] == candidates
    assert [row["Correct"] for row in rows] == [True, False, True, None]
    assert rows[0]["PyTorch_Code_Module"] == bundled()["softmax"].source
    assert rows[0]["workloads"][1]["samples_us"] == REPORT["workloads"][1]["samples_us"]
    assert rows[0]["CUDA_Runtime"] == REPORT["latency_us"] / 1000


def test_some_as_json_lines(kernelwright: Kernelwright, candidates: list[str], job: Job, tmp_path: Path) -> None:
    out = tmp_path / "ok"
    options = ("--format", "jsonl", "--verdict", "ok", "--job", job["id"], "--since", "2026-01-01T00:00:00Z")
    done = kernelwright(
        "export", "dataset", "-o", out, *options, "--without", "source", "--without", "problem", "--json"
    )
    assert json.loads(done.stdout) == {"file": str(out), "format": "jsonl", "candidates": 2}
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["candidate_id"] for row in rows] == [candidates[0], candidates[2]]
    assert {row["CUDA_Code"] for row in rows} == {row["PyTorch_Code_Module"] for row in rows} == {None}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--out", "x.csv"), "says no format"),
        (("--out", "x.parquet", "--without", "code"), "one of source"),
        (("--out", "x.parquet", "--since", "yesterday"), "created_after"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    kernelwright: Kernelwright, tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    done = kernelwright("export", "dataset", *options)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


@contextmanager
def breaking(url: str, breaks: int) -> Iterator[str]:
    """A relay to the API that cuts each of the first connections off after 700 bytes of its answer."""
    there = urlsplit(url)
    left = [breaks]
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def relay() -> None:
            while True:
                try:
                    near, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=carry, args=(near,)).start()

        def carry(near: socket.socket) -> None:
            cut, left[0] = left[0] > 0, left[0] - 1
            with near, socket.create_connection((str(there.hostname), there.port or 0)) as far:
                while request := near.recv(65536):
                    far.sendall(request)
                    if not _pass_on(far, near, cut):
                        return

        thread = threading.Thread(target=relay)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _pass_on(far: socket.socket, near: socket.socket, cut: bool) -> bool:
    """One answer with a Content-Length, or 700 bytes of it."""
    answer = b""
    while b"\r\n\r\n" not in answer or len(answer) < _length(answer):
        answer += far.recv(65536)
    near.sendall(answer[:700] if cut else answer)
    return not cut


def _length(answer: bytes) -> int:
    head, _, _ = answer.partition(b"\r\n\r\n")
    (said,) = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return len(head) + 4 + int(said.split(b":")[1])


def test_connections_that_break_lose_and_repeat_nothing(
    url: str, candidates: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "PAGE", 1)
    waits: list[float] = []
    with breaking(url, breaks=5) as through, Client(through, retry=NO_RETRY) as client:
        found = list(records(client, {"include": ["source"]}, wait=waits.append))
    assert [each.candidate["id"] for each in found] == candidates
    assert len(waits) == 5
