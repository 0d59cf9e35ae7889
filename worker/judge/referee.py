"""The main path of a judgement: intake, load, verify, time, verdict. Cheap checks first.

request ► intake (parse) ► runner (load; builds by the broker) ► verify (every workload, every case)
        ► time against the baselines ► floor ► report
"""

from __future__ import annotations

import ast
import random
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import torch

from worker.judge import ahead, environment, stats
from worker.judge.baselines import Baselines
from worker.judge.bench import Contender, Workbench
from worker.judge.builder import make_builder
from worker.judge.checks import sensitivity, shapes, values
from worker.judge.checks.values import judge_case
from worker.judge.exhibits import Exhibit, Exhibits
from worker.judge.fresh import Fresh
from worker.judge.lease import DeviceLease
from worker.judge.physics import PhysicsFloor
from worker.judge.problem import Problem
from worker.judge.report import Evaluation, EvaluationRequest, WorkloadTiming
from worker.judge.sessions import LOG_BYTES, Runner, Zygote, runner_environment, zygote_environment
from worker.judge.timing import Timer, Timings
from worker.judge.trial import CONSTRUCT_LIMIT_S, FIRST_RUN_LIMIT_S, SUBJECT, Trial
from worker.judge.verdict import Check, Fault, Verdict
from worker.runner import sandbox

log = structlog.get_logger()

MAX_SOURCE_BYTES = 1 << 20
_LOAD_LIMIT_S = 150.0
_VERIFICATION = (values.check, sensitivity.check, shapes.check)
_PROJECT_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class RefereeOptions:
    """Where a judge works and how strictly."""

    home: Path
    hardware: str
    minimum_sandbox: str = "process"
    """Refuse to judge below this sandbox level."""


