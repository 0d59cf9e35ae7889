"""A simulated search, written down as the service writes it down, runs again as it ran; what is changed is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from search.advance import advance
from search.prompts import build_prompt
from search.proposing import Knowledge, Parent, ProposalRequest, Trial
from search.recording import (
    IncompleteRecord,
    decision_from,
    node_from,
    record_of,
    request_from,
    request_record,
    view_from,
)
from search.replay import Recording, replayed
from search.types import Node, Operator, State, Target
from tests.unit.search.policies.landscapes import Landscape, landscape, landscapes
from tests.unit.search.worlds import MAX_MOVES

EVENTS = {
    State.QUEUED: "candidate.proposed",
    State.EVALUATING: "candidate.evaluating",
    State.EVALUATED: "candidate.evaluated",
    State.REJECTED: "candidate.rejected",
}


def run(world: Landscape) -> Recording:
    """Play to the end, and write down what the service would."""
    events: list[dict[str, Any]] = []
    decisions: list[dict[str, Any]] = []

    def happened(kind: str, node: Node, **data: Any) -> None:
        events.append({"seq": len(events) + 1, "type": kind, "data": {"candidate_id": node.id, **data}})

    for _ in range(MAX_MOVES):
        before, seq = dict(world.nodes), len(events)
        view = record_of(world.job)
        decision = world.step()
        decisions.append({"seq": seq, "view": view, "decision": record_of(decision)})
        for node in world.tree[len(before) :]:
            happened("candidate.created", node)
        if decision.stop_reason is not None:
            break
        world.something_happens()
        for node in world.tree:
            was = before.get(node.id)
            paid = node.cost_usd - (was.cost_usd if was else 0)
            if paid:
                happened("llm.finished", node, cost_usd=str(paid))
            if node.state != (was.state if was else State.PROPOSING):
                happened(EVENTS[State(node.state)], node)
    nodes = [record_of(node) for node in world.tree]
    # As it comes over the wire.
    return Recording("", *json.loads(json.dumps([events, decisions, nodes])), proposals=())


@settings(max_examples=60, deadline=None)
@given(landscapes)
def test_every_search_runs_again_as_it_ran(world: Landscape) -> None:
    recording = run(world)
    found = replayed(recording)
    assert found.differences == []
    assert (found.decisions, found.expansions) == (len(recording.decisions), len(recording.nodes))


def change(place: int, **changes: Any) -> Callable[[list[dict[str, Any]]], None]:
    return lambda records: records[place].update(changes)


@pytest.mark.parametrize(
    ("part", "changed", "where"),
    [
        ("decisions", lambda rows: rows[0]["view"].update(slots=1), "decision 1"),
        ("decisions", lambda rows: rows[-1]["decision"].update(stop_reason="exhausted"), "decision "),
        ("decisions", lambda rows: rows.pop(), None),
        ("nodes", lambda rows: rows[3].update(operator="rewrite"), "candidate 3"),
        ("nodes", lambda rows: rows.append({**rows[-1], "id": "cand_x", "ordinal": 99}), "candidate 99"),
    ],
)
def test_what_was_changed_is_found(
    part: str, changed: Callable[[list[dict[str, Any]]], object], where: str | None
) -> None:
    recording = run(landscape(3, "uct", 20))
    changed(getattr(recording, part))
    differences = replayed(recording).differences
    assert [each for each in differences if each.where.startswith(where or "no such")] or where is None
    assert bool(differences) == (where is not None)  # that a last look found nothing to start is no decision to miss


def test_a_better_kernel_than_there_was_would_have_been_followed() -> None:
    recording = run(landscape(3, "greedy", 20, failing=0.0, duplicate=0.0))
    judged = [node for node in recording.nodes if node["speedup"] is not None]
    judged[0]["speedup"] = 1000.0  # type: ignore[index]
    assert replayed(recording).differences


def test_a_job_that_still_runs_may_have_more_than_was_decided_when_it_was_read() -> None:
    recording = run(landscape(3, "uct", 20))
    cut = replace(recording, decisions=recording.decisions[:6], ended=False)
    assert replayed(cut).differences == []
    assert replayed(replace(cut, ended=True)).differences


REQUEST = ProposalRequest(
    problem_name="softmax",
    problem_source="class Model: ...",
    target=Target("cpu", "cpp"),
    operator=Operator.REFINE,
    op_family="softmax",
    device={"cores": 2, "copy_gbps": 41.25, "toolchain": {"gcc": "13"}},
    parents=(
        Parent(
            "class ModelNew: ...",
            "ok",
            None,
            1.5,
            "one pass",
            "warning",
            ({"name": "small"},),
            diagnosis="Bound: memory.",
            id="cand_1",
        ),
    ),
    trials=(Trial({"BLOCK": 64, "FAST": True, "SCALE": 1.0}, 1.25),),
    seed=7,
    ordinal=3,
    model="a",
    advice="The loop is scalar.",
    prompt_tokens=12_000,
    knowledge=(Knowledge("fact", "Cache lines", "They have 64 bytes.", ours=True),),
)


def test_a_request_is_recorded_without_sources_and_comes_back_whole() -> None:
    record = json.loads(json.dumps(request_record(REQUEST)))
    assert "class Model" not in json.dumps(record)
    back = request_from(record, REQUEST.problem_source, {"cand_1": REQUEST.parents[0].source})
    assert build_prompt(back) == build_prompt(REQUEST)
    assert build_prompt(back).edits
    assert replace(back, parents=()) == replace(REQUEST, parents=())
    with pytest.raises(IncompleteRecord, match="cand_1"):
        request_from(record, REQUEST.problem_source, {})


def test_a_decision_comes_back_as_it_was() -> None:
    world = landscape(5, "uct", 20)
    world.run()
    decision = advance(world.job, world.tree)
    assert decision_from(json.loads(json.dumps(record_of(decision)))) == decision
    assert view_from(json.loads(json.dumps(record_of(world.job)))) == world.job
    assert [node_from(json.loads(json.dumps(record_of(node)))) for node in world.tree] == world.tree


def proposal(**changes: Any) -> dict[str, Any]:
    """A model's proposal as the API shows it."""
    source = "class ModelNew:\n    pass\n"
    record: dict[str, Any] = {
        "candidate_id": "cand_2",
        "ordinal": 2,
        "proposer": "llm",
        "model": "a",
        "parents": ["cand_1"],
        "state": "evaluated",
        "request": request_record(REQUEST),
        "prompt_version": build_prompt(REQUEST).version,
        "messages": [dict(message) for message in build_prompt(REQUEST).messages],
        "answer": f"a plan\n```python\n{source}```\n",
        "finish_reason": "stop",
        "error": None,
        "told_source": False,
        "source": source,
        "plan": "a plan",
        "failure": None,
    }
    return record | changes


