"""The CPU's ladder: perf, else the compiler's report on the loops where threads were found, else the roofline alone."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from worker.judge.runners.pointers import Unreadable
from worker.judge.trial import Trial
from worker.languages.cache import BuildCache
from worker.profile import counters, host, loops, samples
from worker.profile.loops import HotLoop, Malformed
from worker.profile.roofline import RoofPoint
from worker.profile.rungs import SAMPLES, Rung, Seen

_BUILD_LIMIT_S = 6.0
"""For compiling once more; bundled recipes take 0.2 to 1 s."""
_MISSED = 3


class CpuLadder:
    """Looks at candidates on a CPU; remembers that counters are forbidden."""

    def __init__(self, build_root: Path) -> None:
        self._cache = BuildCache(build_root, timeout_s=_BUILD_LIMIT_S)
        self._no_counters: str | None = None

    def look(self, trial: Trial, point: RoofPoint) -> Seen:
        """All that this machine tells about one workload's calls. Takes one to three seconds."""
        seen = Seen()
        bench, runner = trial.benches[point.workload], trial.runner
        found: list[samples.Samples] = []

        def sample() -> None:
            if runner.dead:
                raise Unreadable("the runner has ended")
            found.append(samples.take(runner, bench, runner.artefacts, point.latency_us, trial.rng))
            seen.metrics.update(found[0].metrics())

        def count() -> None:
            if self._no_counters is not None:
                raise counters.NotCounted(self._no_counters)
            seen.metrics.update(counters.metrics(counters.count(runner, bench), point.bytes_moved))

        seen.attempt(SAMPLES, sample)
        counted = seen.attempt(Rung.PERF, count)
        if not counted and not runner.dead:
            self._no_counters = seen.refused[Rung.PERF]
        reported = seen.attempt(Rung.COMPILER, lambda: self._report(trial, found[0] if found else None, seen))
        seen.rung = Rung.PERF if counted else Rung.COMPILER if reported else Rung.ROOFLINE
        return seen

    def _report(self, trial: Trial, taken: samples.Samples | None, seen: Seen) -> None:
        """The hottest loops of all libraries that were built for the candidate."""
        hot: list[HotLoop] = []
        missed: Counter[str] = Counter()
        builds = trial.runner.builds
        if not any(language == "cpp" for language, *_rest in builds):
            raise Malformed("no C++ was built for this candidate")
        for number, (language, source, flags, _path) in enumerate(builds):
            offsets = taken.offsets.get(number, []) if taken is not None else []
            if language != "cpp" or (taken is not None and not offsets):
                continue
            report = loops.Report.from_json(self._read(source, flags))
            hot += loops.hot_loops(report, source, offsets, taken.threads) if taken is not None else []
            missed.update(
                f"line {line}: {loops.plain(text)}" for line, kind, text in report.remarks if kind == "missed"
            )
        seen.hot = sorted(hot, key=lambda loop: -loop.share)
        seen.missed = [] if taken is not None else [text for text, _count in missed.most_common(_MISSED)]
        if seen.hot:
            seen.metrics["hot_share"] = seen.hot[0].share
            seen.metrics["hot_vector_bytes"] = seen.hot[0].vector_bytes

    def _read(self, source: str, flags: list[str]) -> Any:
        built = self._cache.build("cpp_report", source, flags)
        try:
            return json.loads(built.path.read_text(encoding="utf-8"))
        except ValueError as broken:
            raise Malformed(f"the report of the loops is no JSON: {broken}") from broken


def widest_vector_bytes() -> int:
    """Of this CPU's arithmetic."""
    features = host.cpu_features()
    if "avx512f" in features:
        return 64
    return 32 if "avx2" in features else 16
