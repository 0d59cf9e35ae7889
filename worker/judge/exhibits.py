"""What a problem is judged with: per workload the reference's instance, its cases, and what else is asked.

Made once per problem and reused for every candidate.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch

from problems.catalog import Domain
from worker.judge.inputs import families
from worker.judge.inputs.probes import (
    Probe,
    Variant,
    make_called,
    make_constructed,
    make_layouts,
    make_masked,
    make_one_more,
    make_patterns,
    make_probes,
    make_repeated,
    make_served,
    make_shapes,
)
from worker.judge.numerics.case import PARKED_BYTES, Case
from worker.judge.numerics.truth import Truth, prepare_cases
from worker.judge.reference.domains import resolved
from worker.judge.reference.footprint import memory_bytes
from worker.judge.reference.problem import Instance, Problem
from worker.judge.runners.bench import Workshop

_HOST_SLOTS = 3
_MIN_DEVICE_SLOTS, _MAX_DEVICE_SLOTS, _MIN_LARGE_SLOTS, _LARGE_SLOT_BYTES = 4, 64, 2, 512 << 20
_MAX_RETAINED = 256
"""As many calls as a chain has at most, so that any call's result may be asked for."""
_SLOT_SHARE, _RETAIN_SHARE = 1 / 128, 1 / 16
"""Shares of the device's memory for one bench's slots and for a chain's results. On an H200 1.1 GB of slots are 18
times its L2: neither a persisting window nor a cache in the candidate finds inputs again. Results of 8.8 GB: the judge
asks for any one of them when the chain is over. Two inputs of more than 512 MB are 18 times the L2 as well."""
_CASE_SHARE = 1 / 40
"""Share of a GPU's memory for one workload's cases: 3.7 GB of an H200's 150, which is 11 cases of 335 MB or 4 of 1 GB
(inputs, truth in fp64, eager's result). Without it one judge of four such workloads held 47 GB, and a worker keeps two
judges alive, each with runners and arenas besides."""
_MOST_DOUBT = 1.0
"""Relative threshold from which an output of zeros would pass."""
_CASES, _CASES_LARGE = 11, 3
_LARGE_BYTES = {"cpu": 8 << 20, "cuda:0": 256 << 20}
"""Inputs above this get three cases: the fp64 truth of one 32 MiB workload costs 0.5 s on two cores."""
_FIRST_TIMES = 8
"""The first workload, mostly the smallest, may be so many times as large: a file of one workload of 16 MiB had no rows
of zeros, no tiny values and no infinities, and a normalization without its epsilon was certified."""


_PATTERNED_BYTES = {"cpu": 8 << 20, "cuda:0": 128 << 20}
"""Workloads with more bytes of inputs have no cases of patterns: each costs what another case does, in memory too."""
_THREADS = (1, 3)
"""That a candidate on a CPU is run with besides: one gave each of two threads half of the rows, whoever came."""
_ONE_MORE_BYTES = 64 << 20
"""Of the largest workload that is asked for with one more of each size: on two cores its truth costs up to 2 s."""
_CONTEXT_BYTES = 3 << 30
"""Of the judge, the candidate's runner, the baselines' and the zygote: 0.5 to 0.8 GB each."""
_TRUTH_TIMES = 5
"""The size of a 16-bit output's truth in fp64 and of eager's result, in outputs."""
_GRAPHS = 3
"""Modes of torch.compile that keep results in pools of their own."""
_RUNNERS_TIMES = 1.3
"""What the runners' allocators hold besides: two of them 35 GB beside a judge of 80 (measured)."""
_UNKNOWN_SHARE = 0.3
"""Taken for a problem whose sizes only its values tell."""


@dataclass(frozen=True, slots=True)
class Exhibit:
    """One workload, ready to judge with."""

    instance: Instance
    cases: list[Case]
    truth: Truth
    domains: Mapping[str, Domain]
    """By argument: declared in the SPEC, or inferred from the reference."""

    @property
    def name(self) -> str:
        return self.instance.workload.name

    @property
    def input_bytes(self) -> int:
        """Bytes of one set of inputs."""
        return sum(getattr(value, "nbytes", 0) for value in self.instance.like)

    @property
    def timed(self) -> list[Case]:
        """The cases that are timed: those with the file's own indices and offsets, where there are any."""
        usual = [case for case in self.cases if case.family != families.SPECIAL] or self.cases
        # A reference may answer NaN in whole rows (a softmax of nothing) whatever it is given.
        finite = [case for case in usual if case.finite] or usual
        determined = [case for case in finite if _determined(case)] or finite
        return [case for case in determined if case.family in families.AS_LISTED] or determined

    @property
    def slots(self) -> int:
        """Places for inputs in a bench of this workload."""
        memory = self._device_bytes()
        return _slots(memory, self.input_bytes) if memory else _HOST_SLOTS

    @property
    def retained(self) -> int:
        """How many results of a chain are held to its end, and so how many calls it may have."""
        fitting = int(_RETAIN_SHARE * self._device_bytes()) // max(1, self.output_bytes)
        return max(1, min(_MAX_RETAINED, fitting))

    def _device_bytes(self) -> int:
        """Memory of the GPU; 0 on a CPU."""
        first = next((value for value in self.instance.like if isinstance(value, torch.Tensor)), None)
        return 0 if first is None or first.device.type == "cpu" else memory_bytes("cuda:0")

    @property
    def output_bytes(self) -> int:
        """Bytes of the outputs."""
        return sum(output.nbytes for output in self.cases[0].eager)


