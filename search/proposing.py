"""The one interface behind which every proposer stands: language models, the built-in one, a person or an agent.

A proposer takes a `ProposalRequest` (plain data: it may be stored, sent and replayed) and answers with an `Outcome`: a
`Proposal` that holds either a source or the reason why there is none, and a record of every paid call that it took.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol

from search.types import Params, Target


@dataclass(frozen=True, slots=True)
class Parent:
    """A candidate that the new one comes from, with what the judge said about it."""

    source: str
    verdict: str | None = None
    reason: str | None = None
    speedup: float | None = None
    plan: str | None = None
    log: str | None = None
    """The tail of the compiler's or the runner's output."""
    workloads: Sequence[Mapping[str, Any]] = ()
    """The judge's `workloads`: name, latency_us, baselines_us, speedup."""
    diagnosis: str | None = None
    """What its profile found, most important lines first: where it stands, the bottleneck, what may come next."""
    id: str | None = None
    target: Target | None = None
    """What it was written for, where that is not what the request asks for."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A configuration of the parent's tunables that is taken. `speedup` is None when it failed or is in flight."""

    params: Params
    speedup: float | None = None


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Something that was looked up for a proposal: a fact, a lesson, a kernel's story."""

    id: str
    title: str
    text: str
    ours: bool = False
    """Written by us (`search.facts` alone sets it). All else is data from outside, and stays inside fences."""


@dataclass(frozen=True, slots=True)
class ProposalRequest:
    """Everything that a proposer may know."""

    problem_name: str
    problem_source: str
    target: Target
    operator: str
    op_family: str | None = None
    device: Mapping[str, Any] = field(default_factory=dict)
    """Facts about the target's hardware, as a worker of it reported them."""
    parents: tuple[Parent, ...] = ()
    trials: tuple[Trial, ...] = ()
    seed: int = 0
    ordinal: int = 0
    model: str | None = None
    whole_file: bool = False
    """Ask for a whole file where an edit is usual (after an edit that did not apply)."""
    prompt_tokens: int | None = None
    """How long the prompt may be, for a model with a small context; None: `search.prompts.limits.PROMPT_TOKENS`."""
    advice: str | None = None
    """What a judge model says about the parent: a model's words, data like any other."""
    hints: tuple[Params, ...] = ()
    """For `tune` and built-in seeds: configurations with which kernels of the same op family won, the best first."""
    knowledge: tuple[Knowledge, ...] = ()
    """What was retrieved for it, best first; empty where proposals are made without, to measure what it is worth."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate's source, or the failure (a `search.types.Failure`) that says why there is none."""

    source: str | None = None
    plan: str | None = None
    params: Params | None = None
    failure: str | None = None
    detail: str | None = None
    """One sentence for a person, where there is a failure."""


@dataclass(frozen=True, slots=True)
class LlmCall:
    """One paid request to a provider, retries included. `cost_usd` None means unknown, never free."""

    prompt: Sequence[Mapping[str, str]]
    """The messages: role and content."""
    answer: str | None
    model: str
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost_usd: Decimal | None = None
    cost_source: str = "unknown"
    """`provider` (the answer named it), `override` (our price file), `litellm` (its price map) or `unknown`."""
    latency_s: float = 0.0
    error: str | None = None
    attempts: int = 1
    prompt_version: str | None = None
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a proposer hands back."""

    proposal: Proposal
    calls: tuple[LlmCall, ...] = ()


class Proposer(Protocol):
    """Makes one candidate, or says why not. Never raises for what a provider or a model did."""

    def propose(self, request: ProposalRequest) -> Outcome:
        """Propose one candidate for the request."""
        ...
