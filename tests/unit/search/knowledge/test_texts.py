"""Lessons and kernels in words."""

from __future__ import annotations

from datetime import UTC, datetime

from problems.catalog import bundled
from search.knowledge.effects import Effect
from search.knowledge.standing import LessonState, Standing
from search.knowledge.texts import MAX_EXCERPT, excerpt, kernel_document, lesson_document, query_terms

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def lesson(kind: str, statement: str, standing: Standing, bound: str = "memory") -> tuple[str, str]:
    document = lesson_document(
        kind=kind,
        statement=statement,
        op_family="softmax" if kind == "change" else "",
        hardware="x86",
        language="cpp",
        bound=bound,
        standing=standing,
    )
    return document.title, document.text


def test_a_change_says_what_it_did_where_and_how_sure_that_is() -> None:
    standing = Standing(LessonState.CONFIRMED, 5, 3, 0, Effect(0.5, 0.4, 0.6), NOW, ("BLOCK: 64 -> 128",))
    title, text = lesson("change", "raising BLOCK", standing)
    assert title == "raising BLOCK: x1.65 in speed (softmax cpp on x86 (memory-bound))"
    assert text == (
        "For softmax cpp on x86 (memory-bound): raising BLOCK made kernels faster: x1.65 in speed "
        "(95 %: 1.49 to 1.82), in 3 independent jobs. For example:\n    BLOCK: 64 -> 128"
    )


def test_a_contradicted_change_says_so() -> None:
    standing = Standing(LessonState.QUARANTINED, 2, 1, 1, Effect(0.0, -1.0, 1.0), NOW)
    title, text = lesson("change", "raising BLOCK", standing, bound="")
    assert "contradict" in title and "helped in some jobs and hurt in others (1 against 1)" in text


def test_a_failure_says_what_cannot_be_and_what_repaired_it() -> None:
    standing = Standing(LessonState.CONFIRMED, 4, 2, 0, None, NOW, ("-a\n+b",))
    title, text = lesson("failure", "cannot: no such thing (build_error)", standing, bound="")
    assert title == "cannot: no such thing (build_error)"
    assert text.startswith("Cannot: no such thing (build_error). Seen in 2 independent jobs (cpp on x86).")
    assert text.endswith("What repaired it:\n    -a\n    +b")


def test_a_kernel_is_found_by_the_words_of_its_computation_and_not_of_its_spec() -> None:
    softmax = bundled()["softmax"]
    document = kernel_document(
        problem_name="rows",
        op_family="softmax",
        hardware="cpu",
        language="cpp",
        speedup=1.5,
        plan="one pass",
        problem_source=softmax.source.replace("torch.softmax", "torch.special"),
    )
    assert "1.50 times the fastest baseline" in document.text and "Its plan: one pass" in document.text
    assert "special" in document.terms.split() and "softmax" not in document.terms.split()
    assert "softmax" in query_terms("", softmax.source)
    assert query_terms("", "not python (") == ("python",)


def test_an_excerpt_leaves_imports_and_the_class_out() -> None:
    filler = "\n".join(f"A{n} = {n}" for n in range(400))
    source = f"import torch\n\nBLOCK = 64\n{filler}\n\nclass ModelNew:\n    pass\n"
    found = excerpt(source)
    assert found.startswith("BLOCK = 64\nA0 = 0") and "import" not in found and len(found) <= MAX_EXCERPT
    assert excerpt("x = 1") == "x = 1"
    assert len(excerpt("(" * 5000)) == MAX_EXCERPT
