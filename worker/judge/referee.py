"""The main path of a judgement: intake, load, verify, time, verdict. Cheap checks first.

request ► intake (parse) ► runner (load; builds by the broker) ► verify (`worker.judge.checks`, cheapest first)
        ► time against the baselines ► floor ► report
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import random
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import structlog
import torch

from problems.catalog import ProblemError
from worker.judge import ahead, artefacts, environment, phases
from worker.judge.baselines import OF_MEMORY, Baselines, Record, Unusable
from worker.judge.certificate.certify import certify
from worker.judge.certificate.parts import RefereeParts
from worker.judge.certificate.system import control
from worker.judge.checks import provenance, sensitivity, settings, shapes, state, stillness, values
from worker.judge.checks.spot_checks import SpotChecks
from worker.judge.checks.values import judge_case
from worker.judge.compiling import Compiling
from worker.judge.dynamics.check import Training
from worker.judge.exhibits import Exhibits, expected_bytes
from worker.judge.generated import CodeReader
from worker.judge.intake import intake, load
from worker.judge.lease import DeviceLease, Stoppable
from worker.judge.physics.floor import PhysicsFloor
from worker.judge.reference import admission
from worker.judge.reference.footprint import memory_bytes
from worker.judge.reference.problem import Problem
from worker.judge.report import Evaluation, EvaluationRequest
from worker.judge.room import Room, Shortfall
from worker.judge.runners.bench import Contender, Workbench
from worker.judge.runners.processes import Processes, RefereeOptions
from worker.judge.runners.sessions import LOG_BYTES, Runner
from worker.judge.summary import summarise
from worker.judge.timing.fresh import Fresh
from worker.judge.timing.pace import THOROUGH, USUAL, Pace
from worker.judge.timing.races import Timer, Timings
from worker.judge.trial import CONSTRUCT_LIMIT_S, FIRST_RUN_LIMIT_S, SUBJECT, Trial
from worker.judge.tuning import Tuning, TuningParts
from worker.judge.verdict import BaselineFault, Fault, Verdict
from worker.profile.ladder import Profiler

log = structlog.get_logger()

_AHEAD_SHARE = 0.5
"""Of what judging takes of a GPU's memory: what compiling the baselines takes, on one set of inputs, not 4 to 15. One
judge and its three runners held 32 GB of an H100 for it, of 52 that judging was to take."""
_SIDE_BY_SIDE_BYTES = 6 << 30
"""Of a GPU, for the runners of six system checks at a time and what compute-sanitizer watches of them."""
_MACHINE = ("device", "cpu", "cores", "torch", "triton")
"""What a baseline's latency depends on beside the problem."""


