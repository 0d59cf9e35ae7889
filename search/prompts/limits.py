"""How much of each kind of text goes into a prompt, and what gives way when the whole would be too long.

What was looked up gives way first, then logs, then candidates, then the reference: a model can do without a hint, but
not without the task.
"""

from __future__ import annotations

from dataclasses import dataclass

PROMPT_TOKENS = 24_000
"""For both messages. Fits beside a long answer into a context of 32,768, the smallest that current models have."""

MIN_PROMPT_TOKENS = 10_000
"""What the tightest limits may take, at worst; a prompt of usual parts takes 2,000 to 5,000."""

KNOWLEDGE_TOKENS = 1_500
"""For all that was looked up: whole texts are taken while they fit. About six facts of ours."""

MAX_REFERENCE = 24_000
MAX_SOURCE = 48_000
MAX_LOG = 6_000
"""By `text.weight`. A candidate that is cut can be rewritten and not edited."""

MAX_PLAN = 1_000
MAX_PROFILE = 2_000
"""A profile writes up to 1,800 (`worker.profile.words`)."""
LEAN_PROFILE_LINES = 2
"""Of a profile, for prompts that explore: where the kernel stands, and its bottleneck."""
MAX_TITLE = 120
MAX_FACTS = 40
MAX_TRIALS = 12
MAX_WORKLOADS = 20


@dataclass(frozen=True, slots=True)
class Limits:
    """By `text.weight`, for each text of a kind; `knowledge` is the share of the knowledge's own budget."""

    reference: int = MAX_REFERENCE
    source: int = MAX_SOURCE
    log: int = MAX_LOG
    knowledge: float = 1.0


RUNGS = (
    Limits(),
    Limits(knowledge=0.5),
    Limits(knowledge=0.0, log=2_000),
    Limits(knowledge=0.0, log=2_000, source=24_000),
    Limits(knowledge=0.0, log=1_000, source=12_000),
    Limits(knowledge=0.0, log=1_000, source=8_000, reference=12_000),
    Limits(knowledge=0.0, log=500, source=4_000, reference=6_000),
)
"""From what is usual to what always fits into MIN_PROMPT_TOKENS; the first that fits is taken."""
