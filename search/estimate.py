"""What a job may cost, before it runs: calls, tokens, dollars and seconds of the device, as ranges.

For a job that uses its whole budget of candidates; one that reaches its target earlier costs less. Where this service
has called a model before, what those calls took (from the 10th to the 90th percentile) is what the next are expected to
take; else the sizes of our own prompts and of usual answers. A price that nobody knows makes the dollars unknown: None,
and never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from search.policy import MIN_BUDGET_FOR_BUILTIN_SEED, MODEL_CYCLE, wanted_seeds
from search.price_list import Price
from search.prompts.diagnosis import DIAGNOSED, MAX_DIAGNOSIS
from search.types import JobView, Operator, ProposerKind

ENOUGH_CALLS = 5
"""Fewer calls of a model than this say little about the next."""

PROMPT_CHARS = 3_400
"""The leanest prompt without its reference: `seed` in C++ for the CPU, measured in the snapshots."""
RICH_CHARS = 36_000
"""What a rich prompt adds: two sources of 12,000 characters, a report of 6,000, knowledge of 6,000."""
CHARACTERS_PER_TOKEN = 4
ANSWER_TOKENS = (800, 8_000)
"""From a few edits to a whole file after some reasoning."""
DIAGNOSIS_TOKENS = (100, MAX_DIAGNOSIS // CHARACTERS_PER_TOKEN + 2_000)
"""150 words; more where the model reasons first."""

FREE_SHARE = 0.25
"""Duplicates and failures at the provider give their place back and are tried again: so many calls more."""


@dataclass(frozen=True, slots=True)
class Range:
    """From a low to a high expectation."""

    low: float
    high: float

    def plus(self, other: Range) -> Range:
        """The sum of two."""
        return Range(self.low + other.low, self.high + other.high)

    def times(self, other: Range) -> Range:
        """The product of two."""
        return Range(self.low * other.low, self.high * other.high)

    def at_most(self, cap: float | None) -> Range:
        """With neither end above a cap."""
        return self if cap is None else Range(min(self.low, cap), min(self.high, cap))


NOTHING = Range(0, 0)


@dataclass(frozen=True, slots=True)
class ModelHistory:
    """What earlier calls of one model took: 10th and 90th percentile; `usd` of those with a known price."""

    calls: int
    tokens_in: Range
    tokens_out: Range
    priced_calls: int = 0
    usd: Range | None = None


@dataclass(frozen=True, slots=True)
class Grounds:
    """What is known before a job runs: histories and prices by model, and seconds of the device for an evaluation."""

    reference_chars: int
    histories: Mapping[str, ModelHistory] = field(default_factory=dict)
    prices: Mapping[str, Price] = field(default_factory=dict)
    evaluation_s: Range | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the job may take. `usd` None: unknown, by a model of `unknown_prices`; `gpu_s` None: nothing to go by."""

    calls: Range
    tokens_in: Range
    tokens_out: Range
    usd: Range | None
    gpu_s: Range | None
    unknown_prices: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Call:
    """One call: tokens, and dollars where they are known."""

    tokens_in: Range
    tokens_out: Range
    usd: Range | None


def estimate(job: JobView, diagnosis_model: str | None, grounds: Grounds) -> Estimate:
    """What a job may take, by its budget and by what is known of its models and its hardware."""
    gpu_s = None
    if grounds.evaluation_s is not None:
        gpu_s = grounds.evaluation_s.times(Range(job.budget.candidates, job.budget.candidates)).at_most(
            job.budget.gpu_s
        )
    # Outside agents answer prompts too, on their own account.
    called = [model for model in job.models if model != ProposerKind.ASK_TELL]
    if not called:
        return Estimate(NOTHING, NOTHING, NOTHING, NOTHING, gpu_s, (), ())
    proposals, diagnoses = (
        _part(count, len(called), len(job.models)) for count in _calls(job, diagnosis_model is not None)
    )
    parts = [(_part(proposals, 1, len(called)), _call(model, grounds, ANSWER_TOKENS)) for model in called]
    if diagnosis_model is not None:
        parts.append((diagnoses, _call(diagnosis_model, grounds, DIAGNOSIS_TOKENS)))
    asked = tuple(dict.fromkeys([*called, *([diagnosis_model] if diagnosis_model else [])]))
    unknown = tuple(model for model in asked if _usd_of_call(model, grounds, NOTHING, NOTHING) is None)
    return Estimate(
        calls=proposals.plus(diagnoses),
        tokens_in=_sum([count.times(call.tokens_in) for count, call in parts]).at_most(job.budget.tokens),
        tokens_out=_sum([count.times(call.tokens_out) for count, call in parts]).at_most(job.budget.tokens),
        usd=None if unknown else _usd(job, [count.times(call.usd) for count, call in parts if call.usd is not None]),
        gpu_s=gpu_s,
        unknown_prices=unknown,
        notes=_notes(job, asked, unknown, grounds),
    )


