"""From a model's answer to a proposal: a whole file in a fenced block, or SEARCH/REPLACE edits of the parent.

What an answer can be, and what becomes of it: one block with `ModelNew` (taken), several (the last that defines it and
parses), edits (applied to the parent), prose (`no_code`), an answer that was cut off (`truncated`), edits that do not
apply (`diff_failed`), a refusal (`refused`). The text is data: nothing in it is run or obeyed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from search.edits import EditFailed, UnfinishedEdit, apply_edits, find_edits
from search.proposing import LlmCall, Proposal
from search.types import Failure

DEFINES_CANDIDATE = re.compile(r"^class\s+ModelNew\b", re.MULTILINE)
FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*([\w+.#-]*)[^`]*$")
THOUGHT = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)
REFUSAL = re.compile(
    r"\b(?:I(?:['’]m| am) (?:sorry|unable|not able)|I (?:can(?:no|['’])t|won['’]t|must decline)"
    r"|cannot (?:help|assist))\b",
    re.IGNORECASE,
)
CONTENT_FILTER = "content_filter"
REFUSED_FINISHES = frozenset({CONTENT_FILTER, "refusal"})
MAX_PLAN = 600
MAX_REFUSAL = 600
"""Characters. A refusal is short; "I can't vectorise this" in a long explanation is not one."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: what stands between its fences, and whether it was closed."""

    text: str
    closed: bool


def read_answer(answer: str | None, finish_reason: str | None, parents: Sequence[str] = ()) -> Proposal:
    """The candidate in the answer, or why there is none. Edits apply to the first of the parents' sources."""
    text = THOUGHT.sub("", _clean(answer or ""))
    cut_off = finish_reason == "length"
    edited = _edited(text, cut_off, parents)
    if edited is not None and edited.source is not None:
        return edited
    whole = _whole_file(text)
    if whole is not None:
        return Proposal(source=whole, plan=_plan(text))
    return edited or _without_code(text, finish_reason)


def read_call(call: LlmCall, parents: Sequence[str] = ()) -> Proposal:
    """The proposal in a call, be it fresh or stored: of one that failed for good, the failure."""
    if call.error is not None:
        failure = Failure.REFUSED if call.finish_reason == CONTENT_FILTER else Failure.PROVIDER_ERROR
        return Proposal(failure=failure, detail=call.error)
    return read_answer(call.answer, call.finish_reason, parents)


def find_blocks(text: str) -> list[Block]:
    """Every fenced block, in order. A fence is closed by one of its own kind that is at least as long.

    A block in an indented list loses the indentation of its fence.
    """
    blocks: list[Block] = []
    opening: re.Match[str] | None = None
    inside: list[str] = []
    for line in text.split("\n"):
        fence = FENCE.match(line)
        if opening is None:
            opening = fence
        elif fence and not fence[3] and fence[2].startswith(opening[2]):
            blocks.append(_block(inside, opening[1], closed=True))
            opening, inside = None, []
        else:
            inside.append(line)
    if opening is not None:
        blocks.append(_block(inside, opening[1], closed=False))
    return blocks


def _clean(text: str) -> str:
    """Without what no source can hold: null characters and halves of surrogate pairs."""
    return text.encode("utf-8", "replace").decode().replace("\0", "").replace("\r\n", "\n")


def _block(lines: Sequence[str], indent: str, closed: bool) -> Block:
    if all(line.startswith(indent) for line in lines if line.strip()):
        lines = [line.removeprefix(indent) for line in lines]
    return Block("\n".join(lines) + "\n", closed)


def _edited(text: str, cut_off: bool, parents: Sequence[str]) -> Proposal | None:
    """The parent with the answer's edits, the failure of those, or None where there are no edits."""
    try:
        edits = find_edits(text)
    except UnfinishedEdit as error:
        return Proposal(failure=Failure.TRUNCATED, plan=_plan(text), detail=str(error))
    if not edits:
        return None
    if cut_off:
        return Proposal(failure=Failure.TRUNCATED, plan=_plan(text), detail="cut off after some of its edits")
    if not parents:
        return Proposal(failure=Failure.DIFF_FAILED, plan=_plan(text), detail="edits, but there is no file to edit")
    try:
        source = apply_edits(parents[0], edits)
    except EditFailed as error:
        return Proposal(failure=Failure.DIFF_FAILED, plan=_plan(text), detail=str(error))
    if not DEFINES_CANDIDATE.search(source):
        return Proposal(failure=Failure.DIFF_FAILED, plan=_plan(text), detail="the edits remove class ModelNew")
    return Proposal(source=source, plan=_plan(text))


def _whole_file(text: str) -> str | None:
    """The last closed block that defines ModelNew, of those that parse if any does; or a bare file without fences."""
    blocks = find_blocks(text)
    whole = [block.text for block in blocks if block.closed and DEFINES_CANDIDATE.search(block.text)]
    if blocks and not blocks[-1].closed:
        # A later version was on its way: the earlier one is not what the model wanted to say.
        return None
    if whole:
        return ([source for source in whole if _parses(source)] or whole)[-1]
    bare = text.strip() + "\n"
    return bare if not blocks and DEFINES_CANDIDATE.search(bare) and _parses(bare) else None


def _without_code(text: str, finish_reason: str | None) -> Proposal:
    blocks = find_blocks(text)
    open_thought = "<think" in text
    if finish_reason in REFUSED_FINISHES:
        return Proposal(failure=Failure.REFUSED, detail=text.strip()[:MAX_REFUSAL] or f"finished with {finish_reason}")
    if finish_reason == "length" or open_thought or (blocks and not blocks[-1].closed):
        return Proposal(failure=Failure.TRUNCATED, plan=_plan(text), detail="the answer stops before its code does")
    if blocks:
        return Proposal(failure=Failure.NO_CODE, plan=_plan(text), detail="no fenced block defines class ModelNew")
    if len(text) <= MAX_REFUSAL and REFUSAL.search(text):
        return Proposal(failure=Failure.REFUSED, detail=text.strip())
    return Proposal(failure=Failure.NO_CODE, plan=_plan(text), detail="the answer holds no code")


def _plan(text: str) -> str | None:
    """The model's plan in its own words: what stands before the code."""
    lines: list[str] = []
    for line in text.split("\n"):
        if FENCE.match(line) or line.lstrip().startswith(("<<<<<", "import ", "from ")):
            break
        lines.append(line)
    plan = "\n".join(lines).strip().removeprefix("PLAN:").strip()
    return plan[:MAX_PLAN] or None


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
