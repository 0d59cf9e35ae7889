"""A recorded space: every configuration of one candidate's tunables, with what it took on each workload."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from search.tunables import Space
from search.types import Params, ParamValue

FOLDER = Path(__file__).resolve().parents[1] / "data" / "tuning"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One space, measured exhaustively once."""

    name: str
    space: Space
    latency_us: Mapping[tuple[ParamValue, ...], tuple[float, ...] | None]
    """By the values in the order of declaration: the latency on each workload, None where it failed."""
    workloads: tuple[str, ...]

    def key(self, params: Params) -> tuple[ParamValue, ...]:
        """The configuration as a key of `latency_us`."""
        return tuple(params[name] for name in self.space.values)

    def time_us(self, params: Params) -> float | None:
        """The geometric mean of the latencies, which is what a speedup is made of; None where it failed."""
        found = self.latency_us[self.key(params)]
        return math.exp(sum(map(math.log, found)) / len(found)) if found else None

    def speedup(self, params: Params) -> float | None:
        """Against the configuration that the source starts with."""
        mine, default = self.time_us(params), self.time_us(self.space.defaults)
        return default / mine if mine and default else None

    @property
    def best(self) -> float:
        """The speedup of the fastest configuration."""
        found = [self.speedup(params) for params in self.space.configurations()]
        return max(value for value in found if value)

    @property
    def size(self) -> int:
        """How many configurations are allowed."""
        return len(self.latency_us)

    def to_json(self, **facts: object) -> str:
        """One configuration a line, so that the file can be read and compared."""
        head = {
            "name": self.name,
            **facts,
            "values": {name: list(choices) for name, choices in self.space.values.items()},
            "constraints": list(self.space.constraints),
            "defaults": dict(self.space.defaults),
            "workloads": list(self.workloads),
        }
        rows = [json.dumps([list(key), found]) for key, found in self.latency_us.items()]
        return json.dumps(head, indent=1)[:-2] + ',\n "latency_us": [\n' + ",\n".join(rows) + "\n ]\n}\n"


def read(path: Path) -> Recorded:
    """The space of a file that `to_json` wrote."""
    data = json.loads(path.read_text(encoding="utf-8"))
    space = Space(
        {name: tuple(choices) for name, choices in data["values"].items()}, data["defaults"], tuple(data["constraints"])
    )
    latency_us = {tuple(key): tuple(found) if found else None for key, found in data["latency_us"]}
    return Recorded(data["name"], space, latency_us, tuple(data["workloads"]))


def recorded(folder: Path = FOLDER) -> Iterator[Recorded]:
    """Every recorded space, by name."""
    for path in sorted(folder.glob("*.json")):
        yield read(path)
