"""What is drawn, before any template writes it: the lineage, the curve, boxes, coloured sources, words."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest

from api.pages import words
from api.pages.code import changes, coloured
from api.pages.curve import curve
from api.pages.lineage import MOST, lineage
from api.pages.timings import boxes
from db.candidates import TreeRow


def node(ordinal: int, *parents: int, speedup: float | None = None, verdict: str | None = "ok") -> TreeRow:
    return TreeRow(
        id=f"c{ordinal}",
        ordinal=ordinal,
        operator="refine",
        proposer="builtin",
        model=None,
        parents=tuple(f"c{each}" for each in parents),
        state="evaluated",
        verdict=verdict,
        speedup=speedup,
        failure=None,
        params=None,
        tunable=False,
        source_hash=None,
        plan=None,
        cost_usd=Decimal(0),
        gpu_s=0.0,
        sol_fractions=(),
        bound=None,
    )


def nested(nodes: list[TreeRow], best: str | None = None) -> str:
    """The list as brackets."""
    text = ""
    for branch in lineage(nodes, best).branches:
        text += f"{branch.node.ordinal}" + ("(" if branch.opens else " " + ")" * branch.closes)
    return re.sub(r"\s+\)", ")", text).strip()


def test_a_tree_is_written_depth_first_and_every_list_ends() -> None:
    nodes = [node(1), node(2, 1), node(3, 1), node(4, 2), node(5), node(6, 4), node(7, 3, 5)]
    assert nested(nodes) == "1(2(4(6))3(7))5"
    found = {branch.node.ordinal: branch for branch in lineage(nodes, "c6").branches}
    assert [ordinal for ordinal in found if found[ordinal].champion] == [1, 2, 4, 6]
    assert found[7].others == [5]


def test_a_long_chain_and_a_large_tree_are_drawn_in_part() -> None:
    chain = [node(1), *(node(each, each - 1, speedup=1 + each / 1000) for each in range(2, 4000))]
    found = lineage(chain, "c3999")
    assert (len(found.branches), found.left_out) == (MOST, 3999 - MOST)
    assert sum(branch.opens for branch in found.branches) == sum(branch.closes for branch in found.branches)


def test_the_curve_keeps_its_height_until_the_next_record() -> None:
    nodes = [node(1, speedup=1.0), node(2, verdict="incorrect"), node(3, speedup=2.0), node(4, speedup=1.5)]
    drawn = curve(nodes, 10, 860)
    assert drawn is not None
    assert [mark.kind for mark in drawn.marks] == ["best", "failed", "best", "ok"]
    assert drawn.line.count("V") == 1
    assert drawn.words == (
        "4 candidates, 3 right and timed. The best speedup rose to 1.00 at candidate 1, 2.00 at candidate 3."
    )
    assert curve(nodes[1:2], 10, 860) is None


def test_boxes_show_the_own_samples_first() -> None:
    drawn = boxes("small", {"eager": [3.0, 4.0, 5.0], "candidate": [1.0, 1.0, 2.0], "one": [9.0]}, ["candidate"])
    assert drawn is not None
    assert [(row.name, row.kind) for row in drawn.rows] == [("candidate", "own"), ("eager", "other")]
    assert boxes("small", {}, ["candidate"]) is None


def test_a_kernel_inside_a_string_is_coloured_and_nothing_in_it_is_markup() -> None:
    source = 'SOURCE = r"""\nint x;\nfloat y = 1.0f;  // <b>\n"""\nPLAIN = "int x;"\n'
    lines = coloured(source, "cpp")
    assert len(lines) == 5
    assert '<span class="kt">float</span>' in lines[2] and "&lt;b&gt;" in lines[2]
    assert '<span class="kt">float</span>' not in "".join(coloured(source, "triton"))
    assert "".join(re.sub(r"<[^>]+>", "", line) for line in lines).count("&lt;b&gt;") == 1


def test_changes_have_signs_and_a_limit() -> None:
    found = changes("a\nb\n", "a\nc\u202e\n")
    assert found is not None
    assert [(each.kind, each.text) for each in found[1:]] == [("same", "a"), ("removed", "b"), ("added", "c⟨U+202E⟩")]
    assert changes("a", "a") == []
    assert changes("a\n" * 5000, "a") is None


@pytest.mark.parametrize(
    ("said", "is_said"),
    [
        (words.latency(0.5), "0.500 µs"),
        (words.latency(999.9), "1000 µs"),
        (words.latency(1000.0), "1.00 ms"),
        (words.latency(2_500_000.0), "2.50 s"),
        (words.usd(0.0042), "$0.0042"),
        (words.usd(None), "–"),
        (words.seconds(125.0), "2 min 5 s"),
        (words.seconds(7500.0), "2 h 5 min"),
        (words.signed(1e-18), "0"),
        (words.figure(True), "True"),
    ],
)
def test_figures_read_well(said: str, is_said: str) -> None:
    assert said == is_said
