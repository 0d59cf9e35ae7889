"""Retrieval, measured on a real Postgres of its own.

    python -m benchmarks.knowledge --out FILE.json            # both parts, about four minutes
    python -m benchmarks.knowledge --kernels 10000            # quicker

*Leave one problem out*: for every bundled problem and target the shelf holds the kernels of all other problems; is the
right op family among the first five of what comes up (kernels and facts in turn), by the words of the reference alone?
*Latency*: a hundred thousand stored kernels (benchmarks/knowledge_shelves.py); how long does a proposal's retrieval
take from the question to the texts, SQL and ranking together?
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from alembic import command
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from benchmarks.knowledge_shelves import TARGETS, bundled_kernels, fill, made_up_kernels
from cli.embedded.postgres import EmbeddedPostgres
from cli.migrate import alembic_config
from db.knowledge import Shelf
from problems.catalog import Outline, bundled
from search.facts import facts
from search.knowledge.asking import Question
from search.knowledge.ranking import FACT, FACT_PREFIX, KERNEL, ranked_items
from search.knowledge.recall import recall
from search.types import Operator

FIRST = 5
OPERATORS = (Operator.SEED, Operator.REFINE, Operator.REPAIR)


def leave_one_out(engine: Engine) -> dict[str, Any]:
    """For each problem and target, whether its family is among the first five; with and without the family named."""
    found: dict[str, list[bool]] = {"words_alone": [], "family_named": [], "words_alone_kernels": []}
    misses: list[str] = []
    for left_out in bundled().values():
        others = [problem for problem in bundled().values() if problem.name != left_out.name]
        siblings = any(problem.op_family == left_out.op_family for problem in others)
        with engine.begin() as connection:
            fill(connection, bundled_kernels(others))
        with Session(engine) as session:
            for hardware, language in TARGETS:
                alone = _first(session, left_out, hardware, language, None)
                found["words_alone"].append(left_out.op_family in alone)
                if left_out.op_family not in alone:
                    misses.append(f"{left_out.name} for {hardware} in {language}: {', '.join(alone)}")
                if siblings:
                    kernels = _first(session, left_out, hardware, language, None, kinds=(KERNEL,))
                    found["words_alone_kernels"].append(left_out.op_family in kernels)
                named = _first(session, left_out, hardware, language, left_out.op_family)
                found["family_named"].append(left_out.op_family in named)
    shares = {name: {"share": sum(hits) / len(hits), "of": len(hits)} for name, hits in found.items()}
    return {"first": FIRST, **shares, "misses": misses}


def _first(
    session: Session,
    problem: Outline,
    hardware: str,
    language: str,
    family: str | None,
    kinds: Sequence[str] = (KERNEL, FACT),
) -> list[str]:
    """The op families of the first five items, kinds in turn."""
    ranked = ranked_items(question(problem, hardware, language, family), Shelf(session))
    places = [(place, kind) for place in range(FIRST) for kind in kinds if place < len(ranked[kind])]
    chosen = [(kind, ranked[kind][place].id) for place, kind in places][:FIRST]
    ids = [item_id for kind, item_id in chosen if kind == KERNEL]
    query = text("SELECT id, op_family FROM kernels WHERE id = ANY(:ids)")
    kernels = {item_id: family for item_id, family in session.execute(query, {"ids": ids})}
    return [kernels[i] if kind == KERNEL else "/".join(_families(i, problem.op_family)) for kind, i in chosen]


def _families(item_id: str, wanted: str) -> tuple[str, ...]:
    """A fact's families; the wanted one alone where it is among them."""
    families = facts()[item_id.removeprefix(FACT_PREFIX)].op_families
    return (wanted,) if wanted in families else families


def question(problem: Outline, hardware: str, language: str, family: str | None, operator: str = "seed") -> Question:
    """What a proposal for the problem asks."""
    return Question(
        hardware=hardware,
        language=language,
        operator=operator,
        text=problem.source,
        title=problem.name,
        op_family=family,
        problem_hash="of nobody",
        key=problem.name,
        ordinal=1,
    )


def latency(engine: Engine, kernels: int, rounds: int) -> dict[str, Any]:
    """How long retrieval takes with so many kernels stored, in milliseconds."""
    started_s = time.monotonic()
    with engine.begin() as connection:
        stored = fill(connection, made_up_kernels(kernels))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))
    filled_s = time.monotonic() - started_s
    asked = [
        question(problem, hardware, language, family, operator)
        for problem in bundled().values()
        for hardware, language in TARGETS
        for family in (problem.op_family, None)
        for operator in OPERATORS
    ]
    with Session(engine) as session:
        for each in asked:  # caches warm, as after a few minutes of service
            recall(each, Shelf(session))
        samples = [(each, *_timed(session, each)) for _ in range(rounds) for each in asked]
    return {
        "kernels": stored,
        "fill_s": round(filled_s, 1),
        "all": summary([total for _each, total, _sql in samples]),
        "family_named": summary([total for each, total, _sql in samples if each.op_family]),
        "words_alone": summary([total for each, total, _sql in samples if not each.op_family]),
        "sql_alone": summary([sql for _each, _total, sql in samples]),
    }


class _TimedShelf(Shelf):
    """A shelf that adds up the time of its queries."""

    spent_s = 0.0

    def narrow(self, asked: Any) -> Any:
        started_s = time.perf_counter()
        found = super().narrow(asked)
        self.spent_s += time.perf_counter() - started_s
        return found


def _timed(session: Session, asked: Question) -> tuple[float, float]:
    shelf = _TimedShelf(session)
    started_s = time.perf_counter()
    recall(asked, shelf)
    return (time.perf_counter() - started_s) * 1e3, shelf.spent_s * 1e3


def summary(values_ms: Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile and the worst, in milliseconds."""
    ordered = sorted(values_ms)
    p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return {
        "n": len(ordered),
        "p50_ms": round(statistics.median(ordered), 2),
        "p95_ms": round(p95, 2),
        "max_ms": round(ordered[-1], 2),
    }


def main() -> None:
    """Run both parts and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(Path(folder)) as server:
        config = alembic_config()
        config.set_main_option("sqlalchemy.url", server.url)
        command.upgrade(config, "head")
        engine = create_engine(server.url)
        figures = {
            "machine": {"processor": platform.processor() or platform.machine(), "python": platform.python_version()},
            "leave_one_out": leave_one_out(engine),
            "latency": latency(engine, options.kernels, options.rounds),
        }
        engine.dispose()
    written = json.dumps(figures, indent=2)
    print(written)  # noqa: T201 - the figures are what this is run for
    if options.out:
        options.out.write_text(written + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
