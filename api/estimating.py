"""The estimate of a dry run: what is known of models, prices and hardware, given to `search.estimate`."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

import structlog
from sqlalchemy.orm import Session

from api import estimate_schemas as wire
from api.job_schemas import JobBody
from db import history
from db.vocabulary import Proposer
from problems.catalog import Outline
from search.estimate import ENOUGH_CALLS, Estimate, Grounds, ModelHistory, Range, estimate
from search.llm_options import LlmOptions, LlmSettingsError
from search.price_list import Price, listed_price
from search.types import Budget, JobView, StopRules, Target

log = structlog.get_logger("api")

_CENT = Decimal("0.000001")


def estimate_of(session: Session, body: JobBody, problem: Outline) -> wire.Estimate:
    """What the job may take, as far as this service can know."""
    called = [model for model in body.models if model != Proposer.ASK_TELL]
    asked = [*called, *([body.diagnosis_model] if body.diagnosis_model and called else [])]
    histories = _histories(session, asked)
    prices = _prices(asked)
    seconds = history.evaluation_seconds(session, body.target.hardware, problem.source_hash)
    grounds = Grounds(
        reference_chars=len(problem.source),
        histories=histories,
        prices=prices,
        evaluation_s=None if seconds is None else Range(*seconds),
    )
    found = estimate(_view(body), body.diagnosis_model, grounds)
    return _wire(found, [_price(model, prices[model], histories.get(model)) for model in dict.fromkeys(asked)])


def _view(body: JobBody) -> JobView:
    """The job as the search would see it at its start."""
    budget = body.budget
    return JobView(
        id="",
        target=Target(body.target.hardware, body.target.language),
        budget=Budget(budget.candidates, budget.usd, budget.wall_s, budget.gpu_s, budget.calls, budget.tokens),
        stop=StopRules(body.stop.target_speedup, body.stop.stagnation),
        models=tuple(body.models),
        policy=body.policy.search,
    )


def _histories(session: Session, models: list[str]) -> Mapping[str, ModelHistory]:
    found = history.call_histories(session, models) if models else {}
    return {
        model: ModelHistory(
            calls=calls.calls,
            tokens_in=Range(*calls.tokens_in),
            tokens_out=Range(*calls.tokens_out),
            priced_calls=calls.priced_calls,
            usd=None if calls.usd is None else Range(*calls.usd),
        )
        for model, calls in found.items()
    }


def _prices(models: list[str]) -> Mapping[str, Price]:
    try:
        options = LlmOptions.from_environment()
    except LlmSettingsError as error:
        # The file may lie on the workers' machines only: an estimate is no reason to refuse a request.
        log.warning("prices.unreadable", why=str(error))
        options = LlmOptions()
    return {model: listed_price(model, options.model(model)) for model in models}


def _price(model: str, price: Price, calls: ModelHistory | None) -> wire.ModelPrice:
    paid = calls is not None and calls.priced_calls >= ENOUGH_CALLS
    return wire.ModelPrice(
        model=model,
        usd_per_mtok_in=price.usd_per_mtok_in,
        usd_per_mtok_out=price.usd_per_mtok_out,
        source="history" if paid else price.source,
    )


def _wire(found: Estimate, prices: list[wire.ModelPrice]) -> wire.Estimate:
    return wire.Estimate(
        llm_calls=_expected(found.calls),
        tokens_in=_expected(found.tokens_in),
        tokens_out=_expected(found.tokens_out),
        usd=None if found.usd is None else wire.ExpectedUsd(low=_usd(found.usd.low), high=_usd(found.usd.high)),
        gpu_s=None if found.gpu_s is None else _expected(found.gpu_s),
        prices=prices,
        unknown_prices=list(found.unknown_prices),
        notes=list(found.notes),
    )


def _expected(found: Range) -> wire.Expected:
    return wire.Expected(low=round(found.low, 3), high=round(found.high, 3))


def _usd(amount: float) -> Decimal:
    return Decimal(amount).quantize(_CENT)
