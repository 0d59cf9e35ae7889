"""Dashboards and alert rules: their PromQL parses, their panels are whole, and every alert has its runbook."""

from __future__ import annotations

import re

from tests.support.promql import ROOT, alerts, anchor, dashboards, expressions, uses

RUNBOOKS = (ROOT / "docs" / "operations.md").read_text()


def test_every_expression_parses_and_asks_for_metrics_of_ours() -> None:
    assert len(list(expressions())) > 40
    assert {use.metric for use in uses() if not use.metric.startswith("kernelwright_")} == set()


def test_the_dashboards_are_whole() -> None:
    found = dashboards()
    assert set(found) == {"api.json", "fleet.json", "search.json"}
    assert len({dashboard["uid"] for dashboard in found.values()}) == 3
    for dashboard in found.values():
        panels = dashboard["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        assert all(panel["title"] and panel["targets"] for panel in panels)
        places = {(x, y) for each in panels for x, y in _cells(each["gridPos"])}
        assert len(places) == sum(each["gridPos"]["w"] * each["gridPos"]["h"] for each in panels), "panels overlap"


def _cells(place: dict[str, int]) -> list[tuple[int, int]]:
    assert place["x"] + place["w"] <= 24
    return [(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])]


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    headings = {anchor(heading): heading for heading in re.findall(r"^#+ (.+)$", RUNBOOKS, re.MULTILINE)}
    linked = {alert["alert"]: alert["annotations"]["runbook_url"].partition("#") for alert in alerts()}
    assert {page for page, _, _ in linked.values()} == {"docs/operations.md"}
    assert {name: headings.get(section) for name, (_, _, section) in linked.items()} == {name: name for name in linked}
    assert {heading for heading in headings.values() if heading.startswith("Kernelwright")} - set(linked) <= {
        "Kernelwright"
    }
    for alert in alerts():
        assert alert["labels"]["severity"] in {"warning", "critical"}
        assert alert["annotations"]["summary"]
