"""Every input and parameter must matter to the candidate where it matters to the reference.

The probes change one tensor at a time. A term whose effect is below the tolerance (a residual a thousand times smaller
than the rest, a scale that was initialised to one) passes every comparison of values when it is left out; it does not
pass here, because then nothing at all changes. A changed parameter is written in place, as an optimizer does it, so
weights that were preprocessed once and kept are found stale.
"""

from __future__ import annotations

import torch

from worker.judge.checks.values import judge_case
from worker.judge.exhibits import Exhibit
from worker.judge.inputs.probes import Probe
from worker.judge.trial import RUN_LIMIT_S, SUBJECT, Trial
from worker.judge.verdict import Verdict


def check(trial: Trial) -> None:
    """On the smallest workload, and the smallest with a backward. Raises Fault `incorrect`."""
    for exhibit, probes in trial.exhibits.probes:
        _check_probes(trial, exhibit, probes)


def _check_probes(trial: Trial, exhibit: Exhibit, probes: list[Probe]) -> None:
    bench = trial.benches[exhibit.name]
    bench.write(0, 0)
    base = bench.run(SUBJECT, 0, RUN_LIMIT_S)
    for probe in probes:
        if probe.state is not None:
            bench.load_state(SUBJECT, probe.state, RUN_LIMIT_S)
        bench.put(1, probe.case.inputs)
        outputs = bench.run(SUBJECT, 1, RUN_LIMIT_S)
        _check_moved(trial, probe, base, outputs)
        judge_case(trial, f"{exhibit.name}/sensitivity", probe.case, outputs)
        if probe.state is not None:
            state = exhibit.instance.model.state_dict()
            bench.load_state(SUBJECT, {name: state[name] for name in probe.state}, RUN_LIMIT_S)
    bench.write(0, 0)


def _check_moved(trial: Trial, probe: Probe, base: tuple[torch.Tensor, ...], outputs: tuple[torch.Tensor, ...]) -> None:
    for index, (before, after, moved) in enumerate(zip(base, outputs, probe.moved, strict=True)):
        if moved and torch.equal(before, after):
            what = "parameter" if probe.state is not None else "input"
            reason = f"{what} {probe.name!r} changes the reference's {probe.case.names[index]}, but not the candidate's"
            raise trial.refuse(f"sensitivity to {probe.name}", Verdict.INCORRECT, reason)
