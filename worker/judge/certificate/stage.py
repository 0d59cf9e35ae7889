"""A stage for one system check: a fresh runner, the candidate loaded and called once, on the smallest workload.

Every check has a runner of its own, because a failed one may leave a context that no later check should inherit.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from worker.judge.certificate.document import Outcome
from worker.judge.certificate.parts import RefereeParts
from worker.judge.exhibits import Exhibit
from worker.judge.numerics.case import Case
from worker.judge.report import Evaluation, EvaluationRequest
from worker.judge.runners.bench import Workbench
from worker.judge.trial import CONSTRUCT_LIMIT_S, FIRST_RUN_LIMIT_S, SUBJECT, Trial
from worker.judge.verdict import CANNOT, Fault, Verdict
from worker.runner import values

_LOAD_LIMIT_S = 150.0
_SLOTS = 2


class NotApplicable(Exception):
    """The check has no meaning on this device, for this language or for this problem. The message says why."""


@dataclass(frozen=True, slots=True)
class SystemCheck:
    """One thing that is asked of a finalist, and the stage that it needs."""

    name: str
    ask: Callable[[Trial], None]
    trained: bool = False
    """On the smallest workload that has a backward, if any has one."""
    alone: bool = False
    """No other judge uses the device meanwhile."""
    unlimited: bool = False
    """The runner's address space has no limit."""


class SystemBench(Workbench):
    """A workbench that can also send the messages of `worker.runner.examine` and `worker.runner.usage`."""

    def examine(
        self, operation: str, timeout_s: float, slot: int = 0, fds: tuple[int, ...] = (), **fields: Any
    ) -> dict[str, Any]:
        """Poison the outputs, send one message about `slot`, and return the runner's (untrusted) answer."""
        return self._asked(f"examine.{operation}", timeout_s, slot, fds, **fields)

    def use(self, operation: str, timeout_s: float, **fields: Any) -> dict[str, Any]:
        """The same of a message about the first slot, by which the module is used as its users do."""
        return self._asked(f"usage.{operation}", timeout_s, 0, (), **fields)

    def _asked(self, op: str, timeout_s: float, slot: int, fds: tuple[int, ...], **fields: Any) -> dict[str, Any]:
        self.poison()
        message = {"op": op, "subject": SUBJECT, "workload": self.name} | fields
        places = [values.encode_ref(ref) for ref in self._outputs]
        return self.runner.ask(message | {"inputs": self._slots[slot].encoded, "outputs": places}, timeout_s, fds)

    def put_model(self, state: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """Put other parameters into the arena; they and the constructor's arguments, as fields of a message."""
        return {"init": self._init, "state": self._put_state(state)}


@contextmanager
def staged(
    parts: RefereeParts,
    request: EvaluationRequest,
    *,
    unlimited: bool = False,
    alone: bool = False,
    trained: bool = False,
) -> Iterator[Trial]:
    """A trial whose only bench holds the smallest workload (`trained`: of those with a backward, if any has one). Its
    evaluation collects rows for the certificate alone.

    `alone`: no other judge uses the device meanwhile; while the candidate is loaded, built and compiled, they may.
    Raises Fault when the candidate, which was judged right before, fails to load or to run here.
    """
    exhibit = parts.exhibits.smallest(trained=trained)
    evaluation = Evaluation(request.candidate_id)
    rng = random.Random(secrets.randbits(64))
    with parts.runner(unlimited) as runner, ExitStack() as held:
        held.enter_context(parts.lease.lent(runner))
        message = {"op": "load", "subject": SUBJECT, "source": request.candidate_source, "class": "ModelNew"}
        runner.ask(message | {"compile": None}, _LOAD_LIMIT_S)
        bench = SystemBench(runner, exhibit.instance, exhibit.cases, parts.device, _SLOTS)
        try:
            bench.construct(SUBJECT, CONSTRUCT_LIMIT_S)
            bench.write(0, 0)
            outputs = bench.run(SUBJECT, 0, FIRST_RUN_LIMIT_S[request.language])
            trial = Trial(runner, request, parts.exhibits, parts.device, rng, evaluation, {exhibit.name: bench})
            trial.unstopped = partial(parts.lease.unstopped, runner)
            judge_outputs(trial, "fresh runner", exhibit.cases[0], outputs)
            if alone:
                runner.freeze()
                held.close()
                held.enter_context(parts.lease.exclusive())
                runner.thaw()
            yield trial
        finally:
            bench.close()


def bench_of(trial: Trial) -> SystemBench:
    """The stage's only bench."""
    (bench,) = trial.benches.values()
    assert isinstance(bench, SystemBench), "this trial was not made by staged()"
    return bench


def exhibit_of(trial: Trial) -> Exhibit:
    """What the stage's only bench holds."""
    (name,) = trial.benches
    return next(each for each in trial.exhibits.workloads if each.name == name)


def state_of(exhibit: Exhibit) -> dict[str, torch.Tensor]:
    """What of the reference has a name by which it can be read and loaded: of a shared parameter the first one."""
    model = exhibit.instance.model
    named: Collection[str] = {*dict(model.named_parameters()), *dict(model.named_buffers())}
    return {name: tensor for name, tensor in model.state_dict().items() if name in named}


@contextmanager
def able(doubts: list[str], what: str, cannot: Collection[str] = CANNOT) -> Iterator[None]:
    """Where the candidate ends in one of `cannot`, that is a doubt, and what else it is asked is asked all the same.
    Other faults pass through."""
    try:
        yield
    except Fault as fault:
        if fault.verdict not in cannot:
            raise
        doubts.append(unable(what, fault))


def conclude(trial: Trial, name: str, doubts: list[str], passed: str, **figures: float | str) -> None:
    """Record that the check passed, or a reservation with each doubt."""
    if doubts:
        reserve(trial, name, "; ".join(doubts))
    else:
        trial.record(name, True, passed, **figures)


def judge_outputs(
    trial: Trial,
    name: str,
    case: Case,
    outputs: tuple[torch.Tensor, ...],
    places: Collection[int] | None = None,
    of: str = "",
) -> dict[str, float | str]:
    """The worst output's figures, of those at `places` (default: of all). `of`: what returned them. Records the failed
    check and raises Fault `incorrect` when one is wrong."""
    worst: dict[str, float | str] = {}
    closest = -1.0
    for index, found in enumerate(case.judge(outputs)):
        if places is not None and index not in places:
            continue
        limit = case.tolerances[index].threshold
        figures: dict[str, float | str] = {"error": found.error, "threshold": limit, "output": index}
        if not found.passed:
            reason = f"output {index}{of and f' of {of}'} is wrong: {found.reason}"
            raise trial.refuse(name, Verdict.INCORRECT, reason, **figures)
        if found.error / max(limit, 1e-300) > closest:
            closest, worst = found.error / max(limit, 1e-300), figures
    return worst


def reserve(trial: Trial, name: str, detail: str, **figures: float | str) -> None:
    """Record a reservation: worth knowing, no reason to refuse."""
    trial.record(name, False, detail, outcome=str(Outcome.RESERVATION), **figures)


def unable(name: str, fault: Fault) -> str:
    """Why a check could not be made, from the fault that ended it."""
    return f"{name} could not be made: {fault.reason[:300]}"
