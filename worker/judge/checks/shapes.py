"""Other shapes and memory layouts than the workloads': general, specialised and refuses, or specialised and wrong. And
the workloads themselves with values and indices in patterns, and with other numbers of threads.

A kernel may be made for the declared workloads only, if it says so: it must raise. A silently wrong result, or a crash
that takes the process with it, on a shape that the reference accepts is a wrong kernel.
"""

from __future__ import annotations

import torch

from worker.judge.checks.values import judge_case
from worker.judge.inputs.probes import Variant
from worker.judge.reference.problem import Instance
from worker.judge.runners.bench import Workbench
from worker.judge.trial import CONSTRUCT_LIMIT_S, FIRST_RUN_LIMIT_S, SUBJECT, Trial
from worker.judge.verdict import CANNOT, Fault
from worker.runner import values


def check(trial: Trial) -> None:
    """Raises Fault with the verdict of the variant that failed."""
    smallest = trial.exhibits.workloads[0].instance
    for variant in trial.exhibits.patterns:
        if variant.threads and variant.instance is not smallest and trial.request.language != "cpp":
            continue  # an interpreter of kernels takes minutes for a large workload
        _refusal(trial, variant)
    refused = []
    called: dict[tuple[object, ...], str] = {}
    for variant in (*trial.exhibits.shapes, *trial.exhibits.layouts):
        reason = _refusal(trial, variant, called)
        if reason is not None:
            refused.append(f"{variant.name} ({reason[:80]})")
    total = len(trial.exhibits.shapes) + len(trial.exhibits.layouts)
    if not total:
        trial.record("generality", True, "the reference takes no other shape", generality="unknown")
        return
    kind = "specialised and refuses" if refused else "general"
    detail = f"{kind}: {total - len(refused)} of {total} other shapes and layouts right"
    if refused:
        detail += "; refused: " + ", ".join(refused[:3])
    trial.record("generality", True, detail, generality=kind)


def _refusal(trial: Trial, variant: Variant, called: dict[tuple[object, ...], str] | None = None) -> str | None:
    """Why the candidate refuses this variant, or None when it is right. Raises Fault when it is wrong, or refuses what
    is listed.

    `called`: the bench whose model was right last, by what models are made with. That one is called on, as one module
    is with batch after batch: a layer norm that kept the size of its first call was certified.
    """
    cases = list(variant.cases)
    name = f"variant {variant.name}"
    made_with = _made_with(variant.instance)
    model_of = None if called is None else called.get(made_with)
    bench = Workbench(trial.runner, variant.instance, cases, trial.device, 1, name=name, shift=variant.shift)
    if variant.threads:
        bench.use_threads(variant.threads)
    try:
        for number, case in enumerate(cases):
            try:
                outputs = _outputs(trial, bench, number, model_of)
            except Fault as fault:
                if fault.verdict in CANNOT and not trial.runner.dead and not variant.listed:
                    return fault.reason
                trial.record(f"generality/{variant.name}", False, fault.reason)
                raise Fault(fault.verdict, f"{variant.name}: {fault.reason}", fault.log) from fault
            if variant.compared:
                after = " on a module that was called with others before" if model_of else ""
                judge_case(trial, f"generality/{variant.name}{after}", case, outputs)
        if called is not None and made_with:
            called[made_with] = name
        return None
    finally:
        if variant.threads and not trial.runner.dead:
            bench.use_threads()
        bench.close()


def _outputs(trial: Trial, bench: Workbench, number: int, model_of: str | None) -> tuple[torch.Tensor, ...]:
    if not number:
        bench.construct(SUBJECT, CONSTRUCT_LIMIT_S, model_of=model_of)
    bench.write(0, number)
    return bench.run(SUBJECT, 0, FIRST_RUN_LIMIT_S[trial.request.language])


def _made_with(instance: Instance) -> tuple[object, ...]:
    """What tells whether two instances can share a model: constructor's arguments, and the sizes of its state. Empty
    where tensors are among the former."""
    if values.tensors_of(instance.init):
        return ()
    return repr(instance.init), *((name, each.shape) for name, each in instance.model.state_dict().items())
