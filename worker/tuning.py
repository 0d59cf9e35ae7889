"""Tune a kernel: measure many of its configurations in one lease, hand the best one on to be judged in full.

    known configurations ► a better one waits?  ► propose it
                         ► workloads want different ones? ► propose a dispatching source (once)
                         ► else: suggest ► judge.measure ► … ► propose the best, or say that there is none

What is measured is kept by the content of the kernel's source, so a later `tune` goes on where this one stopped, in
this job or another. The optimiser (`search.tuning`) needs nothing but the configurations measured so far.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from db import events, ledger, tunings
from db.ledger import Claim
from db.models import Candidate, Job
from db.tunings import NewTuning
from search import configurations
from search.configurations import Dispatch, Measured
from search.proposing import Parent, Proposal, Trial
from search.tunables import Space, read_space, with_values
from search.tuning import hinted, propose_tuning, suggest
from search.types import Failure, Params
from worker.briefing import Brief
from worker.dispatching import CannotDispatch, dispatching_source
from worker.heartbeat import Lease
from worker.judge.client import JudgeFailed
from worker.judge.report import EvaluationRequest
from worker.requests import judge_request
from worker.runtime import Runtime

log = structlog.get_logger(__name__)

DISPATCH_PLAN: Final = "dispatch: "
"""How the plan of a dispatching candidate begins; a kernel gets one."""

KEPT: Final = ("ratios", "verdict", "reason")
"""What is stored of a measurement, beside its params."""


@dataclass(slots=True)
class Tuned:
    """What came of it: a proposal, and what was measured for it (None where nothing was)."""

    proposal: Proposal
    tuning: NewTuning | None = None


@dataclass(slots=True)
class Known:
    """What is known about the kernel's configurations so far."""

    measured: list[Measured] = field(default_factory=list)
    signatures: dict[str, Any] = field(default_factory=dict)

    def add(self, trial: Mapping[str, Any]) -> None:
        """One configuration, as it is stored."""
        self.measured.append(Measured(trial["params"], trial.get("ratios") or {}))


def tune(here: Runtime, claim: Claim, brief: Brief) -> Tuned:
    """The best configuration to judge next. Raises Fenced and CancelRequested; JudgeFailed where the machine failed."""
    parent = brief.request.parents[0]
    space = read_space(parent.source)
    effort = here.settings.tune_configurations
    if space is None or not effort:
        return Tuned(propose_tuning(brief.request))
    known = _known(here, claim, parent, space)
    judged = [space.defaults, *(trial.params for trial in brief.request.trials)]
    proposal = _configuration(parent, known, judged) or _dispatching(here, claim, parent, space, known)
    if proposal is not None:
        return Tuned(proposal)
    tuning = _explore(here, claim, brief, space, known)
    proposal = _configuration(parent, known, judged) or _nothing_better(space, known)
    return Tuned(proposal, tuning if tuning.trials else None)


def _known(here: Runtime, claim: Claim, parent: Parent, space: Space) -> Known:
    """What was measured before; what the judge refused since counts as failed, however fast it was."""
    with here.transaction() as session:
        stored = tunings.tunings_of(session, parent.id or "")
        failed = tunings.failed_configurations(session, claim.job_id, parent.id or "")
    refused = {configurations.key_of(params) for params in failed}
    known = Known()
    for row in stored:
        known.signatures |= row.get("signatures") or {}
        for trial in row.get("trials") or ():
            if space.allows(trial["params"]):
                gone = configurations.key_of(trial["params"]) in refused
                known.add(trial | {"ratios": {}} if gone else trial)
    return known


