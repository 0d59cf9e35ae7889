"""What separates another idea from the same one written down again: the evidence for `search.novelty.NEARLY`.

    python -m benchmarks.novelty

Pairs of built-in candidates for one problem and language are different ideas by construction. Each candidate is also
edited as models do when they give back what they were shown: a name changed throughout, a comment and a docstring
added, an unused import, a helper moved. The similarity of each kind of pair is printed as a range. No device needed.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator

from problems.catalog import bundled
from search.novelty import similarity, tokens
from worker.builtin.menu import NotOffered, menu

TARGETS = (("cpu", "cpp"), ("nvidia-h100", "triton"), ("nvidia-h100", "cuda"))


def candidates(problem: str, hardware: str, language: str) -> Iterator[tuple[str, str]]:
    """(name, source) of each recipe for a bundled problem on a target."""
    for seed in menu(bundled()[problem].source, problem, hardware, language):
        if seed.kind == "recipe":
            try:
                yield seed.name, seed.make()
            except NotOffered:
                continue


def rewritten(source: str) -> Iterator[tuple[str, str]]:
    """(kind of edit, source): the same idea, written down again."""
    plan = re.sub(r'\A""".*?"""', '"""Another plan."""', source, flags=re.DOTALL)
    yield "docstring and comments", plan.replace("import torch\n", "import torch  # a remark\n\n# another\n")
    yield "unused import", "import itertools\n" + source
    for name in ("rows", "out", "shape"):
        if re.search(rf"\b{name}\b", source):
            yield f"{name} renamed", re.sub(rf"\b{name}\b", f"{name}_of_it", source)


def say(kind: str, found: list[float]) -> None:
    """One line of the table."""
    found.sort()
    middle = found[len(found) // 2]
    sys.stdout.write(f"{kind:32} {len(found):4} pairs   {found[0]:.3f}  {middle:.3f}  {found[-1]:.3f}\n")


def main() -> None:
    """Print the table: minimum, median and maximum of the similarity."""
    different: list[float] = []
    same: dict[str, list[float]] = {}
    for problem, (hardware, language) in itertools.product(bundled(), TARGETS):
        sources = [(name, tokens(source), source) for name, source in candidates(problem, hardware, language)]
        different += [similarity(one[1], other[1]) for one, other in itertools.combinations(sources, 2)]
        for _name, mine, source in sources:
            for kind, edited in rewritten(source):
                same.setdefault(kind, []).append(similarity(mine, tokens(edited)))
    sys.stdout.write(f"{'':32}              least  median  most\n")
    say("different ideas", different)
    for kind, found in same.items():
        say(kind, found)


if __name__ == "__main__":
    main()
