"""Inference mode and `eval()`: what serves a model calls it so, and no other check does. And a first call without
gradients, as a warm-up or a validation before training is.

A cache that is looked up by a tensor's version finds none in inference mode, and a module may do less in `eval()`,
where nobody has looked. One that decided at its first call whether it is trained, and then never was, was certified.
"""

from __future__ import annotations

from worker.judge.certificate.stage import SystemCheck, able, bench_of, conclude, exhibit_of, judge_outputs, state_of
from worker.judge.trial import CONSTRUCT_LIMIT_S, RUN_LIMIT_S, SUBJECT, Trial

NAME = "inference mode, eval()"


def check(trial: Trial) -> None:
    """One call of each, of a new module, and a usual one between them. Raises Fault `incorrect`; whoever refuses gets a
    reservation."""
    bench, exhibit = bench_of(trial), exhibit_of(trial)
    case = exhibit.cases[0]
    bench.construct(SUBJECT, CONSTRUCT_LIMIT_S)
    bench.write(0, 0)
    figures: dict[str, float | str] = {}
    doubts: list[str] = []
    what = "a call in inference mode"
    with able(doubts, what):
        bench.use("inference", RUN_LIMIT_S, results=len(case.results))
        judge_outputs(trial, NAME, case, bench.read(), case.results, of=what)
    if not bench.runner.dead:  # a usual call, which nobody may refuse
        outputs = bench.run(SUBJECT, 0, RUN_LIMIT_S)
        judge_outputs(trial, NAME, case, outputs, of="a call after one in inference mode")
    what = "a call in eval()"
    with able(doubts, what):
        # Training moved its statistics, as it should.
        bench.load_state(SUBJECT, state_of(exhibit), RUN_LIMIT_S)
        bench.use("evaluation", RUN_LIMIT_S)
        figures = judge_outputs(trial, NAME, exhibit.truth.in_eval().case("eval", case.inputs), bench.read(), of=what)
    conclude(trial, NAME, doubts, "right under torch.inference_mode() and in eval()", **figures)


CHECK = SystemCheck(NAME, check, trained=True)
