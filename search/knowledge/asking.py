"""What is asked of the knowledge base, and what a shelf of stored items must be able to answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from search.hardware import kin, widening
from search.knowledge.fingerprints import fingerprint
from search.knowledge.texts import query_terms
from search.proposing import ProposalRequest
from search.retrieval import Query
from search.types import Operator

PROBLEM_PREFIX: Final = "problem:"
"""Of a problem's id among those of items with a meaning; its hash follows."""


class Stored(Protocol):
    """A kernel or a lesson as the database hands it over."""

    @property
    def id(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def hardware(self) -> str:
        """The id of a kernel's hardware, the kin of a lesson's."""
        ...

    @property
    def language(self) -> str: ...
    @property
    def op_family(self) -> str: ...
    @property
    def bound(self) -> str: ...
    @property
    def exact(self) -> bool:
        """Of a kernel: it solves this very problem. Of a lesson: it is about this very error."""
        ...

    @property
    def worth(self) -> float:
        """Speedup of a kernel; of a lesson, how many jobs support it."""
        ...

    @property
    def terms(self) -> str:
        """Its normalised words, each once."""
        ...

    @property
    def trigram_score(self) -> float: ...
    @property
    def embedder(self) -> str | None: ...
    @property
    def embedding(self) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class Question:
    """A task for which something is looked up."""

    hardware: str
    language: str
    operator: str
    text: str = ""
    """The reference's source, or any words."""
    title: str = ""
    op_family: str | None = None
    """None or `other`: unknown, the words must do."""
    bound: str | None = None
    error: str | None = None
    """The digest of the failure that is to be repaired."""
    error_message: str = ""
    problem_hash: str = ""
    key: str = ""
    """Problem and seed of the job, for the dice."""
    ordinal: int = 0

    @property
    def family(self) -> str | None:
        """The op family, where it is known."""
        return None if self.op_family in (None, "", "other") else self.op_family


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What the database is asked for. `hardware` are the names of the target, `terms` the words looked for."""

    language: str
    hardware_kin: str
    hardware: tuple[str, ...]
    op_family: str | None
    title: str
    terms: tuple[str, ...]
    error: str | None
    error_message: str
    problem_hash: str


class Shelf(Protocol):
    """Where kernels and lessons are kept."""

    def narrow(self, narrowing: Narrowing) -> Sequence[Stored]:
        """What fits, some hundreds at most, without its text."""
        ...

    def holders(self, terms: Sequence[str]) -> Mapping[str, int]:
        """How many kernels have each word."""
        ...

    def texts(self, ids: Sequence[str]) -> Mapping[str, tuple[str, str]]:
        """Title and text of some of them."""
        ...

    def meanings(self, ids: Sequence[str]) -> Mapping[str, bytes]:
        """Vectors by a model of those among the items and problems that have one, all of one embedder and packed
        (`search.knowledge.embedding.pack`). Nothing without an embedder."""
        ...

    def retired(self) -> Collection[str]:
        """The ids of items, facts among them, that are shown to nobody."""
        ...


def question_of(request: ProposalRequest, *, problem_hash: str, key: str, bound: str = "") -> Question:
    """What to look up for a proposal: its task, and the error of the parent that it is to repair."""
    parent = request.parents[0] if request.parents else None
    failed = parent is not None and request.operator == Operator.REPAIR and parent.verdict is not None
    mark = fingerprint(parent.verdict or "", parent.reason, parent.log) if parent is not None and failed else None
    return Question(
        hardware=request.target.hardware,
        language=request.target.language,
        operator=request.operator,
        text=request.problem_source,
        title=request.problem_name,
        op_family=request.op_family,
        bound=bound or None,
        error=mark.digest if mark else None,
        error_message=mark.message if mark else "",
        problem_hash=problem_hash,
        key=key,
        ordinal=request.ordinal,
    )


def narrowing_of(question: Question) -> Narrowing:
    """The question as the database takes it."""
    return Narrowing(
        language=question.language,
        hardware_kin=kin(question.hardware),
        hardware=widening(question.hardware),
        op_family=question.family,
        title=question.title,
        terms=query_terms(question.title, question.text),
        error=question.error,
        error_message=question.error_message,
        problem_hash=question.problem_hash,
    )


def query_of(question: Question) -> Query:
    """The question as facts are asked."""
    return Query(
        text=" ".join(query_terms("", question.text)) + " " + question.error_message,
        title=question.title,
        hardware=question.hardware,
        language=question.language,
        op_family=question.family,
        bound=question.bound or None,
    )
