"""The economy of a device: when it is held, and candidates of which no two are the same."""

from __future__ import annotations

import fcntl
import time
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.economy.busy import Watch
from benchmarks.economy.utilisation import Utilisation
from benchmarks.economy.variants import variants
from benchmarks.record.plan import Entry, plan


def test_a_device_is_busy_as_long_as_somebody_holds_its_lock(tmp_path: Path) -> None:
    held, free = tmp_path / "gpu-a.lock", tmp_path / "gpu-b.lock"
    free.touch()
    with held.open("w") as file, Watch(tmp_path) as watch:
        fcntl.flock(file, fcntl.LOCK_SH)
        deadline = time.monotonic() + 10
        while watch.shares().get("gpu-a", 0) == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        shares = watch.shares()
    assert shares["gpu-a"] > 0.5 and shares["gpu-b"] == 0
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
    assert len(set(made)) == 20
    plain = entry.proposals[0].source
    assert 8 <= sum(plain not in source or source.count("class ModelNew") != 1 for source in made) <= 12
    with pytest.raises(ValueError, match="nobody wrote a kernel for softmax"):
        next(variants(Entry("softmax", "cpp", ()), 0))
