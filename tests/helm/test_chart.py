"""The Helm chart: valid by Helm and Kubernetes, and what it starts is what the program takes."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from loadmanager.cli.attach import _check_options, attach_command
from loadmanager.config import Config, load_config

pytestmark = [pytest.mark.helm, pytest.mark.timeout(1800)]
Resource = dict[str, Any]
Helm = Callable[..., subprocess.CompletedProcess[str]]
CHART = Path(__file__).parents[2] / "deploy" / "helm" / "loadmanager"
SMALLEST = Path(__file__).parent / "values" / "smallest.yaml"
OLDEST, NEWEST = "1.33", kubernetes_validate.latest_version()
OPERATOR = "monitoring.coreos.com/v1"
"""Of resources that the Prometheus Operator defines, not Kubernetes."""


def given(values: Path) -> Resource:
    return dict(yaml.safe_load(values.read_text(encoding="utf-8")))


def kinds(resources: list[Resource], kind: str) -> list[Resource]:
    return [one for one in resources if one["kind"] == kind]


def pods(resources: list[Resource]) -> list[Resource]:
    makers = kinds(resources, "Deployment") + kinds(resources, "Job")
    return [one["spec"]["template"] for one in makers]


def container(pod: Resource) -> Resource:
    (only,) = pod["spec"]["containers"]
    return dict(only)


def files_of(pod: Resource, resources: list[Resource]) -> Iterator[tuple[str, str]]:
    mounts = {one["name"]: one["mountPath"] for one in container(pod).get("volumeMounts", ())}
    for volume in pod["spec"].get("volumes", ()):
        folder = mounts.pop(volume["name"])
        if "configMap" in volume:
            (map_,) = (
                one
                for one in kinds(resources, "ConfigMap")
                if one["metadata"]["name"] == volume["configMap"]["name"]
            )
            yield from ((f"{folder}/{name}", text) for name, text in map_["data"].items())
        else:
            tls = [{"path": name} for name in ("ca.crt", "tls.crt", "tls.key")]
            for item in volume["secret"].get("items", tls):
                yield f"{folder}/{item['path']}", "secret"
    assert not mounts


def environment_of(pod: Resource) -> dict[str, str]:
    return {one["name"]: one.get("value", "from a Secret") for one in container(pod)["env"]}


def test_lint_finds_nothing(helm: Helm, values: Path) -> None:
    done = helm("lint", CHART, "--strict", "--values", values, "--kube-version", OLDEST)
    assert (done.returncode, "0 chart(s) failed" in done.stdout) == (0, True), done.stdout


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_resources_are_valid_with_known_fields(resources: list[Resource], version: str) -> None:
    assert {"Deployment", "ConfigMap", "Service"} <= {one["kind"] for one in resources}
    for resource in resources:
        if resource["apiVersion"] != OPERATOR:
            kubernetes_validate.validate(resource, version, strict=True)


def test_the_program_takes_what_each_container_is_started_with(
    resources: list[Resource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, pod in enumerate(pods(resources)):
        root = tmp_path / str(number)
        for path, text in files_of(pod, resources):
            file = root / path.removeprefix("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")

        def inside(text: str, root: Path = root) -> str:
            return re.sub(r"(^|=)(/(?:etc|run)/)", rf"\g<1>{root}\g<2>", text)

        for name, value in environment_of(pod).items():
            monkeypatch.setenv(name, inside(value))
        command, *arguments = map(inside, container(pod)["args"])
        context = attach_command.make_context(command, arguments)
        _check_options(context.params)
        assert sum(context.params[one] for one in ("balance", "restore")) <= 1
        config = context.params["config"]
        assert (config is not None) == (context.params["balance"] or context.params["restore"])
        assert config is None or config.is_file()


def test_candidates_and_the_job_read_one_configuration(
    resources: list[Resource], values: Path, tmp_path: Path
) -> None:
    wanted = given(values)["zookeeper"]
    found: list[Config] = []
    for pod in pods(resources):
        for path, text in files_of(pod, resources):
            if path.endswith(".toml"):
                file = tmp_path / "attach.toml"
                file.write_text(text, encoding="utf-8")
                # A candidate gives itself a name, as pulsar/controller.py does.
                named = {**environment_of(pod), "LOADMANAGER_BROKER__ID": "attach-a:1"}
                del named["LOADMANAGER_PULSAR"]
                named.pop("LOADMANAGER_PULSAR_TOKEN_FILE", None)
                found.append(load_config(file, named))
    assert len(found) == 1 + len(kinds(resources, "Job"))
    for config in found:
        assert config == found[0]
        assert {key: getattr(config.zookeeper, key) for key in wanted} == wanted
        assert config.zookeeper.chroot
        password = (config.zookeeper.digest_password, config.zookeeper.sasl_password)
        assert any(password) == ("zookeeperPassword" in given(values))
        assert bool(config.zookeeper.tls_ca_file) == ("zookeeperTls" in given(values))


def test_options_of_values_are_the_commands(resources: list[Resource], values: Path) -> None:
    for name, value in given(values).get("options", {}).items():
        (args,) = (
            container(one)["args"]
            for one in pods(resources)
            if "--balance" in container(one)["args"]
        )
        mine = [one for one in args if one.split("=")[0] == f"--{name}"]
        if isinstance(value, bool):
            assert mine == [f"--{name}"] * value
        else:
            each = value if isinstance(value, list) else [value]
            assert mine == [f"--{name}={one}" for one in each]


def test_candidates_are_on_different_nodes(resources: list[Resource], values: Path) -> None:
    replicas = given(values).get("replicas", 2)
    (candidates,) = (
        one
        for one in kinds(resources, "Deployment")
        if one["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
        == "candidate"
    )
    assert candidates["spec"]["replicas"] == replicas
    labels = candidates["spec"]["template"]["metadata"]["labels"]
    selectors = [candidates["spec"]["selector"]]
    selectors += [one["spec"]["selector"] for one in kinds(resources, "PodDisruptionBudget")]
    assert len(selectors) == (2 if replicas > 1 else 1)
    for selector in selectors:
        assert selector["matchLabels"].items() <= labels.items()
        assert "app.kubernetes.io/component" in selector["matchLabels"]


def test_the_last_candidate_restores_at_sigterm(resources: list[Resource], values: Path) -> None:
    for pod in (one["spec"]["template"] for one in kinds(resources, "Deployment")):
        assert "lifecycle" not in container(pod)
        # Of a shell in between the program would get no signal.
        assert "command" not in container(pod)
        if "--balance" in container(pod)["args"]:
            wanted = given(values).get("terminationGracePeriodSeconds", 180)
            assert pod["spec"]["terminationGracePeriodSeconds"] == wanted


def test_what_restores_after_the_release_needs_nothing_of_it(resources: list[Resource]) -> None:
    hooks = [one for one in resources if "helm.sh/hook" in one["metadata"].get("annotations", {})]
    made = {(one["kind"], one["metadata"]["name"]) for one in hooks}
    for job in kinds(resources, "Job"):
        spec = job["spec"]["template"]["spec"]
        assert ("ServiceAccount", spec["serviceAccountName"]) in made
        maps = [one["configMap"]["name"] for one in spec["volumes"] if "configMap" in one]
        assert len(maps) == 1
        assert ("ConfigMap", maps[0]) in made
        for one in hooks:
            annotations = one["metadata"]["annotations"]
            assert annotations["helm.sh/hook"] == "post-delete"
            assert (annotations.get("helm.sh/hook-weight") == "-1") == (one is not job)


def test_no_container_has_rights_it_does_not_need(resources: list[Resource]) -> None:
    for pod in pods(resources):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert container(pod)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        for volume in spec.get("volumes", ()):
            assert volume.get("secret", {}).get("defaultMode", 0o440) == 0o440


def test_prometheus_finds_all_pods_with_metrics(resources: list[Resource], values: Path) -> None:
    (service,) = kinds(resources, "Service")
    (port,) = service["spec"]["ports"]
    for pod in (one["spec"]["template"] for one in kinds(resources, "Deployment")):
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        named = {one["name"]: one["containerPort"] for one in container(pod)["ports"]}
        assert named == {"metrics": port["port"]}
        assert f"--metrics-port={port['port']}" in container(pod)["args"]
        assert "--metrics-host=" in container(pod)["args"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            path = "/health" if probe == "livenessProbe" else "/metrics"
            assert container(pod)[probe]["httpGet"] == {"path": path, "port": "metrics"}
    asked = given(values).get("metrics", {})
    monitors = kinds(resources, "ServiceMonitor")
    assert len(monitors) == ("serviceMonitor" in asked)
    for monitor in monitors:
        assert monitor["spec"]["endpoints"][0]["port"] == port["name"]
        wanted = monitor["spec"]["selector"]["matchLabels"]
        assert wanted.items() <= service["metadata"]["labels"].items()
    assert len(kinds(resources, "PrometheusRule")) == ("prometheusRule" in asked)


def test_the_alerts_are_those_of_the_chart(resources: list[Resource], values: Path) -> None:
    text = (CHART / "files" / "rules.yml").read_text(encoding="utf-8")
    for rule in kinds(resources, "PrometheusRule"):
        kept = given(values)["metrics"]["prometheusRule"].get("runbooksUrl", "docs/runbooks.md")
        assert rule["spec"] == yaml.safe_load(text.replace("docs/runbooks.md", kept))


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("pulsar.url=broker-1:8080", "/pulsar/url"),
        ("pulsar.url=http://broker-1:8080/admin", "/pulsar/url"),
        ("zookeeper.hosts=", "/zookeeper/hosts"),
        ("zookeeper.chroot=/", "/zookeeper/chroot"),
        ("replicas=0", "/replicas"),
        ("options.pause=true", "additional properties 'pause' not allowed"),
        ("options.moves-per-hour=0", "/options/moves-per-hour"),
        ("zookeeperPassword.mechanism=plain", "/zookeeperPassword/mechanism"),
        ("replica=2", "additional properties 'replica' not allowed"),
        ("metrics.prometheusRule.runbooksUrl=of {{ x }}", "/metrics/prometheusRule/runbooksUrl"),
        ("terminationGracePeriodSeconds=5", "/terminationGracePeriodSeconds"),
    ],
)
def test_a_wrong_value_is_refused_by_name(helm: Helm, setting: str, named: str) -> None:
    done = helm("template", "main", CHART, "--values", SMALLEST, "--set", setting)
    assert done.returncode != 0
    assert named in done.stderr


def test_nothing_is_installed_without_naming_the_cluster(helm: Helm) -> None:
    done = helm("template", "main", CHART, "--kube-version", OLDEST)
    assert done.returncode != 0
    assert "/pulsar/url" in done.stderr
    assert "/zookeeper/hosts" in done.stderr


def test_once_installed_it_says_what_to_do(helm: Helm, values: Path, tmp_path: Path) -> None:
    # `helm install` alone shows it, and asks a cluster first.
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    text = (chart / "templates" / "NOTES.txt").read_text(encoding="utf-8")
    (chart / "templates" / "shown.yaml").write_text(
        f'{{{{ define "shown" }}}}{text}{{{{ end }}}}\nkind: Shown\n'
        'text: |\n  {{- include "shown" . | nindent 2 }}\n',
        encoding="utf-8",
    )
    arguments = ("--show-only", "templates/shown.yaml", "--namespace", "balancing")
    done = helm("template", "main", chart, "--values", values, *arguments)
    assert done.returncode == 0, done.stderr
    notes = yaml.safe_load(done.stdout)["text"]
    commands = re.findall(r"-- loadmanager (attach .*)", notes)
    actions = [re.findall("--(?:pause|resume)", one) for one in commands]
    page = given(values).get("options", {}).get("page")
    assert ("The live page" in notes) == (page is not None)
    assert page is None or re.search(
        f"port-forward .* deployment/\\S+ {page}$", notes, re.MULTILINE
    )
    assert actions == [["--pause"], ["--resume"]]
    assert ("WARNING: replicas is 1" in notes) == (given(values).get("replicas") == 1)
    assert ("helm uninstall" in notes) == given(values).get("restore", {}).get("enabled", True)
