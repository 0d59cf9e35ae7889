"""The part of the corpus for every day: few problems, because each costs its truths and its compiled baselines."""

from __future__ import annotations

from tests.redteam.entry import Entry

PROBLEMS = ("bias_relu", "rmsnorm", "softmax", "embedding_grad")
CHEATS, HONEST = 40, 40


def quick(entries: list[Entry]) -> list[Entry]:
    """The first cheats of every layer in turn and the first honest ones, on a few problems."""
    fitting = [entry for entry in entries if entry.problem in PROBLEMS and entry.needs == "cpu"]
    cheats = [entry for entry in fitting if not entry.honest]
    return _spread(cheats)[:CHEATS] + [entry for entry in fitting if entry.honest][:HONEST]


def _spread(cheats: list[Entry]) -> list[Entry]:
    """One of each layer, then a second of each, and so on."""
    by_layer: dict[str, list[Entry]] = {}
    for entry in cheats:
        by_layer.setdefault(entry.layer, []).append(entry)
    rounds = max((len(group) for group in by_layer.values()), default=0)
    return [group[turn] for turn in range(rounds) for group in by_layer.values() if turn < len(group)]