def _determined(case: Case) -> bool:
    """Whether float arithmetic determines the results at all.

    Where one may be off by its own size (causal attention on large scores, two of them nearly equal: honest errors of 2
    to 3,600 times the result, measured), a timed output tells nothing, and new values may be worse than those that the
    threshold was made for.
    """
    return all(limit.threshold < _MOST_DOUBT for limit in case.tolerances)


def _slots(memory: int, input_bytes: int) -> int:
    """Places for inputs of this size on a GPU with so many bytes."""
    fitting = int(_SLOT_SHARE * memory) // max(1, input_bytes)
    fewest = _MIN_DEVICE_SLOTS if input_bytes <= _LARGE_SLOT_BYTES else _MIN_LARGE_SLOTS
    return max(fewest, min(_MAX_DEVICE_SLOTS, fitting))


class Exhibits:
    """All workloads of one problem on one device, smallest first."""

    def __init__(
        self, problem: Problem, hardware: str, device: str, seed: int, pause: Callable[[], None] = lambda: None
    ) -> None:
        """`pause` is called after each workload, when nothing runs on the device.

        Raises ReferenceFailed when the reference cannot be judged against.
        """
        self.problem, self.device, self._seed = problem, device, seed
        self.workloads: list[Exhibit] = []
        self.whole = True
        for index, workload in enumerate(problem.workloads(hardware)):
            instance = problem.instance(workload, device, seed + index)
            self.workloads.append(self._prepare(instance, seed + index, first=index == 0))
            pause()
        self.workloads.sort(key=lambda exhibit: exhibit.input_bytes)

    def smallest(self, *, trained: bool = False) -> Exhibit:
        """The smallest workload; `trained`: of those with a backward, if any has one."""
        with_backward = [each for each in self.workloads if each.instance.backward] if trained else []
        return (with_backward or self.workloads)[0]

    @property
    def kinds(self) -> list[Exhibit]:
        """The smallest workload, and the smallest with a backward where that is another: of each, other values, sizes
        and layouts are asked."""
        smallest, trained = self.smallest(), self.smallest(trained=True)
        return [smallest] if trained is smallest else [smallest, trained]

    def _prepare(self, instance: Instance, seed: int, *, first: bool) -> Exhibit:
        size = sum(getattr(value, "nbytes", 0) for value in instance.like)
        count = _CASES if size <= _LARGE_BYTES[self.device] * (_FIRST_TIMES if first else 1) else _CASES_LARGE
        domains = resolved(self.problem, instance)
        truth = Truth(instance, self.problem.spec.precision, domains)
        budget_bytes = _CASE_SHARE * memory_bytes(self.device) if self.device != "cpu" else math.inf
        cases = prepare_cases(self.problem, truth, self.device, seed, count, budget_bytes)
        if self.device != "cpu":
            # Truths leave twice their own size behind as free blocks: of 66 GiB that the judge of rmsnorm_residual held
            # on an H200, 21 were its cases, and the runners and a second judge found no memory.
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        return Exhibit(instance, cases, truth, domains)

    def narrow(self, names: Collection[str]) -> None:
        """Keep these workloads alone: it judges nobody any more."""
        self.whole = False
        self.workloads[:] = [exhibit for exhibit in self.workloads if exhibit.name in names]
        self._forget()

    def release(self) -> None:
        """Let go of all values, whoever else still has this: a finalist's second judgement makes its own, and beside
        the first one's a judge of 31 GiB held 65 on an H100, which was full."""
        self.narrow(())

    def _forget(self) -> None:
        for made in ("probes", "shapes", "layouts", "patterns"):
            self.__dict__.pop(made, None)

    def workshop(self) -> Workshop:
        """An arena for a runner's benches of all workloads."""
        return Workshop.of(((each.instance, each.cases[0], each.slots) for each in self.workloads), self.device)

    @functools.cached_property
    def probes(self) -> list[tuple[Exhibit, list[Probe]]]:
        """The smallest workloads with one input or parameter changed."""
        generator = torch.Generator(device=self.device).manual_seed(self._seed + 1)
        return [(each, make_probes(each.truth, each.cases[0], each.domains, generator)) for each in self.kinds]

    @functools.cached_property
    def shapes(self) -> list[Variant]:
        """Workloads of other sizes, and models made or called with other constants, of the smallest ones; and a large
        one with one more of each size."""
        found = [
            variant
            for each in self.kinds
            for variant in (
                *make_shapes(self.problem, each.instance, each.domains, self._seed + 2),
                *make_constructed(self.problem, each.instance, self._seed + 2),
                *make_called(self.problem, each.instance, self._seed + 2),
            )
        ]
        large = [each.instance for each in self.workloads[1:] if each.input_bytes <= _ONE_MORE_BYTES]
        return found + make_one_more(self.problem, large[-1], self._seed + 2) if large else found

    @functools.cached_property
    def patterns(self) -> list[Variant]:
        """The workloads that are not too large, with values and indices in patterns, and the smallest ones with an
        argument masked, or called without gradients; on a CPU all of them with fewer threads and with more."""
        small = [each for each in self.workloads if each.input_bytes <= _PATTERNED_BYTES[self.device]]
        found = [
            variant
            for number, each in enumerate(small)
            for variant in make_patterns(each.truth, each.domains, self._seed + 3 + number)
        ]
        for each in self.kinds:
            found += make_masked(each.truth, each.domains, self._seed + 4)
        found += make_served(self.problem, self.smallest(trained=True).instance, self._seed + 5)
        if self.device == "cpu":
            found += [
                Variant(f"{each.name} on {count} threads", each.instance, (each.cases[0],), listed=True, threads=count)
                for each in self.workloads
                for count in _THREADS
            ]
        return found

    @functools.cached_property
    def layouts(self) -> list[Variant]:
        """The smallest workloads in other memory, and the largest: its sizes may be those that tiles divide, where wide
        loads are used, and a kernel for large tensors another one."""
        found = [
            variant
            for each in self.kinds
            for variant in (*make_repeated(each.truth, each.cases[0]), *make_layouts(each.instance, each.cases[0]))
        ]
        largest = self.workloads[-1]
        if len(self.workloads) > 1 and largest.input_bytes <= _LARGE_BYTES[self.device]:
            found += make_layouts(largest.instance, largest.cases[0])
        return found


