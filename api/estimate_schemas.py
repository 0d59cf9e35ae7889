"""What a job may cost, on the wire: the estimate of a dry run."""

from __future__ import annotations

from api.schemas import Resource, Usd


class Expected(Resource):
    """From a low to a high expectation, if the job uses its whole budget of candidates."""

    low: float
    high: float


class ExpectedUsd(Resource):
    low: Usd
    high: Usd


class ModelPrice(Resource):
    """USD for a million tokens. `source`: override (the server's price file), litellm (its list), history (what earlier
    calls cost) or unknown."""

    model: str
    usd_per_mtok_in: Usd | None
    usd_per_mtok_out: Usd | None
    source: str


class Estimate(Resource):
    """`usd` is null where a price is unknown (`unknown_prices` names the models) and never 0; `gpu_s` is null where
    nothing was evaluated on this hardware yet."""

    llm_calls: Expected
    tokens_in: Expected
    tokens_out: Expected
    usd: ExpectedUsd | None
    gpu_s: Expected | None
    prices: list[ModelPrice]
    unknown_prices: list[str]
    notes: list[str]
