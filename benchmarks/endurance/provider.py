"""A language model behind real HTTP whose every answer is another candidate: kernels that are right, wrong or broken.

No two answers are alike, and they differ in a number, which is never refused as a near duplicate. Every one holds a
candidate: a job with a budget of N candidates then ends with N evaluations, however often it was interrupted.
"""

from __future__ import annotations

import random
import secrets

from tests.support.fake_openai import Answer, FakeOpenAI, Request

PROBLEM = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2.0


def get_inputs():
    return [torch.randn(64, 256)]


def get_init_inputs():
    return []
"""

_KERNEL = '''
import torch
from kernelwright import load_cpp

SOURCE = r"""
#include <cstdint>
extern "C" void doubled(const float* __restrict__ x, float* __restrict__ out, int64_t n) {
    #pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; ++i) out[i] = x[i] > 0.0f ? x[i] * 2.0f : 0.0f;
}
extern "C" int64_t number() { return $number; }
"""
lib = load_cpp(SOURCE)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        lib.doubled(x, out, x.numel())
        return out
'''
_RIGHT = """
import torch

NUMBER = $number


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2.0
"""
_WRONG = _RIGHT.replace("torch.relu(x)", "torch.abs(x)")
_BROKEN = _RIGHT.replace("return", "retrun")

_MIX = ((_KERNEL, 25), (_RIGHT, 25), (_WRONG, 35), (_BROKEN, 15))
"""Shares of a hundred, about as language models do: half of what they write is accepted."""

LONGEST_CALL_S = 2.0
"""Calls take up to so long: some are under way whenever something is killed."""


class Author(FakeOpenAI):
    """Answers every request with a candidate that nobody has seen before, after a while."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self._dice = dice

    def answer(self, request: Request) -> Answer:
        """A candidate of one of the kinds."""
        with self._lock:
            self.requests.append(request)
            (source,) = self._dice.choices([kind for kind, _ in _MIX], [share for _, share in _MIX])
            hang_s = self._dice.uniform(0.0, LONGEST_CALL_S)
        return Answer(source=source.replace("$number", str(secrets.randbits(62))), hang_s=hang_s)
