"""Run a recorded search again: the same looks at the same trees, the same prompts, the same answers. Pure.

What is compared, and with what:
- each decision with what `advance` decides now, on the tree as the events up to that decision describe it;
- each new candidate with the expansion that asked for it;
- each prompt, to the character, with what the templates make now of the recorded request and the stored sources;
- each candidate's source, plan or failure with what reading the recorded answer gives now.

The evaluations are the recorded ones (`kernelwright replay CANDIDATE` judges again), and so are the answers; what the
built-in proposer and the tuner make is taken as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from search.advance import advance
from search.answers import read_call
from search.prompts import VERSION, NoPrompt, build_prompt
from search.proposing import LlmCall, Proposal
from search.recording import decision_from, node_from, request_from, view_from
from search.types import BY_MODEL, Decision, Expansion, Failure, Node, State

CENT = Decimal("0.000001")
"""The database's smallest amount of dollars."""

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not as it was: where, and what was and is."""

    where: str
    what: str


@dataclass(frozen=True, slots=True)
class Recording:
    """A job as the API tells it: JSON, in the order in which it happened."""

    problem_source: str
    events: Sequence[Record]
    decisions: Sequence[Record]
    nodes: Sequence[Record]
    """The tree as it is now."""
    proposals: Sequence[Record]
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Sources of parents that are candidates of other jobs (what was ported), by id."""
    ended: bool = True
    """Whether the job had ended when it was told; else it may have gone on while it was read."""


@dataclass(slots=True)
class Replayed:
    """What a replay went through, and what differed."""

    decisions: int = 0
    expansions: int = 0
    prompts: int = 0
    answers: int = 0
    differences: list[Difference] = field(default_factory=list)


def replayed(recording: Recording) -> Replayed:
    """Go through the whole recording. Raises ValueError for a record that cannot be read."""
    found = Replayed()
    _replay_decisions(recording, found)
    own = {each["candidate_id"]: each["source"] for each in recording.proposals if each["source"] is not None}
    sources = {**recording.elsewhere, **own}
    for proposal in recording.proposals:
        if proposal["proposer"] in BY_MODEL:
            _replay_proposal(proposal, recording.problem_source, sources, found)
    return found


class Past:
    """The tree as it was, event by event."""

    def __init__(self, nodes: Sequence[Node], events: Sequence[Record]) -> None:
        self._final = {node.id: node for node in nodes}
        self._nodes: dict[str, Node] = {}
        self._paid: dict[str, Decimal] = {}
        self._bills = Counter(event["data"].get("candidate_id") for event in events if _bill(event) is not None)

    @property
    def tree(self) -> list[Node]:
        """The nodes as they are after the events so far."""
        return [self._priced(node) for node in self._nodes.values()]

    def happen(self, event: Record) -> None:
        """One event more. Raises KeyError for a candidate that is in no tree."""
        candidate_id = event["data"].get("candidate_id")
        if event["type"] == "candidate.created":
            self._nodes[candidate_id] = _newborn(self._final[candidate_id])
        elif event["type"] == "llm.finished":
            bill = _bill(event)
            if bill is not None:
                self._paid[candidate_id] = self._paid.get(candidate_id, Decimal(0)) + bill
                self._bills[candidate_id] -= 1
        elif event["type"] in _AFTER:
            self._nodes[candidate_id] = _AFTER[event["type"]](self._final[candidate_id])

    def _priced(self, node: Node) -> Node:
        # Once all is paid, the sum is the database's own.
        paid = self._paid.get(node.id, Decimal(0)).quantize(CENT)
        return replace(node, cost_usd=paid if self._bills[node.id] else self._final[node.id].cost_usd)


def _newborn(node: Node) -> Node:
    return Node(node.id, node.ordinal, node.operator, node.proposer, node.model, node.parents)


def _proposed(node: Node, state: State = State.QUEUED) -> Node:
    """With its source, and nothing found about it yet."""
    return replace(
        _newborn(node),
        state=state,
        params=node.params,
        tunable=node.tunable,
        source_hash=node.source_hash,
        plan=node.plan,
    )


_AFTER: Mapping[str, Callable[[Node], Node]] = {
    "candidate.proposed": _proposed,
    "candidate.evaluating": lambda node: _proposed(node, State.EVALUATING),
    "candidate.evaluated": lambda node: replace(node, state=State.EVALUATED),
    "candidate.rejected": lambda node: replace(node, state=State.REJECTED),
}


def _bill(event: Record) -> Decimal | None:
    cost = event["data"].get("cost_usd") if event["type"] == "llm.finished" else None
    return None if cost is None else Decimal(cost)


