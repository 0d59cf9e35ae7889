"""Live baselines of one problem: eager and `torch.compile` of the reference, in a runner of their own.

Built at the first timing, because `torch.compile` takes 20 s on a CPU and most bad candidates never get that far.
"""

from __future__ import annotations

import contextlib

import structlog

from worker.judge.bench import Contender, Workbench
from worker.judge.exhibits import Exhibits
from worker.judge.sessions import Runner
from worker.judge.verdict import Fault, ReferenceFailed, Verdict

log = structlog.get_logger()

_COMPILE_LIMIT_S = 300.0
_REFERENCE_LIMIT_S = 120.0


class Baselines:
    """Eager and `torch.compile` of the reference, in a runner of their own, one workbench per workload."""

    def __init__(self, exhibits: Exhibits, runner: Runner) -> None:
        self.runner = runner
        self.dead = False
        self.missing: dict[str, str] = {}
        """Baselines that could not be made, and why."""
        source, device = exhibits.problem.outline.source, exhibits.device
        self._benches = {
            exhibit.name: Workbench(runner, exhibit.instance, exhibit.cases, device, exhibit.slots)
            for exhibit in exhibits.workloads
        }
        self.names = [name for name in ("eager", "compile") if self._make(name, source)]
        if "eager" not in self.names:
            raise ReferenceFailed(f"the reference does not run in a runner: {self.missing['eager']}")

    def _make(self, name: str, source: str) -> bool:
        """Load, construct and warm one baseline on every workload; False (with the reason kept) when it fails."""
        mode = None if name == "eager" else "default"
        try:
            message = {"op": "load", "subject": name, "source": source, "class": "Model", "compile": mode}
            self.runner.ask(message, _REFERENCE_LIMIT_S)
            for bench in self._benches.values():
                bench.construct(name, _REFERENCE_LIMIT_S)
                bench.write(0, 0)
                outputs = bench.run(name, 0, _COMPILE_LIMIT_S)
                wrong = [found.reason for found in bench.cases[0].judge(outputs) if not found.passed]
                if wrong:  # an inaccurate baseline is no baseline, but it is worth knowing about
                    self.missing[name] = wrong[0]
        except Fault as fault:
            self.missing[name] = fault.reason
            log.warning("baseline.failed", baseline=name, reason=fault.reason)
            if fault.verdict in (Verdict.TIMEOUT, Verdict.INFRA_ERROR):
                self.dead = True
                raise
            return False
        return True

    def contenders(self, workload: str) -> list[Contender]:
        """The baselines of one workload, for `time_contenders`."""
        return [Contender(name, self._benches[workload], name) for name in self.names]

    def close(self) -> None:
        """End the runner and release the arenas."""
        self.dead = True
        with contextlib.suppress(Fault):
            self.runner.close()
        for bench in self._benches.values():
            bench.close()
