"""The nouns of the search: what `advance` reads (a job and its tree) and what it answers (a decision).

Everything here is frozen and free of I/O. Rows become `JobView` and `Node` in the worker; strings in the rows equal the
members of the enums below (a test compares them with `db.vocabulary`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum

ParamValue = int | float | str | bool
"""A value that a tunable can take. A literal, so that it can be written back into a source."""

Params = Mapping[str, ParamValue]


class Operator(StrEnum):
    """How a candidate comes from its parents."""

    SEED = "seed"
    TRANSLATE = "translate"
    REPAIR = "repair"
    REFINE = "refine"
    REWRITE = "rewrite"
    CROSSOVER = "crossover"
    TUNE = "tune"
    PORT = "port"


class ProposerKind(StrEnum):
    """Who makes a candidate."""

    BUILTIN = "builtin"
    LLM = "llm"
    ASK_TELL = "ask/tell"


class State(StrEnum):
    """Where a candidate is. What was found is its verdict."""

    PROPOSING = "proposing"
    QUEUED = "queued"
    EVALUATING = "evaluating"
    EVALUATED = "evaluated"
    REJECTED = "rejected"
    CANCELLED = "cancelled"


class Verdict(StrEnum):
    """What the judge found."""

    OK = "ok"
    BUILD_ERROR = "build_error"
    LAUNCH_ERROR = "launch_error"
    ILLEGAL_ACCESS = "illegal_access"
    TIMEOUT = "timeout"
    INCORRECT = "incorrect"
    NONDETERMINISTIC = "nondeterministic"
    SUSPICIOUS = "suspicious"
    INFRA_ERROR = "infra_error"


class Failure(StrEnum):
    """Why a proposal produced no candidate (the `failure` of a rejected candidate)."""

    NO_CODE = "no_code"
    TRUNCATED = "truncated"
    DIFF_FAILED = "diff_failed"
    REFUSED = "refused"
    PROVIDER_ERROR = "provider_error"
    EXHAUSTED = "exhausted"
    DUPLICATE = "duplicate"
    BUDGET = "budget"


class StopReason(StrEnum):
    """Why a job ended."""

    TARGET_REACHED = "target_reached"
    BUDGET_CANDIDATES = "budget_candidates"
    BUDGET_USD = "budget_usd"
    BUDGET_WALL = "budget_wall"
    BUDGET_GPU = "budget_gpu"
    BUDGET_CALLS = "budget_calls"
    BUDGET_TOKENS = "budget_tokens"
    BUDGET_KEY = "budget_key"
    STAGNATED = "stagnated"
    EXHAUSTED = "exhausted"
    CANCELLED = "cancelled"
    ERROR = "error"


class PolicyName(StrEnum):
    """How a job is searched: the name of a policy in `search.policies`."""

    DEFAULT = "default"
    UCT = "uct"
    ISLANDS = "islands"
    ARCHIVE = "archive"
    GREEDY = "greedy"
    BEST_OF_N = "best_of_n"
    RANDOM = "random"


BY_MODEL = (ProposerKind.LLM, ProposerKind.ASK_TELL)
"""The proposers that stand behind a job's models: both answer a prompt. The built-in one does not."""

IN_FLIGHT = frozenset({State.PROPOSING, State.QUEUED, State.EVALUATING})

FREE_FAILURES = frozenset({Failure.EXHAUSTED, Failure.DUPLICATE, Failure.PROVIDER_ERROR, Failure.BUDGET})
"""Rejections that give their place in the candidate budget back: nobody got a kernel to judge, through no fault of a
proposal. Their number is bounded apart (`search.stopping.MAX_FREE_REJECTIONS_PER_CANDIDATE`)."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a job searches for: `nvidia-h100` or `cpu`, and `triton`, `cuda` or `cpp`."""

    hardware: str
    language: str


@dataclass(frozen=True, slots=True)
class Budget:
    """Hard caps. None means: no cap of that kind."""

    candidates: int
    usd: Decimal | None = None
    wall_s: float | None = None
    gpu_s: float | None = None
    calls: int | None = None
    """Of language models, those that failed and those that diagnose among them; the retries inside one are one call."""
    tokens: int | None = None
    """Of prompts and answers together."""


@dataclass(frozen=True, slots=True)
class StopRules:
    """When enough is enough, short of a cap. `stagnation` is a number of judged candidates without an improvement."""

    target_speedup: float | None = None
    stagnation: int | None = None


@dataclass(frozen=True, slots=True)
class Portable:
    """A kernel for the job's problem that was certified for another target: a candidate of some other job."""

    id: str
    """The candidate's."""
    target: Target


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as the search sees it, at one moment."""

    id: str
    target: Target
    budget: Budget
    stop: StopRules = field(default_factory=StopRules)
    models: tuple[str, ...] = ()
    seed: int = 0
    elapsed_s: float = 0.0
    cost_usd: Decimal = Decimal(0)
    gpu_s: float = 0.0
    llm_calls: int = 0
    """Calls that were started, whatever became of them."""
    llm_tokens: int = 0
    key_over: str | None = None
    """Which cap of the job's API key is used up, by all its jobs together: `usd`, `tokens`, ...; None while none is."""
    cancel_requested: bool = False
    slots: int = 1
    """How many candidates may be in flight (proposing, queued or evaluating) at once."""
    builtin: bool = True
    """Whether the built-in proposer takes part beside the models. Without models it always does."""
    policy: str = PolicyName.DEFAULT
    portable: tuple[Portable, ...] = ()
    """Kernels that may be carried over to the job's target, the most promising first. The same all through a job."""


@dataclass(frozen=True, slots=True)
class Node:
    """A candidate in the search tree, without its source."""

    id: str
    ordinal: int
    operator: str
    proposer: str
    model: str | None = None
    parents: tuple[str, ...] = ()
    state: str = State.PROPOSING
    verdict: str | None = None
    speedup: float | None = None
    failure: str | None = None
    params: Params | None = None
    tunable: bool = False
    source_hash: str | None = None
    plan: str | None = None
    cost_usd: Decimal = Decimal(0)
    """What its language models took; 0 where nobody knows the price."""
    gpu_s: float = 0.0
    sol_fraction: float | None = None
    """Of the speed of light, as the geometric mean over the workloads for which the judge knows it."""
    bottleneck: str | None = None
    """What its profile says holds it back: `memory`, `compute`, `latency` or `overhead`; None without a profile."""

    @property
    def in_flight(self) -> bool:
        """Whether somebody is still working on it."""
        return self.state in IN_FLIGHT

    @property
    def ok(self) -> bool:
        """Whether the judge accepted it."""
        return self.state == State.EVALUATED and self.verdict == Verdict.OK

    @property
    def free(self) -> bool:
        """Whether it gave its place in the candidate budget back."""
        return self.state == State.REJECTED and self.failure in FREE_FAILURES


@dataclass(frozen=True, slots=True)
class Expansion:
    """One candidate to be made. A built-in seed's index is its rank among the job's built-in seeds by ordinal."""

    operator: str
    proposer: str
    model: str | None = None
    parents: tuple[str, ...] = ()
    delay_s: float = 0.0
    """How long the work is to wait before it may be claimed: the back-off after a provider's failures."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do next. With a `stop_reason` the job ends now, and what is still in flight is to be cancelled."""

    expansions: tuple[Expansion, ...] = ()
    stop_reason: str | None = None
