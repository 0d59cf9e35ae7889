"""No sort: logits become integers of the same order, their float64 masses are added up in 4,096 bins by the upper
bits. Which bin ends the nucleus follows from the bins, and within which few the drawn token lies; all programs list
those together, in any order, and one for each row bisects them, exactly. Of equal logits the one that is drawn is found
by a bisection of places. Bound by latency and the additions to bins.

Where one program for each row lists its bins by itself, two of five workloads have 60 programs at work, for 0.2 to 0.5
ms. Not yet measured.
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
def choose(p, number, bins, plans, limits, counts):
    """The bin that ends the nucleus, the bins that the drawn token may lie in, and the masses that follow."""
    row = tl.program_id(0)
    place = tl.arange(0, 4096)
    own = tl.load(bins + row * 4096 + place)
    upto = tl.cumsum(own, axis=0)
    whole = tl.sum(own, axis=0)
    limit = (tl.load(p + row).to(tl.float64) - 1e-9) * whole
    last = tl.max(tl.where((own > 0) & (upto - own < limit), place, 0), axis=0)
    before = tl.sum(tl.where(place < last, own, 0.0), axis=0)
    most = before + tl.sum(tl.where(place == last, own, 0.0), axis=0)
    share = (tl.load(number + row).to(tl.float64) + 0.5) / 2147483648.0
    # What is kept has a mass from `before` to `most`, give or take a rounding.
    first = tl.min(tl.where((own > 0) & (upto > share * before * (1 - 1e-9)), place, 4095), axis=0)
    second = tl.min(tl.where((own > 0) & (upto > share * most * (1 + 1e-9)), place, 4095), axis=0)
    tl.store(plans + row * 3, last)
    tl.store(plans + row * 3 + 1, tl.minimum(first, last))
    tl.store(plans + row * 3 + 2, tl.minimum(second, last))
    tl.store(limits + row * 3, limit)
    tl.store(limits + row * 3 + 1, before)
    tl.store(limits + row * 3 + 2, whole)
    for counter in range(3):
        tl.store(counts + row * 3 + counter, 0)


@triton.jit
def list_bins(logits, plans, counts, ends, drawn, places, vocab, BLOCK: tl.constexpr):
    """The keys of the last bin, keys and places of those that may be drawn, in any order, and how many are above."""
    row, col = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    start, inside = row.to(tl.int64) * vocab, col < vocab
    last, first, second = tl.load(plans + row * 3), tl.load(plans + row * 3 + 1), tl.load(plans + row * 3 + 2)
    key = keys_of(logits, start + col, inside)
    own = 2047 - (key >> 20)
    counters = counts + row * 3 + tl.zeros([BLOCK], tl.int32)
    ending, drawable = inside & (own == last), inside & (own >= first) & (own <= second)
    tl.store(ends + start + tl.atomic_add(counters, 1, mask=ending, sem="relaxed"), key, mask=ending)
    to = start + tl.atomic_add(counters + 1, 1, mask=drawable, sem="relaxed")
    tl.store(drawn + to, key, mask=drawable)
    tl.store(places + to, col, mask=drawable)
    tl.atomic_add(counts + row * 3 + 2, tl.sum((inside & (own < last)).to(tl.int32), axis=0), sem="relaxed")


@triton.jit
def mass_above(keys, start, found, least, most, top, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), dtype=tl.float64)
    for at in range(0, found, BLOCK):
        line = at + tl.arange(0, BLOCK)
        key = tl.load(keys + start + line, mask=line < found, other=-2147483648)
        total += tl.where((line < found) & (key > least) & (key <= most), mass_of(key, top), 0.0)
    return tl.sum(total, axis=0)


@triton.jit
def bisect(keys, start, found, number, before, limit, top, INCLUSIVE: tl.constexpr, BLOCK: tl.constexpr):
    """The least key of a bin above which there is less mass than the limit, and that mass."""
    most = ((2047 - number) << 20) + 0xFFFFF
    key = most
    mass = before
    for step in range(20):
        lower = key - (0x80000 >> step)
        more = before + mass_above(keys, start, found, lower, most, top, BLOCK)
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
def count_up_to(keys, places, start, found, wanted, least, BLOCK: tl.constexpr):
    """How many of a key lie at a place or before it."""
    count = tl.zeros((BLOCK,), dtype=tl.int32)
    for at in range(0, found, BLOCK):
        line = at + tl.arange(0, BLOCK)
        own = (line < found) & (tl.load(keys + start + line, mask=line < found, other=-2147483648) == wanted)
        place = tl.load(places + start + line, mask=own, other=2147483647)
        count += (own & (place <= least)).to(tl.int32)
    return tl.sum(count, axis=0)


@triton.jit
def draw(
    number, tops, bins, plans, limits, counts, ends, drawable, places, tokens, kepts, totals, vocab,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    start = row.to(tl.int64) * vocab
    top = tl.load(tops + row)
    last, first, second = tl.load(plans + row * 3), tl.load(plans + row * 3 + 1), tl.load(plans + row * 3 + 2)
    limit, before, whole = tl.load(limits + row * 3), tl.load(limits + row * 3 + 1), tl.load(limits + row * 3 + 2)
    ending, listed, above = tl.load(counts + row * 3), tl.load(counts + row * 3 + 1), tl.load(counts + row * 3 + 2)
    end, mass = bisect(ends, start, ending, last, before, limit, top, False, BLOCK)
    equal, higher = count_equal(ends, start, ending, end, above, BLOCK)
    each = mass_of(end, top)
    kept = tl.minimum(equal, ((limit - mass) / each).to(tl.int32) + 1)
    total = mass + kept.to(tl.float64) * each
    tl.store(kepts + row, (higher + kept).to(tl.int64))
    tl.store(totals + row, (total / whole).to(totals.dtype.element_ty))
    wanted = (tl.load(number + row).to(tl.float64) + 0.5) / 2147483648.0 * total
    place = tl.arange(0, 4096)
    own = tl.load(bins + row * 4096 + place)
    upto = tl.cumsum(own, axis=0)
    found = tl.min(tl.where((own > 0) & (upto > wanted), place, 4095), axis=0)
    found = tl.maximum(tl.minimum(found, second), first)
    before = tl.sum(tl.where(place < found, own, 0.0), axis=0)
    drawn, mass = bisect(drawable, start, listed, found, before, wanted, top, True, BLOCK)
    equal, higher = count_equal(drawable, start, listed, drawn, 0, BLOCK)
    nth = tl.minimum(((wanted - mass) / mass_of(drawn, top)).to(tl.int32), equal - 1)
    nth = tl.where(drawn == end, tl.minimum(nth, kept - 1), nth)
    low = tl.zeros([], tl.int32)
    high = low + vocab - 1
    while low < high:
        middle = (low + high) // 2
        enough = count_up_to(drawable, places, start, listed, drawn, middle, BLOCK) > nth
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle + 1)
    tl.store(tokens + row, low.to(tl.int64))


class ModelNew(nn.Module):
    def forward(self, logits, p, number):
        logits, p, number = logits.contiguous(), p.contiguous(), number.contiguous()
        rows, vocab = logits.shape
        tops = torch.full((rows,), LEAST, dtype=torch.int32, device=logits.device)
        bins = torch.zeros(rows, 4096, dtype=torch.float64, device=logits.device)
        ends, drawable, places = (torch.empty(rows, vocab, dtype=torch.int32, device=logits.device) for _ in range(3))
        plans, listed = (torch.empty(rows, 3, dtype=torch.int32, device=logits.device) for _ in range(2))
        limits = torch.empty(rows, 3, dtype=torch.float64, device=logits.device)
        tokens, counts = (torch.empty(rows, dtype=torch.int64, device=logits.device) for _ in range(2))
        totals = torch.empty(rows, dtype=p.dtype, device=logits.device)
        grid = (triton.cdiv(vocab, CHUNK), rows)
        find_tops[grid](logits, tops, vocab, BLOCK=CHUNK, num_warps=4)
        fill_bins[grid](logits, tops, bins, vocab, BLOCK=CHUNK, num_warps=4)
        choose[(rows,)](p, number, bins, plans, limits, listed, num_warps=8)
        list_bins[grid](logits, plans, listed, ends, drawable, places, vocab, BLOCK=CHUNK, num_warps=4)
        draw[(rows,)](
            number, tops, bins, plans, limits, listed, ends, drawable, places, tokens, counts, totals, vocab,
            BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip
        return tokens, counts, totals
