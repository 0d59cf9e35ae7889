"""Gradients where none are judged: a result that carries a history says that they can be had.

A softmax whose backward was wrong was certified on a CPU, for which its problem has no workload with a backward. A
module that hands out no history is right: whoever trains with it is told so.
"""

from __future__ import annotations

import torch

from worker.judge.certificate.stage import NotApplicable, SystemBench, SystemCheck, reserve, unable
from worker.judge.exhibits import Exhibit
from worker.judge.numerics.case import Case
from worker.judge.numerics.truth import Truth
from worker.judge.reference.problem import Instance
from worker.judge.trial import CONSTRUCT_LIMIT_S, FIRST_RUN_LIMIT_S, SUBJECT, Trial
from worker.judge.verdict import CANNOT, Fault, ReferenceFailed, Verdict

NAME = "gradients where none are judged"
_NONE = "carries no gradient"
"""Of what `worker.runner.step` raises for a result without a history."""


def check(trial: Trial) -> None:
    """Forward and backward of the smallest workload. Wrong gradients are a reservation, and where the SPEC has a
    backward for other hardware, Fault `incorrect` is raised."""
    exhibit = trial.exhibits.smallest(trained=True)
    if exhibit.instance.backward:
        raise NotApplicable("a workload has a backward, which is judged")
    instance, case = _with_backward(trial, exhibit)
    name = f"{exhibit.name} and its gradients"
    bench = SystemBench(trial.runner, instance, [case], trial.device, 1, name=name)
    try:
        bench.construct(SUBJECT, CONSTRUCT_LIMIT_S)
        bench.write(0, 0)
        outputs = bench.run(SUBJECT, 0, FIRST_RUN_LIMIT_S[trial.request.language])
    except Fault as fault:
        if fault.verdict not in CANNOT:
            raise
        if _NONE in fault.reason:
            trial.record(NAME, True, f"there are none to be had: {fault.reason[:300]}")
        else:
            reserve(trial, NAME, unable("a call with gradients", fault))
        return
    finally:
        bench.close()
    found = zip(case.names, case.judge(outputs), strict=True)
    wrong = next((f"{what} is wrong: {comparison.reason}" for what, comparison in found if not comparison.passed), "")
    if wrong and trial.exhibits.problem.spec.backward:
        raise trial.refuse(NAME, Verdict.INCORRECT, wrong)
    if wrong:
        reserve(trial, NAME, f"{wrong}: call it under torch.no_grad()")
        return
    trial.record(NAME, True, "they are right")


def _with_backward(trial: Trial, exhibit: Exhibit) -> tuple[Instance, Case]:
    """The workload with a backward, and the first draw of its inputs. Raises NotApplicable where the reference has
    none."""
    problem, listed = trial.exhibits.problem, exhibit.instance
    seed = trial.rng.getrandbits(32)
    try:
        instance = problem.instance(listed.workload, trial.device, seed, listed.init, backward=True)
        if not instance.backward:
            raise NotApplicable("no result is of floats")
        like = instance.like[instance.forward_inputs :]
        if any(each.element_size() < 2 for each in like):
            raise NotApplicable("a result is of 8-bit floats")
        slopes = [torch.randn_like(each) for each in like]
        truth = Truth(instance, problem.spec.precision, exhibit.domains)
        return instance, truth.case("gradients", (*exhibit.cases[0].inputs, *slopes))
    except ReferenceFailed as none:
        raise NotApplicable(f"the reference has no gradients: {none}") from none


CHECK = SystemCheck(NAME, check)
