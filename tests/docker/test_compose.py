import contextlib
import http.client
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml
from dashboards import RARE, dashboards
from metric_names import metrics_in

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]
PROJECT = Path(__file__).parents[2]
NODES = (1, 2, 3)
TOPICS = tuple(f"orders-{number}" for number in range(60))
SIDECAR_PORT, PROMETHEUS_PORT = 7750, 9090
HISTORY = "/var/lib/loadmanager/history"
TABLES = "/var/lib/loadmanager/pipeline"
JOBS = ("ingest", "rollup", "moves", "costs", "replay", "report")
Eventually = Callable[..., Any]


@dataclass(slots=True)
class Stack:
    command: tuple[str, ...]
    environment: dict[str, str]
    ports: dict[tuple[str, int], int] = field(default_factory=dict)
    token: str = ""

    def compose(self, *arguments: str) -> str:
        finished = subprocess.run(
            [*self.command, *arguments],
            cwd=PROJECT,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert finished.returncode == 0, f"{arguments}\n{finished.stdout}\n{finished.stderr}"
        return finished.stdout

    def ask(self, service: str, port: int, path: str, method: str = "GET") -> tuple[int, str]:
        """Return status and body of a server's answer; status 0 if it cannot be reached."""
        if (service, port) not in self.ports:
            published = self.compose("port", service, str(port)).rpartition(":")[2]
            self.ports[service, port] = int(published)
        address = ("127.0.0.1", self.ports[service, port])
        with contextlib.closing(http.client.HTTPConnection(*address, timeout=10)) as connection:
            try:
                proof = {"Authorization": f"Bearer {self.token}"} if self.token else {}
                connection.request(method, path, headers=proof)
                reply = connection.getresponse()
                return reply.status, reply.read().decode()
            except (OSError, http.client.HTTPException) as error:
                return 0, repr(error)

    def sidecar(self, node: int, path: str, method: str = "GET") -> tuple[int, str]:
        return self.ask(f"node-{node}", SIDECAR_PORT, path, method)

    def owner(self, node: int, topic: str) -> str:
        path = f"/lookup/v2/topic/persistent/public/default/{topic}"
        status, body = self.sidecar(node, path)
        return str(json.loads(body)["httpUrl"]) if status == 200 else ""

    def leader(self, nodes: tuple[int, ...]) -> int:
        """Return the node that all these nodes' sidecars take for the leader's, 0 for none."""
        named = set()
        for node in nodes:
            status, body = self.sidecar(node, "/admin/v2/brokers/leaderBroker")
            broker = json.loads(body)["brokerId"] if status == 200 else ""
            found = re.fullmatch(r"broker-(\d):8080", broker)
            named.add(int(found[1]) if found else 0)
        return named.pop() if len(named) == 1 else 0

    def query(self, expression: str) -> dict[str, float]:
        path = "/api/v1/query?" + urlencode({"query": expression})
        status, body = self.ask("prometheus", PROMETHEUS_PORT, path)
        found = json.loads(body)["data"]["result"] if status == 200 else []
        return {one["metric"].get("instance", ""): float(one["value"][1]) for one in found}


def compose_command() -> tuple[str, ...]:
    """Return how compose is called here: docker's own plugin, or the older program."""
    plugin = ("docker", "compose")
    has_plugin = subprocess.run([*plugin, "version"], capture_output=True, check=False)
    if has_plugin.returncode == 0:
        return plugin
    if shutil.which("docker-compose") is None:
        pytest.skip("needs Docker Compose: install docker-compose or docker's compose plugin")
    return ("docker-compose",)


@pytest.fixture(scope="module")
def stack(
    image: str, zookeeper_image: str, prometheus_image: str, eventually: Eventually
) -> Iterator[Stack]:
    sidecars = ("SIDECAR_1_PORT", "SIDECAR_2_PORT", "SIDECAR_3_PORT")
    stack = Stack(
        command=(*compose_command(), "--project-name", f"loadmanager-test-{os.getpid()}"),
        environment={
            "LOADMANAGER_IMAGE": image,
            "ZOOKEEPER_IMAGE": zookeeper_image,
            "PROMETHEUS_IMAGE": prometheus_image,
            "BROKER_CPUS": "0.5",
            **dict.fromkeys((*sidecars, "PROMETHEUS_PORT", "SPARK_PORT"), "0"),
        },
    )
    try:
        stack.compose("up", "--detach", "--no-build", "--quiet-pull")
        for node in NODES:
            eventually(
                f"sidecar-{node} is ready",
                lambda node=node: stack.sidecar(node, "/readyz")[0] == 200,
                within_s=60,
            )
        path = "/admin/v2/namespaces/public/default"
        assert stack.sidecar(1, path, "PUT")[0] == 401, "this host is another one for a container"
        stack.token = stack.compose("run", "--rm", "-T", "token", "--right", "admin").strip()
        assert stack.sidecar(1, path, "PUT")[0] == 204
        yield stack
    finally:
        everything = ("--profile", "pipeline")
        print(stack.compose(*everything, "logs", "--no-color", "--tail", "40"))  # noqa: T201 - shown on failure
        stack.compose(*everything, "down", "--volumes", "--timeout", "5")


def test_every_sidecar_names_the_same_owner(stack: Stack, eventually: Eventually) -> None:
    for topic in TOPICS:
        eventually(
            f"{topic} has one owner by all sidecars",
            lambda topic=topic: len({stack.owner(node, topic) for node in NODES} - {""}) == 1,
            within_s=60,
        )
    # Who gets how many is drawn: of a dozen bundles one of the three may well get none.
    owners = {stack.owner(1, topic) for topic in TOPICS}
    assert owners <= {f"http://broker-{node}:8080" for node in NODES}


def test_prometheus_sees_every_sidecar_and_one_leader(stack: Stack, eventually: Eventually) -> None:
    instances = {f"sidecar-{node}:{SIDECAR_PORT}" for node in NODES}
    up = dict.fromkeys(instances, 1.0)
    eventually("all are up", lambda: stack.query('up{job="loadmanager"}') == up, within_s=60)
    eventually(
        "one leads",
        lambda: sorted(stack.query("loadmanager_leader").values()) == [0, 0, 1],
        within_s=60,
    )


def test_sidecar_measures_the_other_container(stack: Stack, eventually: Eventually) -> None:
    eventually(
        "the memory of every broker's process is known",
        lambda: (
            all(0 < percent < 100 for percent in stack.query("pulsar_lb_memory_usage").values())
            and len(stack.query("pulsar_lb_memory_usage")) == len(NODES)
        ),
        within_s=60,
    )


def test_every_query_is_understood_and_those_of_dashboards_show_something(
    stack: Stack, eventually: Eventually
) -> None:
    shown = {query for one in dashboards() for query in one.queries}
    files = [PROJECT / "deploy" / "prometheus" / name for name in ("alerts.yml", "recording.yml")]
    groups = [group for file in files for group in yaml.safe_load(file.read_text())["groups"]]
    watched = {rule["expr"] for group in groups for rule in group["rules"]}
    for query in shown | watched:
        path = "/api/v1/query?" + urlencode({"query": query})
        assert stack.ask("prometheus", PROMETHEUS_PORT, path)[0] == 200, query
    rare = tuple(RARE)
    common = {
        query for query in shown if not any(name.startswith(rare) for name in metrics_in(query))
    }
    eventually(
        "all of a healthy cluster's metrics are there",
        lambda: not {query for query in common if not stack.query(query)},
        within_s=60,
    )


def test_another_node_leads_after_the_leader_dies(stack: Stack, eventually: Eventually) -> None:
    first = eventually("a leader", lambda: stack.leader(NODES), within_s=60)
    others = tuple(node for node in NODES if node != first)
    stack.compose("kill", f"sidecar-{first}", f"broker-{first}")
    second = eventually("another leader", lambda: stack.leader(others) in others, within_s=60)
    assert second
    survivors = {f"http://broker-{node}:8080" for node in others}

    def served_by_survivors() -> bool:
        return all(stack.owner(node, topic) in survivors for node in others for topic in TOPICS)

    eventually("every topic has a living owner", served_by_survivors, within_s=60)
    dead = f"sidecar-{first}:{SIDECAR_PORT}"
    eventually(
        "Prometheus sees who is down",
        lambda: stack.query('up{job="loadmanager"} == 0') == {dead: 0.0},
        within_s=60,
    )
    stack.compose("start", f"broker-{first}", f"sidecar-{first}")
    eventually("the node is back", lambda: stack.sidecar(first, "/readyz")[0] == 200, within_s=60)
    assert all(stack.owner(first, topic) for topic in TOPICS)


def tasks_by_host(stack: Stack) -> Counter[str]:
    events = stack.compose(
        "exec", "-T", "spark-master", "sh", "-c", f"cat {TABLES}/events/*/events_*"
    )
    told = (json.loads(line) for line in events.splitlines())
    ended = (event for event in told if event["Event"] == "SparkListenerTaskEnd")
    return Counter(event["Task Info"]["Host"] for event in ended)


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_jobs_run_on_both_workers_of_the_spark_cluster_beside_it(
    stack: Stack, pipeline_image: str, eventually: Eventually
) -> None:
    stack.environment["PIPELINE_IMAGE"] = pipeline_image
    stack.compose("--profile", "pipeline", "up", "--detach", "--no-build", "--no-recreate")
    eventually(
        "both workers are the master's",
        lambda: stack.compose("logs", "spark-master").count("Registering worker") == 2,
        within_s=400,
    )
    finished = ("exec", "-T", "sidecar-1", "find", HISTORY, "-name")
    for kind in ("reports", "rounds"):
        eventually(
            f"a file of {kind} is finished",
            lambda kind=kind: stack.compose(*finished, f"{kind}-*.jsonl.gz"),
            within_s=400,
        )
    stack.compose("exec", "-T", "spark-master", "mkdir", "-p", f"{TABLES}/events")
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"{TABLES}/events",
        # Each plan runs once: compiling it well costs more than it saves.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
    }
    conf = [f"--conf={key}={value}" for key, value in settings.items()]
    said = stack.compose("run", "--rm", "-T", "pipeline", *JOBS, *conf)
    assert [line for line in said.splitlines() if line in JOBS] == list(JOBS)
    tasks = tasks_by_host(stack)
    assert tasks.keys() == {"spark-worker-1", "spark-worker-2"}
    report = stack.compose("exec", "-T", "spark-master", "cat", f"{TABLES}/report.html")
    assert report.startswith("<!")
