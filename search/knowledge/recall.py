"""What is worth knowing before a proposal: kernels, lessons and facts, ranked, some of them withheld.

    recalled = recall(question, shelf)       # `shelf` reads stored items: db.knowledge has one
    recalled.knowledge                       # for the prompt
    recalled.uses                            # for the record: shown or withheld, with the parts of each rank

The database narrows (language, kin of the hardware, op family or rare words, an error's fingerprint) and scores words
and spelling; here the parts are ranked and fused, kind by kind, since scores of different kinds do not compare. What a
proposal gets depends on its operator: lean to explore, rich to repair (search.prompts says why).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from search.facts import fact_index, facts, knowledge_of
from search.hardware import kin, widening
from search.knowledge.embedding import HashingEmbedder, cosine
from search.knowledge.fingerprints import fingerprint
from search.knowledge.holdout import item_dice, retrieval_on
from search.knowledge.texts import query_terms
from search.prompts import CHARACTERS_PER_TOKEN, KNOWLEDGE_TOKENS
from search.proposing import Knowledge, ProposalRequest
from search.retrieval import Facets, Found, Query, fuse, ranked, structured, weights_for
from search.types import Operator

KERNEL, LESSON, FACT = "kernel", "lesson", "fact"

FACT_PREFIX: Final = "fact:"
"""Of a fact's id among items; those of kernels and lessons have prefixes of their own."""

VECTOR_WEIGHT = 0.5
"""The bundled embedder sees spelling, as the trigram part does: together they count as much as the words."""

MAX_VECTORS = 100
"""Vectors compared for one question: 10 us each."""

EXACT_ERROR = 100.0
"""What the same error is worth among the structured scores, none of which reaches 12: before everything."""

QUOTAS: Final[Mapping[str, Mapping[str, int]]] = {
    Operator.SEED: {LESSON: 2, KERNEL: 1, FACT: 2},
    Operator.TRANSLATE: {LESSON: 2, KERNEL: 1, FACT: 2},
    Operator.REWRITE: {LESSON: 2, KERNEL: 1, FACT: 2},
    Operator.CROSSOVER: {LESSON: 2, KERNEL: 0, FACT: 2},
    Operator.PORT: {LESSON: 2, KERNEL: 1, FACT: 3},
    Operator.REFINE: {LESSON: 3, KERNEL: 0, FACT: 3},
    Operator.REPAIR: {LESSON: 3, KERNEL: 0, FACT: 2},
}
"""How many of each kind, in the order in which they stand. A parent is a better kernel than any that is retrieved."""

ANYTHING: Final[Mapping[str, int]] = {LESSON: 5, KERNEL: 5, FACT: 5}
"""For people who look."""


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

    def retired(self) -> Collection[str]:
        """The ids of items, facts among them, that are shown to nobody."""
        ...


@dataclass(frozen=True, slots=True)
class Use:
    """An item that came up for a proposal; `rank` is among its kind."""

    item_id: str
    kind: str
    rank: int
    score: float
    parts: Mapping[str, int]
    shown: bool
    known: Knowledge


@dataclass(frozen=True, slots=True)
class Recalled:
    """What came up, and whether the proposal has retrieval at all."""

    retrieval: bool
    uses: tuple[Use, ...] = ()

    @property
    def knowledge(self) -> tuple[Knowledge, ...]:
        """What is shown, in order."""
        return tuple(use.known for use in self.uses if use.shown)


def recall(question: Question, shelf: Shelf, characters: int = KNOWLEDGE_TOKENS * CHARACTERS_PER_TOKEN) -> Recalled:
    """What comes up for a proposal. Some of it is withheld by the dice, and all of it where retrieval is off.

    What would not fit into `characters` does not come up at all: it is no part of the comparison. The same question and
    the same stored items give the same answer.
    """
    on = retrieval_on(question.key, question.ordinal)
    drawn = _drawn(question, ranked_items(question, shelf))
    known = knowledge_for([draw.found.id for draw in drawn], shelf)
    uses, left = [], characters
    for draw in drawn:
        item = known[draw.found.id]
        size = len(item.title) + len(item.text)
        if size <= left:
            left -= 0 if draw.out else size
            shown = on and not draw.out
            uses.append(Use(item.id, draw.kind, draw.rank, draw.found.score, draw.found.ranks, shown, item))
    return Recalled(on, tuple(uses))


@dataclass(frozen=True, slots=True)
class _Draw:
    kind: str
    rank: int
    found: Found
    out: bool


