"""The certificate as one page: no scripts, nothing fetched, readable in print, by keyboard and by a screen reader.

    Path("certificate.html").write_text(render(document))      # the JSON document, as `Certificate.to_json` made it

Needs the standard library only, and trusts no text in the document: candidates, problems and workloads name themselves.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from worker.judge.certificate import sections
from worker.judge.certificate.document import SCHEMA, is_intact
from worker.judge.certificate.plots import duration, number
from worker.judge.certificate.svg import clean

_TEMPLATE = Path(__file__).with_name("certificate.tmpl")


class UnknownDocument(ValueError):
    """This is no certificate, or one of another version: its `schema` field says which."""


def render(document: Mapping[str, Any]) -> str:
    """The page. Raises UnknownDocument. A document whose hash does not fit is rendered with a warning on top."""
    if document.get("schema") != SCHEMA:
        raise UnknownDocument(f"{document.get('schema')!r} is not {SCHEMA!r}")
    parts = [
        ("errors", "Errors", sections.errors(document)),
        ("timing", "Timing", sections.timing(document)),
        ("roofline", "Speed of light", sections.roofline(document)),
        ("training", "Training", sections.training(document)),
        ("system", "System checks", sections.system(document)),
        ("checks", "Checks of the judgement", sections.checks(document)),
        ("environment", "Environment and provenance", sections.environment(document)),
        ("source", "Source", sections.source(document)),
    ]
    shown = [(anchor, title, body) for anchor, title, body in parts if body]
    good = bool(document["certified"])
    name = document["problem"]["name"]
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=clean(f"{name} on {document['hardware']}: kernel certificate"),
        kicker="Kernelwright certificate",
        heading=clean(f"{name} on {document['hardware']}, {document['candidate']['language']}"),
        tone="good" if good else "bad",
        seal="✓ Certified" if good else "✗ Not certified",
        summary=clean(document["summary"]),
        notices=_notices(document),
        facts="".join(_fact(*fact) for fact in _facts(document)),
        links="".join(f'<a href="#{anchor}">{title}</a>' for anchor, title, _body in shown),
        sections="\n".join(
            f'<section aria-labelledby="{anchor}"><h2 id="{anchor}">{title}</h2>{body}</section>'
            for anchor, title, body in shown
        ),
        footer=_footer(document),
    )


def _notices(document: Mapping[str, Any]) -> str:
    found = []
    if not is_intact(document):
        found.append(_box("bad", "This document was changed after it was issued: its hash does not fit.", []))
    if document["reason"]:
        found.append(_box("bad", "Why it is not certified", [document["reason"]]))
    if document["reservations"]:
        found.append(_box("warn", "Reservations", document["reservations"]))
    return "".join(found)


def _box(tone: str, title: str, items: list[str]) -> str:
    listed = f"<ul>{''.join(f'<li>{clean(item)}</li>' for item in items)}</ul>" if items else ""
    return f'<div class="box {tone}"><strong>{clean(title)}</strong>{listed}</div>'


def _fact(name: str, value: str, note: str) -> str:
    return f'<div><dt>{clean(name)}</dt><dd class="big">{clean(value)}</dd><dd class="small">{clean(note)}</dd></div>'


def _facts(document: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    facts = []
    timing, roof, own = document["timing"], document["roofline"], document["own_kernels"]
    if timing:
        low, high = timing["ci95"]
        against = "over each workload's fastest baseline"
        facts.append(("Speedup", f"{number(timing['speedup']):.2f}x", f"{low:.2f} to {high:.2f} (95 %), {against}"))
        times = [number(row["latency_us"]) for row in timing["workloads"]]
        many = "median" if len(times) == 1 else f"geometric mean of {len(times)} workloads' medians"
        facts.append(("Time a call", duration(statistics.geometric_mean(times)), many))
    rows = [row for layer in document["layers"] for row in layer["rows"]]
    made = [row for row in rows if row["outcome"] != "not applicable"]
    passed = sum(row["outcome"] == "passed" for row in made)
    facts.append(("Checks passed", f"{passed} of {len(made)}", f"{len(rows) - len(made)} more not applicable here"))
    if roof and roof["points"]:
        best = max(roof["points"], key=lambda point: number(point["sol_fraction"]))
        facts.append(("Speed of light", f"{number(best['sol_fraction']):.0%}", f"best workload, {best['bound']} bound"))
    if own["share"] is not None:
        facts.append(("Own kernels", f"{number(own['share']):.0%}", f"of kernel time; {own['required']:.0%} required"))
    return facts


def _footer(document: Mapping[str, Any]) -> str:
    judge = document["judge"]
    spent = f"{judge.get('judged_s', 0)} s of judgement and {judge.get('certified_s', 0)} s of system checks"
    return (
        f"<p>Issued {clean(document['issued_at'])} after {clean(spent)}.<br>"
        f'Document SHA-256 <span class="mono hash">{clean(document["sha256"])}</span>, over the canonical JSON '
        f"(sorted keys, no spaces) of everything but the hash. This page was made from that document alone.</p>"
    )
