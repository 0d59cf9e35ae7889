"""The gradient of a row is linear in dy and all tokens of a row share its norm: so dy is summed by id first, in
float32, and the norm's backward is applied once a row. Tokens are listed by id with counters; ids of many tokens are
summed in pieces. Bound by memory: dy read once, the table's gradient written once.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"PIECE": [16, 32, 64], "PROGRAMS": [528, 1056, 2112], "WARPS": [2, 4, 8], "LINES": [4, 8]}
PIECE = 32
PROGRAMS = 1056
WARPS = 4
LINES = 4
LARGEST = 8192


@triton.jit
def count_ids(ids, counts, ranks, tokens, BLOCK: tl.constexpr):
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = token < tokens
    row = tl.load(ids + token, mask=inside, other=0)
    tl.store(ranks + token, tl.atomic_add(counts + row, 1, mask=inside, sem="relaxed"), mask=inside)


@triton.jit
def give_places(counts, heads, places, slots, vocab, PIECE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    count = tl.load(counts + row, mask=row < vocab, other=0)
    pieces = tl.where(count > PIECE, (count + PIECE - 1) // PIECE, 0)
    first = tl.atomic_add(heads, tl.sum(count, axis=0), sem="relaxed")
    slot = tl.atomic_add(heads + 1, tl.sum(pieces, axis=0), sem="relaxed")
    tl.store(places + row, first + tl.cumsum(count, axis=0) - count, mask=row < vocab)
    tl.store(slots + row, slot + tl.cumsum(pieces, axis=0) - pieces, mask=row < vocab)


@triton.jit
def list_tokens(
    ids, counts, ranks, places, slots, order, starts, lengths, tokens, PIECE: tl.constexpr, BLOCK: tl.constexpr
):
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = token < tokens
    row = tl.load(ids + token, mask=inside, other=0)
    rank = tl.load(ranks + token, mask=inside, other=1)
    count = tl.load(counts + row, mask=inside, other=0)
    place = tl.load(places + row, mask=inside, other=0) + rank
    tl.store(order + place, token, mask=inside)
    opens = inside & (count > PIECE) & (rank % PIECE == 0)
    piece = tl.load(slots + row, mask=opens, other=0) + rank // PIECE
    tl.store(starts + piece, place, mask=opens)
    tl.store(lengths + piece, tl.minimum(count - rank, PIECE), mask=opens)


@triton.jit
def sum_pieces(dy, order, heads, starts, lengths, pieces, hidden, LINES: tl.constexpr, BLOCK: tl.constexpr):
    piece = tl.program_id(0)
    if piece < tl.load(heads + 1):
        start, length = tl.load(starts + piece), tl.load(lengths + piece)
        col = tl.arange(0, BLOCK)
        total = tl.zeros((LINES, BLOCK), dtype=tl.float32)
        for at in range(0, length, LINES):
            line = at + tl.arange(0, LINES)
            token = tl.load(order + start + line, mask=line < length, other=0).to(tl.int64)
            inside = (line[:, None] < length) & (col[None, :] < hidden)
            total += tl.load(dy + token[:, None] * hidden + col[None, :], mask=inside, other=0.0).to(tl.float32)
        tl.store(pieces + piece.to(tl.int64) * hidden + col, tl.sum(total, axis=0), mask=col < hidden)


@triton.jit
def finish_rows(
    dy, table, weight, counts, places, slots, order, pieces, dtable, partial, vocab, hidden, eps,
    PIECE: tl.constexpr, LINES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program, programs = tl.program_id(0), tl.num_programs(0)
    col = tl.arange(0, BLOCK)
    usable = col < hidden
    w = tl.load(weight + col, mask=usable, other=0.0).to(tl.float32)
    dw = tl.zeros((BLOCK,), dtype=tl.float32)
    for row in range(program, vocab, programs):
        count = tl.load(counts + row)
        to = dtable + tl.cast(row, tl.int64) * hidden + col
        if count == 0:
            tl.store(to, tl.zeros((BLOCK,), dtype=dtable.dtype.element_ty), mask=usable)
        else:
            x = tl.load(table + tl.cast(row, tl.int64) * hidden + col, mask=usable, other=0.0).to(tl.float32)
            total = tl.zeros((LINES, BLOCK), dtype=tl.float32)
            if count > PIECE:
                slot, length = tl.load(slots + row), (count + PIECE - 1) // PIECE
                for at in range(0, length, LINES):
                    line = at + tl.arange(0, LINES)
                    inside = (line[:, None] < length) & usable[None, :]
                    place = (slot + line)[:, None].to(tl.int64) * hidden + col[None, :]
                    total += tl.load(pieces + place, mask=inside, other=0.0)
            else:
                start = tl.load(places + row)
                for at in range(0, count, LINES):
                    line = at + tl.arange(0, LINES)
                    token = tl.load(order + start + line, mask=line < count, other=0).to(tl.int64)
                    inside = (line[:, None] < count) & usable[None, :]
                    place = token[:, None] * hidden + col[None, :]
                    total += tl.load(dy + place, mask=inside, other=0.0).to(tl.float32)
            g = tl.sum(total, axis=0)
            scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / hidden + eps)
            normed = x * scale
            dw += g * normed
            g = g * w
            found = scale * (g - normed * (tl.sum(g * normed, axis=0) / hidden))
            tl.store(to, found.to(dtable.dtype.element_ty), mask=usable)
    tl.store(partial + program.to(tl.int64) * hidden + col, dw, mask=usable)


@triton.jit
def add_up(partial, out, count, hidden, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in range(0, count, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row[:, None] < count) & (col[None, :] < hidden)
        total += tl.load(partial + row[:, None].to(tl.int64) * hidden + col[None, :], mask=inside, other=0.0)
    tl.store(out + col, tl.sum(total, axis=0).to(out.dtype.element_ty), mask=col < hidden)


class ModelNew(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, dy, ids, table, weight):
        dy, ids, table, weight = (each.contiguous() for each in (dy, ids, table, weight))
        (vocab, hidden), tokens = table.shape, ids.numel()
        block = max(16, triton.next_power_of_2(hidden))
        if block > LARGEST:
            raise ValueError(f"rows of {hidden} do not stay in registers")

        def integers(count):
            return torch.empty(count, dtype=torch.int32, device=dy.device)

        most = 2 * tokens // PIECE + 1  # a row of more than PIECE tokens has fewer than two pieces for each PIECE
        counters = torch.zeros(vocab + 2, dtype=torch.int32, device=dy.device)
        counts, heads = counters[:vocab], counters[vocab:]
        ranks, order, places, slots = integers(tokens), integers(tokens), integers(vocab), integers(vocab)
        starts, lengths = integers(most), integers(most)
        pieces = torch.empty(most, hidden, dtype=torch.float32, device=dy.device)
        dtable, dweight = torch.empty_like(table), torch.empty_like(weight)
        programs = max(1, min(PROGRAMS, vocab))
        partial = torch.empty(programs, hidden, dtype=torch.float32, device=dy.device)
        grid = (triton.cdiv(tokens, 256),)
        count_ids[grid](ids, counts, ranks, tokens, BLOCK=256, num_warps=4)
        give_places[(triton.cdiv(vocab, 1024),)](
            counts, heads, places, slots, vocab, PIECE=PIECE, BLOCK=1024, num_warps=4
        )
        list_tokens[grid](
            ids, counts, ranks, places, slots, order, starts, lengths, tokens, PIECE=PIECE, BLOCK=256, num_warps=4
        )
        sum_pieces[(most,)](
            dy, order, heads, starts, lengths, pieces, hidden, LINES=LINES, BLOCK=block, num_warps=WARPS
        )
        finish_rows[(programs,)](
            dy, table, weight, counts, places, slots, order, pieces, dtable, partial, vocab, hidden, self.eps,
            PIECE=PIECE, LINES=LINES, BLOCK=block, num_warps=WARPS,
        )  # fmt: skip
        add_up[(triton.cdiv(hidden, 32),)](partial, dweight, programs, hidden, ROWS=64, BLOCK=32, num_warps=4)
        return dtable, dweight