def _replay_decisions(recording: Recording, found: Replayed) -> None:
    nodes = sorted((node_from(record) for record in recording.nodes), key=lambda node: node.ordinal)
    past, events = Past(nodes, recording.events), list(recording.events)
    planned: list[Expansion] = []
    for number, record in enumerate(recording.decisions, 1):
        while events and events[0]["seq"] <= record["seq"]:
            past.happen(events.pop(0))
        was = decision_from(record["decision"])
        now = advance(view_from(record["view"]), past.tree)
        found.decisions += 1
        found.expansions += len(was.expansions)
        planned += was.expansions
        if now != was:
            found.differences.append(Difference(f"decision {number}", f"was {_told(was)}, is {_told(now)}"))
    found.differences += _strays(nodes if recording.ended else nodes[: len(planned)], planned)


def _strays(nodes: Sequence[Node], planned: Sequence[Expansion]) -> Iterator[Difference]:
    """Candidates that are not what the decisions asked for."""
    for place in range(max(len(nodes), len(planned))):
        if place >= len(nodes):
            yield Difference(f"candidate {place + 1}", f"was decided ({_step(planned[place])}) and never made")
        elif place >= len(planned):
            yield Difference(f"candidate {nodes[place].ordinal}", "no decision on record asked for it")
        elif _step(planned[place]) != (made := _step(nodes[place])):
            yield Difference(f"candidate {nodes[place].ordinal}", f"is {made}, decided was {_step(planned[place])}")


def _told(decision: Decision) -> str:
    if decision.stop_reason is not None:
        return f"the end ({decision.stop_reason})"
    return "; ".join(_step(each) for each in decision.expansions) or "nothing"


def _step(step: Expansion | Node) -> str:
    who = step.model or str(step.proposer)
    return f"{step.operator} by {who}" + (f" from {', '.join(step.parents)}" if step.parents else "")


def _replay_proposal(record: Record, problem_source: str, sources: Mapping[str, str], found: Replayed) -> None:
    where = f"candidate {record['ordinal']}"
    answered = any(record[name] is not None for name in ("answer", "error", "finish_reason"))
    if record["messages"] is None:
        # A call or a question that never came to an end: a job was cancelled, or workers died.
        if record["source"] is not None and not record["told_source"]:
            found.differences.append(Difference(where, "has a source, and no prompt is on record"))
        return
    found.prompts += 1
    found.differences += [Difference(where, what) for what in _prompt_differences(record, problem_source, sources)]
    if answered:
        found.answers += 1
        found.differences += [Difference(where, what) for what in _answer_differences(record, sources)]


def _prompt_differences(record: Record, problem_source: str, sources: Mapping[str, str]) -> Iterator[str]:
    if record["request"] is None:
        yield "the prompt cannot be made again: its request is not on record"
        return
    try:
        messages = build_prompt(request_from(record["request"], problem_source, sources)).messages
    except (NoPrompt, ValueError) as error:
        yield f"the prompt cannot be made again: {error}"
        return
    if record["prompt_version"] != VERSION and messages != tuple(record["messages"]):
        yield f"the prompt was made by templates {record['prompt_version']}, these are {VERSION}"
        return
    for role, was, now in _by_role(record["messages"], messages):
        if was != now:
            yield f"the {role} message differs {_place(was, now)}"


def _by_role(was: Sequence[Record], now: Sequence[Record]) -> Iterator[tuple[str, str, str]]:
    for number in range(max(len(was), len(now))):
        before = was[number] if number < len(was) else {}
        after = now[number] if number < len(now) else {}
        yield str(before.get("role") or after.get("role")), before.get("content", ""), after.get("content", "")


def _answer_differences(record: Record, sources: Mapping[str, str]) -> Iterator[str]:
    parents = [sources.get(parent, "") for parent in record["parents"]]
    read = read_call(
        LlmCall(
            prompt=(),
            answer=record["answer"],
            model=record["model"] or "",
            error=record["error"],
            finish_reason=record["finish_reason"],
        ),
        parents,
    )
    # What was rejected after it was read, as a duplicate, has a source all the same.
    failure = None if record["failure"] == Failure.DUPLICATE else record["failure"]
    # One that never got further than its answer: the job ended first, or a worker died once too often.
    unsettled = record["state"] == State.CANCELLED and record["source"] is None
    lost = failure == Failure.PROVIDER_ERROR and record["error"] is None
    if unsettled or lost:
        return
    if read.failure != failure:
        yield f"the answer reads as {read.failure or 'a candidate'}, stored is {failure or 'a candidate'}"
    elif read.source != record["source"]:
        yield f"the answer's source differs {_place(record['source'] or '', read.source or '')}"
    elif _plan(read) != record["plan"]:
        yield "the answer's plan is not the stored one"


def _plan(proposal: Proposal) -> str | None:
    return proposal.plan if proposal.source is not None else None


def _place(was: str, now: str) -> str:
    """Where two texts part, in a line and what stands there."""
    before, after = was.split("\n"), now.split("\n")
    line = next((n for n, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), None)
    line = min(len(before), len(after)) if line is None else line
    return f"in line {line + 1}: was {_shown(before, line)}, is {_shown(after, line)}"


def _shown(lines: Sequence[str], line: int) -> str:
    return repr(lines[line][:80]) if line < len(lines) else "the end"
