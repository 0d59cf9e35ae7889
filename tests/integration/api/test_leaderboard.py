"""Leaderboards: who is on one, in what order, and what is said of those who are not."""

from __future__ import annotations

import httpx2
import pytest

from cli.client import ApiError, Client
from tests.integration.api.conftest import BODY
from tests.integration.api.history import History


def champion(client: Client, history: History, speedup: float, *, certified: bool = True) -> str:
    """A job that ended with a champion; its best candidate."""
    job_id = client.submit(BODY)["id"]
    history.start(job_id)
    candidate = history.evaluate(job_id, speedup=speedup, ci95=[speedup - 0.1, speedup + 0.1], latency_us=20.0)
    if certified:
        history.certify(job_id)
    history.finish(job_id)
    return candidate


def test_certified_champions_come_first_and_then_the_faster(client: Client, history: History) -> None:
    slow, fast = champion(client, history, 1.2), champion(client, history, 1.9)
    accepted = champion(client, history, 3.0, certified=False)
    (board,) = client.leaderboard("softmax")["boards"]
    assert board["target"] == BODY["target"]
    assert (board["hash"], board["bundled"]) == (client.problem("softmax")["hash"], True)
    assert [(each["rank"], each["candidate_id"]) for each in board["entries"]] == [(1, fast), (2, slow), (3, accepted)]
    assert [each["certified"] for each in board["entries"]] == [True, True, False]
    assert board["entries"][0]["ci95"] == pytest.approx([1.8, 2.0])
    assert board["left_out"] == []
    assert client.candidate(fast)["links"]["self"] == board["entries"][0]["links"]["candidate"]


def test_what_is_faster_and_not_on_the_board_says_why(client: Client, history: History) -> None:
    champion(client, history, 1.5)
    job_id = client.submit(BODY)["id"]
    history.start(job_id)
    cheat = history.evaluate(job_id, speedup=9.0, verdict="suspicious", reason="it caches its output")
    refused = history.evaluate(job_id, speedup=4.0)
    history.certify(job_id, certified=False, verdict="nondeterministic", reason="two runs differ")
    running = history.evaluate(job_id, speedup=2.0)
    history.evaluate(job_id, speedup=1.1, verdict="suspicious", reason="slower than the first anyway")
    (board,) = client.leaderboard("softmax", hardware="cpu", language="cpp")["boards"]
    assert [each["candidate_id"] for each in board["left_out"]] == [cheat, refused, running]
    assert [each["verdict"] for each in board["left_out"]] == ["suspicious", "nondeterministic", "ok"]
    assert [each["why"] for each in board["left_out"]][:2] == ["it caches its output", "two runs differ"]
    assert "still running" in board["left_out"][2]["why"]
    history.finish(job_id)
    (board,) = client.leaderboard("softmax")["boards"]
    assert board["entries"][1]["candidate_id"] == running
    assert [each["candidate_id"] for each in board["left_out"]] == [cheat, refused]


def test_boards_of_another_target_and_of_an_unknown_problem(client: Client, http: httpx2.Client) -> None:
    assert client.leaderboard("softmax", hardware="nvidia-h100") == {"problem": "softmax", "boards": []}
    with pytest.raises(ApiError, match="softmax") as unknown:
        client.leaderboard("sofmax")
    assert unknown.value.status == 404
    assert http.get("/v1/problems/softmax/leaderboard?language=rust").status_code == 422
    assert http.get("/v1/problems/a%00b/leaderboard").status_code == 422
