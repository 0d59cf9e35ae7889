"""The state of a GPU while it was timed: clocks, power, temperature, and what held its clocks down.

Read from NVML, the driver's management library, through its C interface: it is there wherever the driver is.
"""

from __future__ import annotations

import contextlib
import ctypes
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

_SM, _MEMORY, _CELSIUS = 1, 2, 0
_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal slowdown by software",
    0x40: "thermal slowdown by hardware",
    0x80: "power brake",
}
"""Bits of nvmlDeviceGetCurrentClocksThrottleReasons that hold clocks down; the others are idling and settings."""


@dataclass(frozen=True, slots=True)
class DeviceState:
    """One reading."""

    sm_mhz: int
    memory_mhz: int
    power_w: float
    temperature_c: int
    throttled: tuple[str, ...]


class DeviceWatch:
    """Reads the state of one GPU; silent where NVML does not answer."""

    def __init__(self, uuid: str) -> None:
        """`uuid` as the driver prints it, with or without its `GPU-`."""
        self._library: ctypes.CDLL | None = None
        self._handle = ctypes.c_void_p()
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL("libnvidia-ml.so.1")
            name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
            found = library.nvmlInit_v2() == 0
            if found and library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(self._handle)) == 0:
                self._library = library

    def read(self) -> DeviceState | None:
        """The state now; takes well under a millisecond."""
        if self._library is None:
            return None
        with contextlib.suppress(AttributeError):
            reasons = self._number("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong())
            return DeviceState(
                self._number("nvmlDeviceGetClockInfo", ctypes.c_uint(), _SM),
                self._number("nvmlDeviceGetClockInfo", ctypes.c_uint(), _MEMORY),
                self._number("nvmlDeviceGetPowerUsage", ctypes.c_uint()) / 1e3,
                self._number("nvmlDeviceGetTemperature", ctypes.c_uint(), _CELSIUS),
                tuple(name for bit, name in _REASONS.items() if reasons & bit),
            )
        return None

    def _number(self, function: str, result: Any, *which: int) -> int:
        """One figure; 0 where this device has none."""
        getattr(self._library, function)(self._handle, *(ctypes.c_int(item) for item in which), ctypes.byref(result))
        return int(result.value)


def summary(states: Sequence[DeviceState]) -> dict[str, Any]:
    """Medians over the rounds of a race, and in what share of them clocks were held down, by reason; {} of nothing."""
    if not states:
        return {}
    rows = [asdict(state) for state in states]
    medians = {key: statistics.median(row[key] for row in rows) for key in rows[0] if key != "throttled"}
    seen = sorted({name for state in states for name in state.throttled})
    shares = {name: round(sum(name in state.throttled for state in states) / len(states), 3) for name in seen}
    return {**medians, "throttled_share": shares}
