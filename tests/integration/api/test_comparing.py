"""Two candidates side by side."""

from __future__ import annotations

import httpx2
import pytest

from cli.client import ApiError, Client, Job
from tests.integration.api.conftest import BODY
from tests.integration.api.history import History


def timed(speedup: float, **more: object) -> dict[str, object]:
    """A report with one workload, its interval a tenth to both sides."""
    ci95 = [speedup - 0.1, speedup + 0.1]
    workload = {"name": "small", "latency_us": 60 / speedup, "speedup": speedup, "ci95": ci95, "baseline": "eager"}
    return {"speedup": speedup, "latency_us": 60 / speedup, "ci95": ci95, "workloads": [workload]} | more


def test_two_of_one_job(client: Client, http: httpx2.Client, history: History, job: Job) -> None:
    slow = history.evaluate(job["id"], **timed(1.5, environment={"torch": "2.1", "device": "x"}))
    fast = history.evaluate(job["id"], **timed(3.0, environment={"torch": "2.2", "device": "x"}))
    found = client.compare(slow, fast)
    assert (found["first"]["id"], found["second"]["id"], found["notes"]) == (slow, fast, [])
    assert found["ratio"] == {
        "value": pytest.approx(2.0),
        "low": pytest.approx(2.9 / 1.6),
        "high": pytest.approx(3.1 / 1.4),
        "clear": True,
    }
    (workload,) = found["workloads"]
    assert (workload["name"], workload["ratio"]) == ("small", found["ratio"])
    assert (workload["first"]["latency_us"], workload["second"]["latency_us"]) == (40.0, 20.0)
    assert found["environment"] == {"torch": ["2.1", "2.2"]}
    diff = found["diff"]
    assert diff is not None
    assert diff.startswith(f"--- {slow}\n+++ {fast}\n@@") and f"\n+class ModelNew: ...  # {fast}\n" in diff
    plain = http.get(f"/v1/candidates/{slow}/compare/{fast}", headers={"Accept": "text/x-diff"})
    assert (plain.headers["content-type"], plain.text) == ("text/x-diff; charset=utf-8", diff)


def test_a_difference_within_the_intervals_is_not_clear(client: Client, history: History, job: Job) -> None:
    one, two = history.evaluate(job["id"], **timed(1.5)), history.evaluate(job["id"], **timed(1.6))
    ratio = client.compare(one, two)["ratio"]
    assert ratio is not None and not ratio["clear"]


def test_what_cannot_be_compared_says_why(client: Client, http: httpx2.Client, history: History, job: Job) -> None:
    good = history.evaluate(job["id"], **timed(1.5))
    wrong = history.evaluate(job["id"], verdict="incorrect", timed=False)
    (new,) = history.propose(job["id"])
    found = client.compare(good, wrong)
    assert (found["ratio"], found["notes"]) == (None, ["the second was not accepted: its verdict is incorrect"])
    assert found["workloads"][0]["second"] is None
    assert client.compare(new, good)["diff"] is None
    refused = http.get(f"/v1/candidates/{new}/compare/{good}", headers={"Accept": "text/x-diff"})
    assert (refused.status_code, refused.json()["type"]) == (404, "urn:kernelwright:error:no-source")
    other = client.submit({**BODY, "problem": "layernorm"})["id"]
    history.start(other)
    found = client.compare(good, history.evaluate(other, **timed(3.0)))
    assert found["ratio"] is None and found["workloads"][0]["ratio"] is None
    assert "different problems: softmax and layernorm" in found["notes"][0]
    with pytest.raises(ApiError, match="cand_0"):
        client.compare(good, "cand_0")