def _drawn(question: Question, by_kind: Mapping[str, Sequence[Found]]) -> list[_Draw]:
    """The best of each kind up to its quota, and between them those that the dice leave out."""
    withheld = item_dice(question.key, question.ordinal)
    drawn: list[_Draw] = []
    for kind, quota in QUOTAS.get(question.operator, {}).items():
        left = quota
        for rank, found in enumerate(by_kind[kind], start=1):
            if not left:
                break
            # An item that is left out makes room for the next: the proposal is to have as much as any other.
            drawn.append(_Draw(kind, rank, found, withheld(found.id)))
            left -= not drawn[-1].out
    return drawn


def ranked_items(question: Question, shelf: Shelf) -> dict[str, list[Found]]:
    """All that fits the question, by kind, best first; retired items are left out. Facts have their items' ids."""
    retired = shelf.retired()
    narrowing = narrowing_of(question)
    stored = [item for item in shelf.narrow(narrowing) if item.id not in retired]
    rarity = rarities(narrowing.terms, shelf.holders(narrowing.terms))
    hits = fact_index().search(query_of(question), limit=len(facts()), per_kind=None)
    named = [Found(f"{FACT_PREFIX}{hit.id}", hit.score, hit.ranks) for hit in hits]
    return {
        KERNEL: _ranked_stored(question, [item for item in stored if item.kind == KERNEL], rarity),
        LESSON: _ranked_stored(question, [item for item in stored if item.kind == LESSON], rarity),
        FACT: [hit for hit in named if hit.id not in retired],
    }


def knowledge_for(ids: Sequence[str], shelf: Shelf) -> dict[str, Knowledge]:
    """Items as a prompt takes them: facts are ours, all else is data from outside."""
    texts = shelf.texts([item_id for item_id in ids if not item_id.startswith(FACT_PREFIX)])
    known = {item_id: Knowledge(id=item_id, title=title, text=text) for item_id, (title, text) in texts.items()}
    of_ours = {item_id: facts()[item_id.removeprefix(FACT_PREFIX)] for item_id in ids if item_id not in known}
    return known | {item_id: replace(knowledge_of(fact), id=item_id) for item_id, fact in of_ours.items()}


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


def rarities(terms: Sequence[str], holders: Mapping[str, int]) -> dict[str, float]:
    """How much each word of a question says: the inverse document frequency of BM25, over kernels."""
    most = max(holders.values(), default=0)
    counts = {term: holders.get(term, 0) for term in terms}
    return {term: math.log(1 + (most - count + 0.5) / (count + 0.5)) for term, count in counts.items()}


def _ranked_stored(question: Question, items: Sequence[Stored], rarity: Mapping[str, float]) -> list[Found]:
    query = query_of(question)
    by_id = {item.id: item for item in items}
    words = {item.id: _words_score(item.terms.split(), rarity) for item in items}
    parts = {
        "structured": ranked({item.id: _structured(item, query) for item in items}),
        "text": ranked({item_id: score for item_id, score in words.items() if score > 0}),
        "trigram": ranked({item.id: item.trigram_score for item in items if item.trigram_score > 0}),
        # Where several are alike in all that is asked for, the one that achieved more comes first.
        "worth": ranked({item.id: item.worth for item in items}),
    }
    weights = weights_for(query) | {"worth": VECTOR_WEIGHT, "vector": VECTOR_WEIGHT}
    first = fuse(parts, weights)[:MAX_VECTORS]
    parts["vector"] = ranked(_vector_scores(question, [by_id[found.id] for found in first]))
    return fuse(parts, weights)


def _words_score(words: Sequence[str], rarity: Mapping[str, float]) -> float:
    """What the words in common say, the less the more others there are beside them."""
    return sum(rarity.get(word, 0.0) for word in words) / math.sqrt(len(words)) if words else 0.0


def _structured(item: Stored, query: Query) -> float:
    names = tuple(name for name in widening(item.hardware) if name != kin(item.hardware)) or (item.hardware,)
    facets = Facets(
        (*names, kin(item.hardware)),
        (item.language,),
        (item.op_family,) if item.op_family else (),
        (item.bound,) if item.bound else (),
    )
    return structured(facets, query) + EXACT_ERROR * item.exact


def _vector_scores(question: Question, items: Sequence[Stored]) -> dict[str, float]:
    embedder = HashingEmbedder()
    vector = embedder.embed(" ".join(query_terms(question.title, question.text)))
    near = {
        item.id: cosine(vector, item.embedding)
        for item in items
        if item.embedding is not None and item.embedder == embedder.name
    }
    return {item_id: score for item_id, score in near.items() if score > 0}
