"""What judging one operator takes: the stages of `worker.judge.referee`, in seconds that nobody disturbs.

They are estimates from logs of slices on an H200 and on H100s, which hold few undisturbed seconds.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

_MATRIX_SHARE, _TWO_SHARE = 0.3, 0.3
"""Of the operators: those in which torch.compile makes matrix products, and those with two kernels to judge."""


COMPILERS = 3
"""At a time, of one judge."""


@dataclass(frozen=True, slots=True)
class Span:
    """Seconds between two bounds."""

    least: float
    most: float

    def draw(self, rng: random.Random) -> float:
        """Any of them."""
        return rng.uniform(self.least, self.most)

    @property
    def mean(self) -> float:
        return (self.least + self.most) / 2


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of the suite, with two candidates at most."""

    name: str
    kept_gib: float
    passing_gib: float
    workloads: int
    candidates: int
    matrix: bool


@dataclass(frozen=True, slots=True)
class Stages:
    """How long each part takes. `own`: of the judge while it holds the device, with nothing that could give way."""

    build: Span = Span(5.0, 25.0)
    """Of an operator's first candidate, without the device, beside the compilers."""
    compile: Span = Span(2.0, 5.0)
    """Of one workload in one mode: a compiler on one core."""
    modes: int = 4
    turns: tuple[int, int] = (6, 14)
    """While one workload is compiled in one mode: 68 to 369 for an operator, of 0.04 s on average (H100)."""
    turn: Span = Span(0.01, 0.06)
    long_turn: Span = Span(0.3, 0.9)
    long_share: float = 0.25
    """Of matrix products in one mode, whose first turn is a search for a template."""
    inputs: Span = Span(0.3, 1.0)
    """Of one workload, for the compilers."""
    construct: Span = Span(0.1, 0.3)
    prepare: Span = Span(1.0, 2.0)
    """Of one workload: inputs, truths, cases."""
    start: Span = Span(0.5, 1.0)
    """Of a runner, without the device."""
    load: Span = Span(2.0, 4.0)
    checks: tuple[int, int] = (20, 35)
    """Questions to a runner while a candidate is verified."""
    check: Span = Span(0.1, 0.35)
    own: Span = Span(0.02, 0.1)
    provenance: Span = Span(0.3, 0.7)
    baseline: Span = Span(0.5, 1.0)
    """Of one mode and one workload, from the cache."""
    race: Span = Span(2.5, 4.0)
    thorough: Span = Span(3.0, 8.0)
    control: Span = Span(2.0, 3.0)
    round_s: float = 0.25
    floor: Span = Span(0.15, 0.25)
    gap: Span = Span(0.3, 1.5)
    """From an answer to the next question."""
    system: Span = Span(1.5, 3.0)
    """One system check."""
    compiled: Span = Span(6.0, 14.0)
    sanitizer: Span = Span(5.0, 9.0)
    leak: Span = Span(1.5, 2.5)
    training: Span = Span(40.0, 90.0)
    trained_share: float = 0.5
    """Of the operators: the others fit into no transformer."""
    training_step_s: float = 0.2
    checked_gib: float = 9.0
    """What a finalist's judge keeps for its system checks."""
    again_modes: int = 3

    def alone_s(self, operator: Operator) -> float:
        """What an operator needs of a device alone, on average: no schedule needs less."""
        candidate_s = self.provenance.mean + self.floor.mean
        compiled = operator.workloads * self.modes
        turn_s = self.turn.mean * sum(self.turns) / 2
        if operator.matrix:
            turn_s += self.long_share * (self.long_turn.mean - self.turn.mean)
        races_s = operator.candidates * self.race.mean + self.thorough.mean + self.control.mean
        rest_s = (operator.candidates + 1) * candidate_s + self.floor.mean + self.leak.mean
        return compiled * turn_s + operator.workloads * races_s + rest_s

    def path_s(self, operator: Operator) -> float:
        """How long an operator takes that has the device to itself, on average, from its first build on."""
        longest = -(-operator.workloads // COMPILERS) * self.modes
        ahead_s = longest * self.compile.mean + operator.workloads * self.modes / COMPILERS * self.construct.mean
        checks_s = sum(self.checks) / 2 * (self.check.mean + self.own.mean)
        judged_s = (operator.candidates + 1) * (self.start.mean + self.load.mean + checks_s)
        baselines_s = (self.modes + self.again_modes) * operator.workloads * self.baseline.mean
        trained_s = self.trained_share * (self.start.mean + self.load.mean + self.training.mean)
        lane_s = 3 * (self.start.mean + self.system.mean) + trained_s
        prepared_s = 2 * operator.workloads * self.prepare.mean
        control_s = self.start.mean + self.load.mean
        return self.alone_s(operator) + ahead_s + judged_s + baselines_s + lane_s + prepared_s + control_s


STAGES = Stages()


def operators(rng: random.Random, count: int) -> list[Operator]:
    """So many of the suite, in any order."""
    names = list(_SUITE)
    chosen = [name for _round in range(-(-count // len(names))) for name in rng.sample(names, len(names))][:count]
    return [
        Operator(name, *_SUITE[name], candidates=1 + (rng.random() < _TWO_SHARE), matrix=rng.random() < _MATRIX_SHARE)
        for name in chosen
    ]


_SUITE: dict[str, tuple[float, float, int]] = {
    "conv1d": (28.4, 13.7, 5),
    "conv2d": (27.2, 11.4, 6),
    "conv_relu_pool": (31.4, 16.8, 6),
    "embedding_grad_rmsnorm_backward": (30.5, 14.4, 4),
    "fft_conv": (30.4, 11.4, 6),
    "gemm_w8a8_fp8": (20.7, 11.4, 4),
    "group_norm": (28.0, 11.4, 5),
    "interformer_pffn": (19.8, 11.4, 4),
    "lora_batched": (17.5, 11.4, 4),
    "map_id": (26.2, 11.4, 6),
    "reduce_sum_outer": (40.1, 8.5, 6),
    "rmsnorm_quant_fp8": (21.5, 11.4, 4),
    "rmsnorm_residual": (71.0, 21.5, 5),
    "selective_scan": (29.2, 7.9, 6),
    "silu_mul_quant": (28.7, 18.4, 4),
    "softmax": (61.3, 15.6, 5),
    "sparse_inverted_index": (29.0, 1.1, 5),
    "top_p_sampling": (17.6, 2.0, 5),
}
"""Operators that slices on an H200 have run, and four others: GiB that are kept and that pass, by
`exhibits.expected_bytes` for 140 GiB, and workloads."""
