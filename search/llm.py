"""Language models as proposers, through litellm: any provider string, one layer of retries, every token counted.

    outcome = LlmProposer().propose(request)      # request.model = "openai/gpt-5", "anthropic/...", "hosted_vllm/..."
    outcome.proposal, outcome.calls               # a source or a failure; what was asked, answered and paid

`call` asks and `read` interprets, so that a stored answer can be read again without paying again.

Covered: timeouts, 429 with Retry-After, 5xx, refused connections, malformed bodies, refusals, answers cut off.
Not covered: a server that sends a byte now and then for ever (the timeout is for each read), streaming, batches.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import structlog

from search.answers import CONTENT_FILTER, read_call
from search.llm_options import LlmOptions
from search.pricing import UNKNOWN
from search.prompts import Prompt, build_prompt
from search.prompts.diagnosis import build_diagnosis_prompt
from search.proposing import LlmCall, Outcome, Proposal, ProposalRequest
from search.provider import ContentFiltered, Reply, ask
from search.retrying import ProviderFailure, Retries

log = structlog.get_logger(__name__)

DIAGNOSIS_DEADLINE_S = 300.0
"""Help that comes later is not waited for: the proposal itself may take 900 s, and its work 1,700 s in all."""


@dataclass(frozen=True, slots=True)
class LlmProposer:
    """Proposes by asking the request's model. Holds no state: one object serves any number of threads."""

    options: LlmOptions = field(default_factory=LlmOptions.from_environment)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    dice: random.Random = field(default_factory=random.Random)

    def propose(self, request: ProposalRequest) -> Outcome:
        """Ask the model and read its answer. Raises nothing for what the provider or the model does."""
        call = self.call(request)
        return Outcome(self.read(request, call), (call,))

    def call(self, request: ProposalRequest) -> LlmCall:
        """Ask the request's model for a candidate, with retries. A call that failed for good carries its `error`.

        Raises ValueError for a request without a model, NoPrompt for one that there is no prompt for.
        """
        if request.model is None:
            raise ValueError("the request names no model")
        return self.ask(request.model, build_prompt(self.limited(request)))

    def limited(self, request: ProposalRequest) -> ProposalRequest:
        """The request with the room that its model's settings leave for a prompt, so that it is on record."""
        if request.model is None:
            return request
        return replace(request, prompt_tokens=self.options.model(request.model).max_prompt_tokens)

    def diagnose(self, request: ProposalRequest, model: str) -> LlmCall:
        """Ask a judge model what is wrong with the request's parent, or what bounds it. Raises NoPrompt."""
        prompt = build_diagnosis_prompt(self.limited(replace(request, model=model)))
        return self.ask(model, prompt, DIAGNOSIS_DEADLINE_S)

    def ask(self, model: str, prompt: Prompt, longest_s: float = math.inf) -> LlmCall:
        """Ask a model, with retries, for `longest_s` at most. A call that failed for good carries its `error`."""
        started = self.clock()
        deadline_s = min(self.options.deadline_s, longest_s)
        retries = Retries(deadline_s, self.options.max_attempts, self.clock, self.sleep, self.dice)
        try:
            reply, attempts = retries.run(lambda left_s: self._ask(model, prompt, left_s))
        except ProviderFailure as failure:
            return self._failed(model, prompt, failure, self.clock() - started)
        return self._answered(model, prompt, reply, attempts, self.clock() - started)

    def read(self, request: ProposalRequest, call: LlmCall) -> Proposal:
        """The proposal in a call's answer; the same call always reads the same."""
        return read_call(call, [parent.source for parent in request.parents])

    def _ask(self, model: str, prompt: Prompt, left_s: float) -> Reply:
        """One request, within its own time limit and what is left of the proposal's."""
        options = self.options.model(model)
        timeout_s = min(options.timeout_s or self.options.timeout_s, left_s)
        return ask(model, [dict(message) for message in prompt.messages], options, timeout_s)

    def _answered(self, model: str, prompt: Prompt, reply: Reply, attempts: int, latency_s: float) -> LlmCall:
        tokens_in, tokens_out = reply.tokens
        log.info(
            "llm.answered",
            model=model,
            finish_reason=reply.finish_reason,
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            cost_usd=None if reply.cost_usd is None else str(reply.cost_usd),
            latency_s=round(latency_s, 2),
            attempts=attempts,
        )
        return LlmCall(
            prompt=prompt.messages,
            answer=reply.text,
            model=model,
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            cost_usd=reply.cost_usd,
            cost_source=reply.cost_source,
            latency_s=latency_s,
            attempts=attempts,
            prompt_version=prompt.version,
            finish_reason=reply.finish_reason,
        )

    def _failed(self, model: str, prompt: Prompt, failure: ProviderFailure, latency_s: float) -> LlmCall:
        log.warning("llm.failed", model=model, status=failure.status, attempts=failure.attempts, error=str(failure))
        return LlmCall(
            prompt=prompt.messages,
            answer=None,
            model=model,
            cost_source=UNKNOWN,
            latency_s=latency_s,
            error=str(failure),
            attempts=failure.attempts,
            prompt_version=prompt.version,
            finish_reason=CONTENT_FILTER if isinstance(failure, ContentFiltered) else None,
        )
