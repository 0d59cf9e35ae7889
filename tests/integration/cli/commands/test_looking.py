"""`jobs`, `candidates`, `best`, `cancel`, `problems`, `workers`, `health`: tables for people, JSON for scripts."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from sqlalchemy.orm import Session, sessionmaker

from cli.client import Client, Job
from db import workers
from db.settings import Settings
from problems.catalog import bundled
from tests.integration.api.history import History
from tests.integration.cli.commands.conftest import BODY, OK, Kernelwright


def _rows(stdout: str) -> list[dict[str, str]]:
    heads, *lines = [line.split("\t") for line in stdout.splitlines()]
    return [dict(zip(heads, line, strict=True)) for line in lines]


def test_jobs_are_listed_newest_first(kernelwright: Kernelwright, job: Job, client: Client, history: History) -> None:
    history.evaluate(job["id"], **OK)
    newer = client.submit({**BODY, "problem": "layernorm", "labels": {"team": "x"}})
    listed = kernelwright("jobs")
    rows = _rows(listed.stdout)
    assert [row["job"] for row in rows] == [newer["id"], job["id"]]
    assert (rows[1]["state"], rows[1]["judged"], rows[1]["best"]) == ("running", "1/20", "1.83x")
    assert [row["job"] for row in _rows(kernelwright("jobs", "--label", "team=x").stdout)] == [newer["id"]]
    assert [row["job"] for row in _rows(kernelwright("jobs", "--state", "running").stdout)] == [job["id"]]
    assert [row["job"] for row in _rows(kernelwright("jobs", "--problem", "softmax").stdout)] == [job["id"]]
    assert [row["job"] for row in _rows(kernelwright("jobs", "--limit", "1").stdout)] == [newer["id"]]


def test_jobs_as_json_are_the_apis_own(kernelwright: Kernelwright, job: Job, client: Client) -> None:
    assert [json.loads(line) for line in kernelwright("jobs", "--json").stdout.splitlines()] == client.jobs()["data"]


def test_generated_code_is_printed(kernelwright: Kernelwright, job: Job, history: History) -> None:
    ids = [history.evaluate(job["id"], **OK, code=code) for code in ({"ptx": ".entry f\n", "sass": "EXIT ;\n"}, {})]
    printed = kernelwright("code", ids[0])
    assert (printed.stdout, printed.stderr) == ("EXIT ;\n", "this is sass; with --kind there are ptx\n")
    assert kernelwright("code", ids[0], "--kind", "ptx").stdout == ".entry f\n"
    none = kernelwright("code", ids[1])
    assert none.returncode != 0
    assert "judged before code was kept" in none.stderr


def test_no_jobs_is_no_line_on_stdout(kernelwright: Kernelwright) -> None:
    listed = kernelwright("jobs")
    assert (listed.returncode, listed.stdout, listed.stderr) == (0, "", "no such jobs\n")


def test_a_list_longer_than_a_page_is_whole(kernelwright: Kernelwright, job: Job, history: History) -> None:
    history.propose(job["id"], 120)
    rows = _rows(kernelwright("candidates", job["id"], "--limit", "110").stdout)
    assert [int(row["#"]) for row in rows] == list(range(1, 111))


def test_candidates_say_what_was_found(kernelwright: Kernelwright, job: Job, history: History) -> None:
    slow = history.evaluate(job["id"], **{**OK, "speedup": 1.1})
    fast = history.evaluate(job["id"], **OK)
    history.evaluate(job["id"], verdict="incorrect", timed=False, reason="row 3 is NaN")
    history.reject(job["id"], "no_code")
    rows = _rows(kernelwright("candidates", job["id"]).stdout)
    assert [row["verdict"] for row in rows] == ["ok", "ok", "incorrect", "-"]
    assert rows[2]["why"] == "row 3 is NaN"
    assert rows[3]["why"].startswith("no_code")
    fastest = _rows(kernelwright("candidates", job["id"], "--verdict", "ok", "--fastest").stdout)
    assert [row["candidate"] for row in fastest] == [fast, slow]


def test_rerun_prints_the_new_job(kernelwright: Kernelwright, job: Job, client: Client) -> None:
    printed = kernelwright("rerun", job["id"])
    assert client.job(printed.stdout.strip())["parent_id"] == job["id"]
    assert kernelwright("rerun", "job_0").returncode == 2


def test_diff_is_the_diff_on_stdout_and_the_figures_on_stderr(
    kernelwright: Kernelwright, job: Job, history: History, client: Client
) -> None:
    slow, fast = history.evaluate(job["id"], **{**OK, "speedup": 1.1}), history.evaluate(job["id"], **OK)
    printed = kernelwright("diff", slow, fast)
    assert printed.stdout == client.compare(slow, fast)["diff"]
    assert printed.stderr.splitlines()[0] == f"A: {slow}, ok, 12.3 us 1.10x [1.80, 1.87]"
    assert "B against A: 1.67x" in printed.stderr


def test_best_is_the_source_alone_on_stdout(
    kernelwright: Kernelwright, job: Job, history: History, client: Client
) -> None:
    history.evaluate(job["id"], **OK)
    printed = kernelwright("best", job["id"])
    assert printed.stdout == client.best_source(job["id"])
    assert "1.83x [1.80, 1.87] over compile" in printed.stderr
    assert json.loads(kernelwright("best", job["id"], "--json").stdout) == client.best(job["id"])


def test_best_goes_into_a_file(
    kernelwright: Kernelwright, job: Job, history: History, client: Client, tmp_path: Path
) -> None:
    history.evaluate(job["id"], **OK)
    written = kernelwright("best", job["id"], "--output", tmp_path / "kernel.py")
    assert written.returncode == 0
    assert written.stdout == ""
    assert (tmp_path / "kernel.py").read_text() == client.best_source(job["id"])
    assert [path.name for path in tmp_path.glob("*kernel*")] == ["kernel.py"]
    assert kernelwright("best", job["id"], "--output", tmp_path / "absent" / "kernel.py").returncode == 2


def test_no_best_yet_says_so(kernelwright: Kernelwright, job: Job) -> None:
    asked = kernelwright("best", job["id"])
    assert asked.returncode == 2
    assert "No candidate of this job is verified" in asked.stderr


def test_a_certificate_is_its_summary_on_stdout_and_two_files_where_asked(
    kernelwright: Kernelwright, job: Job, history: History, client: Client, tmp_path: Path
) -> None:
    none = kernelwright("certificate", job["id"])
    assert none.returncode == 2 and "when the search has ended" in none.stderr
    history.evaluate(job["id"], **OK)
    document = history.certify(job["id"], summary="softmax on cpu: certified.", reservations=["slow to compile"])
    shown = kernelwright("certificate", job["id"], "--out", tmp_path / "evidence")
    assert (shown.returncode, shown.stdout) == (0, "softmax on cpu: certified.\n")
    assert "reservation: slow to compile" in shown.stderr and document["sha256"] in shown.stderr
    assert json.loads((tmp_path / "evidence" / "certificate.json").read_text()) == document
    assert (tmp_path / "evidence" / "certificate.html").read_text() == client.certificate_page(job["id"])
    assert json.loads(kernelwright("certificate", job["id"], "--json").stdout) == document


def test_a_refused_certificate_is_an_exit_of_3(kernelwright: Kernelwright, job: Job, history: History) -> None:
    history.evaluate(job["id"], **OK)
    refused = {"certified": False, "verdict": "incorrect", "reason": "stale output"}
    history.certify(job["id"], summary="softmax on cpu: not certified.", reservations=[], **refused)
    history.finish(job["id"])
    shown = kernelwright("certificate", job["id"])
    assert (shown.returncode, shown.stdout) == (3, "softmax on cpu: not certified.\n")


def test_cancelling_twice_changes_once(kernelwright: Kernelwright, job: Job, client: Client) -> None:
    first = kernelwright("cancel", job["id"], "--reason", "enough")
    second = kernelwright("cancel", job["id"])
    assert (first.returncode, second.returncode) == (0, 0)
    assert first.stdout == f"{job['id']} is cancelling\n"
    assert second.stdout == f"{job['id']} was cancelling already\n"
    asked = [event for event in client.events(job["id"])["data"] if event["type"] == "job.cancel_requested"]
    assert [event["data"]["reason"] for event in asked] == ["enough"]


def test_problems(kernelwright: Kernelwright) -> None:
    rows = _rows(kernelwright("problems").stdout)
    assert [row["problem"] for row in rows] == sorted(bundled())
    assert all(row["what it computes"] for row in rows)


def _register(sessions: sessionmaker[Session], hostname: str, *queues: str) -> None:
    device = {"name": "NVIDIA H100 80GB HBM3", "copy_gbps": 3012.4, "matmul_tflops": 702.2}
    facts = workers.WorkerFacts(f"worker_{hostname}", hostname, 42, queues, "nvidia-h100", device)
    with sessions.begin() as session:
        workers.register(session, facts)


def test_workers(kernelwright: Kernelwright, sessions: sessionmaker[Session]) -> None:
    assert "kernelwright worker" in kernelwright("workers").stderr
    _register(sessions, "box", "gpu.nvidia-h100")
    (row,) = _rows(kernelwright("workers").stdout)
    assert (row["worker"], row["hardware"], row["queues"]) == ("box:42", "nvidia-h100", "gpu.nvidia-h100")
    assert row["device"] == "NVIDIA H100 80GB HBM3, 3012 GB/s, 702 TFLOP/s"


def test_a_worker_is_drained_and_resumed(kernelwright: Kernelwright, sessions: sessionmaker[Session]) -> None:
    _register(sessions, "box", "cpu")
    (row,) = _rows(kernelwright("workers").stdout)
    assert _rows(kernelwright("workers", "--drain", row["id"]).stdout)[0]["state"] == "draining"
    assert json.loads(kernelwright("workers", "--resume", row["id"], "--json").stdout)["state"] == "active"
    assert kernelwright("workers", "--resume", "worker_0").returncode == 2


def test_the_summary_in_words(kernelwright: Kernelwright, job: Job, sessions: sessionmaker[Session]) -> None:
    _register(sessions, "box", "cpu")
    lines = [line.split("\t") for line in kernelwright("summary").stdout.splitlines()]
    assert lines[0][1].startswith("0 queued, 1 running")
    assert lines[1] == ["workers", "1 active, 0 draining"]
    assert [line[0] for line in lines[5:]] == ["control", "cpu"]


def test_a_container_is_well_when_its_own_workers_serve_its_queues(
    kernelwright: Kernelwright, sessions: sessionmaker[Session], settings: Settings
) -> None:
    database = {"KERNELWRIGHT_DATABASE_URL": settings.sqlalchemy_url}
    _register(sessions, "another-host", "llm", "gpu.nvidia-h100")
    unwell = kernelwright("health", KERNELWRIGHT_QUEUES="llm,gpu", **database)
    assert unwell.returncode == 1
    assert "serves llm, gpu" in unwell.stderr
    _register(sessions, socket.gethostname(), "llm", "gpu.nvidia-h100")
    well = kernelwright("health", KERNELWRIGHT_QUEUES="llm,gpu", **database)
    assert (well.returncode, well.stdout) == (0, "alive\n")
    assert kernelwright("health", "--queues", "cpu", **database).returncode == 1


def test_a_container_without_its_database_says_so(kernelwright: Kernelwright) -> None:
    away = "postgresql+psycopg://nobody@127.0.0.1:9/none"
    unwell = kernelwright("health", "--queues", "llm", KERNELWRIGHT_DATABASE_URL=away)
    assert unwell.returncode == 1
    assert "database" in unwell.stderr
    assert unwell.stderr.count("\n") == 1
    assert kernelwright("health", "--queues", "llm").returncode == 2
