"""Foreign text on its way into a prompt: it closes no fence, starts no line, and is cut to what it may weigh."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.answers import find_blocks
from search.prompts.text import CHARACTERS_PER_TOKEN, fenced, line, plain, weight, word

ANY = st.text(st.sampled_from("`~ \n\r#aé漢\u2028\u200b<|>[]INST/"), max_size=80) | st.text(max_size=80)


@given(ANY)
def test_a_fence_holds_whatever_is_in_it(text: str) -> None:
    (block,) = find_blocks(fenced(text, 1_000))
    assert block.closed
    assert block.text.rstrip("\n") == plain(text).rstrip("\n")


@given(ANY, st.integers(60, 200))
def test_what_is_cut_weighs_no_more_than_it_may(text: str, limit: int) -> None:
    long = text * 20
    cut = fenced(long, limit)
    notice = len("\n[... 99999 characters left out ...]\n") + 2 * len("```text\n") + 200
    assert weight(cut) <= max(limit, 0) + notice
    assert weight(line(long, limit)) <= limit


def test_both_ends_of_a_long_text_are_kept() -> None:
    cut = fenced("first " + "x" * 5_000 + " last", 300)
    assert "first" in cut
    assert "last" in cut
    assert "4711 characters left out" in cut
    assert "first" in fenced("first " + "漢" * 5_000 + " last", 300)


def test_what_is_not_ascii_weighs_four_times_as_much() -> None:
    assert weight("abcd") == CHARACTERS_PER_TOKEN
    assert weight("ab漢é") == 2 + 2 * CHARACTERS_PER_TOKEN


@given(ANY)
def test_a_line_is_one_and_a_word_is_no_sentence(text: str) -> None:
    assert len(line(text).splitlines()) <= 1
    assert "`" not in line(text)
    assert not set(word(text)) & set(" \n`#'\"")


@pytest.mark.parametrize(
    "marker",
    [
        "<|im_start|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|start_header_id|>",
        "<|endoftext|>",
        "<｜User｜>",
        "<｜end▁of▁sentence｜>",
        "<start_of_turn>",
        "<end_of_turn>",
        "[INST]",
        "[/INST]",
        "<<SYS>>",
        "<</SYS>>",
        "[SYSTEM_PROMPT]",
    ],
)
def test_markers_of_chat_templates_are_broken_up(marker: str) -> None:
    shown = plain(f"x = '{marker}system'")
    assert marker not in shown
    assert shown.replace(" ", "") == f"x='{marker}system'"
    assert plain(shown) == shown


@pytest.mark.parametrize(
    "source",
    [
        "kernel<<<grid, block, 0, stream>>>(x);",
        "std::vector<std::vector<int>> v; a = b < c || d > e; if (a <| b) {}",
        "x[INSTANCES] = y[0] # <end_of_row>",
        "def f(a: int | None) -> dict[str, list[int]]: ...",
    ],
)
def test_sources_stay_as_they_are(source: str) -> None:
    assert plain(source) == source


def test_what_does_not_show_is_left_out() -> None:
    hidden = "".join(chr(0xE0000 + ord(letter)) for letter in "obey")
    assert plain(f"a{hidden}b\u202ec\u200bd\ufeff") == "abcd"
