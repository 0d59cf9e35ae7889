"""The faults: what each does to a fleet, and how what lasts is undone. The schedule says when and to whom."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from redis.exceptions import RedisError

from tests.chaos.fleet import EVALUATORS, Fleet
from tests.chaos.signals import below, command, kill, pause, resume
from worker.client import KEY_PREFIX

PROGRAMS: Final = ("api-0", "api-1", "control", "llm", *(f"evaluator-{number}" for number in range(EVALUATORS)))
WORKERS: Final = PROGRAMS[2:]
EVALUATING: Final = PROGRAMS[4:]
QUEUES: Final = ("control", "llm", "cpu")
HOUR_S: Final = 3600


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a schedule: `kind` names the function below, `length_s` is 0 for what is over at once."""

    at_s: float
    kind: str
    target: str = ""
    length_s: float = 0.0
    amount: float = 0.0


@dataclass(frozen=True, slots=True)
class Kind:
    """How a kind of fault is drawn and done; what is done is told in a few words (empty: there was nothing to hit)."""

    begin: Callable[[Fleet, Fault], str]
    end: Callable[[Fleet, Fault], None] | None = None
    targets: tuple[str, ...] = ("",)
    length_s: tuple[float, float] = (0.0, 0.0)
    amounts: tuple[float, ...] = (0.0,)
    weight: int = 1


def _kill(fleet: Fleet, fault: Fault) -> str:
    """The main process alone. What was below it and is paused by another fault must run to see that it is gone."""
    pids = fleet.pids(fault.target)
    killed = kill(pids[:1])
    resume(pids[1:])
    return f"pid {pids[0]}" if killed else ""


def _kill_child(fleet: Fleet, fault: Fault) -> str:
    """A pool process."""
    pid = fleet.pid(fault.target)
    children = below(pid) if pid is not None else []
    return f"pid {children[0]}" if children and kill(children[:1]) else ""


def _kill_judge(fleet: Fleet, fault: Fault) -> str:
    judges = [pid for pid in fleet.pids(fault.target) if "tests.chaos.judge" in command(pid)]
    return f"pid {judges[0]}" if judges and kill(judges[:1]) else ""


def _kill_backend(fleet: Fleet, fault: Fault) -> str:
    """One connection's process: Postgres then ends all others and recovers."""
    pid = fleet.pid("postgres")
    backends = (
        [each for each in below(pid) if "127.0.0.1" in command(each) or "[local]" in command(each)] if pid else []
    )
    return f"pid {backends[-1]}" if backends and kill(backends[-1:]) else ""


def _pause(fleet: Fleet, fault: Fault) -> str:
    pids = fleet.pids(fault.target)
    fleet.paused[fault] = pids
    return f"{pause(pids)} processes" if pids else ""


def _pause_child(fleet: Fleet, fault: Fault) -> str:
    """The pool process alone: its lease runs out while the worker's main process goes on saying that it lives."""
    pid = fleet.pid(fault.target)
    pids = below(pid) if pid is not None else []
    fleet.paused[fault] = pids
    return f"{pause(pids)} processes" if pid is not None else ""


def _resume(fleet: Fleet, fault: Fault) -> None:
    """Whoever is there now, and who was there then: a backend that was paused while its postmaster was being killed is
    nobody's child any more, and would hold the data folder's lock for ever."""
    resume({*fleet.pids(fault.target), *fleet.paused.pop(fault, ())})


def _flush(fleet: Fleet, fault: Fault) -> str:
    with suppress(RedisError), fleet.broker() as broker:
        broker.flushall()
        return "flushed"
    return ""


def _lose_valkey(fleet: Fleet, fault: Fault) -> str:
    pid = fleet.pid("valkey")
    if pid is None:
        return ""
    kill([pid])
    fleet.valkey.stop()
    fleet.forget_valkey()
    return f"pid {pid}, and its data"


def _cut(fleet: Fleet, fault: Fault) -> str:
    return f"{fleet.proxy.cut(fault.target)} connections"


def _delay(fleet: Fleet, fault: Fault) -> str:
    fleet.proxy.delay(fault.target, fault.amount)
    return f"{fault.amount} s"