class Referee:
    """Judges candidates of one problem after another on one device."""

    def __init__(self, options: RefereeOptions, pace: Pace | None = None) -> None:
        """`pace`: how long to time a workload, where the usual is not wanted (a benchmark of thousands of kernels)."""
        self._options = options
        self._on_gpu = options.hardware != "cpu" and torch.cuda.is_available()
        self.device = "cuda:0" if self._on_gpu else "cpu"
        rhythm = phases.GPU if self._on_gpu else phases.ANY
        self._lease = DeviceLease(options.home / "run", _device_name(self._on_gpu), rhythm)
        self._room = Room(options.home / "run", _device_name(True), memory_bytes(self.device)) if self._on_gpu else None
        self.processes = Processes(options, on_gpu=self._on_gpu)
        self._compiling = Compiling(
            self.processes,
            self._lease,
            self.device,
            lambda problem, hardware: self._take_room(problem, hardware, _AHEAD_SHARE),
            lambda name: self._kept(name, ".ahead"),
            self._unusable,
        )
        self._shortfall: Shortfall | None = None
        self._exhibits: Exhibits | None = None
        self._baselines: Baselines | None = None
        self._training: Training | None = None
        self._tuning: Tuning | None = None
        self._floor = PhysicsFloor(self.device)
        self._timer = Timer(self.device)
        self._usual_pace = self._pace = pace or USUAL[self.device]
        profiler = Profiler(self.device, options.home, self._floor, self.processes.runner)
        self._profiler = profiler if options.profile and not options.eager_only else None
        self._code = CodeReader(options.build_root, self._lease, on_gpu=self._on_gpu) if options.code else None
        self._seed = secrets.randbits(40)  # never leaves this process: the next candidate meets it too
        self._judged: tuple[EvaluationRequest, Evaluation] | None = None
        """The last candidate."""

    def evaluate(self, request: EvaluationRequest) -> Evaluation:
        """Judge one candidate. Raises ReferenceFailed or ProblemError when the problem itself cannot be judged."""
        self._lease.begin()
        evaluation = self._evaluate(request, self.exhibits_for(request), self._profiler, self._code)
        self._judged = (request, evaluation)
        return evaluation

    def certify(self, request: EvaluationRequest) -> dict[str, Any]:
        """Judge a finalist, unless it was what this process judged last; examine it as a system, judge it once more
        with new secrets, and write its certificate. Raises as `evaluate` does."""
        judged, evaluation = self._judged or (None, None)
        if judged != request:
            self._lease.begin()
        exhibits = self.exhibits_for(request)
        if evaluation is None or judged != request:
            evaluation = self._evaluate(request, exhibits, self._profiler)
        if self._training is None:
            self._training = Training(exhibits, self._seed)
        parts = RefereeParts(
            device=self.device,
            exhibits=exhibits,
            lease=self._lease,
            runner=self._part_runner,
            again=lambda: self._again(request),
            crowded_out=self._crowded_out,
            narrow=lambda: self._narrow(exhibits, request.hardware),
            training=self._training,
            control=lambda: self._control(control.itself(request)),
        )
        return certify(parts, request, evaluation).to_json()

    def measure(self, request: EvaluationRequest, source: str) -> dict[str, Any]:
        """A configuration (`source`) of a candidate that was judged before, measured quickly (`worker.judge.tuning`).

        The runner stays for the next one until `rest`. Raises ReferenceFailed, ProblemError, Fault.
        """
        exhibits = self.exhibits_for(request)
        if self._tuning is None or self._tuning.request != request:
            self.rest()
            self._lease.begin()
            parts = TuningParts(exhibits, self._lease, self._timer, self._runner, self.device)
            self._tuning = Tuning(parts, request)
        return self._tuning.measure(source).to_json()

    def fingerprint(self, request: EvaluationRequest) -> str | None:
        """What the candidate is once it is built (`worker.judge.artefacts`), which takes no device. While the first one
        of a problem is built its baselines are compiled."""
        if self._exhibits is None and not self._compiling.begun:
            with contextlib.suppress(ProblemError):  # the judgement will say so
                self._compile_ahead(Problem(request.problem_source, request.problem_name), request.hardware)
        with self.processes.runner(device=False) as runner:
            return artefacts.fingerprint(runner, request.candidate_source)

    def rest(self) -> None:
        """No more configurations: end their runner."""
        if self._tuning is not None:
            self._tuning.close()
        self._tuning = None

    def admit(self, source: str, name: str, hardware: str) -> dict[str, Any]:
        """The admission test of a problem. Raises ProblemError or ReferenceFailed when it is not even a problem."""
        problem = Problem(source, name)
        self._compiling.wait()
        if self._on_gpu:
            self._close_problem()
            self._take_room(problem, hardware)
        with self._lease.shared():
            found = admission.admit(problem, hardware if self._on_gpu else "cpu", self.device, secrets.randbits(40))
        return found.to_json()

    def make_room(self, *, idle: bool) -> None:
        """Give the device's memory back if another judge waits for it: what the problem needs is made again with the
        next candidate. `idle`: there is no candidate now."""
        if self._room is not None and not self._compiling.busy and self._room.wanted(idle=idle):
            self._close_problem()
            self._trim()
            self._room.leave()

    @property
    def lost(self) -> bool:
        """Whether this process can use its device no more: a reference that reads out of bounds ends a context."""
        if self._on_gpu:
            try:
                torch.cuda.synchronize()
            except RuntimeError as broken:
                log.warning("device.lost", reason=str(broken).partition("\n")[0])
                return True
        return False

    def close(self) -> None:
        """End every process of this judge."""
        self._close_problem()
        self.processes.close()

    # --- the steps --------------------------------------------------------------------------------------------------

    def _evaluate(
        self,
        request: EvaluationRequest,
        exhibits: Exhibits,
        profiler: Profiler | None = None,
        code: CodeReader | None = None,
    ) -> Evaluation:
        self.rest()
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats()
        started, held, waited_s = time.monotonic(), self._lease.held_s, dict(self._lease.waited_s)
        evaluation = Evaluation(request.candidate_id)
        try:
            intake(request.candidate_source)
            if request.language == "triton" and not self._on_gpu:
                self._judge_without_device(request, exhibits, evaluation, code)
            else:
                self._judge(request, exhibits, evaluation, profiler, code)
        except _BaselinesFull as full:
            evaluation.verdict, evaluation.reason = self._whose_memory(exhibits, full)
        except Fault as fault:
            evaluation.verdict, evaluation.reason = fault.verdict, fault.reason
            evaluation.log = fault.log[-LOG_BYTES:]
            if self._crowded_out(fault):
                evaluation.verdict = Verdict.INFRA_ERROR
        evaluation.environment |= environment.describe(self.device, self.processes.level)
        evaluation.wall_s = time.monotonic() - started
        evaluation.gpu_s = self._lease.held_s - held
        log.info(
            "candidate.evaluated",
            candidate=request.candidate_id,
            verdict=str(evaluation.verdict),
            reason=evaluation.reason,
            speedup=evaluation.speedup,
            wall_s=round(evaluation.wall_s, 2),
            stages_s={name: round(took_s, 1) for name, took_s in evaluation.stages_s.items()},
            waited_s={how: round(now_s - waited_s[how], 1) for how, now_s in self._lease.waited_s.items()},
            memory_gib=self._memory_gib(),
        )
        return evaluation

    def _judge(
        self,
        request: EvaluationRequest,
        exhibits: Exhibits,
        evaluation: Evaluation,
        profiler: Profiler | None,
        code: CodeReader | None,
    ) -> None:
        with evaluation.phase("runner"), self._runner() as runner:
            trial = Trial(runner, request, exhibits, self.device, _secret_rng(), evaluation)
            with closing(trial):
                self._verify(trial)
                with self._alone([runner]), evaluation.stage("provenance"):
                    listed = provenance.check(trial, runner.own_artefacts)
                spot_checks = SpotChecks(trial, runner.own_artefacts, listed) if listed else None
                still = runner.stillness
                timings = self._time(trial, spot_checks)
                if spot_checks is not None:
                    spot_checks.check()
                stillness.check(trial, still, min(len(timed.samples_us[SUBJECT]) for timed in timings))
                evaluation.log = runner.log()
                self._conclude(trial, timings)
                if profiler is not None and evaluation.verdict is Verdict.OK:
                    with self._lease.exclusive(), evaluation.stage("profile"):
                        evaluation.profile = profiler.profile(trial)
                if code is not None and evaluation.verdict is Verdict.OK:
                    with evaluation.stage("code"):
                        evaluation.code = code.read(request, runner, trial.benches)

    def _verify(self, trial: Trial) -> None:
        """Load the candidate and hold it against the truth, cheapest checks first."""
        runner, evaluation = trial.runner, trial.evaluation
        try:
            with self._lease.lent(runner):
                with evaluation.stage("load"):
                    found = settings.read(runner)
                    load(runner, trial.request.candidate_source, SUBJECT)
                    settings.check_loaded(trial, found)
                with evaluation.stage("verify"):
                    values.check(trial)
                    called = settings.read(runner, advance=True)
                    sensitivity.check(trial)
                    settings.check_loaded(trial, found)
                    settings.check_called(trial, called)
                    state.check(trial)
                    shapes.check(trial)
                    if self._on_gpu:
                        next(iter(trial.benches.values())).trim()  # the baselines' runner needs room next
        finally:
            evaluation.build_s = runner.build_s

    def _conclude(self, trial: Trial, timings: list[Timings]) -> None:
        """The verdict, from times and the floor. Nothing comes after it but advice."""
        evaluation = trial.evaluation
        trial.runner.freeze()  # nothing of the candidate's runs while the device's ceilings are measured
        summarise(evaluation, timings, self.device)
        with self._lease.exclusive():
            evaluation.checks.append(self._floor.check(trial.exhibits.workloads, evaluation))
        self._trim()  # the least work is counted in fp64: 36 GiB stayed here, and the A/A control of an H100 found none
        trial.runner.thaw()

    def _control(self, request: EvaluationRequest) -> Evaluation:
        """The reference (`request`'s candidate) timed against itself. Answers a failure with its verdict."""
        exhibits = self.exhibits_for(request)
        evaluation = Evaluation(request.candidate_id)
        try:
            with evaluation.phase("runner"), self._runner() as runner:
                trial = Trial(runner, request, exhibits, self.device, _secret_rng(), evaluation)
                with closing(trial):
                    with self._lease.lent(runner):
                        load(runner, request.candidate_source, SUBJECT)
                        values.make_benches(trial)
                    summarise(evaluation, self._time(trial, against_all=False), self.device)
        except Fault as fault:
            evaluation.verdict, evaluation.reason = fault.verdict, fault.reason
        return evaluation

    def _time(self, trial: Trial, spot_checks: SpotChecks | None = None, *, against_all: bool = True) -> list[Timings]:
        """Every workload against its baselines (or eager alone), alone on the device."""
        self._trim()
        with trial.evaluation.stage("baselines"), _of_the_machine():
            baselines = self.baselines_of(trial.exhibits)
        trial.evaluation.environment = {"baselines_missing": baselines.missing}
        if against_all and baselines.short:
            raise _BaselinesFull(baselines.short)
        pace = self._pace.shared_by(len(trial.exhibits.workloads))
        timings = []
        runners = [trial.runner, *baselines.runners]
        for exhibit in trial.exhibits.workloads:
            with self._alone(runners) as pause, trial.evaluation.stage("time"):
                self._trim()
                candidate = Contender(SUBJECT, trial.benches[exhibit.name], SUBJECT)
                raced = [candidate, *baselines.contenders(exhibit.name)[: None if against_all else 1]]
                try:
                    fresh = Fresh(exhibit, trial.rng)
                    timings.append(self._timer.time(raced, exhibit, fresh, trial.rng, pace, pause, spot_checks))
                except BaselineFault as fault:
                    baselines.learn(fault)
                    raise
        for runner in runners:
            runner.thaw()
        if against_all:
            baselines.timed({timed.workload: timed.baselines_us for timed in timings})
        return timings

    @contextmanager
    def _alone(self, runners: Sequence[Runner]) -> Iterator[Callable[[], None]]:
        """Have the device for one workload, or one check. Before and after it, while others are timed, these runners
        are stopped, and stay so. Gives what lets others have their turns."""
        try:
            for runner in runners:
                runner.freeze()
            with self._lease.exclusive() as give_turns:
                for runner in runners:
                    runner.thaw()
                yield give_turns
                for runner in runners:
                    runner.freeze()
        except BaseException:
            for runner in runners:
                runner.thaw()
            raise

    def _trim(self) -> None:
        """Give back what comparing left free, tens of gigabytes of a GPU: the runners need room."""
        if self._on_gpu:
            torch.cuda.empty_cache()

    def _judge_without_device(
        self, request: EvaluationRequest, exhibits: Exhibits, evaluation: Evaluation, code: CodeReader | None
    ) -> None:
        """A Triton candidate without its GPU: values in the interpreter on the smallest workload, then an
        ahead-of-time build for the target's architecture. Never timed, and the reason says so."""
        exhibit = exhibits.workloads[0]
        with evaluation.phase("runner"), self._candidate_bench(exhibits, request, {"op": "interpret"}) as bench:
            trial = Trial(bench.runner, request, exhibits, self.device, _secret_rng(), evaluation)
            for number, case in enumerate(bench.cases):
                bench.write(number, number)
                judge_case(trial, exhibit.name, case, bench.run(SUBJECT, number, FIRST_RUN_LIMIT_S["triton"]))
        arch = ahead.arch_of(request.hardware)
        recorded = {"op": "record", "arch": arch}
        with evaluation.phase("runner"), self._candidate_bench(exhibits, request, recorded) as bench:
            bench.write(0, 0)
            built = ahead.built_kernels(bench, SUBJECT, arch)
            if code is not None:
                with evaluation.stage("code"):
                    evaluation.code = code.read(request, bench.runner, {exhibit.name: bench})
        evaluation.checks.append(built)
        evaluation.verdict = Verdict.OK
        evaluation.reason = f"right in the interpreter on {exhibit.name!r}; {built.detail}; not timed: no such GPU here"

    @contextmanager
    def _candidate_bench(
        self, exhibits: Exhibits, request: EvaluationRequest, prepare: dict[str, Any]
    ) -> Iterator[Workbench]:
        """The candidate in a runner of its own and in a mode of its own, made for the smallest workload."""
        exhibit = exhibits.workloads[0]
        with self._runner() as runner, self._lease.shared():
            runner.ask(prepare, 60)
            load(runner, request.candidate_source, SUBJECT)
            bench = Workbench(runner, exhibit.instance, exhibit.cases[:2], self.device, exhibit.slots)
            with closing(bench):
                bench.construct(SUBJECT, CONSTRUCT_LIMIT_S)
                yield bench

    # --- what lives from one candidate to the next ------------------------------------------------------------------

    def exhibits_for(self, request: EvaluationRequest) -> Exhibits:
        """The problem, prepared once. Raises ReferenceFailed or ProblemError."""
        if (
            self._exhibits is None
            or not self._exhibits.whole
            or self._exhibits.problem.outline.source != request.problem_source
        ):
            self._close_problem()
            self._exhibits = self._prepare(request, self._seed)
        return self._exhibits

    def baselines_of(self, exhibits: Exhibits) -> Baselines:
        """The live baselines, made on first use and again after their runner died, beside others' work. Whoever has
        them shares the device for nothing, and would wait for that between two times of having it alone."""
        if self._baselines is None or self._baselines.dead:
            self._close_baselines()
            with self._lease.lent(counted=False) as lend:
                self._baselines = self._made_baselines(exhibits, lend)
        return self._baselines

    def _made_baselines(self, exhibits: Exhibits, lend: Callable[[Stoppable], None]) -> Baselines:
        """`lend`: is told of their runners."""
        name = exhibits.problem.outline.source_hash

        def spawn() -> Runner:
            runner = self.processes.baseline_runner(name)
            lend(runner)
            return runner

        unusable = self._unusable(name)
        while True:
            known = unusable.known
            try:
                return Baselines(
                    exhibits,
                    spawn,
                    self._record(name),
                    unusable,
                    eager_only=self._options.eager_only,
                    crowded_out=lambda fault: OF_MEMORY in fault.reason and self.crowded,
                )
            except Fault as fault:
                if unusable.known == known:
                    raise
                log.warning("baselines.made_again", reason=fault.reason[:300])

    def _record(self, name: str) -> Record:
        """What the baselines of a problem took when all of them were raced, if they were."""
        return Record(self._kept(name, ".eager" if self._options.eager_only else ""))

    def _unusable(self, name: str) -> Unusable:
        """Which of a problem's baselines are none on this machine."""
        return Unusable(self._kept(name, ".unusable"))

    def _kept(self, name: str, suffix: str) -> Path:
        """A file about the baselines of a problem on this machine."""
        return self.processes.compile_cache(name).parent / f"{name}.{self._machine()}{suffix}.json"

    def _prepare(self, request: EvaluationRequest, seed: int, *, finalist: bool = False) -> Exhibits:
        problem = Problem(request.problem_source, request.problem_name)
        if not self._compiling.wait():
            self._compile_ahead(problem, request.hardware)
            self._compiling.wait()
        self._trim()
        self._take_room(problem, request.hardware, finalist=finalist)
        began, waited_s = time.monotonic(), self._lease.waited_s["shared"]
        with self._lease.shared() as pause:
            exhibits = Exhibits(problem, request.hardware if self._on_gpu else "cpu", self.device, seed, pause)
        took = {"wall_s": time.monotonic() - began, "waited_s": self._lease.waited_s["shared"] - waited_s}
        log.info("problem.prepared", problem=request.problem_name, **{name: round(s, 1) for name, s in took.items()})
        return exhibits

    def _compile_ahead(self, problem: Problem, hardware: str) -> None:
        """Have the baselines compiled, where they never were, while this judge holds little of the device's memory."""
        compiled = self._on_gpu and not self._options.eager_only
        known = self._compiling.done(problem) or self._record(problem.outline.source_hash).latency_us
        if compiled and not known:
            self._compiling.begin(problem, hardware, self._seed)

    def _take_room(self, problem: Problem, hardware: str, share: float = 1.0, *, finalist: bool = False) -> None:
        """Wait until the device's memory has room for this problem, or for so much of it."""
        if self._room is not None:
            compiled = not self._options.eager_only
            kept, passing = expected_bytes(problem, hardware, self.device, compiled=compiled)
            self._shortfall = Shortfall(self._kept(problem.outline.source_hash, ".room"))
            device, times = memory_bytes(self.device), share * self._shortfall.times
            # Of problems that need all of a device two judges had 58 and 52 of an H100's 79 GiB, beside small ones of
            # others, and found no more.
            whole = share * (kept + passing) >= device
            promised = self._room.all if whole else min(int(times * kept), device)
            self._room.take(promised, int(times * passing), finalist=finalist)

    def _narrow(self, exhibits: Exhibits, hardware: str) -> None:
        """Keep the smallest workload, the smallest with a backward and the one that is trained with, which a finalist's
        system checks need, and give others the rest of the room for those minutes: its second judgement makes
        everything anew."""
        assert self._training is not None, "certify makes it"
        smallest, with_backward = exhibits.smallest(), exhibits.smallest(trained=True)
        names = {smallest.name, with_backward.name, self._training.workload or smallest.name}
        self._close_baselines()
        exhibits.narrow(names)
        gc.collect()
        self._trim()
        if self._room is not None and not self._room.has_all:  # or all others would have to leave once more
            kept, passing = expected_bytes(exhibits.problem, hardware, self.device, compiled=False, only=names)
            self._room.keep(kept + _SIDE_BY_SIDE_BYTES, passing)

    def _memory_gib(self) -> dict[str, float]:
        """Of a GPU: what is promised to this judge, and the most that it had itself since its last candidate came."""
        if self._room is None:
            return {}
        found = {"promised": self._room.promised, "had": torch.cuda.max_memory_allocated()}
        return {name: round(nbytes / (1 << 30), 1) for name, nbytes in found.items()}

    @property
    def crowded(self) -> bool:
        """Whether other judges have a part of the device's memory."""
        return self._room is not None and self._room.crowded

    def _crowded_out(self, fault: Fault) -> bool:
        """Whether a candidate found no memory because others have of it what this judge was promised. The candidate's
        runner has ended, so what it took itself is free again."""
        if fault.verdict is not Verdict.LAUNCH_ERROR or OF_MEMORY not in fault.reason or not self.crowded:
            return False
        assert self._room is not None, "or nobody would be beside it"
        self._close_baselines()  # what they and comparisons hold is of what was promised, and in no figure
        gc.collect()
        self._trim()
        return torch.cuda.mem_get_info()[0] < self._room.promised - torch.cuda.memory_reserved()

    def _whose_memory(self, exhibits: Exhibits, full: _BaselinesFull) -> tuple[Verdict, str]:
        """Who took the memory that baselines did not find: they are made again, now that the candidate's process has
        ended. A candidate that fills a device would be raced against fewer of them. Beside other judges, whose memory
        comes and goes, nothing can be told."""
        names = ", ".join(sorted(full.names))
        self._close_baselines()
        if self.crowded:
            return Verdict.INFRA_ERROR, f"the device was {OF_MEMORY} for {names}, beside other judges"
        try:
            with _of_the_machine():
                short = self.baselines_of(exhibits).short
        except Fault as fault:
            return fault.verdict, fault.reason
        if not full.names <= short:
            return Verdict.LAUNCH_ERROR, f"it holds so much of the device's memory that there was none for {names}"
        unusable = self._unusable(exhibits.problem.outline.source_hash)
        for name in short:
            unusable.add(name, "the device has not enough memory for it")
        return Verdict.INFRA_ERROR, f"the device has not enough memory for {names}: to be judged without"

    def learn_of_room(self, failure: str | None) -> None:
        """Whether the room taken for the problem was enough: not where memory was short beside others. `failure`: why
        the machine failed; None where it did not."""
        if self._shortfall is None:
            return
        if failure is None:
            self._shortfall.lessen()
        elif OF_MEMORY in failure and self.crowded:
            self._shortfall.add()

    def _again(self, request: EvaluationRequest) -> Evaluation:
        """A second judgement that shares nothing with the first but the device: new seeds, parameters and processes."""
        self._close_problem()
        self._exhibits = self._prepare(request, secrets.randbits(40), finalist=True)
        self._pace = THOROUGH[self.device]
        try:
            return self._evaluate(request, self._exhibits)
        finally:
            self._pace = self._usual_pace

    def _close_problem(self) -> None:
        self.rest()
        self._close_baselines()
        for held in (self._exhibits, self._training):
            if held is not None:
                held.release()
        self._exhibits = self._training = None
        gc.collect()

    def _close_baselines(self) -> None:
        if self._baselines is not None:
            for runner in self._baselines.runners:
                self._timer.forget(runner)
            self._baselines.close()
        self._baselines = None

    def _machine(self) -> str:
        facts = environment.describe(self.device, "")
        return hashlib.sha256("|".join(str(facts[key]) for key in _MACHINE).encode()).hexdigest()[:12]

    @contextmanager
    def _runner(self) -> Iterator[Runner]:
        with self.processes.runner() as runner:
            try:
                yield runner
            finally:
                self._timer.forget(runner)

    def _part_runner(self, unlimited: bool) -> Any:
        return self.processes.runner(unlimited=unlimited)


class _BaselinesFull(Fault):
    """Baselines found no memory beside a candidate's process."""

    def __init__(self, names: set[str]) -> None:
        super().__init__(Verdict.INFRA_ERROR, f"no memory for {', '.join(sorted(names))}")
        self.names = frozenset(names)


@contextmanager
def _of_the_machine() -> Iterator[None]:
    """For what no candidate has a part in: its faults are the machine's, not a verdict."""
    try:
        yield
    except Fault as fault:
        raise Fault(Verdict.INFRA_ERROR, f"the baselines: {fault.reason}", fault.log) from fault


def _secret_rng() -> random.Random:
    return random.Random(secrets.randbits(64))


def _device_name(on_gpu: bool) -> str:
    if not on_gpu:
        return "cpu"
    uuid = getattr(torch.cuda.get_device_properties(0), "uuid", "0")
    return f"gpu-{uuid}"
