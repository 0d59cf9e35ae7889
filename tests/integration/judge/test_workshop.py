"""Benches that share an arena: whoever is used next finds what it had put there, and nobody reads what others wrote."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import torch

from worker.judge.exhibits import Exhibits
from worker.judge.reference.problem import Problem
from worker.judge.runners.bench import Workbench, Workshop
from worker.judge.runners.processes import Processes, RefereeOptions
from worker.judge.runners.sessions import Runner
from worker.judge.trial import SUBJECT

PROBLEM = """
import torch
from torch import nn

SPEC = {"workloads": [{"name": "few", "params": {"rows": 5}}, {"name": "many", "params": {"rows": 900}}]}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(64))

    def forward(self, x):
        return x * self.weight

def get_inputs(rows=5):
    return [torch.rand(rows, 64)]

def get_init_inputs():
    return []
"""
HONEST = PROBLEM.replace("class Model(", "class ModelNew(")
BEYOND = HONEST.replace(
    "return x", "x.as_strided((1,), (1,), x.storage_offset() + x.numel()).fill_(1.0)\n        return x"
)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    running = Processes(RefereeOptions(home=tmp_path_factory.mktemp("home"), hardware="cpu"), on_gpu=False)
    yield running
    running.close()


@pytest.fixture(scope="module")
def exhibits() -> Exhibits:
    return Exhibits(Problem(PROBLEM, "scaled"), "cpu", "cpu", 5)


@pytest.fixture
def runner(processes: Processes) -> Iterator[Runner]:
    with processes.runner() as running:
        yield running


def benches_of(runner: Runner, exhibits: Exhibits, held: ExitStack, source: str = HONEST) -> list[Workbench]:
    """A bench of each workload with the candidate's model, all in one arena."""
    runner.ask({"op": "load", "subject": SUBJECT, "source": source, "class": "ModelNew", "compile": None}, 60)
    workshop = exhibits.workshop()
    held.callback(workshop.close)
    made = []
    for each in exhibits.workloads:
        bench = Workbench(runner, each.instance, each.cases, "cpu", each.slots, workshop=workshop)
        held.callback(bench.close)
        bench.construct(SUBJECT, 30)
        made.append(bench)
    return made


def test_an_arena_is_as_large_as_the_largest_bench_needs(exhibits: Exhibits) -> None:
    alone = [Workshop.of([(each.instance, each.cases[0], each.slots)], "cpu") for each in exhibits.workloads]
    shared = exhibits.workshop()
    assert shared.nbytes == max(each.nbytes for each in alone) < sum(each.nbytes for each in alone)
    for each in (*alone, shared):
        each.close()


def test_a_bench_that_comes_again_finds_its_inputs_and_its_parameters(runner: Runner, exhibits: Exhibits) -> None:
    with ExitStack() as held:
        few, many = benches_of(runner, exhibits, held)
        few.write(0, 1)
        first = few.run(SUBJECT, 0, 20)
        many.write(0, 0)
        assert exhibits.workloads[1].cases[0].judge(many.run(SUBJECT, 0, 20))[0].passed
        again = few.run(SUBJECT, 0, 20)
        assert torch.equal(first[0], again[0])
        assert exhibits.workloads[0].cases[1].judge(again)[0].passed
        many.load_state(SUBJECT, {"weight": torch.full((64,), 3.0)}, 20)
        found = few.read_state(SUBJECT, ["weight"], 20)["weight"]
        assert torch.equal(found, exhibits.workloads[0].instance.model.weight)
        few.construct(SUBJECT, 30)
        assert torch.equal(few.run(SUBJECT, 0, 20)[0], first[0])


def test_what_another_bench_has_written_over_is_not_read(runner: Runner, exhibits: Exhibits) -> None:
    with ExitStack() as held:
        few, many = benches_of(runner, exhibits, held)
        few.write(0, 0)
        few.run(SUBJECT, 0, 20)
        assert not few.overrun()
        assert few.changed_inputs(0) == []
        many.write(0, 0)
        for read in (few.read, few.overrun, lambda: few.changed_inputs(0)):
            with pytest.raises(AssertionError, match="another bench"):
                read()


def test_guard_zones_hold_for_every_bench_of_an_arena(runner: Runner, exhibits: Exhibits) -> None:
    with ExitStack() as held:
        for bench in reversed(benches_of(runner, exhibits, held, BEYOND)):  # the small one where the large one was
            bench.write(0, 0)
            assert not bench.overrun()
            bench.run(SUBJECT, 0, 20)
            assert bench.overrun(), bench.name


def test_a_small_bench_ends_where_the_arena_does(runner: Runner, exhibits: Exhibits) -> None:
    with ExitStack() as held:
        for bench in benches_of(runner, exhibits, held):
            assert 0 <= len(bench._bytes) - bench._guards[-1][1] < (64 << 10) + mmap.PAGESIZE, bench.name


def test_a_bench_of_its_own_keeps_its_bytes(processes: Processes, exhibits: Exhibits) -> None:
    each = exhibits.workloads[0]
    with processes.runner() as running, ExitStack() as held:
        few, many = benches_of(running, exhibits, held)
        own = Workbench(running, each.instance, each.cases, "cpu", 1, name="own")
        held.callback(own.close)
        own.construct(SUBJECT, 30)
        own.write(0, 0)
        outputs = own.run(SUBJECT, 0, 20)
        many.write(0, 0)
        assert torch.equal(own.read()[0], outputs[0])
        few.write(0, 0)
        assert torch.equal(few.run(SUBJECT, 0, 20)[0], outputs[0])
