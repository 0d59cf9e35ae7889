"""The Kubernetes manifests: by Kubernetes' schemas, by the few fields of KEDA that they use, and by our own rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from cli.deployment import parse_queues
from cli.main import COMMANDS
from cli.worker import worker
from db.vocabulary import target_queue
from tests.unit.containers.files import KNOWN_SETTINGS, ROOT, settings_among

VERSION = "1.33"
FOLDER = ROOT / "deploy" / "kubernetes"
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
RESOURCES: list[dict[str, Any]] = [
    resource for name in KUSTOMIZATION["resources"] for resource in yaml.safe_load_all((FOLDER / name).read_text())
]
PODS: dict[str, dict[str, Any]] = {
    resource["metadata"]["name"]: resource["spec"]["template"]
    for resource in RESOURCES
    if resource["kind"] in ("Deployment", "Job")
}
CONTAINERS = {name: pod["spec"]["containers"][0] for name, pod in PODS.items()}
CANDIDATES = {name for name, pod in PODS.items() if pod["metadata"]["labels"].get("runs") == "candidates"}
SECRETS = {"kernelwright-store", "kernelwright-metrics", "kernelwright-models"}


def of_kind(kind: str) -> dict[tuple[str, str], dict[str, Any]]:
    found = [resource for resource in RESOURCES if resource["kind"] == kind]
    return {(each["metadata"].get("namespace", ""), each["metadata"]["name"]): each["spec"] for each in found}


def test_every_file_is_applied() -> None:
    files = {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    assert files == set(KUSTOMIZATION["resources"])
    names = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in RESOURCES]
    assert len(set(names)) == len(names)


def test_they_follow_the_schemas() -> None:
    for resource in RESOURCES:
        if not resource["apiVersion"].startswith("keda.sh/"):
            kubernetes_validate.validate(resource, VERSION, strict=True)


def test_each_pod_is_what_it_says() -> None:
    assert set(PODS) == {
        f"kernelwright-{part}" for part in ("migrate", "api", "control", "llm", "cpu", "gpu-h100", "gpu-h200")
    }
    built = {image["name"] for image in KUSTOMIZATION["images"]}
    for name, container in CONTAINERS.items():
        assert container["image"] in built
        env = {each["name"]: each for each in container["env"]}
        assert settings_among(env) <= KNOWN_SETTINGS and settings_among(env) == set(env)
        if container["command"][0] == "kernelwright":
            assert container["command"][1] in COMMANDS
        assert ("KERNELWRIGHT_OTLP_ENDPOINT" in env) is (name != "kernelwright-migrate")
        if container["command"] == ["kernelwright", "worker"]:
            (queue,) = parse_queues(env["KERNELWRIGHT_QUEUES"]["value"])
            assert queue == name.removeprefix("kernelwright-").partition("-")[0]
    assert CONTAINERS["kernelwright-api"]["command"][1:3] == ["-m", "api"]


def test_secrets_are_named_and_never_written() -> None:
    for container in CONTAINERS.values():
        for each in container["env"]:
            if any(word in each["name"] for word in ("URL", "TOKEN", "KEY", "PASSWORD")):
                assert each["valueFrom"]["secretKeyRef"]["name"] in SECRETS
    assert of_kind("Secret") == {}
    with_keys = {name for name, container in CONTAINERS.items() if "envFrom" in container}
    assert with_keys == {"kernelwright-llm"}  # who runs candidates must not hold a provider's key


@pytest.mark.parametrize("name", PODS)
def test_no_pod_has_more_than_it_needs(name: str) -> None:
    pod, container = PODS[name]["spec"], CONTAINERS[name]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    own = container["securityContext"]
    assert own["allowPrivilegeEscalation"] is False
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert "privileged" not in own and not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert not any("hostPath" in volume for volume in pod["volumes"])
    assert {"cpu", "memory"} <= set(container["resources"]["requests"]) and "memory" in container["resources"]["limits"]
    if name in CANDIDATES:
        assert (pod["hostUsers"], own["procMount"]) == (False, "Unmasked")
        assert pod["securityContext"]["seccompProfile"] == {"type": "Unconfined"}
    else:
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert own["readOnlyRootFilesystem"] is True and "procMount" not in own


def test_work_in_hand_may_end() -> None:
    grace_s = worker.__defaults__[1] if worker.__defaults__ else 0.0
    for name, container in CONTAINERS.items():
        if container["command"] == ["kernelwright", "worker"]:
            assert PODS[name]["spec"]["terminationGracePeriodSeconds"] > grace_s + 10
            assert "livenessProbe" not in container  # it would kill workers whose database is away
    api = CONTAINERS["kernelwright-api"]
    assert [api[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "readiness", "liveness")] == [
        "/readyz",
        "/healthz",
        "/healthz",
    ]


def test_gpu_workers_go_to_the_nodes_of_their_model() -> None:
    products = set()
    for name in (name for name in PODS if "-gpu-" in name):
        product = PODS[name]["spec"]["nodeSelector"]["nvidia.com/gpu.product"]
        assert name.rpartition("-")[2].upper() in product.split("-")
        assert CONTAINERS[name]["resources"]["limits"]["nvidia.com/gpu"] == 1
        products.add(product)
    assert len(products) == 2


# --- network ----------------------------------------------------------------------------------------------------------


def egress_of(namespace: str, labels: dict[str, str]) -> list[dict[str, Any]]:
    """What a pod may reach: the rules of all policies that select it."""
    return [
        rule
        for (where, _), policy in of_kind("NetworkPolicy").items()
        if where == namespace and policy["podSelector"].get("matchLabels", {}).items() <= labels.items()
        for rule in policy.get("egress", [])
    ]


def test_only_models_and_webhooks_go_out_and_the_rest_reach_names_database_broker_and_collector() -> None:
    for namespace in ("kernelwright", "kernelwright-candidates"):
        denied = of_kind("NetworkPolicy")[namespace, "nothing"]
        assert denied == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for resource in RESOURCES:
        if resource["kind"] not in ("Deployment", "Job"):
            continue
        labels = resource["spec"]["template"]["metadata"]["labels"]
        rules = egress_of(resource["metadata"]["namespace"], labels)
        ports = {(port["protocol"], port["port"]) for rule in rules for port in rule["ports"]}
        outside = [peer for rule in rules for peer in rule["to"] if "ipBlock" in peer]
        store = {("UDP", 53), ("TCP", 53), ("TCP", 5432), ("TCP", 6379), ("TCP", 4318)}
        if labels["part"] in ("llm", "control"):
            assert ports == store | {("TCP", 443)} and "10.0.0.0/8" in outside[0]["ipBlock"]["except"]
        else:
            assert (ports, outside) == (store, [])


# --- what selects what ------------------------------------------------------------------------------------------------


def test_selectors_select() -> None:
    deployed = of_kind("Deployment")
    labels = {where: spec["template"]["metadata"]["labels"] for where, spec in deployed.items()}
    for where, spec in deployed.items():
        assert spec["selector"]["matchLabels"].items() <= labels[where].items()
    for where, spec in of_kind("PodDisruptionBudget").items():
        assert spec["selector"]["matchLabels"].items() <= labels[where].items()
        assert len({"minAvailable", "maxUnavailable"} & set(spec)) == 1
    for where, spec in of_kind("Service").items():
        assert spec["selector"].items() <= labels[where].items()
    candidates = {namespace for namespace, name in deployed if name in CANDIDATES}
    assert candidates == {"kernelwright-candidates"}


def test_scaling_asks_postgres_for_the_queue_of_the_deployment() -> None:
    """KEDA's schemas are in no package: these are the fields that its documentation requires for this trigger."""
    deployed, authentications = of_kind("Deployment"), of_kind("TriggerAuthentication")
    scaled = of_kind("ScaledObject")
    assert {name for _, name in scaled} == {"kernelwright-llm", *CANDIDATES}
    for (namespace, name), spec in scaled.items():
        assert (namespace, spec["scaleTargetRef"]["name"]) in deployed
        # A count of replicas in the manifest would undo KEDA's at every apply.
        assert "replicas" not in deployed[namespace, name]
        assert 0 <= spec["minReplicaCount"] < spec["maxReplicaCount"]
        (trigger,) = spec["triggers"]
        assert trigger["type"] == "postgresql"
        assert set(trigger["metadata"]) == {"query", "targetQueryValue"}
        assert float(trigger["metadata"]["targetQueryValue"]) > 0
        part = name.removeprefix("kernelwright-")
        queue = target_queue("nvidia-" + part.removeprefix("gpu-")) if part.startswith("gpu-") else part
        assert trigger["metadata"]["query"].count(f"queue = '{queue}'") == 2
        (target,) = authentications[namespace, trigger["authenticationRef"]["name"]]["secretTargetRef"]
        assert target == {"parameter": "connection", "name": "kernelwright-store", "key": "keda-connection"}


def test_the_readme_makes_every_secret_that_is_referred_to() -> None:
    readme = Path(FOLDER / "README.md").read_text()
    for secret in SECRETS:
        assert f"create secret generic {secret}" in readme
    for key in ("database-url", "redis-url", "keda-connection", "token"):
        assert f"--from-literal={key}=" in readme
