"""The prompt for a judge model: read the candidate and what the judge found, say what is wrong or what bounds it.

A judge apart from the coder is the largest single lever that was measured in this field: with one, the mean speedup on
KernelBench went from 1.107 to 1.677, and with another model as the judge from 1.767 to 2.114 (CudaForge, arXiv
2511.01884, tables 1 and 5). Its words are a model's words: they enter the next prompt as data between fences.
"""

from __future__ import annotations

from search.answers import THOUGHT
from search.prompts import Prompt, fitted
from search.proposing import ProposalRequest
from search.types import Operator, Verdict

DIAGNOSED = frozenset({Operator.REPAIR, Operator.REFINE})
"""Operators whose parent is diagnosed first: small steps, which live from knowing what to change."""

MAX_DIAGNOSIS = 2_000
"""Characters. Asked for 150 words, a model that writes more than twice as many has not answered the question."""


def build_diagnosis_prompt(request: ProposalRequest) -> Prompt:
    """The messages for the judge model. The same request gives the same prompt. Raises NoPrompt."""
    failed = bool(request.parents) and request.parents[0].verdict != Verdict.OK
    more = {"task": "diagnosis_task.j2", "failed": failed, "edits": False}
    return fitted(("diagnosis_system.j2", "user.j2"), request, more)


def read_diagnosis(answer: str | None) -> str | None:
    """What the judge model said, without its thoughts and cut to a length; None when it said nothing."""
    storable = (answer or "").encode("utf-8", "replace").decode().replace("\0", "")
    return THOUGHT.sub("", storable).strip()[:MAX_DIAGNOSIS] or None
