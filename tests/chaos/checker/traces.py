"""What a fleet leaves behind: processes, files, shared memory, and a planted secret outside its store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, inspect, text

from tests.chaos.checker.violations import Violation, violation
from tests.chaos.signals import command, tree

_SHARED: Final = (Path("/dev/shm"), Path("/proc/sysvipc/shm"))
_EXPECTED_FILES: Final = ("counts", "caches", "lost+found")
"""What workers keep in their scratch folder on purpose."""


def shared_memory() -> frozenset[str]:
    """The shared memory segments of this machine: POSIX by name, System V by id."""
    names = {f"posix {entry.name}" for entry in _SHARED[0].iterdir()} if _SHARED[0].exists() else set()
    with suppress(OSError):
        names |= {f"sysv {line.split()[1]}" for line in _SHARED[1].read_text().splitlines()[1:]}
    return frozenset(names)


def check_processes(expected: Iterable[int]) -> list[Violation]:
    """Processes below this one that belong to no running program: orphans come to us, who are a subreaper."""
    mains = list(expected)
    known = _below(mains)
    mine = [pid for pid in tree(os.getpid())[1:] if pid not in known]
    # A backend that was forked between the two looks is somebody's, as a third look tells.
    known = _below(mains) if mine else known
    orphans = [f"pid {pid}: {command(pid)}" for pid in mine if pid not in known and command(pid)]
    return violation("nothing is left behind", "a process belongs to nobody", orphans)


def _below(mains: Iterable[int]) -> set[int]:
    return {pid for main in mains for pid in tree(main)}


def check_left(scratch: Path, shared_before: frozenset[str]) -> list[Violation]:
    """Files in the scratch folder and shared memory, when everything has stopped."""
    files = [str(path.relative_to(scratch)) for path in scratch.rglob("*") if path.is_file()]
    strange = [name for name in files if not name.startswith(_EXPECTED_FILES)]
    return [
        *violation("nothing is left behind", "a temporary file was left", strange),
        *violation("nothing is left behind", "a shared memory segment was left", shared_memory() - shared_before),
    ]


def check_secrets(
    secrets: Mapping[str, str], connection: Connection, folders: Iterable[Path], texts: Mapping[str, str]
) -> list[Violation]:
    """Where a planted secret is that is no store of it: any row of any table, any file of these folders, any text."""
    found = []
    for what, secret in secrets.items():
        found += [f"{what} in the table {place}" for place in _in_tables(connection, secret)]
        found += [f"{what} in {path}" for folder in folders for path in _in_files(folder, secret)]
        found += [f"{what} in {name}" for name, content in texts.items() if secret in content]
    return violation("secrets stay where they are", "a planted secret was found outside its store", found)


def check_environments(secret: str, allowed: Iterable[int], all_pids: Iterable[int]) -> list[Violation]:
    """Processes that have the provider's key in their environment or on their command line, and need not."""
    trusted = {pid for main in allowed for pid in tree(main)}
    found = [f"pid {pid}: {command(pid)}" for pid in all_pids if pid not in trusted and _has(pid, secret)]
    return violation("secrets stay where they are", "a process has a key that it does not need", found)


def _has(pid: int, secret: str) -> bool:
    with suppress(OSError):
        return secret.encode() in Path(f"/proc/{pid}/environ").read_bytes() or secret in command(pid)
    return False


def _in_tables(connection: Connection, secret: str) -> Iterator[str]:
    for name in inspect(connection).get_table_names():
        query = text(f'SELECT count(*) FROM "{name}" AS row WHERE position(:secret IN row::text) > 0')
        if count := connection.execute(query, {"secret": secret}).scalar_one():
            yield f"{name} ({count} rows)"


def _in_files(folder: Path, secret: str) -> Iterator[Path]:
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file() and secret.encode() in path.read_bytes():
                yield path
