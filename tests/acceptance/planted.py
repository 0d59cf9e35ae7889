"""A deployment with a secret of each kind planted in it, and what looks for them wherever something was written."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from redis import Redis
from sqlalchemy import create_engine, text

from cli.descendants import _parents
from tests.acceptance.rig import Deployment

DSN, REDIS, LLM, METRICS = ("planted-dsn-7Qd1xw", "planted-redis-2Zr8kv", "planted-llm-9Fs4mc", "planted-scrape-5Tg6nb")
LLM_VARIABLE, METRICS_VARIABLE = "PLANTED_LLM_KEY", "KERNELWRIGHT_METRICS_TOKEN"

Secrets = dict[str, str]
"""By what they are: each is searched for as it is, and in the spellings in which things are passed on."""


class Guarded(Deployment):
    """Postgres and Valkey ask for passwords, and everybody logs as much as can be had."""

    @property
    def database_url(self) -> str:
        return self.postgres.url.replace("kernelwright@", f"kernelwright:{DSN}@", 1)

    @property
    def redis_url(self) -> str:
        return f"redis+socket://:{REDIS}@{self.valkey.socket}"

    def _set_passwords(self) -> None:
        engine = create_engine(self.postgres.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"ALTER ROLE kernelwright PASSWORD '{DSN}'"))
            (self.postgres.data / "pg_hba.conf").write_text("local all all scram-sha-256\n")
            connection.execute(text("SELECT pg_reload_conf()"))
        engine.dispose()
        self.set_redis_password()

    def set_redis_password(self) -> None:
        """Valkey forgets it with the process."""
        with Redis(unix_socket_path=str(self.valkey.socket)) as redis:
            redis.config_set("requirepass", REDIS)

    def _environment(self) -> dict[str, str]:
        return super()._environment() | {"KERNELWRIGHT_LOG_LEVEL": "DEBUG"}


def spellings(secret: str) -> set[bytes]:
    """As it is, quoted for a URL, in base64 by itself and as the password of a login."""
    encoded = [base64.b64encode(each.encode()).decode().rstrip("=") for each in (secret, f":{secret}", f"x:{secret}")]
    return {each.encode() for each in (secret, quote(secret, safe=""), *encoded)}


def found_in(secrets: Mapping[str, str], what: bytes) -> list[str]:
    """Which of them are in it, by their names."""
    return [name for name, secret in secrets.items() if any(each in what for each in spellings(secret))]


def found_in_files(secrets: Mapping[str, str], folder: Path, but: set[Path]) -> list[str]:
    """Which files below a folder hold which of them."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and not but & {path, *path.parents}:
            with suppress(FileNotFoundError):
                found += [f"{name} in {path.relative_to(folder)}" for name in found_in(secrets, path.read_bytes())]
    return found


def found_in_tables(secrets: Mapping[str, str], deployment: Deployment) -> tuple[list[str], int]:
    """Which columns of which tables hold which of them, and how many columns were looked at."""
    columns = deployment.rows(
        "SELECT table_name, column_name FROM information_schema.columns"
        " JOIN information_schema.tables USING (table_schema, table_name)"
        " WHERE table_schema = 'public' AND table_type = 'BASE TABLE' ORDER BY 1, ordinal_position"
    )
    found = []
    for table, column in columns:
        for (value,) in deployment.rows(f'SELECT "{column}"::text FROM "{table}" WHERE "{column}" IS NOT NULL'):
            found += [f"{name} in {table}.{column}" for name in found_in(secrets, value.encode())]
    return sorted(set(found)), len(columns)


@dataclass
class Processes:
    """What the processes below this one were given, as far as a look every few milliseconds sees them."""

    secrets: Mapping[str, str]
    seen: dict[tuple[int, bytes], tuple[str, frozenset[str], frozenset[str]]] = field(default_factory=dict)
    """By pid and environment: the command line, which secrets are in it, and which in the environment."""

    @contextmanager
    def watched(self, every_s: float = 0.2) -> Iterator[None]:
        """Look until the block ends."""
        done = threading.Event()

        def look() -> None:
            while not done.wait(every_s):
                self._look()

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _look(self) -> None:
        for pid in _below(os.getpid()):
            with suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                given = Path(f"/proc/{pid}/environ").read_bytes()
                key = (pid, command)
                if command and key not in self.seen:
                    words = command.replace(b"\0", b" ").decode(errors="replace")
                    shown, held = found_in(self.secrets, command), found_in(self.secrets, given)
                    self.seen[key] = (words, frozenset(shown), frozenset(held))


def _below(root: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for pid, parent in _parents():
        parents.setdefault(parent, []).append(pid)
    found: list[int] = []
    todo = [root]
    while todo:
        todo += (children := parents.get(todo.pop(), []))
        found += children
    return found


def responses(deployment: Deployment, http: Any, names: Mapping[str, str]) -> list[tuple[str, bytes]]:
    """What every GET of the API and its pages answers, headers too, for what has these names."""
    paths = http.get("/openapi.json").json()["paths"]
    targets = [path for path, each in paths.items() if "get" in each] + ["/", "/jobs/{job_id}", "/fleet", "/spending"]
    targets += ["/candidates/{candidate_id}", "/knowledge", "/uplift"]
    found = []
    for target in targets:
        for name, value in names.items():
            target = target.replace(f"{{{name}}}", value)
        answer = http.get(target)
        found.append((target, str(answer.headers).encode() + answer.content))
    return found
