"""A language model behind real HTTP that can be made to fail, and that writes down every answer it was paid for."""

from __future__ import annotations

import random
from typing import Final

from tests.support.fake_openai import Answer, FakeOpenAI, Request

PROBLEM: Final = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2.0


def get_inputs():
    return [torch.randn(64, 256)]


def get_init_inputs():
    return []
"""
PRICE_USD: Final = 0.2
"""Of an answer: 1,000 tokens in at 100 USD a million, 500 out at 200."""
MARK: Final = "ANSWER"
"""Each answer's source says `ANSWER = <number>`, and no two have one number."""
_SOURCE: Final = f"""
import torch

{MARK} = $number


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2.0
"""
KERNEL: Final = f"""
import torch
from kernelwright import load_cpp

{MARK} = $number
lib = load_cpp(r'''
#include <cstdint>
extern "C" void doubled(const float* __restrict__ x, float* __restrict__ out, int64_t n) {{
    #pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; ++i) out[i] = (x[i] < 0.0f ? 0.0f : x[i]) * 2.0f;
}}
extern "C" int64_t number() {{ return $number; }}
''')


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        lib.doubled(x, out, x.numel())
        return out
"""
"""For a fleet with a real judge: each is built anew."""
LONGEST_CALL_S: Final = 1.0


class Provider(FakeOpenAI):
    """Answers every request with a candidate that nobody has seen before, unless `mode` says otherwise.

    Modes: `well`, `429`, `500`, `leak` (a 500 that quotes the caller's key, as providers have done), `hang`,
    `cut` (a body that ends in the middle) and `length` (an answer that ran into its limit).
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        # Callers that are killed are the rule here, and their broken connections no news.
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.mode = "well"
        self.source = _SOURCE
        self.longest_s = LONGEST_CALL_S
        self.answered: list[int] = []
        """The numbers of the answers that held a candidate."""
        self._dice = random.Random(f"provider {seed}")
        self._base = (seed + 1) * 10_000_000

    def answer(self, request: Request) -> Answer:
        """A new candidate, or the failure of the hour."""
        with self._lock:
            self.requests.append(request)
            mode, hang_s = self.mode, self._dice.uniform(0.0, self.longest_s)
            if mode == "well" or mode == "hang":
                number = self._base + len(self.answered)
                self.answered.append(number)
                slow_s = self._dice.uniform(5.0, 12.0) if mode == "hang" else hang_s
                return Answer(source=self.source.replace("$number", str(number)), hang_s=slow_s)
        if mode == "429":
            return Answer(status=429, error="slow down", headers={"Retry-After": "1"})
        if mode == "leak":
            return Answer(status=500, error=f"internal error while serving {request.authorization}")
        if mode == "cut":
            return Answer(body='{"id": "chatcmpl-1", "object": "chat.comp')
        if mode == "length":
            return Answer(content="First, a plan that never", finish_reason="length")
        return Answer(status=500, error="something broke")
