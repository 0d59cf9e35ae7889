"""What the workers' spans say: a unit of work in the trace of its job, a call to a model, the phases of a judgement.

Attributes of our own begin with `kernelwright.`; those of calls are the semantic conventions for generative AI, where
they have a name for it. No source, prompt, answer, plan, reason or log is among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from db import tracing
from db.ledger import Claim
from db.origins import Origin, origin_of
from db.tracing import Attributes, Run, Span
from search.proposing import LlmCall
from worker.runtime import Runtime

PROVIDERS: Final[Mapping[str, str]] = {
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}
"""What litellm calls a provider, and what the conventions do, where that differs."""


@contextmanager
def working(here: Runtime, claim: Claim) -> Iterator[None]:
    """A span around claimed work, in the trace of its job; a link leads to the run before it."""
    if not tracing.on():
        yield
        return
    with here.transaction() as session:
        origin = origin_of(session, claim.id)
    run = Run(claim.job_id, claim.id, claim.attempt + origin.returned, origin.traceparent)
    with tracing.span(claim.kind.value, _of_work(here, claim, origin), kind="consumer", run=run):
        yield


def _of_work(here: Runtime, claim: Claim, origin: Origin) -> Attributes:
    return {
        "kernelwright.job.id": claim.job_id,
        "kernelwright.candidate.id": claim.candidate_id,
        "kernelwright.work.id": claim.id,
        "kernelwright.work.kind": claim.kind,
        "kernelwright.work.queue": claim.queue,
        "kernelwright.work.attempt": claim.attempt,
        "kernelwright.work.returned": origin.returned,
        "kernelwright.work.queued_s": origin.queued_s,
        "kernelwright.worker.id": here.owner,
    }


def ended(outcome: str, error: Exception | None) -> None:
    """The unit of work is let go of: `done`, `fenced`, `cancelled` or `failed`, by this error."""
    tracing.note({"kernelwright.work.outcome": outcome})
    if error is not None:
        tracing.fail(type(error).__name__)


def judged(report: dict[str, Any]) -> None:
    """What the judge found, and as children of the span that is open here when it did what."""
    tracing.note({"kernelwright.verdict": report["verdict"], "kernelwright.speedup": report.get("speedup")})
    for phase in report.pop("phases", ()):
        tracing.past(phase["name"], phase["began_at"], phase["wall_s"])


def traced_call(model: str, ask: Callable[[], LlmCall]) -> LlmCall:
    """Ask the model, in a span of its own."""
    named = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _provider(model),
        "gen_ai.request.model": model,
    }
    with tracing.span(f"chat {model}", named, kind="client") as span:
        call = ask()
        _note_call(span, call)
    return call


def _note_call(span: Span, call: LlmCall) -> None:
    span.note(
        {
            "gen_ai.response.finish_reasons": None if call.finish_reason is None else [call.finish_reason],
            "gen_ai.usage.input_tokens": call.tokens_in,
            "gen_ai.usage.output_tokens": call.tokens_out,
            "kernelwright.cost_usd": call.cost_usd,
            "kernelwright.llm.attempts": call.attempts,
            "kernelwright.llm.prompt_version": call.prompt_version,
        }
    )
    if call.error is not None:
        span.fail("provider")  # its words may quote the prompt


def _provider(model: str) -> str:
    prefix, slash, _ = model.partition("/")
    return PROVIDERS.get(prefix, prefix) if slash else "unknown"