def _explore(here: Runtime, claim: Claim, brief: Brief, space: Space, known: Known) -> NewTuning:
    """Measure configurations in one lease, and add them to `known`."""
    request = _request(here, claim, brief)
    judge, settings = here.judge(request.hardware), here.settings
    lease = Lease(here.sessions, claim, interrupt=judge.abort, lease_s=settings.lease_s, renew_s=settings.renew_s)
    began_s = time.monotonic()
    tuning = NewTuning(brief.request.parents[0].id or "", trials=[])
    try:
        with lease:
            for params in _suggestions(here, brief, space, known, lease):
                found = judge.measure(request, with_values(request.candidate_source, params))
                tuning.gpu_s += found["gpu_s"]
                tuning.trials.append({"params": params, **{name: found[name] for name in KEPT}})
                known.add(tuning.trials[-1])
                known.signatures |= found["signatures"]
            if tuning.trials and not lease.interrupted:
                judge.rest(request.problem_source)
    except JudgeFailed:
        lease.check()  # a judge that was told to stop has not failed
        raise
    lease.check()
    tuning.wall_s, tuning.signatures = time.monotonic() - began_s, known.signatures
    log.info("tuning.measured", configurations=len(tuning.trials), space=space.size, wall_s=round(tuning.wall_s, 1))
    return tuning


def _suggestions(here: Runtime, brief: Brief, space: Space, known: Known, lease: Lease) -> Iterator[Params]:
    """What to measure next, until there is enough, the time is over or the space is exhausted.

    The time starts after the first: until then a judge may have had to start and prepare its problem, 5 to 30 s.
    """
    until_s = float("inf")
    for number in range(here.settings.tune_configurations):
        if number == 1:
            until_s = time.monotonic() + here.settings.tune_wall_s
        trials = [Trial(space.defaults, 1.0), *configurations.as_trials(known.measured)]
        params = hinted(space, trials, brief.request.hints) or suggest(space, trials, brief.request.seed)
        if params is None or lease.interrupted or time.monotonic() > until_s:
            return
        yield params


def _request(here: Runtime, claim: Claim, brief: Brief) -> EvaluationRequest:
    """The kernel as it is, to measure against."""
    with here.transaction() as session:
        events.lock_job(session, claim.job_id)
        ledger.hold(session, claim)
        parent = session.get_one(Candidate, brief.request.parents[0].id)
        return judge_request(session, session.get_one(Job, claim.job_id), parent)


def _configuration(parent: Parent, known: Known, judged: Sequence[Params]) -> Proposal | None:
    fastest = configurations.worth_judging(known.measured, judged)
    if fastest is None:
        return None
    values = ", ".join(f"{name}={value!r}" for name, value in fastest.params.items())
    plan = f"tune: {values} (measured {fastest.gain:.2f} times as fast, best of {len(known.measured)})"
    return Proposal(source=with_values(parent.source, fastest.params), plan=plan, params=fastest.params)


def _dispatching(here: Runtime, claim: Claim, parent: Parent, space: Space, known: Known) -> Proposal | None:
    """A source that picks the configuration by the inputs' sizes, where that promises enough; each kernel gets one."""
    dispatch = configurations.plan_dispatch(known.measured, space.defaults, known.signatures)
    if dispatch is None or _was_dispatched(here, claim, parent):
        return None
    try:
        source = dispatching_source(parent.source, space, dispatch)
    except CannotDispatch as reason:
        log.info("dispatch.not_written", parent=parent.id, reason=str(reason))
        return None
    return Proposal(source=source, plan=DISPATCH_PLAN + _described(dispatch))


def _was_dispatched(here: Runtime, claim: Claim, parent: Parent) -> bool:
    with here.transaction() as session:
        return tunings.has_child_with_plan(session, claim.job_id, parent.id or "", DISPATCH_PLAN)


def _described(dispatch: Dispatch) -> str:
    kinds = {configurations.key_of(params) for params in (*dispatch.choices.values(), dispatch.fallback)}
    return (
        f"{len(kinds)} configurations by the inputs' sizes, {dispatch.gain:.2f} times as fast as the best single one "
        "as measured; all other sizes take that one"
    )


def _nothing_better(space: Space, known: Known) -> Proposal:
    tried = len(known.measured)
    detail = f"{tried} configurations of {space.size} measured (before constraints), none faster than those judged"
    return Proposal(failure=Failure.EXHAUSTED, detail=detail)
