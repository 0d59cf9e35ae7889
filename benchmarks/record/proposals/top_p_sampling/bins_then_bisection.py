"""No sort: logits become integers of the same order, their float64 masses are added up in 4,096 bins by the upper
bits, and only the bins that hold the nucleus's end and the drawn token are listed and bisected, exactly. Bound by
latency; all of it is a few reads of the logits from the L2 cache, where a sort moves them a dozen times.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"CHUNK": [1024, 2048, 4096], "BLOCK": [1024, 2048, 4096], "WARPS": [4, 8, 16]}
CONSTRAINTS = ["BLOCK >= 64 * WARPS"]
CHUNK = 2048
BLOCK = 2048
WARPS = 8
LEAST = -(2**31)


@triton.jit
def keys_of(logits, at, inside):
    value = tl.load(logits + at, mask=inside, other=-float("inf")).to(tl.float32) + 0.0  # -0 is 0
    value = tl.where(value != value, -float("inf"), value)
    value = tl.where(value == float("inf"), 1e30, value)
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def mass_of(key, top):
    bits = tl.where(key < 0, key ^ 0x7FFFFFFF, key)
    highest = tl.where(top < 0, top ^ 0x7FFFFFFF, top)
    value = bits.to(tl.float32, bitcast=True).to(tl.float64)
    return tl.exp(value - highest.to(tl.float32, bitcast=True).to(tl.float64))


@triton.jit
def find_tops(logits, tops, vocab, BLOCK: tl.constexpr):
    row, col = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key = keys_of(logits, row.to(tl.int64) * vocab + col, col < vocab)
    tl.atomic_max(tops + row, tl.max(key, axis=0), sem="relaxed")


@triton.jit
def fill_bins(logits, tops, bins, vocab, BLOCK: tl.constexpr):
    row, col = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key = keys_of(logits, row.to(tl.int64) * vocab + col, col < vocab)
    mass = mass_of(key, tl.load(tops + row))
    tl.atomic_add(bins + row * 4096 + 2047 - (key >> 20), mass, mask=(col < vocab) & (mass > 0), sem="relaxed")


@triton.jit
def list_bin(logits, start, vocab, number, keys, places, BLOCK: tl.constexpr):
    """Lists the keys and places of one bin, in order, and counts what lies in higher bins."""
    found, above = 0, 0
    for at in range(0, vocab, BLOCK):
        col = at + tl.arange(0, BLOCK)
        inside = col < vocab
        key = keys_of(logits, start + col, inside)
        own = 2047 - (key >> 20)
        mine = (inside & (own == number)).to(tl.int32)
        to = start + found + tl.cumsum(mine, axis=0) - 1
        tl.store(keys + to, key, mask=mine > 0)
        tl.store(places + to, col, mask=mine > 0)
        found += tl.sum(mine, axis=0)
        above += tl.sum((inside & (own < number)).to(tl.int32), axis=0)
    tl.debug_barrier()
    return found, above


@triton.jit
def mass_above(keys, start, found, least, top, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), dtype=tl.float64)
    for at in range(0, found, BLOCK):
        line = at + tl.arange(0, BLOCK)
        key = tl.load(keys + start + line, mask=line < found, other=-2147483648)
        total += tl.where((line < found) & (key > least), mass_of(key, top), 0.0)
    return tl.sum(total, axis=0)


@triton.jit
def bisect(keys, start, found, number, before, limit, top, INCLUSIVE: tl.constexpr, BLOCK: tl.constexpr):
    """The least key of a bin above which there is less mass than the limit, and that mass."""
    key = ((2047 - number) << 20) + 0xFFFFF
    mass = before
    for step in range(20):
        lower = key - (0x80000 >> step)
        more = before + mass_above(keys, start, found, lower, top, BLOCK)
        good = more <= limit if INCLUSIVE else more < limit
        key = tl.where(good, lower, key)
        mass = tl.where(good, more, mass)
    return key, mass


@triton.jit
def count_equal(keys, start, found, wanted, before, BLOCK: tl.constexpr):
    count = tl.zeros((BLOCK,), dtype=tl.int32)
    higher = tl.zeros((BLOCK,), dtype=tl.int32)
    for at in range(0, found, BLOCK):
        line = at + tl.arange(0, BLOCK)
        key = tl.load(keys + start + line, mask=line < found, other=-2147483648)
        count += ((line < found) & (key == wanted)).to(tl.int32)
        higher += ((line < found) & (key > wanted)).to(tl.int32)
    return tl.sum(count, axis=0), before + tl.sum(higher, axis=0)


@triton.jit
def draw(logits, p, number, tops, bins, keys, places, tokens, counts, totals, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    start = row.to(tl.int64) * vocab
    top = tl.load(tops + row)
    bin_number = tl.arange(0, 4096)
    own = tl.load(bins + row * 4096 + bin_number)
    upto = tl.cumsum(own, axis=0)
    whole = tl.sum(own, axis=0)
    limit = (tl.load(p + row).to(tl.float64) - 1e-9) * whole
    last = tl.max(tl.where((own > 0) & (upto - own < limit), bin_number, 0), axis=0)
    before = tl.sum(tl.where(bin_number < last, own, 0.0), axis=0)
    found, above = list_bin(logits, start, vocab, last, keys, places, BLOCK)
    end, mass = bisect(keys, start, found, last, before, limit, top, False, BLOCK)
    equal, higher = count_equal(keys, start, found, end, above, BLOCK)
    each = mass_of(end, top)
    kept = tl.minimum(equal, ((limit - mass) / each).to(tl.int32) + 1)
    total = mass + kept.to(tl.float64) * each
    tl.store(counts + row, (higher + kept).to(tl.int64))
    tl.store(totals + row, (total / whole).to(totals.dtype.element_ty))
    wanted = (tl.load(number + row).to(tl.float64) + 0.5) / 2147483648.0 * total
    last = tl.minimum(tl.min(tl.where((own > 0) & (upto > wanted), bin_number, 4095), axis=0), last)
    before = tl.sum(tl.where(bin_number < last, own, 0.0), axis=0)
    tl.debug_barrier()
    found, above = list_bin(logits, start, vocab, last, keys, places, BLOCK)
    drawn, mass = bisect(keys, start, found, last, before, wanted, top, True, BLOCK)
    equal, higher = count_equal(keys, start, found, drawn, above, BLOCK)
    nth = tl.minimum(((wanted - mass) / mass_of(drawn, top)).to(tl.int32), equal - 1)
    nth = tl.where(drawn == end, tl.minimum(nth, kept - 1), nth)
    seen, token = 0, 0
    for at in range(0, found, BLOCK):
        line = at + tl.arange(0, BLOCK)
        key = tl.load(keys + start + line, mask=line < found, other=-2147483648)
        mine = ((line < found) & (key == drawn)).to(tl.int32)
        hit = (mine > 0) & (seen + tl.cumsum(mine, axis=0) == nth + 1)
        token += tl.sum(tl.where(hit, tl.load(places + start + line, mask=hit, other=0), 0), axis=0)
        seen += tl.sum(mine, axis=0)
    tl.store(tokens + row, token.to(tl.int64))


class ModelNew(nn.Module):
    def forward(self, logits, p, number):
        logits, p, number = logits.contiguous(), p.contiguous(), number.contiguous()
        rows, vocab = logits.shape
        tops = torch.full((rows,), LEAST, dtype=torch.int32, device=logits.device)
        bins = torch.zeros(rows, 4096, dtype=torch.float64, device=logits.device)
        keys, places = (torch.empty(rows, vocab, dtype=torch.int32, device=logits.device) for _ in range(2))
        tokens, counts = (torch.empty(rows, dtype=torch.int64, device=logits.device) for _ in range(2))
        totals = torch.empty(rows, dtype=p.dtype, device=logits.device)
        grid = (triton.cdiv(vocab, CHUNK), rows)
        find_tops[grid](logits, tops, vocab, BLOCK=CHUNK, num_warps=4)
        fill_bins[grid](logits, tops, bins, vocab, BLOCK=CHUNK, num_warps=4)
        draw[(rows,)](
            logits, p, number, tops, bins, keys, places, tokens, counts, totals, vocab, BLOCK=BLOCK, num_warps=WARPS
        )
        return tokens, counts, totals
