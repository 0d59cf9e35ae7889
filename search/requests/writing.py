"""A language model writes the reference for a request: the prompt, and the check of what it wrote, which is never run.

What is checked here is the form (it parses, has what a problem must have, imports nothing but torch); whether it means
what was asked, the user sees, and whether it can be judged, the judge says before a search is paid for.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from problems.catalog import Outline, ProblemError, outline
from search.answers import THOUGHT, find_blocks
from search.prompts import LANGUAGE_NAMES, Prompt, render
from search.prompts.limits import MAX_REFERENCE
from search.prompts.text import fenced
from search.requests.understanding import Wish
from search.types import Target

ALLOWED_IMPORTS = frozenset({"__future__", "math", "torch", "typing"})
"""What a reference needs. One that opens files or sockets is none, whoever wrote it."""

MAX_WORDS = 4_000
MAX_ASSUMED = 400


class NoReference(ValueError):
    """The answer has no reference that can be used. The message says why, for the model that is asked again."""


@dataclass(frozen=True, slots=True)
class Written:
    """A reference that a model wrote, read and not run, and what it says that it assumed."""

    problem: Outline
    assumed: str | None


def reference_prompt(wish: Wish, target: Target, answer: str | None = None, fault: str | None = None) -> Prompt:
    """The messages that ask for a reference; with the last answer and its fault, for another one."""
    values = {
        "hardware": re.sub(r"[^\w.-]+", "_", target.hardware, flags=re.ASCII),
        "language_name": LANGUAGE_NAMES[target.language],
        "words": fenced(wish.text, MAX_WORDS, "text"),
        "found": ", ".join([*sorted(wish.concepts), *([wish.dtype] if wish.dtype else [])]),
        "answer": fenced(answer or "", MAX_REFERENCE, "text"),
        "fault": fenced(fault, MAX_WORDS, "text") if fault else "",
    }
    return render(("reference_system.j2", "reference_user.j2"), values)


def read_reference(answer: str | None, name: str, hardware: str) -> Written:
    """The reference in an answer: the last closed block that defines Model. Raises NoReference."""
    text = THOUGHT.sub("", (answer or "").encode("utf-8", "replace").decode().replace("\0", ""))
    blocks = [block for block in find_blocks(text) if re.search(r"^class\s+Model\b", block.text, re.MULTILINE)]
    if not blocks:
        raise NoReference(_refusal(text))
    if not blocks[-1].closed:
        raise NoReference("the file is cut off")
    source = blocks[-1].text
    try:
        problem = outline(source, name)
        problem.spec.workloads_for(hardware)
    except ProblemError as error:
        raise NoReference(str(error)) from error
    _check_imports(source)
    return Written(problem, _assumed(text))


def name_of(wish: Wish) -> str:
    """A name for the problem, from the operations that were named."""
    return "_".join(sorted(wish.concepts))[:60] or "requested"


def _refusal(text: str) -> str:
    said = " ".join(text.split())[:200]
    return f"the answer has no fenced block with `class Model`{f': {said}' if said else ''}"


def _check_imports(source: str) -> None:
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "."]
        for name in names:
            if name.partition(".")[0] not in ALLOWED_IMPORTS:
                line = getattr(node, "lineno", 1)
                raise NoReference(f"line {line}: it imports {name}: a reference needs torch and math alone")


def _assumed(text: str) -> str | None:
    said = re.split(r"^\s*(?:`{3,}|~{3,})", text, maxsplit=1, flags=re.MULTILINE)[0]
    return " ".join(said.split())[:MAX_ASSUMED] or None
