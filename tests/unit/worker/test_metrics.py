"""What workers count outlives them, and a child that follows another goes on where that one ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from worker import metrics

_COUNTS = """
from billiard.process import current_process
from worker import metrics
metrics.identify("cpu.1@node/1")
for slot in (None, 0, 0, 1):
    current_process().index = slot  # as in a child of the pool: the place is looked up at each change
    metrics.claimed("cpu", "evaluate")
"""


def test_each_process_has_its_place_and_the_next_goes_on_there(tmp_path: Path) -> None:
    for _ in range(2):
        env = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
        subprocess.run([sys.executable, "-c", _COUNTS], env=env, check=True)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == [f"counter_cpu.1@node-1-{place}.db" for place in ("0", "1", "main")]
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(tmp_path))
    assert registry.get_sample_value("kernelwright_work_claimed_total", {"queue": "cpu", "kind": "evaluate"}) == 8


def test_so_many_models_are_counted_by_name() -> None:
    for number in range(metrics.MOST_MODELS + 2):
        metrics.called(f"some/model-{number}", error=None, tokens_in=3, cost_usd=None)
    count = metrics.REGISTRY.get_sample_value
    assert count("kernelwright_llm_calls_total", {"model": "some/model-0", "outcome": "ok"}) == 1
    assert (count("kernelwright_llm_tokens_total", {"model": metrics.OTHER, "direction": "in"}) or 0) >= 6
