"""Whether a candidate rests between its calls."""

from __future__ import annotations

import time

from worker.judge.runners.sessions import Runner
from worker.judge.verdict import Fault, Verdict

_REST_S, _WATCH_S, _IDLE_SHARE = 0.03, 0.03, 0.25
"""After a call OpenMP's threads spin for some milliseconds, then they sleep; a quarter of a core is no afterthought."""


def check_idle(runner: Runner) -> None:
    """Between calls a kernel rests. Raises Fault `suspicious` when its process goes on working."""
    time.sleep(_REST_S)
    before_s = runner.ran_s()
    time.sleep(_WATCH_S)
    share = (runner.ran_s() - before_s) / _WATCH_S
    if share > _IDLE_SHARE:
        reason = f"the candidate works while nobody calls it: {share:.0%} of a core"
        raise Fault(Verdict.SUSPICIOUS, reason, runner.log())
