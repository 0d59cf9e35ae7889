"""What is worth knowing before a proposal: kernels, lessons and facts, some of them withheld.

    recalled = recall(question, shelf)       # `shelf` reads stored items: db.knowledge has one
    recalled.knowledge                       # for the prompt
    recalled.uses                            # for the record: shown or withheld, with the parts of each rank

The database narrows (language, kin of the hardware, op family or rare words, an error's fingerprint), `ranking` ranks,
and the dice of `holdout` withhold. What a proposal gets depends on its operator: lean to explore, rich to repair
(search.prompts says why).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from search.facts import facts, knowledge_of
from search.knowledge.asking import Question, Shelf
from search.knowledge.holdout import item_dice, retrieval_on
from search.knowledge.ranking import FACT, FACT_PREFIX, KERNEL, LESSON, ranked_items
from search.prompts.limits import KNOWLEDGE_TOKENS
from search.prompts.text import CHARACTERS_PER_TOKEN, weight
from search.proposing import Knowledge
from search.retrieval import Found
from search.types import Operator

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
        size = weight(item.title) + weight(item.text)
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


def knowledge_for(ids: Sequence[str], shelf: Shelf) -> dict[str, Knowledge]:
    """Items as a prompt takes them: facts are ours, all else is data from outside."""
    texts = shelf.texts([item_id for item_id in ids if not item_id.startswith(FACT_PREFIX)])
    known = {item_id: Knowledge(id=item_id, title=title, text=text) for item_id, (title, text) in texts.items()}
    of_ours = {item_id: facts()[item_id.removeprefix(FACT_PREFIX)] for item_id in ids if item_id not in known}
    return known | {item_id: replace(knowledge_of(fact), id=item_id) for item_id, fact in of_ours.items()}
