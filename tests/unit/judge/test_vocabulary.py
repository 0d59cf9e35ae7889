"""The judge imports nothing of the database, to work alone: its verdicts are a second list, held equal here."""

from __future__ import annotations

from db import vocabulary
from worker.judge.verdict import Verdict


def test_the_judge_and_the_database_know_the_same_verdicts() -> None:
    assert [verdict.value for verdict in Verdict] == [verdict.value for verdict in vocabulary.Verdict]
