"""One job in one home: submitted once, interrupted where the plan says so, taken up again until it has ended."""

from __future__ import annotations

import json
import os
import platform
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import create_engine

from benchmarks.endurance.checks import Facts, facts_of
from benchmarks.endurance.provider import PROBLEM, Author
from benchmarks.endurance.service import Service, models_file
from cli.client import TERMINAL_STATES, Client, ClientError, JobBody
from cli.embedded.postgres import EmbeddedPostgres

log = structlog.get_logger("endurance")

MODEL = "openai/scripted"
LEASE_S, RENEW_S, GONE_S = 6.0, 1.0, 12.0
"""A seventh of production's, so that what a dead worker held is not waited for longer than the job takes."""
LONGEST_AIM_S = 3.0
"""A kill comes up to so long after its number of evaluations was reached: in the middle of anything."""
POLL_S = 0.3


@dataclass(slots=True)
class Kept:
    """What a run remembers from call to call."""

    job_id: str | None = None
    wall_s: float = 0.0
    starts: int = 0
    kills: list[dict[str, Any]] = field(default_factory=list)
    facts: Facts | None = None


class Run:
    """A job of `candidates` and its interruptions. The home holds the service's data and `endurance.json`."""

    def __init__(self, home: Path, candidates: int, kills: int, seed: int) -> None:
        self.home = home
        self._candidates = candidates
        self._file = home / "endurance.json"
        self.kept = Kept(**json.loads(self._file.read_text())) if self._file.exists() else Kept()
        plan = random.Random(f"{seed}-{candidates}-{kills}")
        self._moments = sorted(plan.sample(range(1, max(candidates - 1, kills + 1)), kills))
        self._dice = random.Random(f"{seed}-{self.kept.starts}")

    def work(self, deadline: float | None) -> dict[str, Any] | None:
        """Go on until the job has ended and return what was found; None when the time was up before."""
        if self.kept.facts is None:
            author = Author(self._dice)
            with author, self._service(author) as service:
                self._until_ended(service, deadline)
        return asdict(self.kept) if self.kept.facts is not None else None

    @contextmanager
    def _service(self, author: Author) -> Iterator[Service]:
        environment = {
            "KERNELWRIGHT_LEASE_S": str(LEASE_S),
            "KERNELWRIGHT_RENEW_S": str(RENEW_S),
            "KERNELWRIGHT_WORKER_GONE_S": str(GONE_S),
            "KERNELWRIGHT_LLM_MODELS": str(models_file(self.home, author.base_url)),
            "KERNELWRIGHT_LOG_FORMAT": "json",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
        service = Service(self.home, environment)
        try:
            yield service
        finally:
            left = service.stop()
            if left:
                log.error("endurance.processes_left", roles=left)

    def _until_ended(self, service: Service, deadline: float | None) -> None:
        began = time.monotonic()
        while self.kept.facts is None and not (deadline and time.monotonic() > deadline):
            if not service.running:
                self._start(service)
            evaluated = self._look(service)
            if evaluated is not None and self._due(evaluated):
                self._kill(service, evaluated)
            self.kept.wall_s += time.monotonic() - began
            began = time.monotonic()
            self._save()
            time.sleep(POLL_S)

    def _start(self, service: Service) -> None:
        service.start()
        self.kept.starts += 1
        log.info("endurance.started", starts=self.kept.starts)

    def _look(self, service: Service) -> int | None:
        """How many candidates are judged; None while nobody answers. Submits the job; at its end, reads its facts."""
        try:
            with Client(service.url) as client:
                if self.kept.job_id is None:
                    self.kept.job_id = client.submit(self._body())["id"]
                job = client.job(self.kept.job_id)
        except ClientError as error:
            log.info("endurance.no_answer", error=str(error))
            return None
        if job["state"] in TERMINAL_STATES:
            self._read_facts(self.kept.job_id)
        return int(job["progress"]["candidates"]["evaluated"])

    def _body(self) -> JobBody:
        return {
            "admit": False,
            "certify": False,
            "problem": {"name": "doubled", "source": PROBLEM},
            "target": {"hardware": "cpu", "language": "cpp"},
            "budget": {"candidates": self._candidates},
            "models": [MODEL],
            "policy": {"own_kernel_share": 0},
        }

    def _due(self, evaluated: int) -> bool:
        done = len(self.kept.kills)
        return self.kept.facts is None and done < len(self._moments) and evaluated >= self._moments[done]

    def _kill(self, service: Service, evaluated: int) -> None:
        time.sleep(self._dice.uniform(0.0, LONGEST_AIM_S))
        number = len(self.kept.kills)
        killed = service.kill_one(self._dice) if number % 2 else service.kill_everything(self._dice)
        if killed:
            self.kept.kills.append({"evaluated": evaluated, "everything": number % 2 == 0, "killed": dict(killed)})
            log.info("endurance.killed", number=number + 1, evaluated=evaluated, killed=dict(killed))

    def _read_facts(self, job_id: str) -> None:
        engine = create_engine(EmbeddedPostgres(self.home).url)
        with engine.connect() as connection:
            self.kept.facts = facts_of(connection, job_id)
        engine.dispose()

    def _save(self) -> None:
        partial = self._file.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self.kept), default=str))
        partial.replace(self._file)


def environment() -> dict[str, Any]:
    """The machine, in a few words."""
    return {
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
