import re
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from loadmanager.config import Config, load_config
from loadmanager.config.model import health_port
from loadmanager.core.ids import parse_broker

Resource = dict[str, Any]
OLDEST, NEWEST = "1.33", kubernetes_validate.latest_version()


@pytest.fixture(scope="module")
def resources(project: Path) -> list[Resource]:
    manifest = project / "deploy" / "kubernetes" / "loadmanager.yaml"
    return list(yaml.safe_load_all(manifest.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def pods(resources: list[Resource]) -> Resource:
    (stateful_set,) = (r for r in resources if r["kind"] == "StatefulSet")
    template: Resource = stateful_set["spec"]["template"]
    return template


def container(pods: Resource, name: str) -> Resource:
    (found,) = (c for c in pods["spec"]["containers"] if c["name"] == name)
    return dict(found)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_resources_have_known_fields_alone(resources: list[Resource], version: str) -> None:
    for resource in resources:
        kubernetes_validate.validate(resource, version, strict=True)


def test_everything_selects_these_pods(resources: list[Resource], pods: Resource) -> None:
    labels = pods["metadata"]["labels"]
    selectors = [r["spec"]["selector"] for r in resources if "selector" in r.get("spec", {})]
    assert [s.get("matchLabels", s) for s in selectors] == [labels] * len(selectors)
    assert len(selectors) == 4


def test_every_port_that_is_named_exists(resources: list[Resource], pods: Resource) -> None:
    ports = {p["name"] for c in pods["spec"]["containers"] for p in c["ports"]}
    services = [r for r in resources if r["kind"] == "Service"]
    assert {p["targetPort"] for s in services for p in s["spec"]["ports"]} <= ports
    probes = [
        (c["name"], c[kind]["httpGet"]["port"])
        for c in pods["spec"]["containers"]
        for kind in ("startupProbe", "livenessProbe", "readinessProbe")
        if kind in c
    ]
    assert probes == [("sidecar", "health")] * 3 + [("broker", "broker")] * 2


def environment_of(sidecar: Resource, given: dict[str, str]) -> dict[str, str]:
    """Return the environment that Kubernetes gives where its fields and limits are ``given``."""
    environment: dict[str, str] = {}
    for one in sidecar["env"]:
        source = one.get("valueFrom", {})
        field, limit = source.get("fieldRef", {}), source.get("resourceFieldRef", {})
        text = one.get("value") or given[field.get("fieldPath") or limit["resource"]]
        environment[one["name"]] = re.sub(
            r"\$\((\w+)\)", lambda earlier: environment[earlier[1]], text
        )
    return environment


@pytest.fixture
def config(resources: list[Resource], pods: Resource, tmp_path: Path) -> Config:
    (shared,) = (r["data"]["loadmanager.toml"] for r in resources if r["kind"] == "ConfigMap")
    assert tomllib.loads(shared)
    file = tmp_path / "loadmanager.toml"
    file.write_text(shared, encoding="utf-8")
    sidecar = container(pods, "sidecar")
    (name,) = limited(sidecar)
    cpu = container(pods, name)["resources"]["limits"]["cpu"]
    given = {"metadata.name": "broker-0", "metadata.namespace": "pulsar"}
    given |= {"limits.cpu": str(cpu), "limits.memory": "1024"}
    return load_config(file, environment_of(sidecar, given))


def limited(sidecar: Resource) -> set[str]:
    sources = [one.get("valueFrom", {}).get("resourceFieldRef") for one in sidecar["env"]]
    return {one["containerName"] for one in sources if one}


def test_sidecar_starts_with_a_sound_configuration(config: Config, pods: Resource) -> None:
    assert config.broker.id == parse_broker("broker-0.broker.pulsar.svc:8080")
    assert config.sidecar.advertised_url == "http://broker-0.broker.pulsar.svc:7750"
    ports = {p["name"]: p["containerPort"] for p in container(pods, "sidecar")["ports"]}
    assert ports == {"sidecar": config.sidecar.listen_port, "health": health_port(config.sidecar)}
    assert (config.host.scope, config.host.cores, config.host.memory_limit_mib) == (
        "process",
        2.0,
        1024.0,
    )
    # Nobody may do everything without a token.
    assert (config.security.anonymous, config.security.has_tokens) == ("auto", False)


def test_broker_outlives_its_sidecar_while_the_pod_stops(config: Config, pods: Resource) -> None:
    (script,) = container(pods, "broker")["lifecycle"]["preStop"]["exec"]["command"][2:]
    compile(script, "preStop", "exec")
    assert f'("127.0.0.1", {config.sidecar.listen_port})' in script
    assert "lifecycle" not in container(pods, "sidecar")
    grace_s = pods["spec"]["terminationGracePeriodSeconds"]
    assert (
        grace_s >= config.ownership.drain_deadline_s + 30 + 2 * config.zookeeper.session_timeout_s
    )


def test_broker_obeys_its_sidecar_alone_by_the_pods_secret(config: Config, pods: Resource) -> None:
    (maker,) = pods["spec"]["initContainers"]
    file = config.broker.control_secret_file
    assert f'pathlib.Path("{file}").write_text(secrets.token_hex(32))' in maker["command"][-1]
    assert container(pods, "broker")["args"][-2:] == ["--control-secret-file", file]
    (mount,) = maker["volumeMounts"]
    assert file.startswith(f"{mount['mountPath']}/")
    for name in ("broker", "sidecar"):
        assert {**mount, "readOnly": True} in container(pods, name)["volumeMounts"]
    (volume,) = (one for one in pods["spec"]["volumes"] if one["name"] == mount["name"])
    assert "emptyDir" in volume


def test_clients_reach_named_ports_alone(resources: list[Resource], pods: Resource) -> None:
    (policy,) = (r["spec"] for r in resources if r["kind"] == "NetworkPolicy")
    assert policy["podSelector"]["matchLabels"] == pods["metadata"]["labels"]
    assert policy["policyTypes"] == ["Ingress"]
    ports = {p["name"] for c in pods["spec"]["containers"] for p in c["ports"]}
    reached = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    assert reached == {"broker", "sidecar"} <= ports
    assert all(rule["from"] for rule in policy["ingress"])


def test_no_container_has_rights_it_does_not_need(pods: Resource) -> None:
    assert pods["spec"]["securityContext"]["runAsNonRoot"] is True
    for each in pods["spec"]["containers"]:
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


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


def test_the_sidecar_has_a_sound_configuration_by_limits_of_the_charts_container(
    sidecar: Resource, patched: Resource
) -> None:
    names = {one["name"] for one in patched["spec"]["template"]["spec"]["containers"]}
    assert names == {*limited(sidecar), "loadmanager"} == {"pulsar-broker", "loadmanager"}
    given = {"metadata.name": "pulsar-broker-0", "limits.cpu": "4", "limits.memory": "8192"}
    patch_config = load_config(None, environment_of(sidecar, given))
    assert sidecar["args"] == ["agent"]
    assert patch_config.broker.kind == "pulsar"
    assert patch_config.broker.id == "pulsar-broker-0.pulsar-broker.pulsar.svc.cluster.local:8080"
    assert patch_config.shedding.observe
    assert (
        patch_config.host.scope,
        patch_config.host.cores,
        patch_config.host.memory_limit_mib,
    ) == ("process", 4.0, 8192.0)
    ports = {one["name"]: one["containerPort"] for one in sidecar["ports"]}
    assert ports == {
        "sidecar": patch_config.sidecar.listen_port,
        "sidecar-health": health_port(patch_config.sidecar),
    }


def test_a_sidecar_takes_no_broker_out_of_service_and_has_few_rights(sidecar: Resource) -> None:
    assert "readinessProbe" not in sidecar
    rights: Resource = {"runAsNonRoot": True, "readOnlyRootFilesystem": True}
    rights |= {"capabilities": {"drop": ["ALL"]}, "allowPrivilegeEscalation": False}
    assert rights.items() <= sidecar["securityContext"].items()
