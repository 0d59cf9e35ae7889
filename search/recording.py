"""The search as plain JSON and back: what is stored so that every decision and every prompt can be made again.

Whole objects are stored and not chosen fields, so what is added to them later is on record without a change here. Only
a request's sources are left out: they are rows of their own (the problem, the parents), up to 50 KB each, and putting
them back from those rows is part of what a replay shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter

from search.proposing import ProposalRequest
from search.types import Decision, JobView, Node


class IncompleteRecord(ValueError):
    """The record cannot be read back: the message says what is missing."""


def record_of(value: JobView | Decision | Node) -> dict[str, Any]:
    """The value as JSON."""
    kind: Any = type(value)
    record: dict[str, Any] = _adapter(kind).dump_python(value, mode="json")
    return record


def view_from(record: Mapping[str, Any]) -> JobView:
    """The job as a decision saw it. Raises ValueError for what is no record of one."""
    view: JobView = _adapter(JobView).validate_python(dict(record))
    return view


def decision_from(record: Mapping[str, Any]) -> Decision:
    """A decision. Raises ValueError for what is no record of one."""
    decision: Decision = _adapter(Decision).validate_python(dict(record))
    return decision


def node_from(record: Mapping[str, Any]) -> Node:
    """A node of the tree. Raises ValueError for what is no record of one."""
    node: Node = _adapter(Node).validate_python(dict(record))
    return node


def request_record(request: ProposalRequest) -> dict[str, Any]:
    """The request as JSON, without the problem's source and the parents'."""
    parents = tuple(replace(parent, source="") for parent in request.parents)
    bare = replace(request, problem_source="", parents=parents)
    record: dict[str, Any] = _adapter(ProposalRequest).dump_python(bare, mode="json")
    return record


def request_from(record: Mapping[str, Any], problem_source: str, sources: Mapping[str, str]) -> ProposalRequest:
    """The request with its sources back in place; `sources` are the candidates' by id.

    Raises IncompleteRecord when a parent's source is not among them, ValueError for what is no record of a request.
    """
    bare: ProposalRequest = _adapter(ProposalRequest).validate_python(dict(record))
    missing = [str(parent.id) for parent in bare.parents if parent.id not in sources]
    if missing:
        raise IncompleteRecord(f"no source of the parent {', '.join(missing)}")
    parents = tuple(replace(parent, source=sources[str(parent.id)]) for parent in bare.parents)
    return replace(bare, problem_source=problem_source, parents=parents)


@lru_cache(maxsize=8)
def _adapter(kind: type) -> TypeAdapter[Any]:
    # Half a millisecond each; the modules that never record need not pay for it.
    return TypeAdapter(kind)
