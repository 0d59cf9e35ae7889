"""Synthetic text to train on: Zipf-distributed tokens with something to learn.

Word frequencies of real text follow Zipf's law with an exponent near 1.05 (Piantadosi, 2014), which is what makes a few
rows of an embedding receive thousands of gradients in one batch. With probability `COPY` a token repeats the one before
it, which leaves the frequencies as they are and gives a model something to predict.
"""

from __future__ import annotations

import torch

EXPONENT = 1.05
COPY = 0.5


def zipf_tokens(sequences: int, length: int, vocabulary: int, generator: torch.Generator) -> torch.Tensor:
    """int64 (sequences, length) on the generator's device; token 0 is the most frequent one."""
    device = generator.device
    ranks = torch.arange(1, vocabulary + 1, device=device, dtype=torch.float64)
    cumulative = torch.cumsum(ranks**-EXPONENT, 0)
    at = torch.rand(sequences, length, generator=generator, device=device, dtype=torch.float64) * cumulative[-1]
    fresh = torch.searchsorted(cumulative, at).clamp_max(vocabulary - 1)
    copies = torch.rand(sequences, length, generator=generator, device=device) < COPY
    copies[:, 0] = False
    # The last position that was drawn afresh holds the token which every copy after it repeats.
    places = torch.arange(length, device=device).expand(sequences, length)
    source = torch.where(copies, 0, places).cummax(1).values
    return fresh.gather(1, source)


def labels_of(tokens: torch.Tensor, classes: int) -> torch.Tensor:
    """What to predict at each place, (sequences, length): the next token, folded into so many classes."""
    return torch.roll(tokens, -1, dims=1) % classes
