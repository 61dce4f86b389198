"""Mode sidecar: a patch that puts a sidecar beside the brokers of Pulsar's own Helm chart."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from loadmanager.config import load_config

pytestmark = [pytest.mark.helm, pytest.mark.timeout(1800)]
Resource = dict[str, Any]
Helm = Callable[..., subprocess.CompletedProcess[str]]
PROJECT = Path(__file__).parents[2]
CHART = PROJECT / "deploy" / "helm" / "loadmanager"
SIDECAR = Path(__file__).parent / "values" / "sidecar.yaml"
OLDEST, NEWEST = "1.33", kubernetes_validate.latest_version()


def patch_of(helm: Helm, *given: str | Path) -> Resource:
    command = ("template", "main", CHART, "--namespace", "pulsar", "--kube-version", OLDEST)
    done = helm(*command, *given)
    assert done.returncode == 0, done.stderr
    (only,) = (one for one in yaml.safe_load_all(done.stdout) if one is not None)
    kubernetes_validate.validate(only, NEWEST, strict=True)
    assert only["kind"] == "ConfigMap"
    made: Resource = yaml.safe_load(only["data"]["patch.yaml"])
    return made


def by_names(patch: Resource) -> Resource:
    """Return a patch with its environment by names: but for POD_NAME its order means nothing."""
    (sidecar,) = patch["spec"]["template"]["spec"]["containers"]
    assert sidecar["env"][0]["name"] == "POD_NAME"
    sidecar["env"] = {one["name"]: one for one in sidecar["env"]}
    return patch


def test_lint_finds_nothing(helm: Helm) -> None:
    done = helm("lint", CHART, "--strict", "--values", SIDECAR, "--kube-version", OLDEST)
    assert (done.returncode, "0 chart(s) failed" in done.stdout) == (0, True), done.stdout


def test_the_least_values_make_the_patch_of_the_manifests(helm: Helm) -> None:
    file = PROJECT / "deploy" / "kubernetes" / "pulsar-sidecar.yaml"
    values = {
        "mode": "sidecar",
        "pulsar.url": "http://127.0.0.1:8080",
        "zookeeper.hosts": "pulsar-zookeeper:2181",
    }
    given = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
    made = by_names(patch_of(helm, *given))
    (sidecar,) = made["spec"]["template"]["spec"]["containers"]
    assert sidecar.pop("imagePullPolicy") == "IfNotPresent"
    assert made == by_names(yaml.safe_load(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_the_patched_brokers_are_valid_with_no_unknown_field(helm: Helm, version: str) -> None:
    pod = patch_of(helm, "--values", SIDECAR)["spec"]["template"]["spec"]
    labels = {"app": "pulsar", "component": "broker"}
    spec = {
        "serviceName": "main-pulsar-broker",
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    whole = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "main-pulsar-broker"},
        "spec": spec,
    }
    kubernetes_validate.validate(whole, version, strict=True)


def test_the_sidecar_starts_with_what_the_values_say(helm: Helm) -> None:
    pod = patch_of(helm, "--values", SIDECAR)["spec"]["template"]["spec"]
    (sidecar,) = pod["containers"]
    given = {"limits.cpu": "4", "limits.memory": "8192", "metadata.name": "main-pulsar-broker-0"}
    environment: dict[str, str] = {}
    for one in sidecar["env"]:
        source = one.get("valueFrom", {"secretKeyRef": {}})
        if "secretKeyRef" in source:
            text = one.get("value", "secret")
        else:
            named = source.get("fieldRef", source.get("resourceFieldRef"))
            text = given[named.get("fieldPath") or named["resource"]]
        environment[one["name"]] = text.replace("$(POD_NAME)", environment.get("POD_NAME", ""))
    config = load_config(None, environment)
    assert (
        config.broker.id
        == "main-pulsar-broker-0.main-pulsar-broker.pulsar.svc.example.internal:8080"
    )
    assert config.pulsar.admin_url == "https://localhost:8443"
    assert config.zookeeper.hosts == "zk-0.zk:2281,zk-1.zk:2281"
    assert config.zookeeper.chroot == "/loadmanager/pulsar"
    assert (config.zookeeper.session_timeout_s, config.zookeeper.tls_verify_hostname) == (6, False)
    password = environment["LOADMANAGER_ZOOKEEPER__DIGEST_PASSWORD"]
    assert config.zookeeper.digest_password.get_secret_value() == password
    assert (config.shedding.strategy, len(config.shedding.shadows)) == ("joint", 1)
    assert (config.shedding.observe, config.leader.round_interval_s) == (True, 30)
    mounts = {one["name"]: one["mountPath"] for one in sidecar["volumeMounts"]}
    assert mounts.keys() == {one["name"] for one in pod["volumes"]}
    files = (
        *(config.pulsar.token_file, config.pulsar.ca_file, config.pulsar.certificate_file),
        *(config.pulsar.key_file, config.zookeeper.tls_ca_file),
    )
    assert {str(Path(file).parent) for file in files} == set(mounts.values())


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("options.split=true", "set sidecar.settings"),
        ("mode=both", "/mode"),
        ("sidecar.terminationGracePeriodSeconds=60", "/sidecar/terminationGracePeriodSeconds"),
        ("sidecar.settings.shedding=joint", "/sidecar/settings/shedding"),
    ],
)
def test_a_wrong_value_is_refused_by_name(helm: Helm, setting: str, named: str) -> None:
    done = helm("template", "main", CHART, "--values", SIDECAR, "--set", setting)
    assert done.returncode != 0
    assert named in done.stderr
