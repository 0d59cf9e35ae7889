"""What the referee hands to `certify`, and nothing more: enough to start fresh runners and to judge once again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from worker.judge.dynamics.check import Training
from worker.judge.exhibits import Exhibits
from worker.judge.lease import DeviceLease
from worker.judge.report import Evaluation
from worker.judge.runners.sessions import Runner
from worker.judge.verdict import Fault


@dataclass(frozen=True, slots=True)
class RefereeParts:
    """The referee's means, for one problem on one device."""

    device: str
    """`cpu` or `cuda:0`."""
    exhibits: Exhibits
    lease: DeviceLease
    runner: Callable[[bool], AbstractContextManager[Runner]]
    """A fresh confined runner with its build broker. True: without a limit on address space, which AddressSanitizer
    needs (it reserves 16 TiB); resident memory stays limited."""
    again: Callable[[], Evaluation]
    """The whole judgement once more, in fresh processes, with new secret seeds, parameters, inputs and shapes. Lets go
    of `exhibits` and of what `training` made. Answers a failed judgement with its verdict instead of raising."""
    crowded_out: Callable[[Fault], bool] = lambda _fault: False
    """Whether a candidate found no memory because others have of it what this judge was promised."""
    narrow: Callable[[], None] = lambda: None
    """Keep of `exhibits` what the system checks need alone."""
    training: Training | None = None
    """Training with the candidate in its place."""
    control: Callable[[], Evaluation] | None = None
    """The reference timed as a candidate, against eager alone."""