class Referee:
    """Judges candidates of one problem after another on one device."""

    def __init__(self, options: RefereeOptions) -> None:
        self._options = options
        self._on_gpu = options.hardware != "cpu" and torch.cuda.is_available()
        self.device = "cuda:0" if self._on_gpu else "cpu"
        self._lease = DeviceLease(options.home / "run", _device_name(self._on_gpu))
        self._build_root = options.home / "cache" / "build"
        self._build_root.mkdir(parents=True, exist_ok=True)
        self._builder = make_builder(self._build_root, on_gpu=self._on_gpu)
        self._zygote: Zygote | None = None
        self._exhibits: Exhibits | None = None
        self._baselines: Baselines | None = None
        self._floor = PhysicsFloor(self.device)
        self._timer = Timer(self.device)
        self._seed = secrets.randbits(40)  # never leaves this process: the next candidate meets it too

    def evaluate(self, request: EvaluationRequest) -> Evaluation:
        """Judge one candidate. Raises ReferenceFailed or ProblemError when the problem itself cannot be judged."""
        started = time.monotonic()
        exhibits = self._exhibits_for(request)
        held = self._lease.held_s
        evaluation = Evaluation(request.candidate_id)
        try:
            _intake(request.candidate_source)
            if request.language == "triton" and not self._on_gpu:
                self._judge_without_device(request, exhibits, evaluation)
            else:
                self._judge(request, exhibits, evaluation)
        except Fault as fault:
            evaluation.verdict, evaluation.reason = fault.verdict, fault.reason
            evaluation.log = fault.log[-LOG_BYTES:]
        evaluation.environment |= environment.describe(self.device, self._level())
        evaluation.wall_s = time.monotonic() - started
        evaluation.gpu_s = self._lease.held_s - held
        log.info(
            "candidate.evaluated",
            candidate=request.candidate_id,
            verdict=str(evaluation.verdict),
            speedup=evaluation.speedup,
            wall_s=round(evaluation.wall_s, 2),
        )
        return evaluation

    def close(self) -> None:
        """End every process of this judge."""
        self._close_problem()
        if self._zygote is not None:
            self._zygote.close()

    # --- the steps --------------------------------------------------------------------------------------------------

    def _judge(self, request: EvaluationRequest, exhibits: Exhibits, evaluation: Evaluation) -> None:
        with self._runner() as runner:
            try:
                with self._lease.shared():
                    _load(runner, request.candidate_source)
                    trial = Trial(runner, request, exhibits, self.device, _secret_rng(), evaluation)
                    for check in _VERIFICATION:
                        check(trial)
            finally:
                evaluation.build_s = runner.build_s
            baselines = self._baselines_of(exhibits)
            evaluation.environment = {"baselines_missing": baselines.missing}
            with self._lease.exclusive():
                timings = []
                for exhibit in exhibits.workloads:
                    candidate = Contender(SUBJECT, trial.benches[exhibit.name], SUBJECT)
                    contenders = [candidate, *baselines.contenders(exhibit.name)]
                    fresh = Fresh(exhibit, trial.rng)
                    timings.append(self._timer.time(contenders, exhibit, fresh, trial.rng))
            evaluation.log = runner.log()
            for bench in trial.benches.values():
                bench.close()
        _summarise(evaluation, timings, baselines.names)
        evaluation.checks.append(self._floor.check(exhibits.workloads, evaluation))

    def _judge_without_device(self, request: EvaluationRequest, exhibits: Exhibits, evaluation: Evaluation) -> None:
        """A Triton candidate without its GPU: values in the interpreter on the smallest workload, then an
        ahead-of-time build for the target's architecture. Never timed, and the reason says so."""
        exhibit = exhibits.workloads[0]
        with self._candidate_runner(exhibit, request, {"op": "interpret"}) as bench:
            trial = Trial(bench.runner, request, exhibits, self.device, _secret_rng(), evaluation)
            for number, case in enumerate(bench.cases):
                bench.write(number, number)
                judge_case(trial, exhibit.name, case, bench.run(SUBJECT, number, FIRST_RUN_LIMIT_S["triton"]))
        arch = ahead.arch_of(request.hardware)
        with self._candidate_runner(exhibit, request, {"op": "record", "arch": arch}) as bench:
            bench.write(0, 0)
            built = ahead.built_kernels(bench, SUBJECT, arch)
        evaluation.checks.append(built)
        evaluation.verdict = Verdict.OK
        evaluation.reason = f"right in the interpreter on {exhibit.name!r}; {built.detail}; not timed: no such GPU here"

    @contextmanager
    def _candidate_runner(
        self, exhibit: Exhibit, request: EvaluationRequest, prepare: dict[str, Any]
    ) -> Iterator[Workbench]:
        """A runner in a mode of its own, with the candidate made for one workload."""
        with self._runner() as runner, self._lease.shared():
            runner.ask(prepare, 60)
            _load(runner, request.candidate_source)
            bench = Workbench(runner, exhibit.instance, exhibit.cases[:2], self.device, exhibit.slots)
            bench.construct(SUBJECT, CONSTRUCT_LIMIT_S)
            yield bench
            bench.close()

    # --- processes --------------------------------------------------------------------------------------------------

    def _exhibits_for(self, request: EvaluationRequest) -> Exhibits:
        if self._exhibits is None or self._exhibits.problem.outline.source != request.problem_source:
            self._close_problem()
            problem = Problem(request.problem_source, request.problem_name)
            hardware = request.hardware if self._on_gpu else "cpu"
            with self._lease.shared():
                self._exhibits = Exhibits(problem, hardware, self.device, self._seed)
        return self._exhibits

    def _baselines_of(self, exhibits: Exhibits) -> Baselines:
        """The live baselines, made on first use and again after their runner died."""
        if self._baselines is None or self._baselines.dead:
            self._baselines = Baselines(exhibits, self._spawn(24 * 3600.0, self._compile_cache(exhibits.problem)))
        return self._baselines

    def _close_problem(self) -> None:
        if self._baselines is not None:
            self._timer.forget(self._baselines.runner)
            self._baselines.close()
        self._baselines = self._exhibits = None

    def _compile_cache(self, problem: Problem) -> Path:
        """Inductor's cache for one problem's baselines, which no candidate can see: without it every start of a judge
        compiles the baselines again (20 to 30 s on two cores)."""
        folder = self._options.home / "cache" / "baselines" / problem.outline.source_hash
        folder.mkdir(parents=True, exist_ok=True)
        sandbox.hand_over(folder)
        return folder.resolve()

    @contextmanager
    def _runner(self) -> Iterator[Runner]:
        runner = self._spawn(600.0)
        runner.build = self._builder
        try:
            yield runner
        finally:
            self._timer.forget(runner)
            runner.close()

    def _spawn(self, wall_s: float, compile_cache: Path | None = None) -> Runner:
        zygote = self._ensure_zygote()
        memory_bytes = min(16 << 30 if self._on_gpu else 6 << 30, _machine_memory_bytes() // 2)
        limits = sandbox.Limits(
            memory_bytes=memory_bytes,
            scratch_bytes=2 << 30,
            wall_s=wall_s,
            address_space_bytes=None if self._on_gpu else memory_bytes + (8 << 30),
        )
        confinement = sandbox.Confinement(
            level=zygote.level,
            limits=limits,
            readable=(*sandbox.python_folders(), str(self._build_root.resolve())),
            writable=(str(compile_cache),) if compile_cache else (),
            gpu=self._on_gpu,
        )
        own = {"TORCHINDUCTOR_CACHE_DIR": str(compile_cache)} if compile_cache else {}
        return zygote.spawn(confinement, runner_environment(torch.get_num_threads(), gpu=self._on_gpu) | own)

    def _ensure_zygote(self) -> Zygote:
        if self._zygote is None:
            self._zygote = Zygote(zygote_environment(_PROJECT_ROOT))
            weakest = sandbox.LEVELS.index(self._options.minimum_sandbox)
            if sandbox.LEVELS.index(self._zygote.level) > weakest:
                raise SandboxTooWeak(
                    f"this machine offers sandbox level {self._zygote.level!r}, and {self._options.minimum_sandbox!r} "
                    "is required: allow user namespaces, or lower the requirement knowingly"
                )
        return self._zygote

    def _level(self) -> str:
        return self._zygote.level if self._zygote is not None else "none"


class SandboxTooWeak(Exception):
    """The machine's sandbox is weaker than required. The message says what to allow."""


def _secret_rng() -> random.Random:
    return random.Random(secrets.randbits(64))


def _intake(source: str) -> None:
    if len(source.encode()) > MAX_SOURCE_BYTES:
        raise Fault(Verdict.BUILD_ERROR, f"the source is over {MAX_SOURCE_BYTES >> 20} MiB")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as broken:
        raise Fault(Verdict.BUILD_ERROR, f"the file is not Python: {broken}") from broken
    defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assigned = {name.id for node in ast.walk(tree) if isinstance(node, ast.Assign) for name in node.targets
                if isinstance(name, ast.Name)}  # fmt: skip
    if "ModelNew" not in defined | assigned:
        raise Fault(Verdict.BUILD_ERROR, "the file defines no class ModelNew")


def _load(runner: Runner, source: str) -> None:
    message = {"op": "load", "subject": SUBJECT, "source": source, "class": "ModelNew", "compile": None}
    try:
        runner.ask(message, _LOAD_LIMIT_S)
    except Fault as fault:
        if fault.verdict in (Verdict.LAUNCH_ERROR, Verdict.INCORRECT) and "killed" not in fault.reason:
            raise Fault(Verdict.BUILD_ERROR, f"the file does not load: {fault.reason}", fault.log) from fault
        raise


def _summarise(evaluation: Evaluation, timings: list[Timings], baselines: list[str]) -> None:
    rng = random.Random(0)  # resampling only; the verdict does not hang on it
    for timed in timings:
        fastest = timed.fastest(baselines)
        logs = timed.logs(fastest, SUBJECT)
        evaluation.workloads.append(
            WorkloadTiming(
                name=timed.workload,
                latency_us=timed.latency_us(SUBJECT),
                baselines_us={name: timed.latency_us(name) for name in baselines},
                baseline=fastest,
                speedup=stats.ratio(logs),
                ci95=stats.interval([logs], rng),
                samples_us=timed.samples_us,
            )
        )
    best_logs = [timed.logs(timed.fastest(baselines), SUBJECT) for timed in timings]
    evaluation.verdict, evaluation.timed = Verdict.OK, True
    evaluation.latency_us = stats.geomean([row.latency_us for row in evaluation.workloads])
    evaluation.baselines_us = {
        name: stats.geomean([row.baselines_us[name] for row in evaluation.workloads]) for name in baselines
    }
    evaluation.baseline = min(baselines, key=evaluation.baselines_us.__getitem__)
    evaluation.speedup = stats.geomean([row.speedup for row in evaluation.workloads])
    evaluation.speedups = {
        name: stats.geomean([stats.ratio(timed.logs(name, SUBJECT)) for timed in timings]) for name in baselines
    }
    evaluation.ci95 = stats.interval(best_logs, rng)
    checked = sum(timed.checked_outputs for timed in timings)
    rounds = sum(len(timed.samples_us[SUBJECT]) for timed in timings)
    evaluation.checks.append(Check("timed outputs", True, f"{checked} of {rounds} timed outputs checked, all right"))
    late_us = max(timed.late_us for timed in timings)
    detail = f"results were late by {late_us:.1f} us a call, which is counted" if late_us else "results were there"
    evaluation.checks.append(Check("late results", True, detail, {"late_us": late_us}))


def _device_name(on_gpu: bool) -> str:
    if not on_gpu:
        return "cpu"
    uuid = getattr(torch.cuda.get_device_properties(0), "uuid", "0")
    return f"gpu-{uuid}"


def _machine_memory_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    fields = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return fields["MemTotal"]
