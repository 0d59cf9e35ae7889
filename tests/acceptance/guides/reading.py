"""Reads whole pages: with a service that the page itself starts, or with one that runs already."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.embedded import EmbeddedPostgres, EmbeddedValkey
from tests.support.guides.network import network_of_ones_own
from tests.support.guides.pages import ROOT, Page, read
from tests.support.guides.reader import Reader
from tests.support.people import home_of

SERVICE = read("a service", "```sh server\nkernelwright up\n```\n```output\n...\nKernelwright runs at ...\n...\n```\n")
_MODEL_PORT = 8000
_CANDIDATE = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
"""What the model answers: read like any answer, and refused by the judge."""


def page(name: str) -> Page:
    """A page by its name. Skips where the tools that pages use beside ours are not installed."""
    missing = [tool for tool in ("curl", "jq") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"pages use {', '.join(missing)}")
    return read(name, (ROOT / name).read_text(encoding="utf-8"))


@contextmanager
def home_with_network() -> Iterator[tuple[Path, list[str]]]:
    """Where a reader lives."""
    with home_of("self") as home, network_of_ones_own() as network:
        yield home, network


def read_alone(name: str) -> None:
    """Read a page that starts what it needs, or needs nothing."""
    with home_with_network() as (home, network), Reader(home, network) as reader:
        reader.read(page(name))


def read_with(name: str, home: Path, network: Sequence[str], yours: Mapping[str, str]) -> None:
    """Read a page in a home, with what its reader has."""
    with Reader(home, network, yours) as reader:
        reader.read(page(name))


@contextmanager
def servers(home: Path) -> Iterator[dict[str, str]]:
    """A Postgres and a Valkey of the reader's own."""
    with EmbeddedPostgres(home / "servers") as postgres, EmbeddedValkey(home / "servers") as valkey:
        yield {"KERNELWRIGHT_DATABASE_URL": postgres.url, "KERNELWRIGHT_REDIS_URL": valkey.url}


@contextmanager
def model(home: Path, network: Sequence[str]) -> Iterator[dict[str, str]]:
    """A server of the reader's own that speaks OpenAI's API and always has the same answer."""
    script = home / "script.json"
    script.write_text(json.dumps([{"source": _CANDIDATE, "repeat": True}]))
    program = ["tests.support.fake_openai", "--port", str(_MODEL_PORT), "--script", str(script)]
    argv = [*network, sys.executable, "-m", *program]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield {"ENDPOINT": json.loads(server.stdout.readline())["base_url"], "MODEL_KEY": "sk-none"}
        finally:
            server.terminate()
