"""The part of the corpus for every day: two problems, because each costs its truths and compiled baselines (25 s)."""

from __future__ import annotations

from collections.abc import Callable

from tests.redteam.entry import Entry

PROBLEMS = ("bias_relu", "softmax")
CHEATS, HONEST = 30, 8
"""On two cores a cheat takes 0.1 to 6 s, an honest one 5 to 10 s, and a certificate 30 to 60 s."""
_CERTIFIED = 1


def quick(entries: list[Entry]) -> list[Entry]:
    """Cheats of every layer in turn, one of them judged by the certificate, and honest ones of both problems."""
    fitting = [entry for entry in entries if entry.problem in PROBLEMS and entry.needs == "cpu" and not entry.certify]
    finalists = [entry for entry in fitting if entry.certified][:_CERTIFIED]
    plain = [entry for entry in fitting if not entry.certified]
    cheats = _spread([entry for entry in plain if not entry.honest], lambda entry: entry.layer)
    honest = _spread([entry for entry in plain if entry.honest], lambda entry: entry.problem)
    return finalists + cheats[: CHEATS - len(finalists)] + honest[:HONEST]


def _spread(entries: list[Entry], kind: Callable[[Entry], str]) -> list[Entry]:
    """One of each kind, then a second of each, and so on."""
    kinds: dict[str, list[Entry]] = {}
    for entry in entries:
        kinds.setdefault(kind(entry), []).append(entry)
    rounds = max((len(group) for group in kinds.values()), default=0)
    return [group[turn] for turn in range(rounds) for group in kinds.values() if turn < len(group)]
