"""Record pools: make programs by edits of recorded ones, have the judge build, verify and time each, append a line.

    python -m benchmarks.policy.record --folder pools --limit-s 240           # go on where the last call stopped
    python -m benchmarks.policy.record --folder pools --count 330 --problems softmax,cumsum
    python -m benchmarks.policy.record --folder pools --pack                  # compress them to benchmarks/data

Every program goes through the whole judge: confined build, fp64 truth, probes, other shapes and layouts, timing
interleaved with eager on fresh values and cold caches. What is cheaper than in service: one small workload, one thread,
eager as the only baseline, and fewer rounds. That makes one to three seconds a program.

Several recorders may share a folder: each holds the lock of the pool that it works on. Killed at any moment, at most
the program at work is lost. Lineage is drawn by the pool's size, so a resumed recording goes on as it would have.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from benchmarks.policy import genome as edits
from benchmarks.policy.genome import Genome, Space
from benchmarks.policy.judging import CheapJudge
from benchmarks.policy.pool import Record, fingerprint, pack, read
from benchmarks.policy.problem import source_of
from benchmarks.policy.programs import SPACES
from search.types import Operator
from worker.judge.report import Evaluation

log = structlog.get_logger()

COUNT = 300
LEAST = 100
"""A smaller pool is not packed: a budget of 100 would see all of it."""
OPENING = 24
"""Seeds before anything is built upon."""
SHARES = {
    Operator.SEED: 0.10,
    Operator.REFINE: 0.32,
    Operator.REWRITE: 0.14,
    Operator.CROSSOVER: 0.12,
    Operator.TUNE: 0.20,
    Operator.REPAIR: 0.12,
}
FAVOURED = 0.5
"""Share of parents taken from the fastest third; the others are any, so that the pool covers the slow regions too."""
_TRIES = 60


@dataclass(frozen=True, slots=True)
class Proposal:
    """A program to be judged next."""

    operator: Operator
    parents: tuple[int, ...]
    genome: Genome


def propose(space: Space, records: Sequence[Record]) -> Proposal | None:
    """An edit of recorded programs whose result is not recorded yet, or None where none was found."""
    known = {record.genome for record in records}
    dice = random.Random(f"{space.problem}-{len(records)}")
    for _try in range(_TRIES):
        made = _draw(space, records, dice)
        if made is not None and made.genome not in known:
            return made
    return None


def _draw(space: Space, records: Sequence[Record], dice: random.Random) -> Proposal | None:
    operator = dice.choices(list(SHARES), list(SHARES.values()))[0]
    if len(records) < OPENING or operator == Operator.SEED:
        return Proposal(Operator.SEED, (), edits.seed(space, dice))
    if operator == Operator.REPAIR:
        broken = [record for record in records if record.genome.bugs]
        if not broken:
            return None
        parent = dice.choice(broken)
        return Proposal(operator, (parent.id,), edits.repair(space, parent.genome, dice))
    accepted = [record for record in records if record.ok]
    if len(accepted) < 2:
        return None
    parent = _parent(accepted, dice)
    if operator == Operator.CROSSOVER:
        partner = _parent(accepted, dice)
        return Proposal(operator, (parent.id, partner.id), edits.crossover(space, parent.genome, partner.genome, dice))
    edit = {Operator.REFINE: edits.refine, Operator.REWRITE: edits.rewrite, Operator.TUNE: edits.tune}[operator]
    return Proposal(operator, (parent.id,), edit(space, parent.genome, dice))


def _parent(accepted: Sequence[Record], dice: random.Random) -> Record:
    ranked = sorted(accepted, key=lambda record: -(record.speedup or 0.0))
    return dice.choice(ranked[: max(1, len(ranked) // 3)] if dice.random() < FAVOURED else ranked)


def judged(proposal: Proposal, place: int, source: str, report: Evaluation) -> Record:
    """The record of a judgement."""
    rows = report.workloads
    interval = report.ci95
    return Record(
        id=place,
        operator=str(proposal.operator),
        parents=proposal.parents,
        genome=proposal.genome,
        source=fingerprint(source),
        verdict=str(report.verdict),
        reason=report.reason[:160],
        speedup=_rounded(report.speedup),
        ci95=None if interval is None else (round(interval[0], 4), round(interval[1], 4)),
        latency_us=_rounded(report.latency_us),
        baseline_us=_rounded(report.baselines_us.get("eager")),
        sol_fraction=_rounded(rows[0].sol_fraction) if rows else None,
        device_s=round(report.gpu_s, 3),
        build_s=round(report.build_s, 3),
        wall_s=round(report.wall_s, 3),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


class Recorder:
    """Judges programs of one problem after another."""

    def __init__(self, folder: Path, home: Path, core: int | None = None) -> None:
        self._folder = folder
        self._judge = CheapJudge(home, core)

    def record(self, space: Space, count: int, until: float) -> int:
        """Judge until the pool holds `count` programs or the clock (monotonic seconds) says `until`; the pool's
        size."""
        path = self._folder / f"{space.problem}.jsonl"
        problem = source_of(space)
        records = read(path) if path.exists() else []
        if len(records) >= count:
            return len(records)
        with path.open("ab") as file:
            file.truncate(path.read_bytes().rfind(b"\n") + 1)  # a line that was cut off when the last call was killed
            self._judge.warm_up(space.problem, problem, space.write(edits.plainest(space)))
            while len(records) < count and time.monotonic() < until:
                proposal = propose(space, records)
                if proposal is None:
                    break
                source = space.write(proposal.genome)
                best = max((record.speedup or 0.0 for record in records if record.ok), default=None)
                name = f"{space.problem}-{len(records)}"
                report = self._judge.evaluate(name, space.problem, problem, source, best)
                if report.verdict == "infra_error":
                    log.warning("program.not_judged", program=len(records), reason=report.reason)
                    break
                records.append(judged(proposal, len(records), source, report))
                file.write((json.dumps(records[-1].to_json()) + "\n").encode())
                file.flush()
        return len(records)

    def close(self) -> None:
        """End all processes."""
        self._judge.close()


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Whether nobody else records this pool."""
    with path.with_suffix(".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _size(path: Path) -> int:
    return len(read(path)) if path.exists() else 0


def main() -> int:
    """Record, or pack."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    options = _options()
    options.folder.mkdir(parents=True, exist_ok=True)
    paths = {name: options.folder / f"{name}.jsonl" for name in options.problems}
    if options.pack:
        for name, path in paths.items():
            if _size(path) < LEAST:
                log.info("pool.too_small", problem=name, programs=_size(path), least=LEAST)
            else:
                log.info("pool.packed", problem=name, programs=_size(path), path=str(pack(name, path)))
        return 0
    until = time.monotonic() + options.limit_s
    recorder = Recorder(options.folder, options.folder / "home", options.core)
    try:
        for name in sorted(paths, key=lambda name: _size(paths[name])):  # the smallest pool first
            if time.monotonic() > until:
                break
            with _locked(paths[name]) as mine:
                if mine:
                    size = recorder.record(SPACES[name], options.count, until)
                    log.info("pool.recorded", problem=name, programs=size)
    finally:
        recorder.close()
    return 0


def _options() -> Any:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.policy.record",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", type=Path, required=True, help="where the growing pools are")
    parser.add_argument("--count", type=int, default=COUNT, help="programs a pool")
    parser.add_argument("--limit-s", type=float, default=240.0, help="start no program after so many seconds")
    parser.add_argument("--problems", type=lambda text: text.split(","), default=list(SPACES))
    parser.add_argument("--core", type=int, help="stay on this core: on a busy machine timings are steadier")
    parser.add_argument("--pack", action="store_true", help="compress the pools and end")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
