"""The admission test of a problem: what would pass that must not, per input family, said before a search is paid for.

    python -m worker.judge.reference.admission PROBLEM_OR_FILE [--hardware cpu]

Every family of inputs is tried with wrong answers (`mutants`). One that passes makes the family *vacuous* for it. A
family that no wrong answer passes is *informative*; a problem needs three of them (fewer only if it has fewer). A
family that also tells one precision from the next *sees precision*.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from problems.catalog import Domain, ProblemError, Workload, bundled
from worker.judge.inputs import families
from worker.judge.numerics.case import Case
from worker.judge.numerics.truth import Truth
from worker.judge.numerics.twin import copied, same_bits
from worker.judge.reference import flawed
from worker.judge.reference.domains import infer_domains
from worker.judge.reference.findings import ADMITTED, REFUSED, WARNED, Admission, FamilyFinding, refusal_of, warnings_of
from worker.judge.reference.mutants import PRECISION, Outputs, mutants
from worker.judge.reference.problem import Instance, Problem, call_reference
from worker.judge.reference.randomness import refuse_random
from worker.judge.verdict import ReferenceFailed

_FIXED = {torch.float32: 1e-4, torch.float64: 1e-4}
_FIXED_HALF = 1e-2
"""The published fixed tolerances, absolute and relative, under which flawed problems are known."""
_NOT_TRIED = (families.SPECIAL, "tiny")
"""Made for one mechanism each (NaN, what 1 + x loses of x): that a loss of tiny logits is a constant is no flaw."""


def admit(problem: Problem, hardware: str, device: str, seed: int = 0) -> Admission:
    """Try a loaded problem on its smallest workload for `hardware`; `device` is `cpu` or `cuda:0`.

    A reference that cannot be judged makes a refusal with its reason, not an exception. Raises ProblemError when no
    workload is meant for `hardware`.
    """
    name = problem.outline.name
    workloads = problem.workloads(hardware)
    try:
        for workload in workloads:
            problem.check_size(workload, device)
        return _Trial(problem, _smallest(problem, workloads), hardware, device, seed).run()
    except ReferenceFailed as failed:
        notes: tuple[str, ...] = ()
        if "the reference is random" in str(failed):
            notes = tuple(map(flawed.sentence, flawed.recognise({"random reference"})))
        return Admission(name, hardware, REFUSED, str(failed), notes=notes)


def _smallest(problem: Problem, workloads: tuple[Workload, ...]) -> Workload:
    def size(workload: Workload) -> int:
        found = problem.footprint(workload)
        return found.needed if found is not None else sys.maxsize

    return min(workloads, key=size)


class _Trial:
    """One problem under test."""

    def __init__(self, problem: Problem, workload: Workload, hardware: str, device: str, seed: int) -> None:
        self._problem, self._hardware, self._device, self._seed = problem, hardware, device, seed
        self._instance: Instance = problem.instance(workload, device, seed)
        self._domains = infer_domains(problem, self._instance)
        drawn = {name: found.domain for name, found in self._domains.items()}
        self._truth = Truth(self._instance, problem.spec.precision, drawn)
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self._initial = problem.fresh_model(self._instance, device, seed)

    def run(self) -> Admission:
        instance = self._instance
        own = self._own(1)
        refuse_random(self._problem, instance, own)
        domains, drawn = self._domains, dict(self._truth.domains)
        names = families.applicable(instance.arguments, drawn, instance.like)
        findings = tuple(self._try(family, drawn) for family in names)
        signs = self._signs(own, findings)
        inert = self._without_effect(drawn, findings)
        known = flawed.recognise(signs | ({"input without effect"} if inert else set()))
        warnings = (*warnings_of(findings), *inert, *self._written(own))
        warnings += tuple(flawed.sentence(flaw) for flaw in known if flaw.sign not in flawed.HARMLESS)
        reason = refusal_of(findings)
        return Admission(
            self._problem.outline.name,
            self._hardware,
            REFUSED if reason else WARNED if warnings else ADMITTED,
            reason,
            instance.workload.name,
            domains,
            findings,
            warnings,
            tuple(flawed.sentence(flaw) for flaw in known if flaw.sign in flawed.HARMLESS),
        )

    def _own(self, step: int) -> tuple[Any, ...]:
        return self._problem.example_inputs(self._instance, self._device, self._seed + step)

    def _draw(self, family: str, domains: Mapping[str, Domain]) -> tuple[Any, ...]:
        instance = self._instance
        if family == families.OWN:
            return self._own(int(torch.randint(2, 1 << 20, (1,), generator=self._generator, device=self._device)))
        return families.draw(
            instance.like, instance.arguments, domains, instance.workload.params, family, self._generator
        )

    def _eager(self, inputs: tuple[Any, ...]) -> Outputs:
        return call_reference(self._instance.call, copied(inputs))

    def _try(self, family: str, domains: Mapping[str, Domain]) -> FamilyFinding:
        case = self._truth.case(family, self._draw(family, domains))
        if family in _NOT_TRIED or not case.finite:
            return FamilyFinding(family, usable=False)
        other = self._eager(self._draw(family, domains))
        passing: list[str] = []
        by_output: dict[str, list[str]] = {name: [] for name in case.names}
        sees = False
        for mutant, outputs in mutants(self._instance, case, other, self._initial, self._problem.spec.precision):
            passed = [found.passed for found in case.judge(outputs)]
            if mutant == PRECISION:
                sees = not all(passed)
            elif all(passed):
                passing.append(mutant)
            else:
                for name, one in zip(case.names, passed, strict=True):
                    by_output[name] += [mutant] if one else []
        partly = {name: tuple(found) for name, found in by_output.items() if found}
        return FamilyFinding(family, True, tuple(passing), partly or None, sees)

    def _signs(self, own: tuple[Any, ...], findings: tuple[FamilyFinding, ...]) -> set[str]:
        """What published problems are known for, seen on get_inputs' own values under a fixed tolerance."""
        case = self._truth.case(families.OWN, own)
        other = self._eager(self._own(2))
        passing = {
            name
            for name, outputs in mutants(self._instance, case, other, self._initial, self._problem.spec.precision)
            if _fixed_rule(outputs, case)
        }
        signs = set()
        usable = [found for found in findings if found.usable]
        constant = {"the output of other inputs", "a constant, the mean of another output"}
        if usable and all(constant <= set(found.passing) for found in usable):
            signs.add("constant output")
        if "zeros" in passing:
            signs.add("zeros pass a fixed tolerance")
        if "the output of other inputs" in passing:
            signs.add("no variation")
        if any(name.startswith(("1 %", "a constant", "ones")) for name in passing):
            signs.add("statistical shortcut")
        if "an input itself" in passing and _all_positive(own):
            signs.add("sign shortcut")
        if any(_uniform(parameter) for parameter in self._initial.parameters()):
            signs.add("identity parameters")
        return signs

    def _written(self, own: tuple[Any, ...]) -> tuple[str, ...]:
        """A sentence for each input that the reference writes into without returning it: nobody compares that. An add
        and norm that left the residual as it was, which the reference adds to in place, was accepted."""
        handed = copied(own)
        returned = {output.untyped_storage().data_ptr() for output in call_reference(self._instance.call, handed)}
        return tuple(
            f'the reference writes into "{name}", which is not judged: return it as well'
            for name, before, after in zip(self._instance.arguments, own, handed, strict=True)
            if isinstance(after, torch.Tensor)
            and not same_bits(before, after)
            and after.untyped_storage().data_ptr() not in returned
        )

    def _without_effect(self, domains: Mapping[str, Domain], findings: tuple[FamilyFinding, ...]) -> tuple[str, ...]:
        """A sentence for each input that may be replaced without a visible change of any output."""
        instance = self._instance
        tried = [found.name for found in findings if found.usable][:2]
        inert = dict.fromkeys(instance.arguments, bool(tried))
        for family in tried:
            case = self._truth.case(family, self._draw(family, domains))
            fresh = self._draw(family, domains)
            for place, name in enumerate(instance.arguments):
                value = case.inputs[place]
                if not isinstance(value, torch.Tensor) or torch.equal(value, fresh[place]):
                    inert[name] = False  # it stays as it is, so that nothing is known
                    continue
                mixed = (*case.inputs[:place], fresh[place], *case.inputs[place + 1 :])
                inert[name] &= all(found.passed for found in case.judge(self._eager(mixed)))
        return tuple(f'"{name}" has no visible effect on the output' for name, found in inert.items() if found)


