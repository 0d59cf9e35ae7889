"""The search stays light and pure: what it imports, and that its words are the database's."""

from __future__ import annotations

import subprocess
import sys

import pytest

import db.vocabulary
import search.types

HEAVY = {"torch", "litellm", "openai", "optuna", "jinja2", "sqlalchemy", "celery", "fastapi", "numpy"}


@pytest.mark.parametrize(
    ("modules", "allowed"),
    [
        ("search.advance, search.tunables, search.novelty, search.proposing, search.tuning, search.answers", set()),
        ("search.facts, search.retrieval, search.hardware", set()),
        ("search.knowledge.recall, search.knowledge.distil, search.knowledge.uplift", set()),
        ("search.replay, search.recording, search.rows", set()),
        ("search.llm", {"jinja2"}),
    ],
)
def test_what_is_heavy_is_imported_when_it_is_needed(modules: str, allowed: set[str]) -> None:
    code = f"import sys, {modules}; print(*({HEAVY - allowed!r} & sys.modules.keys()))"
    loaded = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert loaded.stdout.split() == []


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (search.types.Operator, db.vocabulary.Operator),
        (search.types.ProposerKind, db.vocabulary.Proposer),
        (search.types.State, db.vocabulary.CandidateState),
        (search.types.Verdict, db.vocabulary.Verdict),
        (search.types.Failure, db.vocabulary.Failure),
        (search.types.StopReason, db.vocabulary.StopReason),
        (search.types.PolicyName, db.vocabulary.SearchPolicy),
    ],
)
def test_the_words_are_the_databases(ours: type, theirs: type) -> None:
    assert {str(member) for member in ours} == {str(member) for member in theirs}  # type: ignore[attr-defined]
