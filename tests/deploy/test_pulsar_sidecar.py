"""The patch that puts a sidecar beside the brokers of Pulsar's own Helm chart."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from loadmanager.config import Config, load_config
from loadmanager.config.model import health_port

Resource = dict[str, Any]
OLDEST, NEWEST = "1.33", kubernetes_validate.latest_version()
LABELS = {"app": "pulsar", "release": "pulsar", "component": "broker"}


@pytest.fixture(scope="module")
def patch(project: Path) -> Resource:
    file = project / "deploy" / "kubernetes" / "pulsar-sidecar.yaml"
    found: Resource = yaml.safe_load(file.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def sidecar(patch: Resource) -> Resource:
    (one,) = patch["spec"]["template"]["spec"]["containers"]
    return dict(one)


@pytest.fixture(scope="module")
def patched(patch: Resource) -> Resource:
    broker = {
        "name": "pulsar-broker",
        "image": "apachepulsar/pulsar-all:4.0.7",
        "ports": [
            {"name": "http", "containerPort": 8080},
            {"name": "pulsar", "containerPort": 6650},
        ],
        "resources": {"requests": {"cpu": 0.2, "memory": "512Mi"}},
    }
    pod = dict(patch["spec"]["template"]["spec"])
    # Containers are merged by their names.
    pod["containers"] = [broker, *pod["containers"]]
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "pulsar-broker", "namespace": "pulsar"},
        "spec": {
            "serviceName": "pulsar-broker",
            "replicas": 3,
            "selector": {"matchLabels": LABELS},
            "template": {"metadata": {"labels": LABELS}, "spec": pod},
        },
    }


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_the_patched_brokers_are_valid_with_no_unknown_field(
    patch: Resource, patched: Resource, version: str
) -> None:
    assert set(patch) == {"spec"}
    kubernetes_validate.validate(patched, version, strict=True)


@pytest.fixture
def config(sidecar: Resource) -> Config:
    given = {"metadata.name": "pulsar-broker-0", "limits.cpu": "4", "limits.memory": "8192"}
    environment: dict[str, str] = {}
    for one in sidecar["env"]:
        source = one.get("valueFrom", {})
        field, limit = source.get("fieldRef", {}), source.get("resourceFieldRef", {})
        text = one.get("value") or given[field.get("fieldPath") or limit["resource"]]
        environment[one["name"]] = text.replace("$(POD_NAME)", environment.get("POD_NAME", ""))
    return load_config(None, environment)


def test_the_sidecar_starts_with_a_sound_configuration(config: Config, sidecar: Resource) -> None:
    assert sidecar["args"] == ["agent"]
    assert config.broker.kind == "pulsar"
    assert config.broker.id == "pulsar-broker-0.pulsar-broker.pulsar.svc.cluster.local:8080"
    assert config.shedding.observe
    assert (config.host.scope, config.host.cores, config.host.memory_limit_mib) == (
        "process",
        4.0,
        8192.0,
    )
    ports = {one["name"]: one["containerPort"] for one in sidecar["ports"]}
    assert ports == {
        "sidecar": config.sidecar.listen_port,
        "sidecar-health": health_port(config.sidecar),
    }


def test_limits_are_those_of_the_charts_container(sidecar: Resource, patched: Resource) -> None:
    names = {one["name"] for one in patched["spec"]["template"]["spec"]["containers"]}
    limits = [
        one["valueFrom"]["resourceFieldRef"]["containerName"]
        for one in sidecar["env"]
        if "resourceFieldRef" in one.get("valueFrom", {})
    ]
    assert limits == ["pulsar-broker"] * 2
    assert names == {"pulsar-broker", "loadmanager"}


def test_a_sidecar_takes_no_broker_out_of_service_and_has_few_rights(sidecar: Resource) -> None:
    assert "readinessProbe" not in sidecar
    rights: Resource = {"runAsNonRoot": True, "readOnlyRootFilesystem": True}
    rights |= {"capabilities": {"drop": ["ALL"]}, "allowPrivilegeEscalation": False}
    assert rights.items() <= sidecar["securityContext"].items()