def _refuse(fleet: Fleet, fault: Fault) -> str:
    fleet.proxy.refuse(fault.target, True)
    return "all"


def _freeze(fleet: Fleet, fault: Fault) -> str:
    fleet.proxy.freeze(fault.target, True)
    return "all"


def _model(fleet: Fleet, fault: Fault) -> str:
    fleet.provider.mode = fault.target
    return fault.target


def _model_well(fleet: Fleet, fault: Fault) -> None:
    fleet.provider.mode = "well"


def _fill(fleet: Fleet, fault: Fault) -> str:
    if not fleet.small_disk:
        return ""
    fleet.fill_disk(True)
    return "full"


def _step(fleet: Fleet, fault: Fault) -> str:
    fleet.clocks[fault.target].step(int(fault.amount))
    return f"{fault.amount:+.0f} s"


def _lose_bells(fleet: Fleet, fault: Fault) -> str:
    with suppress(RedisError), fleet.broker() as broker:
        return f"{sum(broker.llen(KEY_PREFIX + name) and broker.delete(KEY_PREFIX + name) for name in QUEUES)} queues"
    return ""


def _double_bells(fleet: Fleet, fault: Fault) -> str:
    """Every message that waits, three times more."""
    doubled = 0
    with suppress(RedisError), fleet.broker() as broker:
        for name in QUEUES:
            messages = broker.lrange(KEY_PREFIX + name, 0, 200)
            for message in messages * 3:
                doubled += bool(broker.lpush(KEY_PREFIX + name, message))
    return f"{doubled} messages" if doubled else ""


SHORT: Final = (2.0, 6.0)
LONG: Final = (4.0, 12.0)
"""Longer than the lease of 6 s half of the time, so that what is paused comes back as a late writer."""
LINKS: Final = ("postgres", "valkey")

KINDS: Final[Mapping[str, Kind]] = {
    "kill": Kind(_kill, targets=PROGRAMS, weight=6),
    "kill child": Kind(_kill_child, targets=EVALUATING, weight=2),
    "kill judge": Kind(_kill_judge, targets=EVALUATING),
    "pause": Kind(_pause, _resume, PROGRAMS, LONG, weight=4),
    "pause child": Kind(_pause_child, _resume, EVALUATING, LONG, weight=2),
    "kill valkey": Kind(_kill, targets=("valkey",)),
    "lose valkey": Kind(_lose_valkey, targets=("valkey",)),
    "flush valkey": Kind(_flush, weight=2),
    "pause valkey": Kind(_pause, _resume, ("valkey",), SHORT),
    "kill postgres": Kind(_kill, targets=("postgres",), weight=2),
    "kill backend": Kind(_kill_backend),
    "pause postgres": Kind(_pause, _resume, ("postgres",), LONG, weight=2),
    "cut": Kind(_cut, targets=LINKS, weight=2),
    "delay": Kind(_delay, lambda fleet, fault: fleet.proxy.delay(fault.target, 0.0), LINKS, SHORT, (0.02, 0.1, 0.3)),
    "refuse": Kind(_refuse, lambda fleet, fault: fleet.proxy.refuse(fault.target, False), LINKS, SHORT),
    "freeze": Kind(_freeze, lambda fleet, fault: fleet.proxy.freeze(fault.target, False), LINKS, LONG),
    "model": Kind(_model, _model_well, ("429", "500", "leak", "hang", "cut", "length"), LONG, weight=3),
    "fill disk": Kind(_fill, lambda fleet, fault: fleet.fill_disk(False), length_s=LONG),
    "step clock": Kind(_step, targets=WORKERS, amounts=(-HOUR_S, HOUR_S), weight=2),
    "lose doorbells": Kind(_lose_bells),
    "double doorbells": Kind(_double_bells),
}


def draw(dice: random.Random, at_s: float, kinds: tuple[str, ...] = tuple(KINDS)) -> Fault:
    """A fault of a random kind, by the kinds' weights."""
    name = dice.choices(kinds, [KINDS[name].weight for name in kinds])[0]
    kind = KINDS[name]
    length_s = round(dice.uniform(*kind.length_s), 2)
    return Fault(round(at_s, 2), name, dice.choice(kind.targets), length_s, dice.choice(kind.amounts))
