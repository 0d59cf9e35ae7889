"""The state of a device during a race, summed up; and silence where there is none to read."""

from __future__ import annotations

import pytest

from worker.judge.timing.device_state import DeviceState, DeviceWatch, summary


def state(sm_mhz: int, *throttled: str) -> DeviceState:
    return DeviceState(sm_mhz, 3201, 500.0, 44, throttled)


def test_medians_and_the_share_of_rounds_that_were_held_down() -> None:
    found = summary([state(1980), state(1500, "power cap"), state(1600, "power cap"), state(1700, "power brake")])
    assert (found["sm_mhz"], found["memory_mhz"], found["power_w"]) == (1650, 3201, 500.0)
    assert found["throttled_share"] == {"power brake": 0.25, "power cap": 0.5}


def test_of_nothing_nothing_is_said() -> None:
    assert summary([]) == {}


def test_without_the_drivers_library_there_is_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> None:
        raise OSError("no such library")

    monkeypatch.setattr("ctypes.CDLL", missing)
    assert DeviceWatch("GPU-0").read() is None
