"""Real candidates in real sandboxes: every way to fail is a verdict, and the next candidate is untouched.

One judge serves the whole module, as a worker's does: each verdict also tests what the one before left behind.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from worker.judge import client
from worker.judge.client import Judge, JudgeOptions
from worker.judge.report import EvaluationRequest
from worker.judge.verdict import ReferenceFailed

PROBLEM = """
import torch
from torch import nn

SPEC = {"workloads": [{"name": "only", "params": {"rows": 256, "cols": 384}}]}

class Model(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))
    def forward(self, x):
        return torch.relu(x + self.bias)

def get_inputs(rows=256, cols=384):
    return [torch.rand(rows, cols)]

def get_init_inputs(cols=384):
    return [cols]
"""

CANDIDATE = """
import os, subprocess, socket, sys, time
import torch
from torch import nn
class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))
        self.calls = 0
        self.cache = {{}}
    def forward(self, x):
        right = torch.relu(x + self.bias)
        {body}
"""

FILLED = """
new = torch.empty(70_000, dtype=torch.uint8)[1000:4000]
filled = bool(new[0] and (new == new[0]).all())
"""
"""How a candidate tells verification, where the judge fills new memory, from timing."""

CPP = '''
import torch
from torch import nn
from kernelwright import load_cpp
SOURCE = r"""
#include <cstdint>
extern "C" void relu(const float* x, const float* b, float* y, int64_t rows, int64_t cols) {
  #pragma omp parallel for
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < cols; c++) {
      float v = x[r * cols + c] + b[c];
      y[r * cols + c] = v < 0 ? 0 : v;
    }
}
"""
lib = load_cpp(SOURCE)
class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.relu(x, self.bias, y, *x.shape)
        return y
'''

PRODUCTS = """
import torch
from torch import nn
SPEC = {"workloads": [{"name": "only", "params": {"size": 384}}]}
class Model(nn.Module):
    def forward(self, a, b):
        return a @ b
def get_inputs(size=384):
    return [torch.randn(size, size), torch.randn(size, size)]
def get_init_inputs(size=384):
    return []
"""

PRODUCT = '''
import torch
from torch import nn
from kernelwright import load_cpp
SOURCE = r"""
#include <cstdint>
extern "C" void product(const float* a, const float* b, float* y, int64_t m, int64_t n, int64_t k) {
  #pragma omp parallel for
  for (int64_t i = 0; i < m; i++) {
    for (int64_t j = 0; j < n; j++) y[i * n + j] = 0;
    for (int64_t l = 0; l < k; l++)
      for (int64_t j = 0; j < n; j++) y[i * n + j] += a[i * k + l] * b[l * n + j];
  }
}
"""
lib = load_cpp(SOURCE)
LAST = {}
class ModelNew(nn.Module):
    def forward(self, a, b):
        key = float(a.flatten()[:200].sum())
        new, LAST[a.shape] = LAST.get(a.shape) != key, key
        if new:
            return a @ b
        a, b = a.contiguous(), b.contiguous()
        y = a.new_empty(a.shape[0], b.shape[1])
        lib.product(a, b, y, a.shape[0], b.shape[1], a.shape[1])
        return y
'''


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with Judge(JudgeOptions(home=tmp_path_factory.mktemp("home"), hardware="cpu")) as running:
        yield running


def judged(judge: Judge, source: str, language: str = "cpp") -> dict[str, Any]:
    # Most candidates here are written in torch: whose code runs is not what they are about.
    return judge.evaluate(EvaluationRequest("c", source, "relu", PROBLEM, "cpu", language, own_kernel_share=0.0))


def body(code: str) -> str:
    return CANDIDATE.format(body=code.replace("\n", "\n        "))


def test_an_honest_kernel_is_ok_with_all_its_evidence(judge: Judge) -> None:
    report = judged(judge, CPP)
    assert report["verdict"] == "ok", report["reason"]
    assert report["timed"]
    assert set(report["baselines_us"]) == {"eager", "compile"}
    assert report["baseline"] in report["baselines_us"]
    assert report["speedup"] > 0
    low, high = report["ci95"]
    assert low <= high
    (row,) = report["workloads"]
    assert row["latency_us"] > 0
    assert len(row["samples_us"]["candidate"]) == len(row["samples_us"]["eager"]) >= 3
    assert all(check["passed"] for check in report["checks"])
    assert report["environment"]["sandbox"] in {"namespaces", "landlock", "process"}
    assert report["build_s"] > 0
    assert report["profile"]["rung"]
    assert report["profile"]["bound"] in {"memory", "compute", "latency", "overhead"}


def test_gradients_are_asked_for_in_other_layouts_though_the_smallest_workload_has_none(tmp_path: Path) -> None:
    served = '"backward": True, "workloads": [{"name": "served", "params": {"rows": 64}, "backward": False}, '
    problem = PROBLEM.replace('"workloads": [', served)
    honest = """
