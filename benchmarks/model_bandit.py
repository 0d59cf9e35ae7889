"""What the bandit over models is worth, in simulated landscapes: two models, with the lever and without it.

    python -m benchmarks.model_bandit --seeds 30

The landscape is that of the policies' property tests: families of kernels with ceilings that small steps climb towards;
a model differs by how often it is wrong, how far its steps go, and what it costs. Simulated, so it says whether the
bandit finds the better model in some dozens of candidates and what that brings, not how far real models differ. A table
on stdout; takes about 40 s.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from statistics import mean

from search.policies import Levers
from search.policies.uct import Uct
from search.types import Node
from tests.unit.search.policies.landscapes import Landscape
from tests.unit.search.worlds import job_view

CANDIDATES = (30, 100)


@dataclass(frozen=True, slots=True)
class Skill:
    """A model: its share of wrong candidates, its price for one, and how far its steps go beside the landscape's."""

    failing: float
    usd: str
    step: float


PAIRS: Mapping[str, tuple[Skill, Skill]] = {
    "alike": (Skill(0.3, "0.02", 1.0), Skill(0.3, "0.02", 1.0)),
    "the first is better": (Skill(0.2, "0.02", 1.2), Skill(0.6, "0.02", 0.6)),
    "the first costs a fifth": (Skill(0.3, "0.02", 1.0), Skill(0.3, "0.10", 1.0)),
    "the first is better and costs five times as much": (Skill(0.2, "0.10", 1.2), Skill(0.6, "0.02", 0.6)),
}


@dataclass
class TwoModels(Landscape):
    """A landscape in which it matters who writes."""

    skills: Mapping[str, Skill] = field(default_factory=dict)

    def _proposed(self, node: Node) -> Node:
        skill = self.skills.get(node.model or "")
        proposed = self._as(skill, super()._proposed, node)
        return proposed if skill is None else replace(proposed, cost_usd=Decimal(skill.usd))

    def _judged(self, node: Node) -> Node:
        skill = self.skills.get(node.model or "")
        judged = self._as(skill, super()._judged, node)
        if skill is None or judged.speedup is None:
            return judged
        start = max((self.nodes[parent].speedup or 0.5 for parent in node.parents), default=0.5)
        return replace(judged, speedup=start + (judged.speedup - start) * skill.step)

    def _as(self, skill: Skill | None, move: Callable[[Node], Node], node: Node) -> Node:
        usual, self.failing = self.failing, self.failing if skill is None else skill.failing
        moved = move(node)
        self.failing = usual
        return moved


@dataclass(frozen=True, slots=True)
class Result:
    """Of one job: its best speedup, what it paid, and the first model's share of the proposals."""

    speedup: float
    usd: float
    share: float


def play(pair: tuple[Skill, Skill], seed: int, candidates: int, *, lever: bool) -> Result:
    """One job from its first seed to its end."""
    job = job_view(candidates, models=("first", "second"), slots=2, seed=seed)
    skills = dict(zip(job.models, pair, strict=True))
    world = TwoModels(job=job, dice=random.Random(seed), provider_down=0.0, skills=skills)
    world.policy = Uct(Levers(models=lever))
    world.run()
    asked = [node for node in world.tree if node.model]
    return Result(
        speedup=max((node.speedup or 0.0 for node in world.tree if node.ok), default=1.0),
        usd=float(sum(node.cost_usd for node in world.tree)),
        share=sum(node.model == "first" for node in asked) / max(1, len(asked)),
    )


def main() -> None:
    """Play every pair with and without the lever, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=30)
    seeds = range(parser.parse_args().seeds)
    heads = ("models", "candidates", "speedup on", "off", "wins", "losses", "usd on", "off", "first model's share on")
    sys.stdout.write("\t".join(heads) + "\n")
    for name, pair in PAIRS.items():
        for candidates in CANDIDATES:
            on = [play(pair, seed, candidates, lever=True) for seed in seeds]
            off = [play(pair, seed, candidates, lever=False) for seed in seeds]
            sys.stdout.write("\t".join([name, str(candidates), *_cells(on, off)]) + "\n")
            sys.stdout.flush()


def _cells(on: list[Result], off: list[Result]) -> list[str]:
    won = sum(one.speedup > other.speedup for one, other in zip(on, off, strict=True))
    lost = sum(one.speedup < other.speedup for one, other in zip(on, off, strict=True))
    speedups = [f"{mean(each.speedup for each in results):.2f}" for results in (on, off)]
    dollars = [f"{mean(each.usd for each in results):.2f}" for results in (on, off)]
    return [*speedups, str(won), str(lost), *dollars, f"{mean(each.share for each in on):.2f}"]


if __name__ == "__main__":
    main()
