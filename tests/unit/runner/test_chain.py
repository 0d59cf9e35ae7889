"""A chain of calls on a GPU: what each call is given, and which results are there afterwards. Here on CPU tensors."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import torch

from worker.runner import eviction, protocol
from worker.runner.child import Session, _Slots
from worker.runner.mixing import Mix

SLOTS, STEPS, NONCE = 3, 20, 7


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setattr("worker.runner.kernelwright._builder", None)
    monkeypatch.setattr(eviction.Evictor, "__init__", lambda self, buffer: None)
    monkeypatch.setattr(eviction.Evictor, "step", lambda self, nonce, step: None)
    ours, theirs = socket.socketpair()
    made = Session(ours, theirs)
    made.evictor = eviction.Evictor(torch.empty(0))
    yield made
    ours.close()
    theirs.close()


def _results(session: Session, called: range) -> list[torch.Tensor]:
    """What a chain returns for calls in these steps: the sums of its inputs, into which each step writes."""
    inputs: list[tuple[torch.Tensor, ...]] = [(torch.full((64,), float(slot)),) for slot in range(SLOTS)]
    slots = _Slots(inputs, Mix(0, 1, -2.0, 2.0), retained=STEPS)
    results: list[torch.Tensor] = []
    session._chain(torch.sum, slots, results, protocol.MIX | protocol.RETAIN, STEPS, 2, called, NONCE)
    return results


def test_any_call_of_a_chain_has_its_result_held_to_the_end(session: Session) -> None:
    results = _results(session, range(STEPS))
    assert len(results) == STEPS
    assert len({float(result) for result in results}) == STEPS, "each step's values are its own"


@pytest.mark.parametrize(("first", "calls"), [(0, 4), (7, 5), (STEPS - 1, 1)])
def test_a_baseline_that_is_called_in_some_steps_only_gets_the_values_of_these_steps(
    session: Session, first: int, calls: int
) -> None:
    every = _results(session, range(STEPS))
    some = _results(session, range(first, first + calls))
    assert [float(result) for result in some] == [float(result) for result in every[first : first + calls]]
