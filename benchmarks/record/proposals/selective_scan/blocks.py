"""Each program scans some channels block by block, all states at once, and keeps the state between blocks.

No tensor of channels x states x tokens is ever written: the backward starts each block from the state that the forward
left there and scans it again. Bound by arithmetic (exponentials and scans) and, in the backward, by atomic additions.
The gradients of a_log and skip have no part in those: a sum for each image waits for the last kernel. Atomics in
global memory flush sums below 2^-126 to zero (PTX ISA, `red`), where a channel of steps near 100 has its gradient.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"BLOCK": [64, 128, 256], "WARPS": [1, 2, 4], "BACK_BLOCK": [32, 64, 128], "BACK_WARPS": [1, 2, 4]}
BLOCK = 128
WARPS = 4
BACK_BLOCK = 64
BACK_WARPS = 4


@triton.jit
def _then(decay1, state1, decay2, state2):
    return decay1 * decay2, state1 * decay2 + state2


@triton.jit
def _softplus(x):
    grown = tl.exp(tl.where(x > 20.0, 20.0, x))
    one = 1.0 + grown
    # log1p without its loss of digits where the exponential is small.
    near = tl.where(one == 1.0, grown, tl.log(one) * (grown / tl.where(one == 1.0, 1.0, one - 1.0)))
    return tl.where(x > 20.0, x, near)


@triton.jit
def _inputs(u, delta, b, row, group, at, length, STATES: tl.constexpr, states):
    """u, the softplus of delta (0 beyond either end, which leaves a state as it is) and b of the tokens `at`."""
    ok = (at >= 0) & (at < length)
    us = tl.load(u + row * length + at, mask=ok, other=0.0).to(tl.float32)
    raw = tl.load(delta + row * length + at, mask=ok, other=0.0).to(tl.float32)
    ds = tl.where(ok, _softplus(raw), 0.0)
    n = tl.arange(0, STATES)[:, None]
    bs = tl.load(b + (group * states + n) * length + at[None, :], mask=(n < states) & ok[None, :], other=0.0)
    return us, ds, bs.to(tl.float32), raw


@triton.jit
def _forward(
    u, delta, b, c, a_log, skip, y, kept, dim, length, states, marks,
    STATES: tl.constexpr, BLOCK: tl.constexpr, EVERY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    group = row // dim
    channel = row % dim
    n = tl.arange(0, STATES)[:, None]
    token = tl.arange(0, BLOCK)
    a = -tl.exp(tl.load(a_log + channel * states + n, mask=n < states, other=0.0).to(tl.float32))
    through = tl.load(skip + channel).to(tl.float32)
    state = tl.zeros([STATES, 1], tl.float32)
    for start in range(0, length, BLOCK):
        at = start + token
        us, ds, bs, _raw = _inputs(u, delta, b, row, group, at, length, STATES, states)
        ok = (n < states) & (at < length)[None, :]
        cs = tl.load(c + (group * states + n) * length + at[None, :], mask=ok, other=0.0).to(tl.float32)
        decay, driven = tl.associative_scan((tl.exp(ds[None, :] * a), (ds * us)[None, :] * bs), 1, _then)
        all = driven + decay * state
        ys = tl.sum(tl.where(n < states, all * cs, 0.0), axis=0) + through * us
        tl.store(y + row * length + at, ys, mask=at < length)
        state = tl.sum(tl.where((token == BLOCK - 1)[None, :], all, 0.0), axis=1, keep_dims=True)
        if EVERY:  # the state after this block, and after every mark within it
            mark = (at + 1) // EVERY
            here = ((at + 1) % EVERY == 0) & (mark < marks)
            tl.store(kept + (row * marks + mark[None, :]) * states + n, all, mask=here[None, :] & (n < states))


@triton.jit
def _backward(
    u, delta, b, c, a_log, skip, dy, kept, du, ddelta, db, dc, images, dim, length, states, marks,
    STATES: tl.constexpr, BLOCK: tl.constexpr, ALONE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    group = row // dim
    channel = row % dim
    n = tl.arange(0, STATES)[:, None]
    token = tl.arange(0, BLOCK)
    some = n < states
    a = -tl.exp(tl.load(a_log + channel * states + n, mask=some, other=0.0).to(tl.float32))
    through = tl.load(skip + channel).to(tl.float32)
    flow = tl.zeros([STATES, 1], tl.float32)  # the gradient of the state after this block, from later ones
    total_a = tl.zeros([STATES, 1], tl.float32)
    total_skip = tl.zeros([BLOCK], tl.float32)
    for back in range(0, marks):
        mark = marks - 1 - back
        start = mark * BLOCK
        at = start + token
        ok = at < length
        here = some & ok[None, :]
        us, ds, bs, raw = _inputs(u, delta, b, row, group, at, length, STATES, states)
        cs = tl.load(c + (group * states + n) * length + at[None, :], mask=here, other=0.0).to(tl.float32)
        dys = tl.load(dy + row * length + at, mask=ok, other=0.0).to(tl.float32)
        # States before each token: a scan of what the tokens before did, the first of which is the state kept.
        ub, deb, bb, _raw = _inputs(u, delta, b, row, group, tl.where(token > 0, at - 1, -1), length, STATES, states)
        decay, driven = tl.associative_scan((tl.exp(deb[None, :] * a), (deb * ub)[None, :] * bb), 1, _then)
        first = tl.load(kept + (row * marks + mark) * states + n, mask=some & (mark > 0), other=0.0)
        before = driven + decay * first
        fall = tl.exp(ds[None, :] * a)
        after = fall * before + (ds * us)[None, :] * bs
        # Gradients of the states: what flows back from the token after, which decays by that token's delta.
        later = at + 1
        next_raw = tl.load(delta + row * length + later, mask=later < length, other=0.0).to(tl.float32)
        next_ds = tl.where(later < length, _softplus(next_raw), 0.0)
        lost, given = tl.associative_scan((tl.exp(next_ds[None, :] * a), dys[None, :] * cs), 1, _then, reverse=True)
        grad = given + lost * flow
        flow = tl.sum(tl.where((token == 0)[None, :], grad, 0.0), axis=1, keep_dims=True)
        grad = tl.where(here, grad, 0.0)
        place = (group * states + n) * length + at[None, :]
        if ALONE:
            tl.store(dc + place, dys[None, :] * after, mask=here)
            tl.store(db + place, grad * (ds * us)[None, :], mask=here)
        else:
            tl.atomic_add(dc + place, dys[None, :] * after, mask=here, sem="relaxed")
            tl.atomic_add(db + place, grad * (ds * us)[None, :], mask=here, sem="relaxed")
        driving = tl.sum(grad * bs, axis=0)
        falling = grad * before * fall
        total_a += tl.sum(tl.where(here, falling * ds[None, :], 0.0), axis=1, keep_dims=True)
        total_skip += dys * us
        dds = tl.sum(tl.where(here, falling * a, 0.0), axis=0) + driving * us
        slope = tl.where(raw > 20.0, 1.0, 1.0 / (1.0 + tl.exp(-raw)))
        tl.store(du + row * length + at, driving * ds + through * dys, mask=ok)
        tl.store(ddelta + row * length + at, dds * slope, mask=ok)
    image = images + group * dim * (states + 1)
    tl.store(image + channel * states + n, total_a * a, mask=some)
    tl.store(image + dim * states + channel, tl.sum(total_skip, axis=0))


@triton.jit
def _clear(sums, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(sums + at, 0.0, mask=at < count)


@triton.jit
def _finish(sums, out, shared, own, images, BLOCK: tl.constexpr):
    """The first `shared` sums as they are; behind them lie `own` for each image, which are added in order."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = at < shared + own
    total = tl.load(sums + at, mask=here, other=0.0)
    for image in range(1, images):
        total += tl.load(sums + image * own + at, mask=here & (at >= shared), other=0.0)
    tl.store(out + at, total, mask=here)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u, delta, b, c, a_log, skip):
        u, delta, b, c, a_log, skip = (each.contiguous() for each in (u, delta, b, c, a_log, skip))
        batch, dim, length = u.shape
        states = b.shape[1]
        y = torch.empty_like(u)
        keep = any(ctx.needs_input_grad)
        every = max(16, min(BACK_BLOCK, triton.next_power_of_2(max(length, 1))))
        marks = triton.cdiv(length, every)
        kept = torch.empty((batch * dim, marks, states) if keep else 1, dtype=torch.float32, device=u.device)
        if y.numel():
            block = max(16, min(BLOCK, triton.next_power_of_2(length)))
            _forward[(batch * dim,)](
                u, delta, b, c, a_log, skip, y, kept, dim, length, states, marks,
                STATES=triton.next_power_of_2(max(states, 1)), BLOCK=block, EVERY=every if keep else 0,
                num_warps=WARPS,
            )  # fmt: skip
        ctx.every = every
        ctx.save_for_backward(u, delta, b, c, a_log, skip, kept)
        return y

    @staticmethod
    def backward(ctx, dy):
        u, delta, b, c, a_log, skip, kept = ctx.saved_tensors
        dy = dy.contiguous()
        batch, dim, length = u.shape
        states = b.shape[1]
        du, ddelta = torch.empty_like(u), torch.empty_like(delta)
        sizes = [b.numel(), c.numel(), a_log.numel(), skip.numel()]
        shared, own = sum(sizes[:2]), sum(sizes[2:])
        count = shared + batch * own
        sums = torch.empty(count, dtype=torch.float32, device=u.device)
        _clear[(triton.cdiv(count, 2048),)](sums, count, BLOCK=2048, num_warps=4)
        db, dc, images = sums.split([*sizes[:2], batch * own])
        if du.numel():
            _backward[(batch * dim,)](
                u, delta, b, c, a_log, skip, dy, kept, du, ddelta, db, dc, images, dim, length, states,
                triton.cdiv(length, ctx.every), STATES=triton.next_power_of_2(max(states, 1)), BLOCK=ctx.every,
                ALONE=dim == 1, num_warps=BACK_WARPS,
            )  # fmt: skip
        likes = (b, c, a_log, skip)
        dtype = b.dtype if all(like.dtype is b.dtype for like in likes) else torch.float32
        if batch != 1 or dtype is not torch.float32:
            given = torch.empty(shared + own, dtype=dtype, device=u.device)
            _finish[(triton.cdiv(shared + own, 2048),)](sums, given, shared, own, batch, BLOCK=2048, num_warps=4)
            sums = given
        parts = zip(sums.split(sizes), likes, strict=True)
        return (du, ddelta, *(part.view(like.shape).to(like.dtype) for part, like in parts))


class ModelNew(nn.Module):
    def __init__(self, dim, states, dtype="float32"):
        super().__init__()
        kind = getattr(torch, dtype)
        self.a_log = nn.Parameter(torch.log(torch.arange(1, states + 1).float()).repeat(dim, 1).to(kind))
        self.skip = nn.Parameter(torch.ones(dim, dtype=kind))

    def forward(self, u, delta, b, c):
        return _Scan.apply(u, delta, b, c, self.a_log, self.skip)
