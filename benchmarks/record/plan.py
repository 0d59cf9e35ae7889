"""What is to be run: for each bundled operator the kernels that are proposed for it, by language."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from problems.catalog import ProblemError, bundled

PROPOSALS = Path(__file__).parent / "proposals"
_LANGUAGES = (("triton", r"^import triton\b"), ("cuda", r"load_cuda|load_inline"), ("cpp", r"load_cpp"))


@dataclass(frozen=True, slots=True)
class Proposal:
    """A kernel somebody wrote."""

    name: str
    source: str

    @property
    def plan(self) -> str:
        """Its idea: the module's docstring."""
        return (ast.get_docstring(ast.parse(self.source)) or self.name)[:4000]


@dataclass(frozen=True, slots=True)
class Entry:
    """One job of the record."""

    problem: str
    language: str
    proposals: tuple[Proposal, ...]

    @property
    def file(self) -> str:
        """The name of its results."""
        return f"{self.problem}.{self.language}.json"


def plan(hardware: str, only: Sequence[str] = (), languages: Sequence[str] = ()) -> list[Entry]:
    """The jobs for this hardware, by problem (in the order of `only`, if given) and language: in `languages`, or in all
    of the hardware's. `only` has names of problems, or `name:language`, or `name:language:proposal` for one kernel of
    several. Raises ValueError for what is no bundled problem or no proposal for it, and for a job asked for twice."""
    problems = bundled()
    asked = [(*name.split(":", 2), "", "")[:3] for name in only or problems]
    unknown = sorted({name for name, _language, _proposal in asked} - set(problems))
    if unknown:
        raise ValueError(f"no bundled problem is called {', '.join(unknown)}")
    usual = ("cpp",) if hardware == "cpu" else ("triton", "cuda")
    entries = []
    for problem, language, proposal in asked:
        try:
            problems[problem].spec.workloads_for(hardware)
        except ProblemError:
            continue
        wanted = (language,) if language else tuple(languages) or usual
        found = {each: _proposals(problem, each, proposal) for each in wanted}
        if proposal and not any(found.values()):
            raise ValueError(f"{PROPOSALS / problem} has no {proposal} in {' or '.join(wanted)}")
        chosen = [each for each in found if found[each]] or (() if languages else wanted[:1])
        entries += [Entry(problem, each, found[each]) for each in chosen]
    twice = [file for file, count in Counter(entry.file for entry in entries).items() if count > 1]
    if twice:
        raise ValueError(f"asked for twice, and one job would write over the other's results: {', '.join(twice)}")
    return entries


def language_of(source: str) -> str:
    """What a candidate is written in. Raises ValueError."""
    for language, mark in _LANGUAGES:
        if re.search(mark, source, flags=re.MULTILINE):
            return language
    raise ValueError("it uses neither triton nor load_cuda, load_inline or load_cpp")


def _proposals(problem: str, language: str, only: str = "") -> tuple[Proposal, ...]:
    paths = [path for path in sorted((PROPOSALS / problem).glob("*.py")) if only in ("", path.stem)]
    read = [Proposal(path.stem, path.read_text(encoding="utf-8")) for path in paths]
    return tuple(each for each in read if language_of(each.source) == language)
