"""The fleet: Postgres and Valkey behind proxies, a fake provider, two APIs, control, llm and the evaluators.

Every process is started with the command line of production (`cli.deployment`), evaluators with a stub judge. What dies
is started again by `tend` after a moment, as by a supervisor; call it from the thread that made the fleet.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Hashable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import structlog
from redis import Redis
from sqlalchemy import Engine, create_engine

from cli.deployment import Surroundings, api_program, worker_programs
from cli.embedded.errors import EmbeddedError
from cli.embedded.postgres import DATABASE, ROLE, EmbeddedPostgres
from cli.embedded.valkey import EmbeddedValkey
from cli.preflight import listen, url_of
from cli.programs import Program
from db.keys import create_key
from db.session import make_sessions
from db.vocabulary import Scope
from tests.chaos.clock import Clock, build
from tests.chaos.mounts import in_own_mounts, mount_memory, unmount
from tests.chaos.provider import Provider
from tests.chaos.proxy import Proxy
from tests.chaos.signals import resume, tree
from tests.support.schema import migrate

EVALUATORS = 4
MODEL = "openai/scripted"
SCRATCH_MB = 16
RESTART_S = 1.0
"""A supervisor needs a moment to see that something died."""

log = structlog.get_logger("chaos")


@dataclass(frozen=True, slots=True)
class Secrets:
    """What must be found nowhere outside its store: each is unlike anything else."""

    provider: str
    database: str
    client: str

    def all(self) -> dict[str, str]:
        """By what they are."""
        return {
            "the provider's key": self.provider,
            "the database's password": self.database,
            "an API key": self.client,
        }


@dataclass(frozen=True, slots=True)
class Options:
    """How a fleet is made."""

    seed: int = 0
    lease_s: float = 6.0
    renew_s: float = 1.0
    judge_s: float = 1.0
    """The longest that the stub judge takes."""
    real_judges: int = 0
    """Evaluators with the judge of production; the others have the stub."""
    scratch_mb: int = SCRATCH_MB


class Fleet:
    """The running processes, and the handles by which faults reach them."""

    def __init__(self, home: Path, options: Options) -> None:
        self.home = home
        self.options = options
        self.scratch = home / "scratch"
        self.logs = home / "logs"
        self.provider = Provider(options.seed)
        self.postgres = EmbeddedPostgres(home / "servers")
        self.valkey = EmbeddedValkey(home / "servers")
        self.programs: dict[str, Program] = {}
        self.clocks: dict[str, Clock] = {}
        self.urls: list[str] = []
        self.paused: dict[Hashable, list[int]] = {}
        """The processes that a fault has stopped, by fault."""
        self.small_disk = False
        """Whether the scratch folder is a file system of its own, that can be filled."""
        self.secrets = Secrets(f"sk-canary-{secrets.token_hex(12)}", f"pw-canary-{secrets.token_hex(12)}", "")
        self._due: dict[str, float] = {}
        self._held: frozenset[str] = frozenset()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._prepare(stack)
            stack.enter_context(self.postgres)
            stack.enter_context(self.valkey)
            stack.enter_context(self.provider)
            migrate(self.postgres.url)
            self.database: Engine = create_engine(self.postgres.url, pool_pre_ping=True)
            stack.callback(self.database.dispose)
            sockets = self.postgres.url.rpartition("host=")[2]
            self.proxy = stack.enter_context(Proxy(postgres=Path(sockets) / ".s.PGSQL.5432", valkey=self.valkey.socket))
            self._make_key()
            stack.callback(self.stop_programs)
            self._make_programs(stack)
            for program in self.programs.values():
                program.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _prepare(self, stack: ExitStack) -> None:
        for folder in (self.home / "servers", self.scratch, self.logs):
            folder.mkdir(parents=True)
        if in_own_mounts():
            self.small_disk = mount_memory(self.scratch, self.options.scratch_mb)
            stack.callback(unmount, self.scratch)
        (self.scratch / "tmp").mkdir()
        (self.scratch / "counts").mkdir()
        # The provider's key comes by the environment, as operators set it: only the caller of models may have it.
        os.environ["CHAOS_PROVIDER_KEY"] = self.secrets.provider
        stack.callback(os.environ.pop, "CHAOS_PROVIDER_KEY", None)

    def _make_key(self) -> None:
        scopes = (Scope.READ, Scope.SUBMIT, Scope.ADMIN)
        with make_sessions(self.database).begin() as session:
            self.secrets = replace(self.secrets, client=create_key(session, "chaos", {}, scopes=scopes))

    def _make_programs(self, stack: ExitStack) -> None:
        around = Surroundings(
            env=self._environment(), scratch=self.scratch, logs=self.logs, counts=self.scratch / "counts"
        )
        for number in range(2):
            listener = stack.enter_context(listen("127.0.0.1", 0))
            self.urls.append(url_of(listener))
            self._add(f"api-{number}", api_program(listener, around))
        control, llm, cpu = worker_programs(("control", "llm", "cpu"), (), around, grace_s=5)
        library = build(self.home)
        for name, program in (("control", control), ("llm", llm)):
            self._add(name, self._with_clock(name, program, library))
        for number in range(EVALUATORS):
            name = f"evaluator-{number}"
            argv = [word.replace("cpu.", f"cpu{number}.") if word.startswith("cpu.") else word for word in cpu.argv]
            if number >= self.options.real_judges:
                argv[1:3] = ["-m", "tests.chaos.evaluator", str(self.options.judge_s)]
            self._add(name, self._with_clock(name, replace(cpu, argv=argv), library))

    def _add(self, name: str, program: Program) -> None:
        self.programs[name] = replace(program, name=name, ready=None, log=self.logs / f"{name}.log")

    def _with_clock(self, name: str, program: Program, library: Path) -> Program:
        clock = self.clocks[name] = Clock(library, self.home / f"{name}.clock")
        return replace(program, env={**program.env, **clock.environment})

    def _environment(self) -> Mapping[str, str]:
        options = self.options
        models = {
            "*": {
                "api_base": self.provider.base_url,
                "api_key_env": "CHAOS_PROVIDER_KEY",
                "usd_per_mtok_in": "100",
                "usd_per_mtok_out": "200",
            }
        }
        (self.home / "models.json").write_text(json.dumps(models))
        postgres, valkey = self.proxy.port("postgres"), self.proxy.port("valkey")
        return {
            "KERNELWRIGHT_HOME": str(self.scratch),
            "KERNELWRIGHT_DATABASE_URL": f"postgresql://{ROLE}:{self.secrets.database}@127.0.0.1:{postgres}/{DATABASE}",
            "KERNELWRIGHT_REDIS_URL": f"redis://127.0.0.1:{valkey}/0",
            "KERNELWRIGHT_AUTH": "required",
            "KERNELWRIGHT_RATE_LIMIT": "1000000/minute",
            "KERNELWRIGHT_LEASE_S": str(options.lease_s),
            "KERNELWRIGHT_RENEW_S": str(options.renew_s),
            "KERNELWRIGHT_WORKER_GONE_S": "15",
            "KERNELWRIGHT_LOG_FORMAT": "json",
            "KERNELWRIGHT_LLM_MODELS": str(self.home / "models.json"),
            "KERNELWRIGHT_LLM_TIMEOUT_S": "8",
            "KERNELWRIGHT_LLM_DEADLINE_S": "20",
            "KERNELWRIGHT_LLM_MAX_ATTEMPTS": "3",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "TMPDIR": str(self.scratch / "tmp"),
            "PGCONNECT_TIMEOUT": "5",
        }

    def broker(self) -> Redis:
        """A connection to Valkey that knows no proxy."""
        return Redis(unix_socket_path=str(self.valkey.socket), socket_timeout=2)

    def pid(self, name: str) -> int | None:
        """The pid of a program or server that runs."""
        service: Any = {"postgres": self.postgres, "valkey": self.valkey}.get(name) or self.programs[name]
        return service.pid if service.poll() is None else None

    def pids(self, name: str) -> list[int]:
        """Of a program or server and everything below it, the main process first."""
        pid = self.pid(name)
        return [] if pid is None else tree(pid)

    def tend(self) -> None:
        """Start again what has died `RESTART_S` ago."""
        now = time.monotonic()
        for name in ("postgres", "valkey", *self.programs):
            if self.pid(name) is not None or name in self._held:
                self._due.pop(name, None)
            elif now > self._due.setdefault(name, now + RESTART_S):
                self._restart(name)

    def _restart(self, name: str) -> None:
        service: Any = {"postgres": self.postgres, "valkey": self.valkey}.get(name) or self.programs[name]
        service.stop()
        try:
            service.start()
        except EmbeddedError as error:
            # A killed postmaster's children need a moment to follow it; the next round tries again.
            log.warning("chaos.restart_failed", name=name, error=str(error))

    def hold(self, names: Iterable[str]) -> None:
        """Stop these programs, and do not start them again until `release`."""
        self._held = frozenset(names)
        for name in self._held:
            self.programs[name].stop()

    def release(self) -> None:
        """Start what was held."""
        for name in self._held:
            self.programs[name].start()
        self._held = frozenset()

    def forget_valkey(self) -> None:
        """Remove what Valkey wrote to disk: it starts again as one without persistence. Call it while it is dead."""
        shutil.rmtree(self.valkey.data, ignore_errors=True)

    def fill_disk(self, full: bool) -> None:
        """Leave no byte in the scratch folder, or give them back."""
        ballast = self.scratch / "ballast"
        if not full:
            ballast.unlink(missing_ok=True)
            return
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def heal(self) -> None:
        """Undo every fault that lasts."""
        self.proxy.heal()
        self.provider.mode = "well"
        self.fill_disk(False)
        for clock in self.clocks.values():
            clock.step(0)
        for name in ("postgres", "valkey", *self.programs):
            resume(self.pids(name))
        resume(pid for pids in self.paused.values() for pid in pids)

    def stop_programs(self) -> None:
        """Stop all programs in good order; the servers go on."""
        self.heal()
        for program in self.programs.values():
            program.ask_to_stop()
        for program in self.programs.values():
            program.stop()