def _calls(job: JobView, diagnosed: bool) -> tuple[Range, Range]:
    """Proposals of models, and diagnoses before them."""
    own = 1 if job.builtin and job.budget.candidates >= MIN_BUDGET_FOR_BUILTIN_SEED else 0
    seeds = min(wanted_seeds(job), job.budget.candidates)
    steps = max(0, job.budget.candidates - own - seeds)
    by_models = 1 - MODEL_CYCLE.count(Operator.TUNE) / len(MODEL_CYCLE)
    most = (seeds + steps) * (1 + FREE_SHARE)
    proposals = Range(round(seeds + steps * by_models), round(most))
    small = sum(operator in DIAGNOSED for operator in MODEL_CYCLE) / len(MODEL_CYCLE)
    diagnoses = Range(round(steps * small), round(steps * (1 + FREE_SHARE))) if diagnosed else NOTHING
    # A cap on calls is over both: of what they would be, each keeps its share.
    total = proposals.plus(diagnoses)
    capped = total.at_most(job.budget.calls)
    kept = Range(capped.low / max(total.low, 1), capped.high / max(total.high, 1))
    return proposals.times(kept), diagnoses.times(kept)


def _part(count: Range, some: int, of: int) -> Range:
    return count if some == of else count.times(Range(some / of, some / of))


def _call(model: str, grounds: Grounds, answer_tokens: tuple[int, int]) -> _Call:
    history = grounds.histories.get(model)
    if history is not None and history.calls >= ENOUGH_CALLS:
        tokens_in, tokens_out = history.tokens_in, history.tokens_out
    else:
        lean = (PROMPT_CHARS + grounds.reference_chars) / CHARACTERS_PER_TOKEN
        tokens_in, tokens_out = Range(lean, lean + RICH_CHARS / CHARACTERS_PER_TOKEN), Range(*answer_tokens)
    return _Call(tokens_in, tokens_out, _usd_of_call(model, grounds, tokens_in, tokens_out))


def _usd_of_call(model: str, grounds: Grounds, tokens_in: Range, tokens_out: Range) -> Range | None:
    """By what was paid before; else by the list; None where both are silent."""
    history = grounds.histories.get(model)
    if history is not None and history.usd is not None and history.priced_calls >= ENOUGH_CALLS:
        return history.usd
    price = grounds.prices.get(model, Price())
    low, high = price.of(tokens_in.low, tokens_out.low), price.of(tokens_in.high, tokens_out.high)
    return None if low is None or high is None else Range(float(low), float(high))


def _usd(job: JobView, parts: Sequence[Range]) -> Range:
    return _sum(parts).at_most(None if job.budget.usd is None else float(job.budget.usd))


def _sum(parts: Sequence[Range]) -> Range:
    total = NOTHING
    for part in parts:
        total = total.plus(part)
    return total


def _notes(job: JobView, asked: Sequence[str], unknown: Sequence[str], grounds: Grounds) -> tuple[str, ...]:
    notes = []
    new = [m for m in asked if m not in grounds.histories or grounds.histories[m].calls < ENOUGH_CALLS]
    if new:
        notes.append(f"sizes of calls are assumed for {', '.join(new)}: fewer than {ENOUGH_CALLS} were made here")
    if unknown and job.budget.usd is not None:
        notes.append(f"no cap in USD can hold for {', '.join(unknown)}: set a price or cap calls or tokens")
    caps = (job.budget.usd, job.budget.tokens)
    if any(cap not in (None, Decimal(0)) for cap in caps):
        notes.append("caps on USD and tokens can be overshot by the calls in flight, and by no more")
    return tuple(notes)
