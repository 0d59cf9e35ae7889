"""The record: which jobs it plans, what an agent does with its proposals, and what its tables say."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.record.agent import answer
from benchmarks.record.figures import suite_of
from benchmarks.record.plan import PROPOSALS, Entry, Proposal, language_of, plan
from benchmarks.record.results import read_results
from benchmarks.record.run import _body, earlier_job, end_others, jobs_at_once, machine_failed, mark_of, panel, untold
from benchmarks.record.tables import NAME, summary, write_tables
from cli.client import NotFound
from problems.catalog import bundled
from tests.unit.benchmarks.record_files import row, store
from worker.profile.gpus import Gpu


def test_every_proposal_is_for_a_bundled_problem_and_says_its_idea() -> None:
    folders = {path.name for path in PROPOSALS.iterdir() if path.is_dir()} - {"__pycache__"}
    assert folders <= set(bundled())
    for path in PROPOSALS.glob("*/*.py"):
        proposal = Proposal(path.stem, path.read_text())
        assert proposal.plan != proposal.name, f"{path.name} has no docstring"
        assert language_of(proposal.source) in ("triton", "cuda", "cpp")
        assert "class ModelNew" in proposal.source


def test_each_operator_has_a_job_in_each_language_that_somebody_wrote_for_it() -> None:
    on_gpu = plan("nvidia-h100")
    assert {entry.problem for entry in on_gpu} == {
        name for name, each in bundled().items() if any(load.fits("nvidia-h100") for load in each.spec.workloads)
    }
    assert len({entry.file for entry in on_gpu}) == len(on_gpu)
    assert [(entry.problem, entry.language) for entry in plan("nvidia-h100", ["topk", "softmax"], ["triton"])] == [
        ("topk", "triton"),
        ("softmax", "triton"),
    ]
    (softmax,) = plan("cpu", ["softmax"])
    assert softmax.language == "cpp" and softmax.proposals
    with pytest.raises(ValueError, match="no bundled problem is called softmacks"):
        plan("cpu", ["softmacks"])


def test_a_problem_may_be_asked_for_in_one_language() -> None:
    found = plan("nvidia-h100", ["rope:cuda", "softmax"])
    assert [(entry.problem, entry.language) for entry in found] == [
        ("rope", "cuda"), ("softmax", "triton"), ("softmax", "cuda")
    ]  # fmt: skip
    (one,) = plan("nvidia-h100", ["attention_causal:triton:warp_groups"])
    assert [proposal.name for proposal in one.proposals] == ["warp_groups"]
    with pytest.raises(ValueError, match=r"asked for twice.*: attention_causal\.triton\.json"):
        plan("nvidia-h100", ["attention_causal:triton:warp_groups", "attention_causal"])
    with pytest.raises(ValueError, match="attention_causal has no warp_group in triton"):
        plan("nvidia-h100", ["attention_causal:triton:warp_group"])
    with pytest.raises(ValueError, match="no bundled problem is called nothing"):
        plan("nvidia-h100", ["nothing:cuda"])


def test_what_is_written_in_nothing_known_is_refused() -> None:
    with pytest.raises(ValueError, match="neither triton nor"):
        language_of("import torch")


class Service:
    """A job with so many questions, that ends when its agent has no more to propose."""

    def __init__(self, questions: int) -> None:
        self.questions, self.told = questions, []

    def job(self, _id: str) -> dict[str, Any]:
        verdicts = {"ok": len(self.told)}  # each is judged at once
        state = "succeeded" if "exhausted" in self.told else "running"
        return {"id": "job_1", "state": state, "progress": {"verdicts": verdicts}}

    def ask(self, _id: str, **_: Any) -> list[dict[str, str]]:
        self.questions -= 1
        return [{"candidate_id": "c", "token": "t"}] if self.questions >= 0 else []

    def tell(self, *_: str, source: str | None = None, exhausted: bool = False, **__: Any) -> None:
        self.told.append("exhausted" if exhausted else source)


def test_the_agent_tells_its_kernels_in_order_and_then_that_there_are_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.record.agent.POLL_S", 0.0)
    service: Any = Service(questions=5)
    kernels = [Proposal("a", '"""First."""'), Proposal("b", '"""Second."""')]
    judged: list[Any] = []
    job = answer(service, "job_1", kernels, time.monotonic() + 10, judged.append)
    assert (job["state"], service.told) == ("succeeded", ['"""First."""', '"""Second."""', "exhausted"])
    assert [each["progress"]["verdicts"] for each in judged] == [{"ok": 1}, {"ok": 2}]


def test_the_agent_gives_up_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.record.agent.POLL_S", 0.0)
    service: Any = Service(questions=0)
    assert answer(service, "job_1", [], time.monotonic() + 0.05)["state"] == "running"


class Left:
    """What an earlier slice has left of two jobs; one of them was told a kernel."""

    def __init__(self, asked: str) -> None:
        self._jobs: list[dict[str, Any]] = [
            {"id": "job_failed", "state": "failed", "best": None},
            {"id": "job_uncertified", "state": "succeeded", "best": {"candidate_id": "c"}},
            {"id": "job_ended", "state": "succeeded", "best": {"candidate_id": "c"}},
            {"id": "job_open", "state": "running", "best": None},
        ]
        for job in self._jobs:
            job["labels"] = {"benchmark": "record", "asked": asked}
        other = {"benchmark": "record", "asked": "something else"}
        self._jobs.append({"id": "job_other", "state": "running", "best": None, "labels": other})
        self.cancelled: list[str] = []

    def end(self) -> None:
        """The open job has ended without a kernel."""
        next(job for job in self._jobs if job["id"] == "job_open")["state"] = "failed"

    def jobs(self, *, label: str | list[str], **_: Any) -> dict[str, Any]:
        wanted = dict(each.split(":") for each in ([label] if isinstance(label, str) else label))
        return {"data": [job for job in self._jobs if wanted.items() <= job["labels"].items()]}

    def certificate(self, job_id: str) -> dict[str, Any]:
        if job_id == "job_ended":
            return {"certified": True}
        raise NotFound(404, {"detail": "it has none"})

    def candidates(self, _id: str) -> dict[str, Any]:
        return {"data": [{"id": "told"}, {"id": "asked_for"}]}

    def candidate_source(self, candidate: str) -> str:
        if candidate == "told":
            return "first"
        raise NotFound(404, {"detail": "it has no source yet"})

    def cancel(self, job_id: str, **_: Any) -> None:
        self.cancelled.append(job_id)


def test_a_slice_goes_on_with_the_jobs_of_the_one_before_that_were_asked_for_the_same() -> None:
    options = argparse.Namespace(tunes=0, no_certify=False)
    kernels = (Proposal("a", "first"), Proposal("b", "second"))
    body = _body(Entry("softmax", "triton", kernels), "nvidia-h200", options, "ours")
    assert body == _body(Entry("softmax", "triton", kernels), "nvidia-h200", options, "ours")
    other = _body(Entry("softmax", "triton", kernels[:1]), "nvidia-h200", options, "ours")
    left: Any = Left(body["labels"]["asked"])
    assert earlier_job(left, body)["id"] == "job_open"
    assert earlier_job(left, other) is None, "the kernels are not the same"
    brought = _body(Entry("softmax", "triton", kernels), "nvidia-h200", options, "theirs")
    assert earlier_job(left, brought) is None, "it came with the certified kernels, from another record"
    assert [kernel.name for kernel in untold(left, "job_open", kernels)] == ["b"]
    end_others(left, [body])
    assert left.cancelled == ["job_other"]
    left.end()
    assert earlier_job(left, body)["id"] == "job_ended", "it ended after its slice did"


def test_a_home_keeps_the_mark_of_its_record(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert mark_of(tmp_path) == mark_of(tmp_path) != mark_of(tmp_path / "other")


def test_a_job_that_the_machine_failed_is_run_again_later() -> None:
    def found(*verdicts: str | None, best: object = None, certificate: object = None) -> dict[str, Any]:
        rows = [{"verdict": verdict} for verdict in verdicts]
        return {"best": best, "candidates": rows, "certificate": certificate, "job": {"certify": True}}

    assert machine_failed(found("infra_error")) and machine_failed(found("ok", best={}))
    assert not machine_failed(found("incorrect", "infra_error")) and not machine_failed(found(None))
    assert not machine_failed(found("ok", "infra_error", best={}, certificate={}))


def test_each_device_has_as_many_jobs_as_evaluators(monkeypatch: pytest.MonkeyPatch) -> None:
    here = [Gpu(index, f"GPU-{index}", "NVIDIA H100", "nvidia-h100", "sm_90a", 80 << 30, None) for index in range(2)]
    monkeypatch.setattr("benchmarks.record.run.gpus", lambda: here)
    assert jobs_at_once("nvidia-h100", 3) == 6
    assert jobs_at_once("cpu", 3) == 3


def test_the_panel_is_of_the_judgement_that_raced_most_baselines() -> None:
    few, all_of_them = row("w", 2.0, 1.9, 2.1), row("w", 1.0, 0.9, 1.1)
    all_of_them["baselines_us"] = {"eager": 21.0, "compile": 11.0, "library_sdpa": 9.0}
    found = panel([{"workloads": [few]}, {"workloads": [all_of_them]}, {"workloads": [few]}, {}])
    assert found == {"w": {"eager": 21.0, "compile": 11.0, "library_sdpa": 9.0}}


def test_after_dispatch_the_kernel_counts_only_where_it_is_surely_faster(tmp_path: Path) -> None:
    rows = [row("sure", 4.0, 1.01, 8.0), row("unsure", 1.9, 1.0, 2.0), row("slower", 0.5, 0.4, 0.6)]
    store(tmp_path, Entry("softmax", "triton", ()), rows)
    (softmax,) = read_results(tmp_path)
    assert [each.dispatched for each in softmax.rows] == [4.0, 1.0, 1.0]
    assert softmax.dispatched == pytest.approx(4 ** (1 / 3))


def test_the_tables_tell_wins_and_losses_and_what_is_missing(tmp_path: Path) -> None:
    store(
        tmp_path, Entry("softmax", "triton", ()), [row("a", 4.0, 3.9, 4.1, sol_fraction=0.9), row("b", 0.5, 0.4, 0.6)]
    )
    store(tmp_path, Entry("softmax", "cuda", ()), [row("a", 1.5, 1.4, 1.6), row("b", 1.5, 1.4, 1.6)])
    store(tmp_path, Entry("topk", "triton", ()), None)
    store(tmp_path, Entry("matmul", "triton", ()), [row("w0", 1.0, 0.9, 1.1)], roofs=["memory", "compute", "compute"])
    results = read_results(tmp_path)
    assert [(each.problem, each.language) for each in results] == [("matmul", "triton"), ("softmax", "triton")]
    matmul, softmax = results
    assert (matmul.bound, softmax.bound) == ("compute", "memory")
    assert matmul.sol_fraction == 0.5, "the certificate's"
    assert (softmax.dispatched, softmax.sol_fraction, softmax.own_share) == (pytest.approx(2.0), 0.9, 0.97)
    assert softmax.speedup == pytest.approx(2**0.5)
    assert [each.loses for each in softmax.rows] == [False, True] and not matmul.rows[0].loses
    said = "\n".join(summary(suite_of("nvidia-h200", results, ["topk"])))
    assert "| operators with a certified kernel | all | 2 of 3 | missed: without one: topk |" in said
    assert "| 1 of 3, 0 of them on every workload beyond the interval | missed |" in said
    assert "after dispatch | 0 | 0 of 3 | met: 2 run the fastest baseline |" in said
    assert "| >= 0.90 | 0.90 (of 1) | not measured yet: those without a kernel may be among them |" in said
    write_tables(tmp_path)
    page = (tmp_path / NAME).read_text()
    assert "- `softmax` b: 0.50x [0.40, 0.60] of compile" in page
    assert "- `topk`: no candidate was judged" in page and "### matmul" in page
    assert "| not measured yet: 3 of 60 run |" in page
