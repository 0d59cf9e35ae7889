"""What the dashboards and the alert rules of `deploy/` ask for, and whether a metrics endpoint exports it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser
import yaml
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"

ADDED = {"job", "instance"}
"""Labels that Prometheus itself adds to what it scrapes."""


@dataclass(frozen=True)
class Use:
    """A metric that an expression selects, with the labels that it relies on."""

    where: str
    metric: str
    labels: frozenset[str]


def dashboards() -> dict[str, Any]:
    """The dashboards by the names of their files."""
    return {path.name: json.loads(path.read_text()) for path in DASHBOARDS}


def alerts() -> list[dict[str, Any]]:
    """Every alert rule."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    """Every PromQL expression of deploy/, with where it stands. Grafana's variables are filled in."""
    for rule in alerts():
        yield rule["alert"], str(rule["expr"])
    for name, dashboard in dashboards().items():
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                yield f"{name}: {panel['title']}", target["expr"].replace("$__rate_interval", "5m")


def uses() -> list[Use]:
    """What all expressions select. Raises ValueError for one that is no PromQL."""
    found = []
    for where, expression in expressions():
        tree = promql_parser.parse(expression)
        selectors = list(_selectors(tree))
        grouped = frozenset(_grouped(tree))
        for selector in selectors:
            named = frozenset(matcher.name for matcher in selector.matchers.matchers)
            found.append(Use(where, selector.name, named | (grouped if len(selectors) == 1 else frozenset())))
    return found


def exported(text: str) -> dict[str, frozenset[str]]:
    """The names of an endpoint's samples, with their labels."""
    found: dict[str, frozenset[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, frozenset()) | frozenset(sample.labels)
    return found


def unmet(wanted: list[Use], text: str) -> list[str]:
    """What of it the endpoint does not export."""
    there = exported(text)
    return [
        f"{use.where}: {use.metric} {sorted(use.labels - there.get(use.metric, frozenset()) - ADDED)}"
        for use in wanted
        if use.metric not in there or use.labels - there[use.metric] - ADDED
    ]


def _children(node: Any) -> Iterator[Any]:
    for name in ("lhs", "rhs", "expr", "vector_selector", "param"):
        child = getattr(node, name, None)
        if child is not None and not isinstance(child, str):
            yield child
    yield from getattr(node, "args", None) or []


def _selectors(node: Any) -> Iterator[Any]:
    if isinstance(node, promql_parser.VectorSelector):
        yield node
        return
    for child in _children(node):
        yield from _selectors(child)


def _grouped(node: Any) -> Iterator[str]:
    modifier = getattr(node, "modifier", None)
    yield from getattr(modifier, "labels", None) or []
    for child in _children(node):
        yield from _grouped(child)


def anchor(heading: str) -> str:
    """The anchor that a Markdown heading gets."""
    return re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-")
