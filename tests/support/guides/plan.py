"""Which test reads which page: one with commands belongs into exactly one of these, or a unit test complains."""

from __future__ import annotations

QUICK = ("docs/keys.md",)
"""Read by `make test`, by somebody whose service runs."""

LONG = (
    "docs/knowledge.md",
    "docs/requests-and-budgets.md",
    "docs/ask-tell.md",
    "docs/howto/air-gapped.md",
    "docs/operations.md",
    "docs/service.md",
    "docs/exchange.md",
)
"""The same in `make test-exhaustive`, one after another: some look at what those before them did."""

ALONE = ("README.md", "docs/tutorial.md")
"""They start their service themselves."""

BESIDE: dict[str, str | None] = {
    "docs/howto/gpu-fleet.md": "servers",
    "docs/howto/model-endpoint.md": "model",
    "docs/howto/own-op.md": None,
    "docs/howto/read-a-certificate.md": None,
}
"""They start what they need, beside what their reader has: a Postgres and a Redis, a model's server, or nothing."""
