import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadmanager.cli import main
from loadmanager.config import Config, load_config

NODES = (1, 2, 3)
SPARK = ("spark-master", "spark-worker-1", "spark-worker-2")
SPARK_NODE = "deploy/compose/spark-node"
DEFAULT = re.compile(r"\$\{\w+:-([^}]*)\}")


@pytest.fixture(scope="module")
def services(project: Path) -> dict[str, Any]:
    text = (project / "docker-compose.yml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(DEFAULT.sub(r"\1", text))["services"]
    return found


@pytest.fixture(scope="module")
def configs(project: Path, services: dict[str, Any]) -> list[Config]:
    file = project / "deploy" / "compose" / "loadmanager.toml"
    environments = (services[f"sidecar-{node}"]["environment"] for node in NODES)
    return [load_config(file, {k: str(v) for k, v in each.items()}) for each in environments]


def test_every_sidecar_starts_with_a_sound_configuration_of_its_own(configs: list[Config]) -> None:
    assert [config.broker.id for config in configs] == [f"broker-{n}:8080" for n in NODES]
    assert {config.host.scope for config in configs} == {"process"}
    # Nobody may do everything without a token.
    assert {config.security.anonymous for config in configs} == {"auto"}


def test_brokers_are_measured_by_limits(configs: list[Config], services: dict[str, Any]) -> None:
    for node, config in zip(NODES, configs, strict=True):
        broker = services[f"broker-{node}"]
        assert config.host.cores == broker["cpus"]
        assert f"{config.host.memory_limit_mib:g}m" == broker["mem_limit"]


def test_sidecar_has_time_to_hand_everything_over_when_it_is_stopped(
    configs: list[Config], services: dict[str, Any]
) -> None:
    for node, config in zip(NODES, configs, strict=True):
        grace = re.fullmatch(r"(\d+)s", services[f"sidecar-{node}"]["stop_grace_period"])
        assert grace is not None
        assert int(grace[1]) >= config.ownership.drain_deadline_s + 30


def test_broker_and_sidecar_share_one_nodes_network_and_processes(services: dict[str, Any]) -> None:
    for node in NODES:
        for name in (f"broker-{node}", f"sidecar-{node}"):
            shared = (services[name]["pid"], services[name]["network_mode"])
            assert shared == (f"service:node-{node}",) * 2
            assert name in services[f"node-{node}"]["networks"]["default"]["aliases"]


def test_broker_obeys_its_sidecar_alone_by_a_secret_that_both_have(
    configs: list[Config], services: dict[str, Any], project: Path
) -> None:
    everything = yaml.safe_load((project / "docker-compose.yml").read_text(encoding="utf-8"))
    for node, config in zip(NODES, configs, strict=True):
        broker, sidecar = services[f"broker-{node}"], services[f"sidecar-{node}"]
        option, file = broker["command"][-2:]
        assert (option, file) == ("--control-secret-file", config.broker.control_secret_file)
        assert file == "/run/secrets/control"
        assert broker["secrets"] == sidecar["secrets"] == ["control"]
    default = project / DEFAULT.sub(r"\1", everything["secrets"]["control"]["file"])
    assert len(default.read_text(encoding="ascii").strip()) >= 16


def test_every_port_is_published_on_loopback_alone(services: dict[str, Any]) -> None:
    published = [port for each in services.values() for port in each.get("ports", ())]
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []
    assert len(published) == len(NODES) + 2


def test_prometheus_scrapes_sidecars_where_they_are(project: Path, configs: list[Config]) -> None:
    file = project / "deploy" / "prometheus" / "prometheus.yml"
    (job,) = yaml.safe_load(file.read_text(encoding="utf-8"))["scrape_configs"]
    (scraped,) = job["static_configs"]
    advertised = [config.sidecar.advertised_url for config in configs]
    assert [f"http://{target}" for target in scraped["targets"]] == advertised


def test_spark_is_started_where_its_profile_is_asked_for_alone(services: dict[str, Any]) -> None:
    profiles = {name: each["profiles"] for name, each in services.items() if "profiles" in each}
    jobs = {"pipeline": ["jobs"], "token": ["jobs"]}
    assert profiles == {**{name: ["pipeline"] for name in SPARK}, **jobs}


def test_prometheus_shows_the_token_made_for_it(project: Path, services: dict[str, Any]) -> None:
    file = project / "deploy" / "prometheus" / "prometheus.yml"
    (job,) = yaml.safe_load(file.read_text(encoding="utf-8"))["scrape_configs"]
    shown = Path(job["authorization"]["credentials_file"])
    assert f"tokens:{shown.parent}:ro" in services["prometheus"]["volumes"]
    signer = services["prometheus-token"]
    assert "--right=read" in signer["command"]
    assert "tokens:/var/lib/loadmanager/tokens" in signer["volumes"]
    assert f"> /var/lib/loadmanager/tokens/{shown.name}" in signer["entrypoint"][2]
    awaited = services["prometheus"]["depends_on"]
    assert awaited == {"prometheus-token": {"condition": "service_completed_successfully"}}


def test_jobs_find_history_where_it_is(configs: list[Config], services: dict[str, Any]) -> None:
    (folder,) = {config.history.dir for config in configs}
    for node in NODES:
        assert f"history:{folder}" in services[f"sidecar-{node}"]["volumes"]
    for name in (*SPARK, "pipeline"):
        assert f"history:{folder}:ro" in services[name]["volumes"]
    assert f"--history={folder}" in services["pipeline"]["entrypoint"]


def test_what_jobs_are_started_with_are_commands_of_ours(services: dict[str, Any]) -> None:
    _, *job = services["pipeline"]["entrypoint"]
    _, *token = services["token"]["entrypoint"]
    signed = ["token", *services["prometheus-token"]["command"]]
    given = ([*job, "ingest"], [*token, "--right=admin"], signed)
    for command, *rest in given:
        found = main.commands[command]
        # The file is there in the containers alone.
        there = [word for word in rest if not word.startswith("--config=/etc/loadmanager/")]
        assert found.make_context(command, there).params


def test_spark_nodes_use_the_mounted_script(project: Path, services: dict[str, Any]) -> None:
    for name in SPARK:
        node, kind = services[name], "master.Master" if name == "spark-master" else "worker.Worker"
        script = node["entrypoint"][-1]
        assert f"./{SPARK_NODE}:{script}:ro" in node["volumes"]
        assert node["command"][:3] == [kind, "--host", name]
    assert (project / SPARK_NODE).is_file()


@pytest.mark.spark
@pytest.mark.timeout(120)
def test_the_script_starts_a_master(project: Path) -> None:
    node = [str(project / SPARK_NODE), "master.Master", "--host", "127.0.0.1", "--port", "0"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with subprocess.Popen(
        ["sh", *node, "--webui-port", "0"],
        env={**os.environ, "PATH": path},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            assert any("Starting Spark master at spark://" in line for line in process.stderr)
        finally:
            process.kill()
