"""The economy of a device: when it is held, and candidates of which no two are the same."""

from __future__ import annotations

import fcntl
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from benchmarks.economy.busy import Watch
from benchmarks.economy.comparison import compared, per_hour
from benchmarks.economy.utilisation import Utilisation
from benchmarks.economy.variants import variants
from benchmarks.record.plan import Entry, plan


def test_a_device_is_busy_as_long_as_somebody_holds_its_lock(tmp_path: Path) -> None:
    held, free = tmp_path / "gpu-a.lock", tmp_path / "gpu-b.lock"
    free.touch()
    with held.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        with Watch(tmp_path) as watch:
            deadline = time.monotonic() + 20
            while "gpu-b" not in watch.shares() and time.monotonic() < deadline:
                time.sleep(0.01)
            shares = watch.shares()
    assert (shares["gpu-a"], shares["gpu-b"]) == (1.0, 0.0)
    with held.open("w") as file:  # looking has not kept it
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_what_the_driver_counts_is_averaged_for_each_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nprintf 'GPU-a, 90\\nGPU-b, [N/A]\\nGPU-a, 70\\n'\nexec sleep 60\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    deadline = time.monotonic() + 10
    with Utilisation() as utilisation:
        while utilisation.shares() != {"GPU-a": 0.8} and time.monotonic() < deadline:
            time.sleep(0.01)
    assert utilisation.shares() == {"GPU-a": 0.8}


def test_without_a_driver_nothing_is_known_of_utilisation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with Utilisation() as utilisation:
        assert utilisation.shares() == {}


def test_variants_are_all_different_and_some_have_a_fault() -> None:
    (entry,) = plan("cpu", ["softmax"])
    made = list(islice(variants(entry, 3), 20))
    assert len({each.source for each in made}) == 20
    plain = entry.proposals[0].source
    faulty = [each for each in made if plain not in each.source or each.source.count("class ModelNew") != 1]
    assert 8 <= len(faulty) <= 12 and not any(each.is_control for each in faulty)
    with pytest.raises(ValueError, match="nobody wrote a kernel for softmax"):
        next(variants(Entry("softmax", "cpp", ()), 0))


def test_the_control_is_the_same_kernel_each_time() -> None:
    (entry,) = plan("cpu", ["softmax"])
    controls = [each.source for each in islice(variants(entry, 0), 20) if each.is_control]
    kernels = {source.rpartition("VARIANT")[0] for source in controls}
    assert len(controls) == 4 and kernels == {entry.proposals[0].source + "\n"}


def test_without_faults_all_are_the_control() -> None:
    (entry,) = plan("cpu", ["softmax"])
    made = list(islice(variants(entry, 1, controls_only=True), 10))
    assert all(each.is_control for each in made) and len({each.source for each in made}) == 10


def test_evaluations_an_hour_are_counted_between_the_first_and_the_last_that_each_worker_ended() -> None:
    assert per_hour({"gpu0": [20.0, 30.0, 38.0, 50.0]}) == 360
    assert per_hour({"gpu0": [20.0, 30.0, 40.0], "gpu1": [25.0, 30.0], "gpu2": [31.0]}) == 360 + 720
    assert per_hour({}) == per_hour({"gpu0": [20.0]}) == per_hour({"gpu0": [20.0, 20.0]}) == 0


def _control(problem: str, low: float, high: float, worker: str = "gpu0") -> dict[str, Any]:
    return {"problem": problem, "worker": worker, "verdict": "ok", "speedup": (low + high) / 2, "ci95": [low, high]}


def test_two_runs_are_compared_by_their_evaluations_and_their_controls() -> None:
    refused = {"problem": "softmax", "worker": "gpu2", "verdict": "infra_error", "speedup": None, "ci95": None}
    one = {
        "evaluations": 20,
        "wall_s": 200.0,
        "ended_s": {"gpu0": [float(second) for second in range(0, 200, 10)]},
        "controls": [_control("softmax", 1.0, 1.2), _control("cumsum", 2.0, 2.2)],
    }
    four = {
        "evaluations": 76,
        "wall_s": 190.0,
        "ended_s": {f"gpu{gpu}": [gpu + 10.0 * n + 0.5 * (n % 2) for n in range(19)] for gpu in range(4)},
        "controls": [
            _control("softmax", 1.1, 1.3),
            _control("softmax", 1.3, 1.5),
            _control("softmax", 1.3, 1.5, "gpu1"),
            refused,
        ],
    }
    found = compared([one], [four])
    low, high = found["ci95"]
    assert found["evaluations"] == found["counted"] == 4.0 and 3.8 < low < 4.0 < high < 4.3
    assert found["controls"] == {
        "softmax": {
            "gpu0": {"pairs": 2, "within": 0.5, "ratio": pytest.approx(1.182)},
            "gpu1": {"pairs": 1, "within": 0.0, "ratio": pytest.approx(1.273)},
        }
    }


def test_windows_of_one_service_are_put_together_and_each_worker_is_compared_with_itself() -> None:
    def window(controls: list[Any], **every_s: float) -> dict[str, Any]:
        ended_s = {worker: [every * n for n in range(8)] for worker, every in every_s.items()}
        return {
            "evaluations": sum(map(len, ended_s.values())),
            "wall_s": 80.0,
            "ended_s": ended_s,
            "controls": controls,
        }

    alone = [
        window([_control("softmax", 1.0, 1.2)], gpu0=10.0),
        window([_control("softmax", 2.0, 2.2, "gpu1")], gpu1=8.0),
    ]
    together = [
        window([_control("softmax", 1.1, 1.3), _control("softmax", 2.1, 2.3, "gpu1")], gpu0=10.0, gpu1=8.0),
        window([_control("softmax", 1.5, 1.7), _control("softmax", 1.0, 1.2, "gpu2")], gpu0=10.0),
    ]
    together[1]["ended_s"]["gpu1"] = [3.0]  # a judge that came late to its window is not slower for it
    found = compared(alone, together, same=True)
    assert found["evaluations"] == 2.0 and found["ci95"] == [2.0, 2.0] and found["counted"] == 1.5
    assert found["controls"] == {
        "softmax": {
            "gpu0": {"pairs": 2, "within": 0.5, "ratio": pytest.approx(1.273)},
            "gpu1": {"pairs": 1, "within": 1.0, "ratio": pytest.approx(1.048)},
        }
    }


def test_one_evaluation_of_a_worker_is_nothing_to_compare_with() -> None:
    twice: dict[str, Any] = {"ended_s": {"gpu0": [1.0, 2.0]}, "controls": []}
    for ended_s in ({}, {"gpu0": [3.0]}, {"gpu0": [3.0, 3.0]}, {"gpu0": [1.0, 2.0], "gpu1": [3.0]}):
        few: dict[str, Any] = {"ended_s": ended_s, "controls": []}
        for one, other in ((few, twice), (twice, few)):
            with pytest.raises(ValueError, match="let it go on for longer"):
                compared([one], [other])
