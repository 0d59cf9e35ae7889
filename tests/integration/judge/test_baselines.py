"""Baselines are compiled before the race, also those whose sizes depend on values, and once only."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.judge import baselines as baselines_module
from worker.judge.baselines import Baselines, Record, Unusable, compile_ahead
from worker.judge.compiling import Compiling
from worker.judge.exhibits import Exhibits
from worker.judge.lease import DeviceLease
from worker.judge.reference.problem import Problem
from worker.judge.runners.processes import Processes, RefereeOptions
from worker.judge.timing.fresh import Fresh
from worker.judge.timing.pace import Pace
from worker.judge.timing.races import Timer
from worker.judge.verdict import Fault

PROBLEM = """
import torch
from torch import nn
from torch._dynamo.callback import on_compile_start

SPEC = {
    "workloads": [{"name": "few", "params": {"rows": 40}}, {"name": "many", "params": {"rows": 90}}],
    "domains": {"counts": {"index": 20}},
}

@on_compile_start
def tell(*_what):
    print("compiles", flush=True)

class Model(nn.Module):
    def forward(self, x, counts):
        long = torch.repeat_interleave(x, counts, dim=0)
        return (long * 2).sum(0) / long.shape[0]

def get_inputs(rows=40):
    return [torch.rand(rows, 8), torch.randint(1, 20, (rows,))]

def get_init_inputs():
    return []
"""

PLAIN = """
import torch
from torch import nn
from torch._dynamo.callback import on_compile_end

SPEC = {"workloads": [{"name": "few", "params": {"rows": 40}}, {"name": "many", "params": {"rows": 90}}]}

@on_compile_end
def tell(*_what):
    counted = torch._dynamo.utils.counters["inductor"]
    print("hits", counted["fxgraph_cache_hit"], "misses", counted["fxgraph_cache_miss"], flush=True)

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)

def get_inputs(rows=40):
    return [torch.rand(rows, 8)]

def get_init_inputs():
    return []
"""

FAILS_FOR_THE_FIRST = PLAIN.replace(
    "class Model",
    """
import os
from torch._inductor.graph import GraphLowering

if "TORCHINDUCTOR_CACHE_DIR" in os.environ:  # in a runner
    run = GraphLowering.run

    def lower(self, *inputs):
        if all(isinstance(each, torch.Tensor) and each.shape[0] == 40 for each in inputs):
            raise TypeError("list indices must be integers or slices, not NoneType")
        return run(self, *inputs)

    GraphLowering.run = lower

class Model""",
)

TELLS_OF_FILES = PLAIN.replace(
    "class Model",
    """
import pathlib

rename = pathlib.Path.rename

def tell_and_rename(self, target):
    print("wrote", self.name, flush=True)
    return rename(self, target)

pathlib.Path.rename = tell_and_rename

