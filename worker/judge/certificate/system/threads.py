"""Two threads at once: a server calls one module from several, each on a stream of its own where there is a GPU.

A buffer that is kept for all calls, on the heap or in a module, is then written by two of them.
"""

from __future__ import annotations

from worker.judge.certificate.stage import NotApplicable, SystemCheck, able, bench_of, conclude, judge_outputs
from worker.judge.trial import RUN_LIMIT_S, Trial

NAME = "two threads at once"


def check(trial: Trial) -> None:
    """Two threads call for a second, each on a draw of its own. Raises Fault `incorrect` when a result of either is not
    what it is alone; whoever refuses gets a reservation."""
    bench = bench_of(trial)
    if len(bench.cases) < 2:
        raise NotApplicable("this workload has only one draw of inputs")
    figures: dict[str, float | str] = {}
    doubts: list[str] = []
    for mine, other in ((0, 1), (1, 0)):
        bench.write(0, mine)
        bench.write(1, other)
        with able(doubts, "a call beside another"):
            bench.examine("threads", RUN_LIMIT_S, others=bench.encoded(1))
            figures = judge_outputs(trial, NAME, bench.cases[mine], bench.read())
    conclude(trial, NAME, doubts[:1], "results are the same beside another thread's calls", **figures)


CHECK = SystemCheck(NAME, check, trained=True)
