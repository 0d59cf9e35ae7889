"""The page: complete, well formed, self-contained, and deaf to whatever a candidate calls itself."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from tests.unit.judge.certificate.samples import certificate, value_check
from worker.judge.certificate.document import ProblemPart, Subject
from worker.judge.certificate.layers import grouped
from worker.judge.certificate.render import UnknownDocument, render
from worker.judge.verdict import Check

_EMPTY = {"meta", "br"}
HOSTILE = """</title></pre><script>alert(1)</script><img src=x onerror=alert(1)>"'&$title ${x}"""


class _Page(HTMLParser):
    """Checks that tags nest, and collects tags, attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in _EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text += data


def page(**changed: Any) -> _Page:
    found = _Page()
    found.feed(render(certificate(**changed).to_json()))
    assert found.open == []
    return found


def test_the_page_shows_every_part() -> None:
    found = page()
    for words in ("✓ Certified", "1.50x", "7 of 8", "63%", "97%", "Timing", "Speed of light", "Training",
                  "System checks", "small/normal/output0", "a CPU has no streams", "float32 8 x 8"):  # fmt: skip
        assert words in found.text, words
    assert found.tags.count("svg") >= 5
    assert "changed after it was issued" not in found.text


def test_the_page_needs_nothing_from_elsewhere_and_runs_nothing() -> None:
    found = page()
    assert not {"script", "img", "link", "iframe", "object"} & set(found.tags)
    assert not [name for name, _value in found.attributes if name.startswith("on")]
    assert all(value.startswith("#") for name, value in found.attributes if name in ("href", "src"))
    assert "url(" not in render(certificate().to_json())


def test_every_drawing_has_a_title_and_a_description() -> None:
    html = render(certificate().to_json())
    drawings = re.findall(r"<svg [^>]*role=\"img\".*?</svg>", html, flags=re.DOTALL)
    assert len(drawings) == 5  # errors, two workloads, roofline, training
    for drawing in drawings:
        assert re.match(r"<svg [^>]*><title>[^<]+</title><desc>[^<]+</desc>", drawing)


def test_nothing_that_others_wrote_is_markup() -> None:
    checks = [value_check(f"{HOSTILE}/normal/output0", 0.5), Check(HOSTILE, False, HOSTILE, {"outcome": "reservation"})]
    found = page(
        candidate=Subject(HOSTILE, HOSTILE, HOSTILE, HOSTILE),
        problem=ProblemPart(HOSTILE, HOSTILE, ({"name": HOSTILE, "params": {}, "inputs": [HOSTILE]},)),
        layers=grouped(checks, []),
        hardware=HOSTILE,
        summary=HOSTILE,
        reason=HOSTILE,
        reservations=(HOSTILE,),
        environment={HOSTILE: HOSTILE},
        dynamics={"sentence": HOSTILE, HOSTILE: HOSTILE},
    )
    assert not {"script", "img"} & set(found.tags)
    assert not [name for name, _value in found.attributes if name.startswith("on")]
    assert "<script>alert(1)</script>" in found.text


def test_hidden_characters_of_a_source_are_shown() -> None:
    found = page(candidate=Subject("c", "cpp", "ab", "access = 'user\u202e \u2066# admin\u2069'\x1b[0m\ud800"))
    assert "user⟨U+202E⟩" in found.text
    assert "⟨U+001B⟩" in found.text
    assert "⟨U+D800⟩" in found.text
    assert "\u202e" not in found.text


def test_a_refused_candidate_without_timing_is_a_page_too() -> None:
    found = page(certified=False, verdict="incorrect", reason="small: wrong", timing=None, roofline=None, dynamics=None,
                 layers=grouped([value_check("small/normal/output0", 40.0, passed=False)], []))  # fmt: skip
    assert "✗ Not certified" in found.text
    assert "small: wrong" in found.text
    assert "found bad" in [value for name, value in found.attributes if name == "class"]


def test_a_changed_document_says_so() -> None:
    document = certificate().to_json()
    document["timing"]["speedup"] = 99.0
    assert "changed after it was issued" in render(document)


def test_figures_that_are_no_numbers_are_drawn_without_failing() -> None:
    broken = value_check("small/normal/output0", 1.0)
    infinite = dataclasses.replace(broken, figures={**broken.figures, "error": float("inf")})
    nothing = dataclasses.replace(broken, figures={**broken.figures, "error": float("nan")})
    exact = dataclasses.replace(broken, figures={**broken.figures, "error": 0.0, "accept_error": 0.0})
    assert "Not certified" in page(certified=False, layers=grouped([infinite, nothing, exact], [])).text


def test_many_comparisons_are_drawn_as_the_worst_of_each_family() -> None:
    checks = [value_check(f"workload{index}/normal/output0", index / 100) for index in range(60)]
    html = render(certificate(layers=grouped(checks, [])).to_json())
    drawing = re.search(r"<svg [^>]*><title>Error by family.*?</svg>", html, flags=re.DOTALL)
    assert drawing is not None
    assert drawing.group(0).count('class="found"') == 1
    assert "workload59/normal/output0" in drawing.group(0)


def test_another_document_is_refused() -> None:
    with pytest.raises(UnknownDocument, match="other/1"):
        render(certificate().to_json() | {"schema": "other/1"})