def _fixed_rule(outputs: Outputs, case: Case) -> bool:
    for output, honest in zip(outputs, case.eager, strict=True):
        limit = _FIXED.get(honest.dtype, _FIXED_HALF) if honest.is_floating_point() else 0.0
        if not torch.allclose(output.double(), honest.double(), rtol=limit, atol=limit, equal_nan=True):
            return False
    return True


def _all_positive(inputs: tuple[Any, ...]) -> bool:
    floats = [value for value in inputs if isinstance(value, torch.Tensor) and value.is_floating_point()]
    return bool(floats) and all(bool((value >= 0).all()) for value in floats)


def _uniform(parameter: torch.Tensor) -> bool:
    return bool((parameter == 0).all()) or bool((parameter == 1).all())


def main() -> int:
    """Run as a program: 1 for a problem that is refused."""
    parser = argparse.ArgumentParser(description="Whether a problem can be judged, and what would pass that must not.")
    parser.add_argument("problem", help="a bundled problem's name, or a file")
    parser.add_argument("--hardware", default="cpu")
    given = parser.parse_args()
    device = "cpu" if given.hardware == "cpu" else "cuda:0"
    try:
        source = bundled()[given.problem].source if given.problem in bundled() else Path(given.problem).read_text()
        found = admit(Problem(source, Path(given.problem).stem), given.hardware, device)
    except (ProblemError, ReferenceFailed, OSError) as refused:
        sys.stderr.write(f"{given.problem}: {refused}\n")
        return 1
    sys.stdout.write("\n".join(found.lines()) + "\n")
    return 1 if found.verdict == REFUSED else 0


if __name__ == "__main__":
    sys.exit(main())
