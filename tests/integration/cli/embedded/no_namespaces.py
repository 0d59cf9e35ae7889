"""Starts Postgres as the root of a user namespace that allows no further namespaces: `python …/no_namespaces.py HOME`.

That is what a container's default seccomp profile looks like from inside: root, but unshare() is refused.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import psycopg

from cli.embedded import EmbeddedPostgres
from cli.embedded.postgres import choose_identity, find_binaries

CLONE_NEWUSER = 0x10000000


def main(home: Path) -> None:
    asked, ask = os.pipe()
    mapped, tell = os.pipe()
    child = os.fork()
    if child == 0:
        assert ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER) == 0
        os.write(ask, b"?")
        os.read(mapped, 1)
        inside(home)
        sys.stdout.flush()
        os._exit(0)
    os.read(asked, 1)
    # Only somebody outside may map more than one id.
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{child}/{name}").write_text("0 0 65536")
    os.write(tell, b"!")
    os.waitpid(child, 0)


def inside(home: Path) -> None:
    Path("/proc/sys/user/max_user_namespaces").write_text("0")
    kind = choose_identity(find_binaries(), home).kind
    with EmbeddedPostgres(home) as postgres, psycopg.connect(postgres.url.replace("+psycopg", "")) as connection:
        sys.stdout.write(f"{kind} rows {connection.execute('select 1').fetchone()[0]}\n")  # type: ignore[index]


main(Path(sys.argv[1]))
