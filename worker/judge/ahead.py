"""Ahead-of-time builds of Triton candidates for a GPU that is not here."""

from __future__ import annotations

from worker.judge.sessions import Runner
from worker.judge.verdict import Check


def build_ahead(runner: Runner, hardware: str) -> Check:
    raise NotImplementedError
