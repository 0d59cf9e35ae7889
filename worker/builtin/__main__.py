"""The built-in proposer as a process: one JSON request on standard input, one JSON answer on standard output.

    echo '{"problem_source": "...", "problem_name": "x", "hardware": "cpu", "language": "cpp", "index": 0}' \
        | python -m worker.builtin

"winners" may hold configurations that won in the problem's family. The answer is {"kind", "name", "plan", "source"} for
seed number `index`, or {"exhausted": true} past the last one, and in both cases "menu_size", which no index reaches. It
runs the reference to trace it, so it is started without secrets; started with its parent's pid, it dies with that one.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from worker.builtin.menu import NotOffered, Seed, begun_with, menu
from worker.lifeline import die_with_parent


def main() -> None:
    """Answer one request."""
    if sys.argv[1:]:
        # A reference may take for ever, and its deadline is kept by the worker: one that was killed keeps none.
        die_with_parent(int(sys.argv[1]))
    request = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the reference or a compiler prints is not the answer
    index = int(request.pop("index"))
    winners = request.pop("winners", ())
    seeds = begun_with(menu(**request), winners)
    answer = next(itertools.islice(offers(seeds), index, None), {"exhausted": True})
    json.dump(answer | {"menu_size": len(seeds)}, answers)
    answers.flush()


def offers(seeds: list[Seed]) -> Iterator[dict[str, Any]]:
    """The seeds that can really be made, in the menu's order."""
    for seed in seeds:
        try:
            yield {"kind": seed.kind, "name": seed.name, "plan": seed.plan, "source": seed.make()}
        except NotOffered:
            continue


if __name__ == "__main__":
    main()