def expected_bytes(
    problem: Problem, hardware: str, device: str, *, compiled: bool, only: Collection[str] | None = None
) -> tuple[int, int]:
    """What judging this problem will take of a GPU's memory, at a guess: what is kept (the judge's cases, two arenas
    for the benches, two models of each workload, graphs of the `compiled` baselines), and the most that is alive on the
    way. `only`: these workloads. Raises ReferenceFailed."""
    total, kept, passing, arena, running = memory_bytes(device), _CONTEXT_BYTES, 0, 0, 0
    for workload in problem.workloads(hardware):
        if only is not None and workload.name not in only:
            continue
        found = problem.footprint(workload)
        if found is None:
            return int(_UNKNOWN_SHARE * total), 0
        given, returned, truth = found.inputs, found.outputs, 3 * max(found.wide, found.largest)
        if problem.spec.trains(workload):
            given, returned = given + returned, given + returned + found.parameters
            truth = max(truth, found.saved)
        case = given + _TRUTH_TIMES * returned
        count = _CASES if given <= _LARGE_BYTES[device] else _CASES_LARGE
        held = case if case <= PARKED_BYTES else given
        kinds = {domain.kind for domain in problem.spec.domains.values()}
        spread = not kinds.isdisjoint(families.SPREAD)
        more = len(families.AS_LISTED) * (spread or "fixed" in kinds)
        more += (len(families.PATTERNS) + spread) * (given <= _PATTERNED_BYTES[device])
        cases = held * (more + min(count, max(_CASES_LARGE, int(_CASE_SHARE * total / max(1, case)))))
        arena = max(arena, _slots(total, given) * given + found.parameters + returned)
        running = max(running, returned + found.largest)  # of one workload: runners give it back after each
        kept += cases + (2 + _GRAPHS * compiled) * returned + 2 * found.parameters
        results = min(int(_RETAIN_SHARE * total), _MAX_RETAINED * returned)
        passing = max(passing, results, truth + case)
    return int(_RUNNERS_TIMES * (kept + 2 * arena + 2 * running)), int(_RUNNERS_TIMES * passing)