def differences(**changes: Any) -> list[str]:
    parent = proposal(candidate_id="cand_1", proposer="builtin", source=REQUEST.parents[0].source)
    recording = Recording(REQUEST.problem_source, (), (), (), (parent, proposal(**changes)))
    return [each.what for each in replayed(recording).differences]


REJECTED = {"source": None, "plan": None, "state": "rejected"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"failure": "duplicate", "state": "rejected"},
        REJECTED | {"answer": "prose", "failure": "no_code"},
        REJECTED | {"answer": None, "error": "401", "finish_reason": None, "failure": "provider_error"},
        REJECTED | {"answer": None, "error": "no", "finish_reason": "content_filter", "failure": "refused"},
        REJECTED | {"answer": None, "finish_reason": "content_filter", "failure": "refused"},
        REJECTED | {"state": "cancelled"},
        REJECTED | {"state": "cancelled", "answer": None, "finish_reason": None},
        REJECTED | {"failure": "provider_error"},
        {"proposer": "ask/tell", "answer": None, "finish_reason": None, "told_source": True},
        REJECTED | {"state": "cancelled", "messages": None, "answer": None, "finish_reason": None},
    ],
)
def test_what_reads_as_it_did_is_no_difference(changes: dict[str, Any]) -> None:
    assert differences(**changes) == []


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"source": "class ModelNew:\n    x = 1\n"}, "the answer's source differs in line 2: was '    x = 1', is"),
        ({"plan": "another"}, "the answer's plan is not the stored one"),
        ({"failure": "no_code"}, "the answer reads as a candidate, stored is no_code"),
        (REJECTED | {"failure": "truncated", "answer": "prose"}, "the answer reads as no_code, stored is truncated"),
        ({"request": None}, "the prompt cannot be made again: its request is not on record"),
        ({"request": {"operator": "refine"}}, "the prompt cannot be made again: "),
        ({"messages": [{"role": "system", "content": "x"}]}, "the system message differs in line 1: was 'x', is"),
        ({"prompt_version": "old", "messages": []}, "the prompt was made by templates old, these are "),
        ({"messages": None}, "has a source, and no prompt is on record"),
    ],
)
def test_a_proposal_that_is_not_as_it_was_is_found(changes: dict[str, Any], what: str) -> None:
    assert any(each.startswith(what) for each in differences(**changes)), differences(**changes)


def test_an_older_prompt_that_comes_out_the_same_is_no_difference() -> None:
    assert differences(prompt_version="old") == []
