"""A prompt fits into its budget, whatever is put into it, and the task is the last to give way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search.prompts import build_prompt, tokens_of
from search.prompts.limits import MIN_PROMPT_TOKENS, PROMPT_TOKENS
from search.proposing import Knowledge, Parent, ProposalRequest, Trial
from search.types import Target
from tests.unit.search.test_prompts import OPERATORS, PARENT, request


def huge(operator: str, language: str, letter: str = "x") -> ProposalRequest:
    """Every part of a request far above its limit."""
    text = f"class ModelNew: {letter * 60_000}"
    workload = {"name": text, "latency_us": 1.0, "baselines_us": {"eager": 2.0}, "speedup": 2.0}
    parent = Parent(text, text, text, 1.25, text, text, (workload,) * 100, diagnosis=text, target=Target(text, text))
    return request(
        operator,
        language,
        problem_name=text,
        problem_source=text,
        op_family=text,
        device={f"{text}{n}": text for n in range(100)},
        parents=(parent,) * len(request(operator).parents),
        trials=(Trial({text: text}, 1.0),) * 100,
        knowledge=tuple(Knowledge(str(n), text[:200], text[:2_000]) for n in range(20)),
    )


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(("language", "letter"), [("cpp", "漢"), ("triton", "x"), ("cuda", "x")])
def test_whatever_is_put_into_it_a_prompt_fits_into_its_budget(operator: str, language: str, letter: str) -> None:
    asked = huge(operator, language, letter)
    for budget in (PROMPT_TOKENS, MIN_PROMPT_TOKENS):
        prompt = build_prompt(asked, prompt_tokens=budget)
        assert tokens_of(prompt) <= budget
        assert "class ModelNew" in prompt.messages[1]["content"].partition("# Reference")[2]
        assert "\n# Task\n" in prompt.messages[1]["content"]


def test_what_was_looked_up_gives_way_first_and_the_reference_last() -> None:
    log = "".join(f"line {n}\n" for n in range(5_000))
    source = PARENT.source + "# source\n" * 2_500
    reference = request("repair").problem_source + "# reference\n" * 1_000
    known = tuple(Knowledge(str(n), "note", f"a note of some length {n} " * 30) for n in range(20))
    parent = replace(PARENT, source=source, log=log)
    asked = request("repair", parents=(parent,), problem_source=reference, knowledge=known)

    def left(budget: int) -> tuple[bool, int, bool, bool]:
        user = build_prompt(asked, prompt_tokens=budget).messages[1]["content"]
        return "a note" in user, user.count("\nline "), user.count("# source") == 2_500, user.count("# refer") == 1_000

    full = tokens_of(build_prompt(asked, prompt_tokens=100_000))
    found = [left(budget) for budget in range(full, MIN_PROMPT_TOKENS - 1, -100)]
    assert found[0] == (True, found[0][1], True, True)
    assert found[-1][0] is False
    order = [
        next(n for n, (note, lines, _, _) in enumerate(found) if not note),
        next(n for n, (_, lines, _, _) in enumerate(found) if lines < found[0][1]),
        next(n for n, (_, _, whole, _) in enumerate(found) if not whole),
    ]
    assert order == sorted(order)
    assert all(whole for _, _, _, whole in found), "the reference is not cut before it must be"
    assert found == sorted(found, reverse=True), "with a smaller budget nothing comes back"


def test_a_candidate_that_is_cut_is_not_asked_for_edits() -> None:
    long = replace(PARENT, source=PARENT.source + "# more\n" * 10_000)
    assert "SEARCH" not in build_prompt(request("refine", parents=(long,))).messages[0]["content"]
    assert "SEARCH" in build_prompt(request("refine", parents=(PARENT,))).messages[0]["content"]
