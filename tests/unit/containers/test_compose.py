"""The compose file follows the Compose specification and says what a deployment of Kernelwright must say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.deployment import parse_queues
from cli.main import COMMANDS
from tests.unit.containers.files import (
    COMPOSE_FILE,
    DOCKERFILES,
    ENV_EXAMPLE,
    KNOWN_SETTINGS,
    ROOT,
    compose,
    settings_among,
)

SERVICES: dict[str, dict[str, Any]] = compose()["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}


def test_it_follows_the_specification() -> None:
    checker = Path(sys.executable).with_name("check-jsonschema")
    command = [str(checker), "--builtin-schema", "vendor.compose-spec", str(COMPOSE_FILE)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_it_has_every_part() -> None:
    assert set(SERVICES) == {"postgres", "redis", "migrate", "api", "control", "gpu-worker", "cpu-worker"}


def test_images_are_built_from_our_dockerfiles() -> None:
    built = {ROOT / service["build"]["context"] / service["build"]["dockerfile"] for service in OURS.values()}
    assert {path.resolve() for path in built} == set(DOCKERFILES)


@pytest.mark.parametrize("name", OURS)
def test_commands_are_ours(name: str) -> None:
    service = OURS[name]
    commands = [service["command"]] if "command" in service else []
    commands += [test[1:] for test in [service.get("healthcheck", {}).get("test")] if test]
    for program, command, *_ in commands:
        assert program == "kernelwright"
        assert command in COMMANDS


def test_redis_keeps_what_it_is_told_and_asks_for_a_password() -> None:
    command = " ".join(SERVICES["redis"]["command"])
    for setting in ("--appendonly yes", "--appendfsync everysec", "--maxmemory-policy noeviction", "--requirepass"):
        assert setting in command
    assert any(volume.endswith(":/data") for volume in SERVICES["redis"]["volumes"])


def test_whoever_uses_the_schema_waits_for_the_one_shot_migration() -> None:
    assert SERVICES["migrate"]["command"] == ["kernelwright", "migrate", "--kernels"]
    for name, service in OURS.items():
        if name != "migrate":
            assert service["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
            assert service["depends_on"]["redis"] == {"condition": "service_healthy"}
    assert SERVICES["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}


def test_what_is_waited_for_can_become_healthy() -> None:
    waited = {
        name
        for service in SERVICES.values()
        for name, how in service.get("depends_on", {}).items()
        if how["condition"] == "service_healthy"
    }
    assert waited == {"postgres", "redis"}
    for name in waited:
        assert SERVICES[name]["healthcheck"]["test"]


def test_one_process_alone_serves_control() -> None:
    serving = [name for name, service in OURS.items() if "control" in _queues(service)]
    assert serving == ["control"]
    assert "replicas" not in SERVICES["control"].get("deploy", {})


def test_every_queue_has_a_worker_and_every_worker_real_queues() -> None:
    served = {queue for service in OURS.values() for queue in _queues(service)}
    assert served == {"control", "llm", "cpu", "gpu"}


def _queues(service: dict[str, Any]) -> tuple[str, ...]:
    queues = service["environment"].get("KERNELWRIGHT_QUEUES")
    return parse_queues(_default(queues)) if queues else ()


def _default(text: str) -> str:
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def test_the_gpu_worker_reserves_its_gpus_and_the_others_none() -> None:
    devices = {
        name: service.get("deploy", {}).get("resources") for name, service in OURS.items() if "deploy" in service
    }
    assert set(devices) == {"gpu-worker"}
    assert devices["gpu-worker"]["reservations"]["devices"] == [
        {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    ]


def test_only_the_worker_that_calls_models_gets_the_env_file() -> None:
    assert {name for name, service in SERVICES.items() if "env_file" in service} == {"gpu-worker"}
    for service in SERVICES.values():
        assert not [variable for variable in service.get("environment", {}) if variable.endswith("API_KEY")]


def test_no_password_is_written_down() -> None:
    passwords = [
        value
        for service in SERVICES.values()
        for name, value in service.get("environment", {}).items()
        if name.endswith(("PASSWORD", "_URL", "_AUTH")) and name != "KERNELWRIGHT_AUTH"
    ]
    assert passwords
    for value in passwords:
        assert re.search(r"\$\{KERNELWRIGHT_(DB|REDIS)_PASSWORD:\?", value), value


def test_every_variable_is_explained_in_the_example() -> None:
    used = set(re.findall(r"\$\{(KERNELWRIGHT_\w+)", COMPOSE_FILE.read_text()))
    explained = set(re.findall(r"^#?(\w+)=", ENV_EXAMPLE.read_text(), flags=re.MULTILINE))
    assert used <= explained


def test_our_settings_exist() -> None:
    for service in OURS.values():
        assert settings_among(service["environment"]) <= KNOWN_SETTINGS


def test_nothing_is_published_beyond_this_machine() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(published) == 1
    assert published[0].startswith("127.0.0.1:")


def test_the_api_asks_for_keys() -> None:
    assert SERVICES["api"]["environment"]["KERNELWRIGHT_AUTH"] == "required"


def test_nothing_is_privileged() -> None:
    for service in OURS.values():
        assert not service.get("privileged")
        assert service["cap_drop"] == ["ALL"]
        assert "cap_add" not in service


def test_workers_may_build_the_sandbox_and_only_they() -> None:
    loosened = {name for name, service in OURS.items() if "seccomp=unconfined" in service["security_opt"]}
    assert loosened == {"gpu-worker", "cpu-worker"}
    for name in loosened:
        assert "systempaths=unconfined" in OURS[name]["security_opt"]


def test_a_worker_has_time_to_finish_what_it_does() -> None:
    for name in ("control", "gpu-worker", "cpu-worker"):
        assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > 25