class Model""",
).replace(', {"name": "many", "params": {"rows": 90}}', "")


def assert_said(baselines: Baselines, words: str) -> None:
    """By one of their runners, whose output is read beside: on a busy machine after its answer."""
    deadline = time.monotonic() + 20
    while not any(words in runner.log() for runner in baselines.runners) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert words in " | ".join(runner.log() for runner in baselines.runners)


def test_what_the_compiler_refuses_ahead_is_compiled_no_more(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    processes = Processes(RefereeOptions(tmp_path, "cpu"), on_gpu=False)
    problem, lease = Problem(FAILS_FOR_THE_FIRST, "plain"), DeviceLease(tmp_path / "lease", "cpu")
    baselines = None
    try:
        ahead = processes.baseline_runner("plain")
        ahead.turn = lease.turn
        unusable = Unusable(tmp_path / "unusable.json")
        assert compile_ahead(problem, "cpu", "cpu", 3, [ahead], lease.shared, unusable), "no memory was missing"
        assert "misses 2" not in ahead.log(), "nor for the second workload, which could be"
        ahead.close()
        said = [line for line in capfd.readouterr().out.splitlines() if "baseline.not_compiled_ahead" in line]
        assert len(said) == 1 and "workload=few" in said[0]
        exhibits = Exhibits(problem, "cpu", "cpu", 7)
        baselines = Baselines(
            exhibits, lambda: processes.baseline_runner("plain"), Record(tmp_path / "record.json"), unusable
        )
        assert baselines.names == ["eager"] and "not NoneType" in baselines.missing["compile"]
    finally:
        if baselines is not None:
            baselines.close()
        processes.close()


@pytest.mark.exhaustive  # it compiles all there is twice: 212 s on two slow cores
def test_runners_that_compile_at_once_write_under_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "rename", Path.rename)  # this process reads the problem too
    processes, lease = Processes(RefereeOptions(tmp_path, "cpu"), on_gpu=False), DeviceLease(tmp_path / "lease", "cpu")
    problem, names = Problem(TELLS_OF_FILES, "plain"), []
    try:
        for folder in ("one", "another"):  # so that each has everything to write
            runner = processes.baseline_runner(folder)
            runner.turn = lease.turn
            compile_ahead(problem, "cpu", "cpu", 3, [runner], lease.shared, Unusable(tmp_path / f"{folder}.json"))
            runner.close()
            names.append({line.split()[1] for line in runner.log().splitlines() if line.startswith("wrote ")})
            assert list((tmp_path / "cache" / "baselines" / folder).rglob("*.py")), "kernels are in the cache"
            assert not list((tmp_path / "cache" / "baselines" / folder).rglob("*.tmp"))
    finally:
        processes.close()
    one, another = names
    assert one and another and not one & another
    assert all(name.startswith(".") for name in one | another), "or a reader takes it for an entry"


def test_what_takes_too_long_to_compile_is_no_baseline_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baselines_module, "_AHEAD_LIMIT_S", 2.0)
    endless = FAILS_FOR_THE_FIRST.replace("raise TypeError(", "__import__('time').sleep(600); raise TypeError(")
    processes = Processes(RefereeOptions(tmp_path, "cpu"), on_gpu=False)
    problem, lease, baselines = Problem(endless, "plain"), DeviceLease(tmp_path / "lease", "cpu"), None
    try:
        ahead = processes.baseline_runner("plain")
        ahead.turn = lease.turn
        assert compile_ahead(problem, "cpu", "cpu", 3, [ahead], lease.shared, Unusable(tmp_path / "unusable.json"))
        assert ahead.dead, "and all that it held is free"
        unusable = Unusable(tmp_path / "unusable.json")
        assert unusable.reasons == {"compile": "not compiled within 2 s for 'few'"}
        record = Record(tmp_path / "record.json")
        exhibits = Exhibits(problem, "cpu", "cpu", 7)
        baselines = Baselines(exhibits, lambda: processes.baseline_runner("plain"), record, unusable)
        assert baselines.names == ["eager"] and baselines.missing == unusable.reasons
    finally:
        if baselines is not None:
            baselines.close()
        processes.close()


def test_what_spoils_two_processes_is_not_compiled_ahead_again(tmp_path: Path) -> None:
    spoils = FAILS_FOR_THE_FIRST.replace("raise TypeError(", "raise RuntimeError('an illegal memory access' or ")
    processes = Processes(RefereeOptions(tmp_path, "cpu"), on_gpu=False)
    problem, lease = Problem(spoils, "plain"), DeviceLease(tmp_path / "lease", "cpu")
    unusable = Unusable(tmp_path / "unusable.json")
    try:
        for reasons in ([], ["compile"]):
            ahead = processes.baseline_runner("plain")
            ahead.turn = lease.turn
            with pytest.raises(Fault, match="an illegal memory access"):
                compile_ahead(problem, "cpu", "cpu", 3, [ahead], lease.shared, unusable)
            ahead.close()
            assert list(Unusable(tmp_path / "unusable.json").reasons) == reasons
        again = processes.baseline_runner("plain")
        again.turn = lease.turn
        assert compile_ahead(problem, "cpu", "cpu", 3, [again], lease.shared, unusable)
        assert "misses" not in again.log(), "nothing of it was compiled"
        again.close()
    finally:
        processes.close()


def test_what_is_no_baseline_here_is_tried_again_after_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_800_000_000.0
    monkeypatch.setattr("worker.judge.baselines.time.time", lambda: now)
    unusable, beside = Unusable(tmp_path / "unusable.json"), Unusable(tmp_path / "unusable.json")
    unusable.add("compile", "not compiled in time")
    now += 3600
    beside.suspect("library_fused", "CUDA error: an illegal memory access")
    assert beside.reasons == {"compile": "not compiled in time"}, "what another evaluator has learnt, too"
    unusable.suspect("library_fused", "another")
    assert unusable.reasons.keys() == {"compile", "library_fused"}
    now += 23.5 * 3600
    assert Unusable(tmp_path / "unusable.json").reasons == {"library_fused": "CUDA error: an illegal memory access"}


@pytest.mark.exhaustive  # the next one shows most of it
def test_what_was_compiled_ahead_is_not_compiled_again(tmp_path: Path) -> None:
    processes = Processes(RefereeOptions(tmp_path, "cpu"), on_gpu=False)
    problem = Problem(PLAIN, "plain")
    baselines = None
    try:
        lease, turns = DeviceLease(tmp_path / "lease", "cpu"), 0

        @contextlib.contextmanager
        def turn() -> Iterator[None]:
            nonlocal turns
            turns += 1
            with lease.turn():
                yield

        ahead = processes.baseline_runner("plain")
        ahead.turn = turn
        unusable = Unusable(tmp_path / "unusable.json")
        compile_ahead(problem, "cpu", "cpu", 3, [ahead], lease.shared, unusable)
        assert "hits 0 misses 2" in ahead.log()
        assert turns == 2, "what was compiled runs alone on the device, once for each workload"
        ahead.close()
        exhibits = Exhibits(problem, "cpu", "cpu", 7)
        baselines = Baselines(
            exhibits, lambda: processes.baseline_runner("plain"), Record(tmp_path / "record.json"), unusable
        )
        assert baselines.missing == {}
        assert_said(baselines, "hits 2 misses 0")
    finally:
        if baselines is not None:
            baselines.close()
        processes.close()


def test_baselines_are_compiled_in_a_thread_and_what_fails_there_costs_nothing(tmp_path: Path) -> None:
    processes = Processes(RefereeOptions(tmp_path, "cpu"), on_gpu=False)
    lease, told, plain = DeviceLease(tmp_path / "lease", "cpu"), [], Problem(PLAIN, "plain")

    def room(problem: Problem, hardware: str) -> None:
        told.append((problem.outline.name, hardware))

    unusable = Unusable(tmp_path / "unusable.json")
    compiling = Compiling(
        processes, lease, "cpu", room, lambda name: tmp_path / f"{name}.json", lambda _name: unusable, at_once=2
    )
    baselines = None
    try:
        assert not compiling.wait(), "nothing was begun"
        with lease.exclusive():
            compiling.begin(plain, "cpu", 3)
            assert not compiling.done(plain)
            assert compiling.begun and compiling.busy, "it waits for its first turn at least"
        assert compiling.wait() and not compiling.begun
        assert compiling.done(plain)
        assert told == [("plain", "cpu")], "room was taken"
        exhibits = Exhibits(plain, "cpu", "cpu", 7)
        name = exhibits.problem.outline.source_hash
        baselines = Baselines(
            exhibits, lambda: processes.baseline_runner(name), Record(tmp_path / "record.json"), unusable
        )
        assert_said(baselines, "hits 2 misses 0")

        broken = Problem(PLAIN.replace("torch.softmax(x, dim=-1)", "x.none()"), "broken")
        compiling.begin(broken, "cpu", 3)
        assert compiling.wait() and not compiling.done(broken)
    finally:
        if baselines is not None:
            baselines.close()
        processes.close()


def test_judges_that_meet_a_problem_at_once_compile_it_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    processes, lease = Processes(RefereeOptions(tmp_path, "cpu"), on_gpu=False), DeviceLease(tmp_path / "lease", "cpu")
    plain, unusable, rooms = Problem(PLAIN, "plain"), Unusable(tmp_path / "unusable.json"), []
    judges = [
        Compiling(
            processes, lease, "cpu", lambda *what: rooms.append(what), lambda name: tmp_path / name, lambda _: unusable
        )
        for _number in range(2)
    ]
    try:
        for compiling in judges:
            compiling.begin(plain, "cpu", 3)
        assert all([compiling.wait() for compiling in judges])
    finally:
        processes.close()
    assert judges[0].done(plain) and len(rooms) == 2, "both have room for what comes next"
    assert capfd.readouterr().out.count("baselines.compiled_ahead") == 1


def test_nothing_is_compiled_in_a_race(tmp_path: Path) -> None:
    processes = Processes(RefereeOptions(tmp_path, "cpu"), on_gpu=False)
    rng = random.Random(1)
    baselines = None
    try:
        exhibits = Exhibits(Problem(PROBLEM, "ragged"), "cpu", "cpu", 7)
        unusable = Unusable(tmp_path / "unusable.json")
        baselines = Baselines(
            exhibits, lambda: processes.baseline_runner("ragged"), Record(tmp_path / "record.json"), unusable
        )
        assert baselines.missing == {}
        runner = next(each for each in baselines.runners if "compiles" in each.log())
        compiled = runner.log().count("compiles")
        timer = Timer("cpu")
        for exhibit in exhibits.workloads:
            eager, compile_ = baselines.contenders(exhibit.name)
            stopped: list[bool] = []

            def pause(stopped: list[bool] = stopped) -> None:
                stopped.append(all(each._freezer.frozen for each in baselines.runners))

            timed = timer.time([compile_, eager], exhibit, Fresh(exhibit, rng), rng, Pace(0.2, 0.2, 12), pause)
            rounds = len(timed.samples_us["compile"])
            assert rounds >= 3, "nine, but where a core was missing when the first call was made"
            assert stopped == [True] * rounds, "others may have the device before each round"
        assert runner.log().count("compiles") == compiled
    finally:
        if baselines is not None:
            baselines.close()
        processes.close()
