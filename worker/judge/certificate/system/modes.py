"""Inference mode and `eval()`: what serves a model calls it so, and no other check does. And a first call without
gradients, as a warm-up or a validation before training is.

A cache that is looked up by a tensor's version finds none in inference mode, and a module may do less in `eval()`,
where nobody has looked. One that decided at its first call whether it is trained, and then never was, was certified.
"""

from __future__ import annotations

from worker.judge.certificate.stage import bench_of, exhibit_of, judge_outputs, made
from worker.judge.trial import CONSTRUCT_LIMIT_S, RUN_LIMIT_S, SUBJECT, Trial

NAME = "inference mode, eval()"


def check(trial: Trial) -> None:
    """One call of each, of a new module, and a usual one between them. Raises Fault `incorrect`; whoever refuses gets a
    reservation."""
    bench, exhibit = bench_of(trial), exhibit_of(trial)
    case = exhibit.cases[0]
    bench.construct(SUBJECT, CONSTRUCT_LIMIT_S)
    bench.write(0, 0)
    results = case.results
    if not made(trial, NAME, "a call in inference mode", "inference", RUN_LIMIT_S, results=len(results)):
        return
    judge_outputs(trial, NAME, case, bench.read(), results)
    judge_outputs(trial, NAME, case, bench.run(SUBJECT, 0, RUN_LIMIT_S))
    if not made(trial, NAME, "a call in eval()", "evaluation", RUN_LIMIT_S):
        return
    figures = judge_outputs(trial, NAME, exhibit.truth.in_eval().case("eval", case.inputs), bench.read())
    trial.record(NAME, True, "right under torch.inference_mode() and in eval()", **figures)
