"""Which worker gets which queue, pool, device and secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.deployment import Surroundings, UnknownQueue, migration_program, parse_queues, worker_programs
from cli.embedded.home import open_log
from cli.programs import Program, own_environment
from worker.profile.gpus import Gpu

AROUND = Surroundings(env={"KERNELWRIGHT_HOME": "/h"}, scratch=Path("/h/run"), logs=Path("/h/log"))
GPUS = [
    Gpu(index, f"GPU-{uuid}", "NVIDIA H100 80GB HBM3", "nvidia-h100", "sm_90a", 80 << 30, None)
    for index, uuid in enumerate("ab")
]


def programs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Program]:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("HF_TOKEN", "secret")
    return {program.name: program for program in worker_programs(parse_queues("gpu,cpu,llm,control"), GPUS, AROUND)}


def test_one_process_for_each_queue_and_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    found = programs(monkeypatch)
    assert list(found) == ["worker-control", "worker-llm", "worker-cpu", "worker-gpu0", "worker-gpu1"]
    queues = {name: program.argv[program.argv.index("--queues") + 1] for name, program in found.items()}
    assert queues["worker-gpu0"] == queues["worker-gpu1"] == "gpu.nvidia-h100"
    assert len({program.argv[program.argv.index("--hostname") + 1] for program in found.values()}) == len(found)


def test_each_evaluator_sees_its_own_device_only(monkeypatch: pytest.MonkeyPatch) -> None:
    found = programs(monkeypatch)
    seen = {name: program.env.get("CUDA_VISIBLE_DEVICES") for name, program in found.items() if name[7:10] != "con"}
    assert seen["worker-cpu"] == ""
    assert (seen["worker-gpu0"], seen["worker-gpu1"]) == ("GPU-a", "GPU-b")


def test_evaluators_may_share_a_device() -> None:
    found = worker_programs(("gpu",), GPUS, AROUND, evaluators_per_gpu=3)
    names = ["worker-gpu0", "worker-gpu0-2", "worker-gpu0-3", "worker-gpu1", "worker-gpu1-2", "worker-gpu1-3"]
    assert [program.name for program in found] == names
    assert [program.env["CUDA_VISIBLE_DEVICES"] for program in found] == ["GPU-a"] * 3 + ["GPU-b"] * 3
    assert len({program.argv[program.argv.index("--hostname") + 1] for program in found}) == 6


def test_judges_of_gpus_share_the_cores_unless_somebody_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(64)))

    def threads(gpus: list[Gpu], evaluators: int) -> set[str | None]:
        found = worker_programs(("gpu",), gpus, AROUND, evaluators_per_gpu=evaluators)
        return {program.env.get("KERNELWRIGHT_JUDGE_THREADS") for program in found}

    assert threads(GPUS, 1) == {"32"} and threads(GPUS[:1], 3) == {"21"} and threads(GPUS, 50) == {"1"}
    assert threads(GPUS[:1], 1) == {None}
    monkeypatch.setenv("KERNELWRIGHT_JUDGE_THREADS", "5")
    assert threads(GPUS, 1) == {"5"}


def test_only_the_process_that_calls_models_gets_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, program in programs(monkeypatch).items():
        holds = {key for key in ("OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN") if key in program.env}
        assert holds == ({"OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN"} if name == "worker-llm" else set())
        assert program.env["KERNELWRIGHT_HOME"] == "/h"


def test_what_a_person_has_for_the_api_and_for_scrapes_is_handed_on_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWRIGHT_KEY", "kw_live_mine")
    monkeypatch.setenv("KERNELWRIGHT_METRICS_TOKEN", "scrape")
    for program in programs(monkeypatch).values():
        assert not {"kw_live_mine", "scrape"} & set(program.env.values()), program.name
    named = own_environment({"KERNELWRIGHT_METRICS_TOKEN": "scrape"}, secrets=False)
    assert named["KERNELWRIGHT_METRICS_TOKEN"] == "scrape"


def test_variables_that_only_sound_like_secrets_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYBOARD", "us")
    assert own_environment({}, secrets=False)["KEYBOARD"] == "us"


@pytest.mark.parametrize("text", ["tpu", "", " , ", "cpu,gpu.nvidia-h100"])
def test_an_unknown_queue_is_refused(text: str) -> None:
    with pytest.raises(UnknownQueue):
        parse_queues(text)


def test_a_grown_log_makes_room_and_a_small_one_stays(tmp_path: Path) -> None:
    log = tmp_path / "api.log"
    log.write_bytes(b"small")
    with open_log(log) as file:
        file.write(b" and more")
    assert log.read_bytes() == b"small and more"
    with log.open("wb") as file:
        file.truncate(20_000_001)
    with open_log(log):
        pass
    assert log.stat().st_size == 0
    assert (tmp_path / "api.log.1").stat().st_size == 20_000_001


def test_the_kernels_that_come_with_it_are_loaded_unless_they_are_not_wanted() -> None:
    assert migration_program(AROUND, kernels=True).argv[-2:] == ["migrate", "--kernels"]
    assert migration_program(AROUND, kernels=False).argv[-1] == "migrate"
