"""Kernel Tuner's strategies on a recorded space: its own simulation mode, fed with our recording.

Optional: `pip install kernel-tuner` (1.5 was used). Without it the table has our tuner and random search alone.
Kernel Tuner: B. van Werkhoven, Future Generation Computer Systems 90, 2019; its optimisers: arXiv 2210.01465.
"""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path
from typing import Any

from benchmarks.tuning.spaces import Recorded

STRATEGIES = (
    "bayes_opt",
    "genetic_algorithm",
    "greedy_ils",
    "simulated_annealing",
    "firefly_algorithm",
    "diff_evo",
    "pso",
)
"""Those that its own comparisons recommend, and one of each other kind."""


def available() -> bool:
    """Whether Kernel Tuner is installed."""
    return importlib.util.find_spec("kernel_tuner") is not None


def write_cache(space: Recorded, folder: Path) -> Path:
    """The recording as one of Kernel Tuner's cache files."""
    names = list(space.space.values)
    cache: dict[str, dict[str, Any]] = {}
    for key in space.latency_us:
        params = dict(zip(names, key, strict=True))
        time_us = space.time_us(params)
        times = {"compile_time": 0.0, "verification_time": 0.0, "benchmark_time": 0.0}
        found = {"time": time_us, "times": [time_us]} if time_us else {"time": "RuntimeFailedConfig"}
        cache[",".join(map(str, key))] = params | found | times
    head = {
        "device_name": "recorded",
        "kernel_name": "kernel",
        "problem_size": 1,
        "tune_params_keys": names,
        "tune_params": {name: list(choices) for name, choices in space.space.values.items()},
        "objective": "time",
        "cache": cache,
    }
    path = folder / f"{space.name}.kernel_tuner.json"
    path.write_text(json.dumps(head), encoding="utf-8")
    return path


def best_found(strategy: str, space: Recorded, cache: Path, seed: int, evaluations: int) -> float:
    """The best speedup among so many evaluations by one of its strategies."""
    import numpy as np
    from kernel_tuner import tune_kernel  # type: ignore[import-not-found, unused-ignore]

    random.seed(seed)
    np.random.seed(seed)
    results, _environment = tune_kernel(
        "kernel",
        "void kernel() {}",
        1,
        [],
        {name: list(choices) for name, choices in space.space.values.items()},
        restrictions=list(space.space.constraints) or None,
        lang="C",
        cache=str(cache),
        simulation_mode=True,
        strategy=strategy,
        strategy_options={"max_fevals": evaluations},
        quiet=True,
    )
    times = [row["time"] for row in results[:evaluations] if isinstance(row.get("time"), float)]
    default = space.time_us(space.space.defaults)
    assert default is not None, "the kernel as it is was measured"
    return default / min(times) if times else 0.0
