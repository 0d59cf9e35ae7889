"""`kernelwright submit`: what was typed is what the service stores, and what cannot be is one clear line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.client import Client
from tests.integration.cli.commands.conftest import Kernelwright

OWN_PROBLEM = """\
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2.0


def get_inputs():
    return [torch.randn(64, 64)]


def get_init_inputs():
    return []
"""


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    path = tmp_path / "scaled relu.py"
    path.write_text(OWN_PROBLEM)
    return path


def test_a_bundled_problem_gives_its_id_on_stdout_and_the_rest_beside_it(
    kernelwright: Kernelwright, client: Client
) -> None:
    done = kernelwright("submit", "softmax", "--target", "cpu:cpp")
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.removesuffix("\n")
    assert client.job(job_id)["problem"]["name"] == "softmax"
    assert f"kernelwright watch {job_id}" in done.stderr


def test_an_own_file_with_every_option_is_stored_as_said(
    kernelwright: Kernelwright, client: Client, own_file: Path
) -> None:
    options = {
        "--hardware": "nvidia-h100",
        "--language": "triton",
        "--budget-candidates": "7",
        "--budget-usd": "2.50",
        "--budget-wall-s": "600",
        "--budget-gpu-s": "30.5",
        "--budget-calls": "40",
        "--budget-tokens": "900000",
        "--diagnosis-model": "openai/judge",
        "--target-speedup": "2",
        "--stagnation": "5",
        "--policy": "archive",
        "--own-kernel-share": "0",
        "--priority": "-3",
        "--seed": "11",
    }
    several = ["--model", "openai/gpt-5", "--model", "hosted_vllm/qwen", "--label", "team=ranking", "--label", "x=a=b"]
    several += ["--no-admit", "--no-certify"]
    flat = [word for pair in options.items() for word in pair]
    done = kernelwright("submit", own_file, *flat, *several, "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    stored = client.job(printed["id"])
    assert stored == printed
    assert stored["problem"]["name"] == "scaled_relu"
    assert stored["target"] == {"hardware": "nvidia-h100", "language": "triton"}
    money = {"usd": "2.50", "calls": 40, "tokens": 900_000}
    assert stored["budget"] == {"candidates": 7, "wall_s": 600.0, "gpu_s": 30.5} | money
    assert stored["diagnosis_model"] == "openai/judge"
    assert stored["stop"] == {"target_speedup": 2.0, "stagnation": 5}
    assert stored["policy"] == {"search": "archive", "own_kernel_share": 0.0}
    assert (stored["admit"], stored["certify"]) == (False, False)
    assert (stored["priority"], stored["seed"]) == (-3, 11)
    assert stored["models"] == ["openai/gpt-5", "hosted_vllm/qwen"]
    assert stored["labels"] == {"team": "ranking", "x": "a=b"}


def test_the_same_key_gives_the_same_job(kernelwright: Kernelwright, client: Client) -> None:
    words = ("submit", "softmax", "--target", "cpu:cpp", "--idempotency-key", "once")
    first, second = kernelwright(*words), kernelwright(*words)
    assert first.stdout == second.stdout
    assert len(client.jobs()["data"]) == 1


def test_a_dry_run_says_what_would_be_and_stores_nothing(
    kernelwright: Kernelwright, client: Client, own_file: Path
) -> None:
    plain = kernelwright("submit", own_file, "--target", "cpu:cpp", "--dry-run")
    as_json = kernelwright("submit", own_file, "--target", "cpu:cpp", "--dry-run", "--json")
    assert plain.returncode == as_json.returncode == 0
    assert "valid: scaled_relu" in plain.stdout
    assert "candidates=20" in plain.stdout
    assert "estimate: no model calls" in plain.stdout
    assert json.loads(as_json.stdout)["valid"] is True
    assert client.jobs()["data"] == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("softmax", "--target", "cpu:cuda"), "cuda runs on"),
        (("no_such_problem", "--target", "cpu:cpp"), "no_such_problem"),
        (("softmax", "--target", "cpu:cpp", "--priority", "1000"), "priority"),
        (("./absent.py", "--target", "cpu:cpp"), "cannot read ./absent.py"),
        (("softmax", "--target", "cpu"), "no language"),
        (("softmax", "--target", "cpu:cpp", "--budget-usd", "much"), "no amount of dollars"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_2(
    kernelwright: Kernelwright, client: Client, words: tuple[str, ...], says: str
) -> None:
    done = kernelwright("submit", *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert client.jobs()["data"] == []


def test_a_file_that_is_no_problem_is_refused_with_the_line_at_fault(
    kernelwright: Kernelwright, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("class Model:\n    def forward(self:\n")
    done = kernelwright("submit", tmp_path / "broken.py", "--target", "cpu:cpp")
    assert done.returncode == 2
    assert "line 2" in done.stderr


def test_no_service_says_what_to_start(kernelwright: Kernelwright) -> None:
    done = kernelwright("submit", "softmax", "--target", "cpu:cpp", KERNELWRIGHT_URL="http://127.0.0.1:9")
    assert done.returncode == 4
    assert "kernelwright up" in done.stderr
    assert done.stderr.count("\n") == 1
