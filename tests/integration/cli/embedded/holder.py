"""Holds the embedded servers of a home until stdin ends, so that tests can kill it: `python …/holder.py HOME`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from cli.embedded import EmbeddedPostgres, EmbeddedValkey

home = Path(sys.argv[1])
with EmbeddedPostgres(home) as postgres, EmbeddedValkey(home) as valkey:
    sys.stdout.write(f"urls {postgres.url} {valkey.url} {postgres.pid} {valkey.pid}\n")
    sys.stdout.flush()
    time.sleep(120)
