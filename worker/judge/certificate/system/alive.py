"""Two results alive at once: a second call must not write into what the first returned, nor what comes into the place
of the first one's inputs change it, as where a loop fills one buffer with batch after batch."""

from __future__ import annotations

from worker.judge.certificate.stage import NotApplicable, SystemCheck, bench_of, judge_outputs
from worker.judge.numerics.twin import outputs_of_their_own
from worker.judge.trial import RUN_LIMIT_S, SUBJECT, Trial

NAME = "two results alive at once"


def check(trial: Trial) -> None:
    """Call on one draw, then on another, and only then read the first result. The other draw lies elsewhere, and once
    more in the first one's place. Raises Fault `incorrect`."""
    bench = bench_of(trial)
    if len(bench.cases) < 2:
        raise NotApplicable("this workload has only one draw of inputs")
    bench.write(0, 0)
    bench.write(1, 1)
    figures = judge_outputs(trial, NAME, bench.cases[0], bench.run(SUBJECT, 0, RUN_LIMIT_S, then=[1]))
    for number, case in enumerate(bench.cases):  # an input is the result where nothing is to be done: in some draws
        bench.write(0, number)
        bench.write(1, number - 1)
        # Not the cotangents: a gradient may be the tensor that autograd handed in.
        bench.examine("refilled", RUN_LIMIT_S, others=bench.encoded(1)[: bench.instance.forward_inputs])
        judge_outputs(trial, NAME, case, bench.read(), outputs_of_their_own(bench.instance, case.inputs))
    trial.record(NAME, True, "the first result is unchanged by a second call on other inputs", **figures)


CHECK = SystemCheck(NAME, check)
