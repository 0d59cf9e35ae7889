"""Lessons and kernels in words: what stands in a prompt and in answers to people.

All of it is data: parts come from candidates and compilers, so a prompt keeps it between fences.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from functools import lru_cache

from search.knowledge.effects import Effect
from search.knowledge.standing import LessonKind, LessonState, Standing
from search.retrieval import terms

MAX_EXCERPT = 2_400
"""Characters of a kernel's source, some 600 tokens: its core, without the reference's class around it."""

MAX_TERMS = 160
"""Distinct words by which a kernel is found. A reference has 30 to 60; what comes later in a source is mostly names."""


@dataclass(frozen=True, slots=True)
class Document:
    """What is stored of an item to be found and shown: a line, a paragraph, and its normalised words."""

    title: str
    text: str
    terms: str


def lesson_document(
    *, kind: str, statement: str, op_family: str, hardware: str, language: str, bound: str, standing: Standing
) -> Document:
    """A lesson as its evidence stands now."""
    about = " ".join(part for part in (op_family, f"{language} on {hardware}", bound and f"({bound}-bound)") if part)
    if kind == LessonKind.FAILURE:
        title = statement[:160]
        text = f"{_capital(statement)}. Seen in {_jobs(standing.supporting)} ({language} on {hardware})."
        if standing.notes:
            text += " What repaired it:\n" + "\n".join(_indented(note) for note in standing.notes)
    else:
        title = f"{statement}: {_verdict(standing)} ({about})"
        text = f"For {about}: {statement} {_outcome(standing)}."
        if standing.notes:
            text += " For example:\n" + "\n".join(_indented(note) for note in standing.notes)
    return Document(title, text, searchable(f"{op_family} {statement} {language} {hardware} {bound}"))


def kernel_document(
    *,
    problem_name: str,
    op_family: str,
    hardware: str,
    language: str,
    speedup: float | None,
    plan: str | None,
    problem_source: str,
) -> Document:
    """A certified kernel's story; its source is kept apart (`excerpt`)."""
    gain = f", {speedup:.2f} times the fastest baseline" if speedup is not None else ""
    title = f"{problem_name}: {op_family} kernel for {hardware} in {language}"
    text = f"A certified kernel for {problem_name} ({op_family}) on {hardware} in {language}{gain}."
    if plan:
        text += f" Its plan: {plan.strip()[:400]}"
    # The op family is a facet of its own: as a word it would be counted twice where the query knows it, and where the
    # query does not, only the words of both references can say that they are alike.
    return Document(title, text, searchable(f"{problem_name} {_computation(problem_source)} {plan or ''}"))


def excerpt(source: str, limit: int = MAX_EXCERPT) -> str:
    """The core of a kernel's source: what stands before its class, imports aside; the whole where that is short."""
    if len(source) <= limit:
        return source
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source[:limit]
    lines = source.splitlines()
    kept = [
        "\n".join(lines[statement.lineno - 1 : statement.end_lineno])
        for statement in module.body
        if not isinstance(statement, ast.Import | ast.ImportFrom | ast.ClassDef)
    ]
    return "\n".join(kept)[:limit] or source[:limit]


def searchable(text: str) -> str:
    """The distinct normalised words of a text, in order, as they are stored for full-text search."""
    return " ".join(list(dict.fromkeys(terms(text)))[:MAX_TERMS])


@lru_cache(maxsize=64)
def query_terms(title: str, text: str) -> tuple[str, ...]:
    """The words that a query looks for, of a reference without its spec, in which the op family may stand."""
    return tuple(searchable(f"{title} {_computation(text)}").split())


def _computation(source: str) -> str:
    """The classes of a reference, unparsed: names of functions called and layers used, no spec and no comments."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source
    kept = [statement for statement in module.body if isinstance(statement, ast.ClassDef | ast.FunctionDef)]
    named = [statement for statement in kept if statement.name not in ("get_inputs", "get_init_inputs")]
    return "\n".join(ast.unparse(statement) for statement in named) if named else source


def _verdict(standing: Standing) -> str:
    if standing.state is LessonState.QUARANTINED:
        return "jobs contradict one another"
    return f"{_factor(standing.effect)} in speed" if standing.effect else "effect unknown"


def _outcome(standing: Standing) -> str:
    if standing.state is LessonState.QUARANTINED:
        return f"helped in some jobs and hurt in others ({standing.supporting} against {standing.opposing})"
    effect = standing.effect
    if effect is None:
        return "had no measured effect"
    word = {1: "made kernels faster", -1: "made kernels slower", 0: "made no clear difference"}[effect.sign]
    interval = f"{math.exp(effect.low):.2f} to {math.exp(effect.high):.2f}"
    return f"{word}: {_factor(effect)} in speed (95 %: {interval}), in {_jobs(standing.supporting)}"


def _factor(effect: Effect | None) -> str:
    return "?" if effect is None else f"x{math.exp(effect.log):.2f}"


def _jobs(count: int) -> str:
    return "one job" if count == 1 else f"{count} independent jobs"


def _indented(note: str) -> str:
    return "\n".join(f"    {line}" for line in note.splitlines())


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
