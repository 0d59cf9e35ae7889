"""Have the texts of the knowledge base made into vectors by a model, a batch at a time, while nobody waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog

from db import meanings
from db.meanings import Lacking
from search.embeddings import TextsRefused, embed_texts
from search.knowledge.embedding import pack
from search.retrying import ProviderFailure
from worker import metrics
from worker.runtime import Runtime

log = structlog.get_logger(__name__)

CALL_S: Final = 60.0
"""For one call: vectors come in a second or two, and the worker has proposals to make."""

MAX_BATCHES: Final = 20
"""Then proposals that wait on the same queue have their turn, and the reaper rings again for the rest."""

RETRY_S: Final = 60.0
REFUSED_RETRY_S: Final = 3600.0
"""A text that is refused by itself will be again, until somebody changes the model's settings."""


def embed(here: Runtime) -> bool:
    """Embed what lacks a vector, until nothing does, a call fails or others should have their turn.

    A failed call is given back and a warning in the log; what was stored before it stays. False: better not to
    try again at once. Raises LitellmMissing, LlmSettingsError.
    """
    model = here.settings.embedding_model
    if model is None:
        return False
    for _ in range(MAX_BATCHES):
        with here.transaction() as session:
            items = meanings.claim(session, model)
        if not items:
            break
        if not _embed(here, model, items):
            return False
    return True


def _embed(here: Runtime, model: str, items: Sequence[Lacking]) -> bool:
    """Embed claimed texts. False: the provider does not answer."""
    try:
        found = embed_texts(model, [item.text for item in items], CALL_S)
    except TextsRefused as refused:
        if len(items) > 1:
            # One text may be too long or unwelcome: the others are not to wait for it for ever.
            half = len(items) // 2
            return _embed(here, model, items[:half]) and _embed(here, model, items[half:])
        _give_back(here, model, items, refused, REFUSED_RETRY_S)
        return True
    except ProviderFailure as failure:
        metrics.called(model, error=str(failure))
        _give_back(here, model, items, failure, RETRY_S)
        return False
    with here.transaction() as session:
        meanings.store(session, model, items, [pack(vector) for vector in found.vectors], found.cost_usd)
    metrics.called(model, error=None, cost_usd=found.cost_usd)
    cost_usd = None if found.cost_usd is None else str(found.cost_usd)
    log.info("knowledge.embedded", model=model, items=len(items), cost_usd=cost_usd)
    return True


def _give_back(here: Runtime, model: str, items: Sequence[Lacking], failure: ProviderFailure, retry_s: float) -> None:
    with here.transaction() as session:
        meanings.release(session, model, items, retry_s)
    first = items[0].item_id
    log.warning(
        "knowledge.not_embedded", model=model, items=len(items), first=first, status=failure.status, error=str(failure)
    )
