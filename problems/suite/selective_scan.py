"""The selective scan of a state-space model (Mamba): a linear recurrence whose decay and input depend on the token.

    state[t] = exp(delta[t] A) state[t - 1] + delta[t] B[t] u[t]        y[t] = C[t] state[t] + D u[t]

A loop over tokens is thousands of launches, so the reference scans chunks of tokens, all at once, in a logarithmic
number of steps, and then goes from chunk to chunk. A loop that scans one chunk after the other took torch.compile five
times as long (89 against 17 s for 2,048 tokens on a CPU) and was no faster.
"""

# mypy: allow-untyped-defs

import torch
from torch import nn
from torch.nn import functional as F

SPEC = {
    "summary": "Selective state-space scan: input-dependent decay and input, read out by a third input, plus a skip",
    "op_family": "scan",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"batch": 1, "dim": 4, "length": 32, "states": 4}},
        {"name": "odd", "for": "cpu", "params": {"batch": 2, "dim": 13, "length": 101, "states": 5}},
        {"name": "large", "for": "cpu", "params": {"batch": 2, "dim": 32, "length": 256, "states": 16}},
        {
            "name": "mamba_bf16",
            "for": "gpu",
            "params": {"batch": 1, "dim": 1536, "length": 2048, "states": 16, "dtype": "bfloat16"},
        },
        {"name": "mamba_fp32", "for": "gpu", "params": {"batch": 1, "dim": 2048, "length": 1024, "states": 16}},
        {
            "name": "wide_bf16",
            "for": "gpu",
            "params": {"batch": 1, "dim": 4096, "length": 1024, "states": 16, "dtype": "bfloat16"},
        },
        {
            "name": "batch_fp16",
            "for": "gpu",
            "params": {"batch": 8, "dim": 1024, "length": 512, "states": 16, "dtype": "float16"},
        },
        {"name": "odd_fp32", "for": "gpu", "params": {"batch": 3, "dim": 509, "length": 1021, "states": 13}},
        {
            "name": "small_bf16",
            "for": "gpu",
            "params": {"batch": 1, "dim": 256, "length": 256, "states": 16, "dtype": "bfloat16"},
        },
    ],
    "domains": {"u": "real", "delta": "real", "b": "real", "c": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": True,
}

CHUNK = 256


class Model(nn.Module):
    def __init__(self, dim, states, dtype="float32"):
        super().__init__()
        kind = getattr(torch, dtype)
        self.a_log = nn.Parameter(torch.log(torch.arange(1, states + 1).float()).repeat(dim, 1).to(kind))
        self.skip = nn.Parameter(torch.ones(dim, dtype=kind))

    def forward(self, u, delta, b, c):
        wide = torch.promote_types(u.dtype, torch.float32)  # a state that lives for a thousand tokens wants float32
        dtype, length, chunk = u.dtype, u.shape[-1], min(CHUNK, u.shape[-1])
        u, b, c = u.to(wide), b.to(wide), c.to(wide)
        delta, a = F.softplus(delta.to(wide)), -torch.exp(self.a_log.to(wide))
        u_part, delta_part, b_part = (
            F.pad(value, (0, -length % chunk)).unflatten(-1, (-1, chunk)) for value in (u, delta, b)
        )
        decay = torch.exp(delta_part[:, :, None] * a[:, :, None, None])  # [batch, dim, states, chunks, chunk]
        states = (delta_part * u_part)[:, :, None] * b_part[:, None]
        step = 1
        while step < chunk:
            states = states + decay * F.pad(states[..., :-step], (step, 0))
            decay = decay * F.pad(decay[..., :-step], (step, 0), value=1.0)
            step *= 2
        state, before = torch.zeros_like(states[..., 0, 0]), []
        for last, through in zip(states[..., -1].unbind(-1), decay[..., -1].unbind(-1), strict=True):
            before.append(state)
            state = last + through * state
        states = (states + decay * torch.stack(before, dim=-1)[..., None]).flatten(-2)[..., :length]
        return ((states * c[:, None]).sum(dim=2) + self.skip.to(wide)[:, None] * u).to(dtype)


def get_inputs(batch=1, dim=16, length=64, states=8, dtype="float32"):
    shapes = [(batch, dim, length), (batch, dim, length), (batch, states, length), (batch, states, length)]
    return [torch.randn(shape).to(getattr(torch, dtype)) for shape in shapes]


def get_init_inputs(dim=16, states=8, dtype="float32"):
    return [dim, states, dtype]
