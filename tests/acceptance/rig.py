"""A whole deployment in real processes: Postgres, Valkey, the API and Celery workers, with a scripted model provider.

The workers are started with the very command lines of `kernelwright up`, but nobody watches over them: what a test
kills stays dead until the test starts it again.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from redis import Redis
from sqlalchemy import Engine, create_engine, text

from cli.client import TERMINAL_STATES, Client, Job
from cli.deployment import Surroundings, api_program, counts_folder, exporter_program, worker_programs
from cli.embedded.home import last_words
from cli.embedded.postgres import EmbeddedPostgres
from cli.embedded.valkey import EmbeddedValkey
from cli.preflight import listen, url_of
from cli.programs import Program
from db.settings import Settings
from tests.chaos.signals import tree
from tests.support.collector import Collector
from tests.support.fake_openai import Answer, FakeOpenAI
from tests.support.schema import migrate

LEASE_S = 4.0
"""A tenth of production's, so that a test need not wait 45 s for what a dead worker held."""
MODEL = "openai/scripted"
PATIENCE_S = 400.0
"""Twice what an honest wait took: eight candidates after a restart, three such tests side by side on two slow cores."""


class Deployment:
    """The running processes, and what a test does to them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.postgres = EmbeddedPostgres(home)
        self.valkey = EmbeddedValkey(home)
        self.programs: dict[str, Program] = {}
        self.url = ""
        self._models = home / "models.json"
        self._stack = ExitStack()

    def __enter__(self) -> Deployment:
        with ExitStack() as stack:
            stack.enter_context(self.postgres)
            stack.enter_context(self.valkey)
            migrate(self.postgres.url)
            self.collector = stack.enter_context(Collector())
            self._set_passwords()
            self.database: Engine = create_engine(self.database_url, pool_pre_ping=True)
            stack.callback(self.database.dispose)
            stack.callback(self._stop_programs)
            self._start_programs(stack)
            self.client = stack.enter_context(Client(self.url))
            self._wait_for_workers()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def database_url(self) -> str:
        """Where the programs find Postgres."""
        return self.postgres.url

    @property
    def redis_url(self) -> str:
        """Where they find Valkey."""
        return self.valkey.url

    def _set_passwords(self) -> None:
        """Nothing: the embedded servers are reached by their sockets, which are closed to others."""

    def _start_programs(self, stack: ExitStack) -> None:
        listener = stack.enter_context(listen("127.0.0.1", 0))
        self.url = url_of(listener)
        logs = self.home / "logs"
        logs.mkdir(exist_ok=True)
        with listen("127.0.0.1", 0) as free:
            port = int(free.getsockname()[1])
        self.metrics_url = f"http://127.0.0.1:{port}/metrics"
        settings = Settings(metrics_port=port)
        counts = counts_folder(settings, self.home)
        around = Surroundings(env=self._environment(), scratch=self.home, logs=logs, counts=counts)
        ours = [api_program(listener, around), *exporter_program(settings, around)]
        for program in [*ours, *worker_programs(("control", "llm", "cpu"), (), around, grace_s=2)]:
            self.programs[program.name] = program
            program.start()

    def _environment(self) -> dict[str, str]:
        return {
            "KERNELWRIGHT_HOME": str(self.home),
            "KERNELWRIGHT_DATABASE_URL": self.database_url,
            "KERNELWRIGHT_REDIS_URL": self.redis_url,
            "KERNELWRIGHT_LEASE_S": str(LEASE_S),
            "KERNELWRIGHT_RENEW_S": "0.5",
            "KERNELWRIGHT_TUNE_CONFIGURATIONS": "2",
            "KERNELWRIGHT_LLM_MODELS": str(self._models),
            "KERNELWRIGHT_WEBHOOK_ALLOW": "127.0.0.0/8",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "KERNELWRIGHT_OTLP_ENDPOINT": self.collector.endpoint,
        }

    def _stop_programs(self) -> None:
        for program in self.programs.values():
            program.ask_to_stop()
        for program in self.programs.values():
            program.stop()

    def _wait_for_workers(self) -> None:
        until(lambda: {"control", "llm", "cpu"} <= self._served(), "the workers have joined")

    def _served(self) -> set[str]:
        return {queue for worker in self.client.workers() for queue in worker["queues"]}

    @contextmanager
    def model(self, *answers: Answer, **options: Any) -> Iterator[FakeOpenAI]:
        """A provider that gives these answers to the workers' calls, 0.20 USD each; `options` are the model's."""
        with FakeOpenAI(answers) as server:
            options = {
                "api_base": server.base_url,
                "api_key": "sk-none",
                "usd_per_mtok_in": "100",
                "usd_per_mtok_out": "200",
                **options,
            }
            self._models.write_text(json.dumps({"*": options}))
            yield server

    def kill(self, name: str) -> None:
        """SIGKILL for the program's main process, and for nothing else."""
        program = self.programs[name]
        assert program.pid is not None
        os.kill(program.pid, signal.SIGKILL)
        program.stop()

    def kill_child(self, name: str) -> None:
        """SIGKILL for the pool process that does the program's tasks."""
        pid = self.programs[name].pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)

    def ask_to_stop(self, name: str) -> None:
        """SIGTERM for the program's main process, as before an upgrade."""
        self.programs[name].ask_to_stop()

    def restart(self, name: str) -> None:
        """Start it again, as a supervisor would."""
        self.programs[name].start()

    def kill_everything(self) -> None:
        """SIGKILL for every program and both servers; what is below them dies with them."""
        services = [*self.programs.values(), self.postgres, self.valkey]
        for service in services:
            assert service.pid is not None
            os.kill(service.pid, signal.SIGKILL)
        for service in services:
            service.stop()

    def restart_everything(self) -> None:
        """Start it all again on what is on the disk."""
        for service in (self.postgres, self.valkey, *self.programs.values()):
            service.start()

    @contextmanager
    def broker(self) -> Iterator[Redis]:
        """A connection to Valkey."""
        redis = Redis(unix_socket_path=str(self.valkey.socket))
        yield redis
        redis.close()

    def finished(self, job_id: str, patience_s: float = PATIENCE_S) -> Job:
        """The job once it has ended."""
        deadline = time.monotonic() + patience_s
        job = self.client.job(job_id)
        while job["state"] not in TERMINAL_STATES:
            assert time.monotonic() < deadline, f"the job is still {job['state']}: {self.story(job_id)}"
            job = self.client.job(job_id, wait_s=5, since_version=job["version"])
        return job

    def log_lines(self, event: str) -> dict[str, list[dict[str, Any]]]:
        """The lines of this event in each program's log that has any."""
        found = {name: _lines(self.home / "logs" / f"{name}.log", event) for name in self.programs}
        return {name: lines for name, lines in found.items() if lines}

    def wait_for_event(self, job_id: str, type: str) -> None:
        """Until the job's log has an event of this type."""
        until(lambda: type in self.event_types(job_id) or self._ended(job_id), f"{type} of {job_id}")
        assert type in self.event_types(job_id), f"the job ended without {type}: {self.story(job_id)}"

    def _ended(self, job_id: str) -> bool:
        return self.client.job(job_id)["state"] in TERMINAL_STATES

    def event_types(self, job_id: str) -> list[str]:
        """The job's events so far."""
        return [event["type"] for event in self.client.events(job_id, limit=500)["data"]]

    def rows(self, query: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """What the database says."""
        with self.database.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query), parameters)]

    def story(self, job_id: str) -> str:
        """Where the job's work is, for a test that gives up."""
        work = self.rows("SELECT kind, state, attempt, error FROM work WHERE job_id = :id ORDER BY id", id=job_id)
        made = self.rows(
            "SELECT ordinal, operator, candidates.state, failure, failure_detail, verdict, evaluations.reason"
            " FROM candidates LEFT JOIN evaluations ON candidate_id = candidates.id"
            " WHERE candidates.job_id = :id ORDER BY ordinal",
            id=job_id,
        )
        return "\n".join([*map(str, work), *map(str, made), *self.event_types(job_id)])

    def condition(self) -> str:
        """What each program wrote last, whether it still runs, and what each of its processes and threads does."""
        lines = []
        for name, program in self.programs.items():
            status = program.poll()
            lines.append(f"{name}: {'runs' if status is None else f'ended with status {status}'}")
            lines.append(last_words(self.home / "logs" / f"{name}.log", lines=6))
            if status is None and program.pid is not None:
                lines += [line for pid in tree(program.pid) for line in _threads(pid)]
        return "\n".join(lines)

    def assert_sound(self, job_id: str) -> None:
        """What holds for every job that ended, whatever was killed: nothing lost, nothing twice, nothing running.

        What it taught is learned after its end, so that is waited for.
        """
        until(lambda: not self._learning(job_id), f"what {job_id} taught has been learned")
        states = self.rows("SELECT DISTINCT state FROM work WHERE job_id = :id", id=job_id)
        assert {state for (state,) in states} <= {"done", "dead", "cancelled"}
        evaluated = self.rows("SELECT count(*) FROM candidates WHERE job_id = :id AND state = 'evaluated'", id=job_id)
        evaluations = self.rows(
            "SELECT count(*), count(DISTINCT candidate_id) FROM evaluations WHERE job_id = :id", id=job_id
        )
        assert evaluations == [(evaluated[0][0], evaluated[0][0])]
        spent = self.rows("SELECT coalesce(sum(cost_usd), 0) FROM llm_calls WHERE job_id = :id", id=job_id)
        assert spent == self.rows("SELECT cost_usd FROM jobs WHERE id = :id", id=job_id)
        used = self.rows(
            "SELECT (SELECT coalesce(sum(gpu_s), 0) FROM evaluations WHERE job_id = :id)"
            " + (SELECT coalesce(sum((document->'judge'->>'device_held_s')::float), 0) FROM certificates"
            " WHERE job_id = :id) + (SELECT coalesce(sum(gpu_s), 0) FROM tunings WHERE job_id = :id)",
            id=job_id,
        )
        counted = self.rows("SELECT gpu_s FROM jobs WHERE id = :id", id=job_id)
        assert abs(used[0][0] - counted[0][0]) < 1e-6

    def _learning(self, job_id: str) -> bool:
        query = "SELECT 1 FROM work WHERE job_id = :id AND kind = 'learn' AND state IN ('queued', 'running')"
        return bool(self.rows(query, id=job_id))


def _threads(pid: int) -> Iterator[str]:
    """A line for each thread of a process: its state, its name, and the number of the system call that it is in."""
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
            call = (thread / "syscall").read_text().split()[0]
            yield f"  {pid}/{thread.name} {state} {(thread / 'comm').read_text().strip()} syscall {call}"


def _lines(log: Path, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("event") == event]


def until(condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for something, or fail the test with its name."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.1)


def body(budget: int, *, models: Sequence[str] = (), problem: Any = "softmax", **more: Any) -> dict[str, Any]:
    """A submission for the cpu; no examination and no certificate unless asked for: each takes up to a minute."""
    return {
        "admit": False,
        "certify": False,
        "problem": problem,
        "target": {"hardware": "cpu", "language": "cpp"},
        "budget": {"candidates": budget},
        "models": list(models),
        **more,
    }
