"""`kernelwright import` and `export flashinfer` end to end: a real API, and a judge that admits what was imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.client import Client, Job
from cli.exchange.trace_models import Definition, Solution, Trace, Workload
from tests.integration.api.history import History
from tests.integration.cli.commands.conftest import Kernelwright
from tests.unit.cli.exchange.test_importing import RELU

REPORT = json.loads((Path(__file__).parents[3] / "support/showcase/report.json").read_text())

RMSNORM: dict[str, Any] = {
    "name": "rmsnorm_d256",
    "op_type": "rmsnorm",
    "axes": {"batch": {"type": "var"}, "hidden": {"type": "const", "value": 256}},
    "inputs": {"x": {"shape": ["batch", "hidden"], "dtype": "float32"},
               "weight": {"shape": ["hidden"], "dtype": "float32"},
               "eps": {"shape": None, "dtype": "float32"}},
    "outputs": {"y": {"shape": ["batch", "hidden"], "dtype": "float32"}},
    "reference": "import torch\n\n\n@torch.no_grad()\ndef run(x, weight, eps):\n"
                 "    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight\n",
}  # fmt: skip
GEMM: dict[str, Any] = {
    "name": "gemm_n96_k64",
    "op_type": "gemm",
    "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 96}, "K": {"type": "const", "value": 64}},
    "inputs": {"A": {"shape": ["M", "K"], "dtype": "float32"}, "B": {"shape": ["N", "K"], "dtype": "float32"}},
    "outputs": {"C": {"shape": ["M", "N"], "dtype": "float32"}},
    "reference": "import torch\n\ndef run(A, B):\n    C = torch.matmul(A, B.T)\n    return C",
}
RANDOM = {"type": "random"}
WORKLOADS = {
    "rmsnorm": [{"uuid": f"u{size}", "axes": {"batch": size},
                 "inputs": {"x": RANDOM, "weight": RANDOM, "eps": {"type": "scalar", "value": 1e-6}}}
                for size in (32, 64)],
    "gemm": [{"uuid": "u1", "axes": {"M": 128}, "inputs": {"A": RANDOM, "B": RANDOM}}],
}  # fmt: skip


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    for level, name in ((1, "19_ReLU"), (1, "20_LeakyReLU"), (2, "3_Fused")):
        path = tmp_path / f"KernelBench/level{level}/{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(RELU + f"# {name}\n")
    return tmp_path / "KernelBench"


def jobs_of(client: Client) -> list[Job]:
    return client.jobs(limit=100)["data"]


def test_a_plan_sends_nothing_and_a_submission_twice_is_one(
    kernelwright: Kernelwright, client: Client, suite: Path
) -> None:
    planned = kernelwright("import", "kernelbench", suite, "--json", KERNELWRIGHT_URL="http://127.0.0.1:1")
    assert planned.returncode == 0, planned.stderr
    plan = [json.loads(line) for line in planned.stdout.splitlines()]
    assert [(each["problem"], each["fault"]) for each in plan] == [
        ("level1_19_ReLU", None),
        ("level1_20_LeakyReLU", None),
        ("level2_3_Fused", None),
    ]
    submit = ("--select", "level1/*", "--submit", "--target", "cpu:cpp", "--budget-candidates", "3", "--label", "x=y")
    first = kernelwright("import", "kernelbench", suite, *submit, "--json")
    assert first.returncode == 0, first.stderr
    told = [json.loads(line) for line in first.stdout.splitlines()]
    assert [each["new"] for each in told] == [True, True]
    job = client.job(told[0]["job"])
    assert (job["problem"]["name"], job["budget"]["candidates"]) == ("level1_19_ReLU", 3)
    assert job["labels"] | {"kernelbench.digest": ""} == {
        "suite": "kernelbench",
        "kernelbench.level": "1",
        "kernelbench.task": "19",
        "kernelbench.digest": "",
        "x": "y",
    }
    again = kernelwright("import", "kernelbench", suite, *submit)
    assert [line.split("\t")[0] for line in again.stdout.splitlines()] == [each["job"] for each in told]
    assert again.stdout.count("was there") == 2
    assert len(jobs_of(client)) == 2
    other = kernelwright("import", "kernelbench", suite, *submit, "--priority", "3")
    assert other.stdout.count("submitted") == 2


def test_one_faulty_file_holds_all_back_unless_it_is_skipped(
    kernelwright: Kernelwright, client: Client, suite: Path
) -> None:
    (suite / "level1/21_Bad.py").write_text("class Model: pass\n")
    submit = ("--submit", "--target", "cpu:cpp")
    held = kernelwright("import", "kernelbench", suite, *submit)
    assert held.returncode == 2
    assert "nothing was submitted" in held.stderr
    assert "get_inputs is missing" in held.stdout
    assert jobs_of(client) == []
    done = kernelwright("import", "kernelbench", suite, *submit, "--skip-faulty")
    assert done.returncode == 0, done.stderr
    assert len(jobs_of(client)) == 3


def test_what_the_service_refuses_is_known_before_anything_is_stored(
    kernelwright: Kernelwright, client: Client, suite: Path
) -> None:
    done = kernelwright("import", "kernelbench", suite, "--submit", "--target", "cpu:cuda")
    assert done.returncode == 2
    assert "level1/19_ReLU.py" in done.stderr and "nothing was submitted" in done.stderr
    assert jobs_of(client) == []


@pytest.mark.parametrize("name", ["rmsnorm", pytest.param("gemm", marks=pytest.mark.exhaustive)])
def test_a_definition_becomes_a_problem_that_the_judge_admits(
    kernelwright: Kernelwright, tmp_path: Path, name: str
) -> None:
    definition, workloads, problem = (tmp_path / each for each in ("definition.json", "workloads.jsonl", "problem.py"))
    definition.write_text(json.dumps({"rmsnorm": RMSNORM, "gemm": GEMM}[name]))
    lines = WORKLOADS[name]
    if name == "gemm":  # as FlashInfer Trace stores them
        lines = [{"definition": GEMM["name"], "workload": each, "solution": None, "evaluation": None} for each in lines]
    workloads.write_text("\n".join(map(json.dumps, lines)))
    made = kernelwright("import", "flashinfer", definition, "--workloads", workloads, "--out", problem)
    assert made.returncode == 0, made.stderr
    admitted = kernelwright("admit", problem, "--target", "cpu", "--home", tmp_path / "home", "--json")
    assert admitted.returncode == 0, admitted.stdout + admitted.stderr
    report = json.loads(admitted.stdout)
    assert report["verdict"].startswith("admitted"), report["reason"]


def test_a_definition_is_submitted_or_refused_with_the_field(
    kernelwright: Kernelwright, client: Client, tmp_path: Path
) -> None:
    definition, workloads = tmp_path / "definition.json", tmp_path / "workloads.jsonl"
    definition.write_text(json.dumps(GEMM))
    workloads.write_text(json.dumps(WORKLOADS["gemm"][0]))
    done = kernelwright("import", "flashinfer", definition, "--workloads", workloads, "--submit", "--target", "cpu:cpp")
    assert done.returncode == 0, done.stderr
    assert client.job(done.stdout.strip())["problem"]["name"] == "gemm_n96_k64"
    bare = kernelwright("import", "flashinfer", definition)
    assert (bare.returncode, bare.stdout) == (2, "")
    assert "--workloads" in bare.stderr
    definition.write_text(json.dumps(GEMM | {"inputs": {"A": {"shape": ["M"], "dtype": "float"}}}))
    wrong = kernelwright("import", "flashinfer", definition, "--workloads", workloads)
    assert "inputs.A.dtype" in wrong.stderr
    workloads.write_text('{"uuid": 3}\n')
    definition.write_text(json.dumps(GEMM))
    assert "line 1: no workload" in kernelwright("import", "flashinfer", definition, "--workloads", workloads).stderr


def test_a_winner_leaves_as_definition_workloads_solution_and_traces(
    kernelwright: Kernelwright, history: History, job: Job, tmp_path: Path
) -> None:
    candidate = history.evaluate(job["id"], **REPORT)
    done = kernelwright("export", "flashinfer", job["id"], "--out", tmp_path / "traces")
    assert done.returncode == 0, done.stderr
    definition, workloads, solution, traces = (Path(line) for line in done.stdout.splitlines())
    name = Definition.model_validate_json(definition.read_text()).name
    root = tmp_path / "traces"
    assert definition == root / f"definitions/softmax/{name}.json"
    assert workloads == root / f"workloads/softmax/{name}.jsonl"
    assert solution == root / f"solutions/kernelwright/softmax/{name}/{name}_{candidate}.json"
    assert traces == root / f"traces/kernelwright/softmax/{name}.jsonl"
    assert Solution.model_validate_json(solution.read_text()).definition == name
    only = [Trace.model_validate_json(line) for line in workloads.read_text().splitlines()]
    runs = [Trace.model_validate_json(line) for line in traces.read_text().splitlines()]
    assert [each.evaluation for each in only] == [None] * 3
    assert [each.workload for each in runs] == [each.workload for each in only]


def test_the_other_dialect_is_a_folder_for_each_definition(
    kernelwright: Kernelwright, client: Client, history: History, tmp_path: Path
) -> None:
    job = client.submit({"problem": "cumsum", "target": {"hardware": "nvidia-h200", "language": "triton"}})
    history.start(job["id"])
    candidate = history.evaluate(job["id"], verdict="build_error", timed=False, log="error: ...")
    options = ("--format", "sol-execbench", "--out", tmp_path / "bench", "--json")
    done = kernelwright("export", "flashinfer", candidate, *options)
    assert done.returncode == 0, done.stderr
    files = [Path(path) for path in json.loads(done.stdout)["files"]]
    assert sorted({path.name for path in files} - {"definition.json", "workload.jsonl", "traces.jsonl"}) != []
    assert len({path.parent for path in files}) == 2  # one for each type of its workloads
    document = json.loads(files[0].read_text())
    assert "tags" not in document
    workloads = [path for path in files if path.name == "workload.jsonl"]
    assert [Workload.model_validate_json(line).inputs["x"].type for line in workloads[0].read_text().splitlines()]


@pytest.mark.parametrize("subject", ["job_0", "cand_0"])
def test_what_is_not_there_is_one_sentence(kernelwright: Kernelwright, tmp_path: Path, subject: str) -> None:
    done = kernelwright("export", "flashinfer", subject, "--out", tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
