"""A pytest plugin that plants one mutation while modules are loaded: `-p tests.mutations.planted`, named by a variable.

It must be loaded before anything of `db`, as plugins of the command line are: before every conftest.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType

import pytest
from sqlalchemy import NullPool, TextClause, create_engine, text

from db import statements
from tests.mutations.catalog import MUTATIONS, ROOT, VARIABLE, Mutation
from tests.support import schema

_planted: list[str] = []


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles the mutated source, and reads and writes no bytecode."""

    mutation: Mutation

    def get_code(self, fullname: str) -> CodeType:
        source = self.mutation.apply(self.mutation.path.read_text(encoding="utf-8"))
        _planted.append(fullname)
        return compile(source, str(self.mutation.path), "exec", dont_inherit=True)


class _Finder:
    def __init__(self, mutation: Mutation) -> None:
        self.mutation = mutation
        self.module = ".".join(mutation.path.relative_to(ROOT).with_suffix("").parts)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.module:
            return None
        loader = _Loader(name, str(self.mutation.path))
        loader.mutation = self.mutation
        return importlib.machinery.ModuleSpec(name, loader, origin=str(self.mutation.path))


def _plant_statement(mutation: Mutation) -> None:
    load = statements.load_statements

    def load_mutated(path: Path) -> Mapping[str, TextClause]:
        found = load(path)
        if path != mutation.path:
            return found
        _planted.append(path.name)
        return {**found, mutation.statement: text(mutation.apply(found[mutation.statement].text))}

    statements.load_statements = load_mutated


def _plant_ddl(mutation: Mutation) -> None:
    migrate = schema.migrate

    def migrate_and_mutate(url: str, revision: str = "head") -> None:
        migrate(url, revision)
        engine = create_engine(url, poolclass=NullPool)
        with engine.begin() as connection:
            connection.execute(text(mutation.new))
        engine.dispose()
        _planted.append(mutation.new)

    schema.migrate = migrate_and_mutate


def _plant(mutation: Mutation) -> None:
    if not mutation.file:
        _plant_ddl(mutation)
        return
    finder = _Finder(mutation)
    assert finder.module not in sys.modules, f"{finder.module} was loaded before the mutation"
    if mutation.statement:
        _plant_statement(mutation)
    else:
        sys.meta_path.insert(0, finder)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A mutation that was never planted proves nothing, whatever the tests said."""
    if not _planted:
        raise pytest.UsageError(f"the mutation {os.environ[VARIABLE]!r} was not planted: nothing loaded its file")


_plant(next(each for each in MUTATIONS if each.name == os.environ[VARIABLE]))
