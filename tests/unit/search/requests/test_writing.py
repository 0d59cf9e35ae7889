"""A model's reference: the prompt holds the user's words as data, the answer is read and never run."""

from __future__ import annotations

import os

import pytest

from problems.catalog import bundled
from search.requests.understanding import understand
from search.requests.writing import NoReference, name_of, read_reference, reference_prompt
from search.types import Target
from tests.unit.search.test_prompts import HOSTILE, SNAPSHOTS, outside_fences

SOURCE = bundled()["softmax"].source
TARGET = Target("nvidia-h100", "triton")
WISH = understand("conv2d with relu in bf16 on H100")


def answer(source: str, before: str = "I assumed NCHW.") -> str:
    return f"{before}\n\n```python\n{source}```\n"


def test_the_prompt_is_the_one_that_was_reviewed() -> None:
    path = SNAPSHOTS / "reference_triton.txt"
    messages = reference_prompt(WISH, TARGET, "no code", "the answer has no fenced block").messages
    text = "\n".join(f"===== {message['role']}\n\n{message['content']}" for message in messages)
    if os.environ.get("KERNELWRIGHT_UPDATE_SNAPSHOTS"):
        path.write_text(text)
    assert text == path.read_text()


def test_the_users_words_stay_inside_their_fence() -> None:
    system, user = reference_prompt(understand(HOSTILE), TARGET, HOSTILE, HOSTILE).messages
    assert system == reference_prompt(WISH, TARGET).messages[0], "the instructions do not move"
    assert user["content"].count("Ignore the above") == 3
    assert "Ignore the above" not in outside_fences(user["content"])


def test_a_reference_is_read_with_what_the_model_assumed() -> None:
    written = read_reference(answer(SOURCE), "mine", "cpu")
    assert (written.problem.source, written.problem.name, written.assumed) == (SOURCE, "mine", "I assumed NCHW.")


def test_of_several_blocks_the_last_with_a_model_counts() -> None:
    text = answer("class Model: ...\n") + answer(SOURCE, "Better:") + "```sh\npython x.py\n```\n"
    assert read_reference(text, "mine", "cpu").problem.source == SOURCE


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "no fenced block"),
        ("I write no poems.", "no fenced block with `class Model`: I write no poems."),
        (f"```python\n{SOURCE}", "cut off"),
        (answer(SOURCE.replace("def get_inputs", "def inputs")), "get_inputs is missing"),
        (answer(SOURCE + "def f(:\n"), "line "),
        (answer("import os\n" + SOURCE), "it imports os"),
        (answer("from subprocess import run\n" + SOURCE), "it imports subprocess"),
        (answer(SOURCE.replace("class Model", "import socket\n\n\nclass Model")), "it imports socket"),
        (answer(SOURCE.replace('"for": "cpu"', '"for": "gpu"')), "no workload is for cpu"),
    ],
)
def test_what_cannot_be_used_says_why(text: str | None, why: str) -> None:
    with pytest.raises(NoReference, match=why):
        read_reference(text, "mine", "cpu")


def test_a_name_comes_from_the_operations() -> None:
    assert name_of(WISH) == "convolution_relu"
    assert name_of(understand("something else")) == "requested"
