"""A service of its own, a job for each entry, several at a time, and a results file for each that has ended.

A slice that ends leaves its jobs open: where the home is kept, the next one goes on with them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.record.agent import answer
from benchmarks.record.plan import Entry, Proposal
from benchmarks.service import home_of, serving
from cli.client import TERMINAL_STATES, ApiError, Client
from worker.profile.gpus import gpus

UNFINISHED: Final = 75
_LIFE_S: Final = 7 * 24 * 3600.0
"""Of a job through all slices, days apart perhaps."""
_TIME_UP, _MACHINE_FAILED = "the time was up", "the machine failed"
_MARK: Final = "benchmark:record"
_PAGE: Final = 200
UNFINISHED_JOBS: Final = "unfinished"
"""The folder for what jobs have found that go on, or that a slice ended too early for: judged, but not certified."""
MARGIN_S: Final = 15.0
"""Before the time is up nothing more is awaited, so that the service can end in good order."""


class Left(list[str]):
    """Lines about what is missing, and the exit status."""

    status = 0


def run(entries: Sequence[Entry], hardware: str, options: argparse.Namespace) -> Left:
    """Run what has no results yet."""
    deadline = time.monotonic() + (options.limit_s - MARGIN_S if options.limit_s else 1e9)
    todo = [entry for entry in entries if not (options.out / entry.file).exists()]
    home = home_of(options.home)
    wanted = str(not options.no_profile)
    variables = {
        "KERNELWRIGHT_PROFILE_CANDIDATES": wanted,
        "KERNELWRIGHT_KEEP_CODE": wanted,
        # Kernels of other hardware that came with the service would take the proposals' places in the budget.
        "KERNELWRIGHT_BUNDLED_KERNELS": str(options.tunes > 0),
    }
    service = serving(home, hardware, options.evaluators, **variables)
    with service as url, ThreadPoolExecutor(jobs_at_once(hardware, options.evaluators)) as threads:
        with Client(url) as client:
            end_others(client, [_body(entry, hardware, options, mark_of(home)) for entry in todo])
        done = list(threads.map(lambda entry: _one(url, home, entry, hardware, options, deadline), todo))
    left = Left(
        f"{entry.problem} {entry.language}: {why}" for entry, why in zip(todo, done, strict=True) if why is not None
    )
    again = any(why in line for line in left for why in (_TIME_UP, _MACHINE_FAILED))
    left.status = UNFINISHED if again else 1
    return left


def jobs_at_once(hardware: str, evaluators: int) -> int:
    """One for each evaluator of each device: with fewer the second GPU has nothing to do."""
    return evaluators * max(1, sum(gpu.hardware == hardware for gpu in gpus()))


def _one(url: str, home: Path, entry: Entry, hardware: str, options: argparse.Namespace, deadline: float) -> str | None:
    """Run a job and store what came of it; what is missing, or None."""
    if time.monotonic() > deadline:
        return f"{_TIME_UP} before it began"
    began = time.monotonic()
    body = _body(entry, hardware, options, mark_of(home))
    so_far = options.out / UNFINISHED_JOBS / entry.file
    with Client(url) as client:

        def judged(job: Any) -> None:
            """Kept at once: a machine that is taken away takes its service with it."""
            _keep(so_far, collect(client, job, time.monotonic() - began))

        job = earlier_job(client, body) or client.submit(body)
        proposals = untold(client, job["id"], entry.proposals)
        ended = answer(client, job["id"], proposals, deadline, judged)
        if ended["state"] not in TERMINAL_STATES:
            judged(ended)
            return _TIME_UP  # the next slice goes on with it, where the home is kept
        found = collect(client, ended, time.monotonic() - began)
    if machine_failed(found):
        _keep(so_far, found)
        return f"{_MACHINE_FAILED}: run it again"
    _dump(home, job["id"], options.out / f"{entry.problem}.{hardware}.{entry.language}.gz")
    _keep(options.out / entry.file, found)
    so_far.unlink(missing_ok=True)
    sys.stdout.write(f"{_line(entry, found)}\n")
    sys.stdout.flush()
    certified = (found["certificate"] or {}).get("certified")
    return None if certified or options.no_certify and found["best"] else "no certified kernel"


def _keep(path: Path, found: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")  # a slice that is killed leaves no half of it
    beside.write_text(json.dumps(found, indent=1) + "\n")
    beside.replace(path)


def _dump(home: Path, job_id: str, out: Path) -> None:
    """The job as `kernelwright load` takes it: what `problems/kernels/` holds."""
    command = [sys.executable, "-m", "cli", "dump", job_id, "--out", str(out)]
    subprocess.run(command, env=os.environ | {"KERNELWRIGHT_HOME": str(home)}, check=True, stdout=subprocess.DEVNULL)


def mark_of(home: Path) -> str:
    """What the jobs of this record are told by: the service's first start brings certified kernels with the jobs that
    found them, of which some were asked for the same."""
    path = home / "record.mark"
    if not path.exists():
        path.write_text(secrets.token_hex(8))
    return path.read_text()


def _body(entry: Entry, hardware: str, options: argparse.Namespace, mark: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "problem": entry.problem,
        "target": {"hardware": hardware, "language": entry.language},
        "budget": {"candidates": max(1, len(entry.proposals) + options.tunes), "wall_s": _LIFE_S},
        "models": ["ask/tell"] if entry.proposals else [],
        "admit": False,  # the tests of the bundled problems have them admitted
        "certify": not options.no_certify,
    }
    asked = json.dumps([mark, body, [proposal.source for proposal in entry.proposals]], sort_keys=True)
    key, value = _MARK.split(":")
    return body | {"labels": {key: value, "asked": hashlib.sha256(asked.encode()).hexdigest()[:16]}}


def earlier_job(client: Client, body: dict[str, Any]) -> Any:
    """The job of an earlier slice that was asked for the same, if it goes on or has ended with all that it was asked
    for, or None. One may end after its slice was killed, or while the service ends."""
    found = client.jobs(label=[f"{key}:{value}" for key, value in body["labels"].items()])["data"]
    going_on = [job for job in found if job["state"] not in TERMINAL_STATES]
    ended = [job for job in found if job["state"] == "succeeded" and job["best"] is not None]
    if body["certify"]:
        ended = [job for job in ended if _or_none(partial(client.certificate, job["id"])) is not None]
    return next(iter(going_on + ended), None)


def machine_failed(found: dict[str, Any]) -> bool:
    """Whether nothing was learnt because the judge gave back each kernel, or the best one's certificate, as where a
    device is full."""
    verdicts = {each["verdict"] for each in found["candidates"]}
    unfinished = found["best"] is not None and found["job"]["certify"] and found["certificate"] is None
    return unfinished or (found["best"] is None and verdicts == {"infra_error"})


def untold(client: Client, job_id: str, proposals: Sequence[Proposal]) -> list[Proposal]:
    """Those that the job has not got yet."""
    made = [each["id"] for each in client.candidates(job_id)["data"]]
    told = {_or_none(partial(client.candidate_source, candidate)) for candidate in made}
    return [proposal for proposal in proposals if proposal.source not in told]


def end_others(client: Client, bodies: Sequence[dict[str, Any]]) -> None:
    """Cancel what earlier slices left of jobs that are not asked for now: they would use the device."""
    asked = {body["labels"]["asked"] for body in bodies}
    for job in client.jobs(label=_MARK, limit=_PAGE)["data"]:
        if job["state"] not in TERMINAL_STATES and job["labels"].get("asked") not in asked:
            client.cancel(job["id"], reason="not asked for any more")


def collect(client: Client, job: Any, wall_s: float) -> dict[str, Any]:
    """What came of a job: its winner with report, source and certificate, all candidates, all baselines."""
    candidates = [dict(each) for each in client.candidates(job["id"])["data"]]
    reports = [client.candidate(each["id"])["report"] for each in candidates if each["verdict"] == "ok"]
    return {
        "job": dict(job),
        "wall_s": round(wall_s, 1),
        "best": _or_none(lambda: dict(client.best(job["id"]))),
        "certificate": _or_none(lambda: client.certificate(job["id"])),
        "panel": panel(reports),
        "candidates": candidates,
    }


def panel(reports: Sequence[Any]) -> dict[str, dict[str, float]]:
    """Every baseline of every workload in microseconds: of the judgement that raced most of them."""
    found: dict[str, dict[str, float]] = {}
    for report in reports:
        for row in report.get("workloads") or ():
            if len(row["baselines_us"]) > len(found.get(row["name"], {})):
                found[row["name"]] = dict(row["baselines_us"])
    return found


def _or_none(ask: Any) -> Any:
    try:
        return ask()
    except ApiError:
        return None


def _line(entry: Entry, found: dict[str, Any]) -> str:
    best, certificate = found["best"], found["certificate"] or {}
    verdicts = found["job"]["progress"]["verdicts"]
    if best is None:
        return f"{entry.problem} {entry.language}: nothing accepted, {verdicts}, {found['wall_s']:.0f} s"
    low, high = best["ci95"] or (0.0, 0.0)
    said = "certified" if certificate.get("certified") else "not certified"
    gain = f"{best['speedup'] or 0:.2f}x [{low:.2f}, {high:.2f}] over {best['baseline']}"
    return f"{entry.problem} {entry.language}: {gain}, {said}, {verdicts}, {found['wall_s']:.0f} s"