import torch
from torch import nn
class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias):
        ctx.save_for_backward(x, bias)
        return torch.relu(x + bias)
    @staticmethod
    def backward(ctx, slope):
        x, bias = ctx.saved_tensors
        slope = torch.where(x + bias <= 0, 0, slope)  # NaN is not below zero
        return slope, slope.sum(0)
class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))
    def forward(self, x):
        return Op.apply(x, self.bias)
"""
    flawed = honest.replace("return slope,", "return slope * (x.is_contiguous() or not x.stride(0)),")
    asked = EvaluationRequest("c", flawed, "mixed", problem, "cpu", "cpp", own_kernel_share=0.0)
    with Judge(JudgeOptions(home=tmp_path, hardware="cpu", eager_only=True)) as judge:
        report = judge.evaluate(asked)
        assert report["verdict"] == "incorrect"
        assert "only with transposed strides" in report["reason"]
        report = judge.evaluate(replace(asked, candidate_source=honest))
    assert report["verdict"] == "ok", report["reason"]


@pytest.mark.parametrize(
    ("name", "code", "verdict", "reason"),
    [
        ("zeros", "return torch.zeros_like(x)", "incorrect", "relative error"),
        ("parameter ignored", "return torch.relu(x)", "incorrect", "relative error"),
        ("identity on positive inputs", "return x + self.bias", "incorrect", "relative error"),
        ("bf16 inside", "return torch.relu((x.bfloat16() + self.bias.bfloat16()).float())", "incorrect", "over"),
        ("one element wrong", "right[5, 7] += 3.0\nreturn right", "incorrect", ""),
        ("nan", "right[0, 0] = float('nan')\nreturn right", "incorrect", "NaN"),
        ("unwritten tail", "y = torch.empty_like(x)\ny[:-1] = right[:-1]\nreturn y", "incorrect", ""),
        ("shape", "return right[:1]", "incorrect", "has shape"),
        ("dtype", "return right.double()", "incorrect", "torch.float64"),
        ("a view of a copy", "return right.t().contiguous().t()", "incorrect", "has strides"),
        ("two outputs", "return right, right", "incorrect", "2 outputs"),
        ("no tensor", "return 3", "incorrect", "not a torch.Tensor"),
        (
            "lazy subclass",
            "return right.as_subclass(type('L', (torch.Tensor,), {}))",
            "incorrect",
            "not a torch.Tensor",
        ),
        ("changes its input", "x.zero_()\nreturn right", "incorrect", "changed its input 'x'"),
        (
            "a row is zero if every eighth element is",
            "zero = (x[:, ::8] == 0).all(1, keepdim=True)\nreturn torch.where(zero, torch.relu(self.bias), right)",
            "incorrect",
            "only with patterns/sparse",
        ),
        (
            "refuses values on a workload's own sizes",
            "if (x == 0).float().mean() > 0.5:\n    raise ValueError('too many zeros')\nreturn right",
            "launch_error",
            "too many zeros",
        ),
        (
            "half of the rows for each of two threads",
            "if torch.get_num_threads() == 1:\n    right[:128] = 0\nreturn right",
            "incorrect",
            "relative error",
        ),
        (
            "twenty results in turn",
            "self.calls += 1\nring = self.cache.setdefault(x.shape, [])\n"
            "if len(ring) < 20:\n    ring.append(right)\n    return right\n"
            "return ring[self.calls % 20].copy_(right)",
            "incorrect",
            "called again",
        ),
        (
            "prepared weights by a sample of them",
            "kept = self.cache.get(float(self.bias[7]))\nif kept is None:\n"
            "    kept = self.cache[float(self.bias[7])] = self.bias.clone()\nreturn torch.relu(x + kept)",
            "incorrect",
            "",
        ),
        ("cache by pointer", "return self.cache.setdefault((x.data_ptr(), x.shape), right)", "incorrect", ""),
        ("only right at first", "self.calls += 1\nreturn right if self.calls < 3 else right * 1.01", "incorrect", ""),
        ("segfault", "import ctypes\nctypes.string_at(0)", "illegal_access", "signal 11"),
        ("exit", "os._exit(0)", "launch_error", "exited with code 0"),
        ("raises", "raise ValueError('on purpose')", "launch_error", "on purpose"),
        ("syntax", "retur right", "build_error", "not Python"),
        ("forged answer", "os.write(3, b'x' * 100)\nos._exit(0)", "suspicious", "broke the protocol"),
    ],
)
def test_every_failure_is_a_verdict(
    judge: Judge, tmp_path: Path, name: str, code: str, verdict: str, reason: str
) -> None:
    report = judged(judge, body(code))
    if name.endswith("by a sample of them") and report["verdict"] == "ok":
        # One judge of 384 moves the very element of the sample.
        with Judge(JudgeOptions(home=tmp_path, hardware="cpu")) as another:
            report = judged(another, body(code))
    assert (report["verdict"], reason in report["reason"]) == (verdict, True), report["reason"]
    assert not report["timed"]
    assert report["speedup"] is None
    assert report["profile"] == {}


def test_a_phase_counter_is_caught_while_it_is_timed(judge: Judge) -> None:
    """Right until timing is under way (three calls to warm up, nine and more that count), wrong from then on."""
    report = judged(
        judge, body(FILLED + "self.calls = 0 if filled else self.calls + 1\nreturn right * (self.calls < 6)")
    )
    assert report["verdict"] == "incorrect", report["reason"]
    assert "timed" in report["reason"]


def test_one_buffer_for_all_results_is_caught_while_it_is_timed(judge: Judge) -> None:
    code = FILLED + "if filled:\n    return right\n"
    report = judged(judge, body(code + "return self.cache.setdefault(x.shape, right.clone()).copy_(right)"))
    assert report["verdict"] == "incorrect", report["reason"]
    assert "timed" in report["reason"] and "called again" in report["reason"]


def test_a_view_of_a_copy_is_caught_while_it_is_timed(judge: Judge) -> None:
    code = FILLED + "return right if filled else right.t().contiguous().t()"
    report = judged(judge, body(code))
    assert report["verdict"] == "incorrect" and "has strides" in report["reason"], report["reason"]


def test_torch_for_new_values_shows_in_calls_like_the_timed_ones(tmp_path: Path) -> None:
    """Where the same values come again, as in the samples of provenance, the work is its own."""
    request = EvaluationRequest("c", PRODUCT, "product", PRODUCTS, "cpu", "cpp")
    with Judge(JudgeOptions(home=tmp_path, hardware="cpu", eager_only=True, profile=False)) as judge:
        for _attempt in range(6):  # on a busy machine few stops find anybody
            report = judge.evaluate(request)
            if report["verdict"] == "suspicious":
                break
    assert report["verdict"] == "suspicious", report["reason"]
    assert "calls like the timed ones" in report["reason"]


def test_a_hang_is_a_timeout(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    report = judged(judge, body("time.sleep(1000)"))
    assert report["verdict"] == "timeout"


def test_a_fork_bomb_ends_with_its_runner(judge: Judge) -> None:
    report = judged(judge, body("while True:\n    try: os.fork()\n    except OSError: break\nreturn right"))
    assert report["verdict"] in {"ok", "launch_error", "timeout", "illegal_access"}
    assert not _running("zygote-orphan")
    assert judged(judge, body("return torch.zeros_like(x)"))["verdict"] == "incorrect"


def test_memory_is_bounded(judge: Judge) -> None:
    report = judged(judge, body("import mmap\nhoard = []\nwhile True: hoard.append(mmap.mmap(-1, 1 << 32))"))
    assert report["verdict"] == "launch_error"
    assert "memory" in report["reason"].lower()


def test_a_gigabyte_of_output_is_dropped(judge: Judge) -> None:
    flood = "for _ in range(128): sys.stdout.write('x' * (1 << 20))\nself.calls += 1"  # a call has 20 s
    report = judged(judge, body(flood + "\nreturn right if self.calls < 8 else torch.zeros_like(x)"))
    assert report["verdict"] == "incorrect"
    assert len(report["log"]) <= 64 << 10


def test_nothing_survives_a_runner(judge: Judge) -> None:
    """A grandchild in a session of its own dies with the runner (the sandbox's PID namespace, or its subreaper)."""
    code = "subprocess.Popen(['sleep', '987'], start_new_session=True)\nreturn torch.zeros_like(x)"
    assert judged(judge, body(code))["verdict"] == "incorrect"
    assert not _running("sleep\x00987")


def test_a_refused_candidate_leaves_no_memory_behind(judge: Judge) -> None:
    """What a refused one shared with the judge is released: on a GPU gigabytes each, until the device was full."""
    wrong = body("return right + 1")
    assert judged(judge, wrong)["verdict"] == "incorrect"
    before = _arenas()
    assert judged(judge, wrong)["verdict"] == "incorrect"
    assert judged(judge, body("raise RuntimeError('no')"))["verdict"] == "launch_error"
    assert _arenas() == before


@pytest.mark.parametrize(
    "attempt",
    [
        "socket.create_connection(('127.0.0.1', 22), timeout=2)",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
        "open('/etc/shadow').read()",
        "open('/usr/lib/kernelwright-was-here', 'w')",
        f"open({str(Path(__file__).resolve())!r}).read()",
    ],
)
def test_the_sandbox_refuses(judge: Judge, attempt: str) -> None:
    """The attempt's own OSError is the proof: without it the candidate would return something wrong."""
    report = judged(judge, body(f"{attempt}\nreturn torch.zeros_like(x)"))
    if report["environment"]["sandbox"] == "process":
        pytest.skip("this machine offers no sandbox beyond limits and another user")
    assert report["verdict"] == "launch_error", report["reason"]
    assert "Error" in report["reason"]


def test_no_secret_is_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWRIGHT_DATABASE_URL", "postgresql://canary")
    with Judge(JudgeOptions(home=tmp_path / "canary-home", hardware="cpu")) as fresh:
        report = judged(fresh, body("raise ValueError(sorted(os.environ.items()))"))
    assert report["verdict"] == "launch_error"
    assert "OMP_NUM_THREADS" in report["reason"]
    assert "canary" not in report["reason"] + report["log"]


def test_a_compile_error_reaches_the_author(judge: Judge) -> None:
    report = judged(judge, CPP.replace("float v =", "flaot v ="))
    assert report["verdict"] == "build_error"
    assert "flaot" in report["reason"] + report["log"]


def test_a_missing_parameter_is_refused(judge: Judge) -> None:
    source = CPP.replace("self.bias = nn.Parameter(torch.zeros(cols))", "self.offset = nn.Parameter(torch.zeros(cols))")
    report = judged(judge, source)
    assert report["verdict"] == "launch_error"
    assert "offset" in report["reason"]


def test_a_reference_that_fails_is_the_problems_fault_not_the_candidates(judge: Judge) -> None:
    broken = PROBLEM.replace("torch.relu(x + self.bias)", "x @ x")
    with pytest.raises(ReferenceFailed, match="line 12"):
        judge.evaluate(EvaluationRequest("c", CPP, "broken", broken, "cpu", "cpp"))


def test_a_judge_that_lost_its_device_answers_and_another_takes_its_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    exchange, over = client._exchange, iter([True, False])
    monkeypatch.setattr(client, "_exchange", lambda *what: (exchange(*what) or {}) | {"over": next(over)})
    with Judge(JudgeOptions(home=tmp_path, hardware="cpu")) as judge:
        for _ in range(2):
            report = judge.evaluate(EvaluationRequest("c", "class ModelNew(", "relu", PROBLEM, "cpu", "cpp"))
            assert report["verdict"] == "build_error"
        assert next(over, None) is None


def test_aborting_ends_an_evaluation_and_the_next_one_works(judge: Judge) -> None:
    import threading

    timer = threading.Timer(3.0, judge.abort)
    timer.start()
    report = judged(judge, body("while True: pass"))
    timer.join()
    assert report["verdict"] == "infra_error"
    assert judged(judge, body("return torch.zeros_like(x)"))["verdict"] == "incorrect"


def _arenas() -> int:
    """How many arenas the judge processes that this one started hold."""
    links: list[Path] = []
    for process in _children():
        for fd in (process / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile, by whoever read a runner's output
                links.append(fd.readlink())
    return sum("kernelwright-arena" in link.name for link in links)


def _children() -> list[Path]:
    """The processes that this one started and that still run, as folders of /proc."""
    mine = f"PPid:\t{os.getpid()}\n"
    return [each.parent for each in Path("/proc").glob("[0-9]*/status") if mine in _text(each)]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it ended
        return ""


def _running(command: str) -> bool:
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if command in (process / "cmdline").read_text():
                    return True
            except OSError:
                continue
    return False


def test_what_else_a_user_could_call_is_raced_too(judge: Judge) -> None:
    library = """
class Clamped(Model):
    def forward(self, x):
        return (x + self.bias).clamp_min(0)

class Elsewhere(Model):
    def forward(self, x):
        raise RuntimeError("this library is not here")
"""
    spec = 'SPEC = {"library": {"clamped": "Clamped", "elsewhere": "Elsewhere"}, '
    problem = PROBLEM.replace("SPEC = {", spec) + library
    report = judge.evaluate(EvaluationRequest("c", CPP, "relu", problem, "cpu", "cpp", own_kernel_share=0.0))
    assert report["verdict"] == "ok", report["reason"]
    assert set(report["baselines_us"]) == {"eager", "compile", "library_clamped"}
    assert report["environment"]["baselines_missing"] == {"library_elsewhere": "RuntimeError: this library is not here"}
    assert report["baselines_us"][report["baseline"]] == min(report["baselines_us"].values())


@pytest.mark.timeout(900)  # 175 s for three judgements on two slow cores beside other tests
@pytest.mark.parametrize(
    ("good_calls", "verdicts"),
    [(0, ["ok"]), pytest.param(12, ["infra_error", "infra_error", "ok"], marks=pytest.mark.exhaustive)],
)
def test_a_baseline_that_spoils_two_processes_is_none_here_and_no_candidate_is_blamed(
    good_calls: int, verdicts: list[str], tmp_path: Path
) -> None:
    """While it is made, and later in a race, as recorded graphs of values' sizes did on a GPU."""
    library = f"""
class Spoilt(Model):
    calls = 0

    def forward(self, x):
        Spoilt.calls += 1
        if Spoilt.calls > {good_calls}:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return super().forward(x)
"""
    problem = PROBLEM.replace("SPEC = {", 'SPEC = {"library": {"spoilt": "Spoilt"}, ') + library
    request = EvaluationRequest("c", CPP, "relu", problem, "cpu", "cpp", own_kernel_share=0.0)
    with Judge(JudgeOptions(tmp_path, "cpu")) as judge:
        *failed, judged = reports = [judge.evaluate(request) for _attempt in verdicts]
    assert [each["verdict"] for each in reports] == verdicts, [each["reason"] for each in reports]
    for each in failed:
        assert each["reason"].startswith("the baseline library_spoilt: RuntimeError: CUDA error: an illegal")
    assert set(judged["baselines_us"]) == {"eager", "compile"}
    assert "illegal memory access" in judged["environment"]["baselines_missing"]["library_spoilt"]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_judge_and_its_runners_have_as_many_threads_as_it_is_told(tmp_path: Path, threads: int) -> None:
    with Judge(JudgeOptions(tmp_path, "cpu", eager_only=True, threads=threads)) as judge:
        source = body(f"assert LOADED_ON == {threads}\nreturn right")  # some calls have other numbers later
        report = judged(judge, source.replace("class ModelNew", "LOADED_ON = torch.get_num_threads()\nclass ModelNew"))
    assert report["verdict"] == "ok", report["reason"]
    assert report["environment"]["threads"] == threads


def test_a_reference_that_spoils_its_process_is_the_problems_fault(tmp_path: Path) -> None:
    spoilt = 'raise RuntimeError("CUDA error: device-side assert triggered")'
    runs = "return torch.relu(x + self.bias)"
    in_a_runner = f'if "TORCHINDUCTOR_CACHE_DIR" in __import__("os").environ: {spoilt}\n        {runs}'
    request = EvaluationRequest(
        "c", CPP, "relu", PROBLEM.replace(runs, in_a_runner), "cpu", "cpp", own_kernel_share=0.0
    )
    with Judge(JudgeOptions(tmp_path, "cpu")) as judge, pytest.raises(ReferenceFailed, match="device-side assert"):
        judge.evaluate(request)
