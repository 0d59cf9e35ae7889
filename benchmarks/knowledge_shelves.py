"""Shelves to measure retrieval on: the bundled problems' kernels, and a hundred thousand made up from real vocabulary.

A made-up kernel takes its words from the facts about its op family, from common words of kernels and from names that
hardly any other has, in the shares that real references show: rare, middling and common words are what decides how fast
full text is.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cache

from sqlalchemy import Connection, text

from problems.catalog import Outline
from search.facts import OP_FAMILIES, facts
from search.hardware import kin
from search.knowledge.embedding import NAME, HashingEmbedder
from search.knowledge.texts import kernel_document
from search.retrieval import terms

TARGETS = (
    ("nvidia-h200", "triton"),
    ("nvidia-h200", "cuda"),
    ("nvidia-a100", "triton"),
    ("nvidia-b200", "triton"),
    ("amd-mi300x", "triton"),
    ("cpu", "cpp"),
)

STORY_CHARACTERS = 2_800
"""Of a kernel's paragraph and excerpt, as `search.knowledge.texts` makes them."""

WORDS_OF_FAMILY, COMMON_WORDS, OWN_WORDS = 22, 18, 6
DISTINCT_EMBEDDINGS = 2_000
"""Made once each: how many there are does not change how long comparing takes."""

_ONE_LETTER = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class ShelfKernel:
    """A row of `kernels`, without what retrieval does not look at."""

    number: int
    problem: str
    hardware: str
    hardware_kin: str
    language: str
    op_family: str
    speedup: float
    title: str
    story: str
    terms: str
    embedding: bytes


def bundled_kernels(problems: Iterable[Outline], targets: Sequence[tuple[str, str]] = TARGETS) -> Iterator[ShelfKernel]:
    """One certified kernel for each problem and target."""
    embedder = HashingEmbedder()
    pairs = [(problem, hardware, language) for problem in problems for hardware, language in targets]
    for number, (problem, hardware, language) in enumerate(pairs):
        document = kernel_document(
            problem_name=problem.name,
            op_family=problem.op_family,
            hardware=hardware,
            language=language,
            speedup=1.5,
            plan=None,
            problem_source=problem.source,
        )
        yield ShelfKernel(
            number,
            problem.source_hash,
            hardware,
            kin(hardware),
            language,
            problem.op_family,
            1.5,
            document.title,
            document.text,
            document.terms,
            embedder.embed(document.terms),
        )


def made_up_kernels(count: int, seed: int = 0) -> Iterator[ShelfKernel]:
    """So many kernels, each of a problem of its own. Families are as uneven as Zipf's law."""
    dice = random.Random(seed)
    weights = [1 / rank for rank in range(1, len(OP_FAMILIES) + 1)]
    families = dice.sample(OP_FAMILIES, len(OP_FAMILIES))
    embeddings = [HashingEmbedder().embed(_words(dice, dice.choice(OP_FAMILIES))) for _ in range(DISTINCT_EMBEDDINGS)]
    for number in range(count):
        family = dice.choices(families, weights)[0]
        hardware, language = dice.choice(TARGETS)
        words = _words(dice, family)
        name = "_".join(words.split()[:3])
        yield ShelfKernel(
            number,
            f"made up {number}",
            hardware,
            kin(hardware),
            language,
            family,
            dice.lognormvariate(0.3, 0.4),
            f"{name}: {family} kernel for {hardware} in {language}",
            (words + " ") * (STORY_CHARACTERS // (len(words) + 1)),
            words,
            dice.choice(embeddings),
        )


def _words(dice: random.Random, family: str) -> str:
    own = ["".join(dice.choices(_ONE_LETTER, k=7)) for _ in range(OWN_WORDS)]
    chosen = [*dice.sample(_vocabulary()[family], WORDS_OF_FAMILY), *dice.sample(_vocabulary()[""], COMMON_WORDS), *own]
    return " ".join(dict.fromkeys(chosen))


@cache
def _vocabulary() -> Mapping[str, list[str]]:
    """The words of the facts about each family; under the empty name the words of all facts."""
    texts: dict[str, str] = {"": ""}
    for fact in facts().values():
        for family in ("", *fact.op_families):
            texts[family] = f"{texts.get(family, '')} {fact.title} {fact.text}"
    return {family: list(dict.fromkeys(terms(words))) for family, words in texts.items()}


def fill(connection: Connection, kernels: Iterable[ShelfKernel]) -> int:
    """Put the kernels on an empty shelf, with the jobs and candidates that they need; how many there are."""
    connection.execute(text("TRUNCATE problems, knowledge_terms CASCADE"))
    connection.execute(
        text(
            "CREATE TEMP TABLE arriving (number int, problem text, hardware text, hardware_kin text, language text,"
            " op_family text, speedup float8, title text, story text, terms text, embedding bytea) ON COMMIT DROP"
        )
    )
    cursor = connection.connection.cursor()
    with cursor.copy("COPY arriving FROM STDIN") as copy:
        for kernel in kernels:
            copy.write_row(astuple(kernel))
    for statement in _MOVE:
        connection.execute(text(statement), {"embedder": NAME} if ":embedder" in statement else {})
    return int(connection.execute(text("SELECT count(*) FROM kernels")).scalar_one())


_MOVE = (
    "INSERT INTO problems (hash, name, source) SELECT DISTINCT problem, problem, '' FROM arriving",
    "INSERT INTO jobs (id, problem_hash, problem_name, hardware, language, budget_candidates)"
    " SELECT 'job_' || number, problem, problem, hardware, language, 1 FROM arriving",
    "INSERT INTO candidates (id, job_id, ordinal, operator, proposer)"
    " SELECT 'cand_' || number, 'job_' || number, 1, 'seed', 'builtin' FROM arriving",
    "INSERT INTO kernels (id, job_id, candidate_id, problem_hash, problem_name, hardware, language, source,"
    " source_hash, speedup, op_family, hardware_kin, title, story, terms, terms_vector, embedder, embedding, current)"
    " SELECT 'kernel_' || number, 'job_' || number, 'cand_' || number, problem, problem, hardware, language, '', '',"
    " speedup, op_family, hardware_kin, title, story, terms, to_tsvector('simple', terms), :embedder, embedding, true"
    " FROM arriving",
    "INSERT INTO knowledge_terms (term, holders) SELECT word, ndoc FROM ts_stat('SELECT terms_vector FROM kernels')",
)
