"""``loadmanager cost-model`` against a server on loopback, and ``decide`` with its file."""

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner, Result
from cost_samples import learned
from prometheus_client import CollectorRegistry
from snapshot_samples import report

from loadmanager.adapters.http.http_server import HttpServer
from loadmanager.admin.cost_models import CostModels
from loadmanager.cli import main
from loadmanager.common.cost_model_watch import CostModelRequests
from loadmanager.core.bounds import TIME_MS
from loadmanager.core.bundles import Boundaries
from loadmanager.core.cost.document import CostDocument, Quality, Term, decode_costs, encode_costs
from loadmanager.core.ids import BrokerId, Namespace
from loadmanager.core.snapshot.document import InForce, Snapshot
from loadmanager.core.snapshot.encoding import encode_snapshot
from loadmanager.ports.administration import Conflict, Missing
from loadmanager.ports.lookup import LookupService
from loadmanager.telemetry.lookups import LookupMetrics

COSTS = learned({"fast": 0.004, "slow": 0.4})


class NoLookup(LookupService):
    """An application that nobody looks anything up in."""


@dataclass
class Cluster(CostModelRequests):
    """What is published, without ZooKeeper; ``url`` is where it is asked."""

    document: CostDocument | None = None
    url: str = ""

    async def published(self) -> CostDocument:
        """See `CostModelRequests`."""
        if self.document is None:
            raise Missing("no cost model is published")
        return self.document

    async def publish(self, document: CostDocument, *, force: bool) -> None:
        """See `CostModelRequests`."""
        if document.cluster != "east" and not force:
            raise Conflict("learned elsewhere")
        self.document = document

    async def remove(self) -> None:
        """See `CostModelRequests`."""
        await self.published()
        self.document = None


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    cluster = Cluster()
    server = HttpServer(
        NoLookup(),  # type: ignore[abstract]  # none of its methods is ever called
        metrics=LookupMetrics(),
        registry=CollectorRegistry(),
        version="1",
        more_routes=CostModels(cluster).routes(),
    )
    try:
        port = asyncio.run_coroutine_threadsafe(server.start("127.0.0.1", 0), loop).result(10)
        cluster.url = f"http://127.0.0.1:{port}"
        yield cluster
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def run(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=stdin)


def file_of(folder: Path, document: CostDocument) -> str:
    path = folder / "cost-model.json"
    path.write_bytes(encode_costs(document))
    return str(path)


def test_a_model_is_published_shown_and_removed(cluster: Cluster, tmp_path: Path) -> None:
    file = file_of(tmp_path, COSTS)
    got = run("cost-model", "publish", file, "--url", cluster.url)
    assert got.exit_code == 0
    assert got.stdout.endswith("\nPublished.\n")
    assert cluster.document == COSTS
    shown = run("cost-model", "show", "--url", cluster.url).stdout
    assert "Costs of cluster east, made 2026-06-15 00:00Z" in shown
    assert " ".join(shown.split()).count("0.004 0.0036 0.0044 % of a core per message/s 100%") == 1
    assert "5.0%" in shown
    whole = run("cost-model", "show", "--json", "--url", cluster.url)
    assert decode_costs("stdout", whole.stdout.encode()) == COSTS
    assert run("cost-model", "remove", "--url", cluster.url).exit_code == 0
    assert cluster.document is None
    for command in ("show", "remove"):
        got = run("cost-model", command, "--url", cluster.url)
        assert (got.exit_code, got.stderr) == (2, "no cost model is published\n")


def test_a_model_from_stdin_is_published(cluster: Cluster) -> None:
    got = run("cost-model", "publish", "-", "--url", cluster.url, stdin=encode_costs(COSTS))
    assert got.exit_code == 0
    assert cluster.document == COSTS


def test_a_model_of_another_cluster_needs_force(cluster: Cluster, tmp_path: Path) -> None:
    file = file_of(tmp_path, replace(COSTS, cluster="west"))
    got = run("cost-model", "publish", file, "--url", cluster.url)
    assert (got.exit_code, got.stderr) == (1, "learned elsewhere\n")
    assert run("cost-model", "publish", file, "--force", "--url", cluster.url).exit_code == 0


def test_what_is_no_model_is_not_sent(tmp_path: Path) -> None:
    file = tmp_path / "cost-model.json"
    file.write_text('{"format": 1, "since_ms": -1}')
    for command in ("publish", "show"):
        got = run("cost-model", command, str(file), "--url", "http://127.0.0.1:9")
        assert got.exit_code == 2
        assert got.stderr == f"{file}: since_ms = -1; expected {TIME_MS.expected}\n"


def test_the_sidecar_says_what_is_wrong_with_a_body(cluster: Cluster) -> None:
    request = Request(  # noqa: S310 - loopback
        f"{cluster.url}/admin/v2/loadmanager/cost-model", data=b'{"format": 2}', method="PUT"
    )
    request.add_header("Content-Type", "application/json")
    with pytest.raises(HTTPError) as raised:
        urlopen(request, timeout=10)  # noqa: S310 - loopback
    assert raised.value.code == 412
    assert "the body: format = 2; expected 1" in json.loads(raised.value.read())["reason"]
    raised.value.close()


def test_it_is_told_what_is_not_decided_by_and_why(tmp_path: Path) -> None:
    poor = {"cpu": Quality(mape=0.4, coverage=0.9, held_out_minutes=600, baseline_mape=0.5)}
    brokers: dict[BrokerId, dict[str, Term]] = {
        BrokerId(f"b{number}:1"): {} for number in range(25)
    }
    document = replace(COSTS, quality={"slow": poor}, backgrounds=brokers)
    shown = run("cost-model", "show", file_of(tmp_path, document)).stdout
    assert "no: tested on 0 minutes, fewer than 30" in shown
    assert "no: wrong by 40%, more than 30%" in shown
    assert "50.0%" in shown
    assert "... and 5 more brokers" in shown


# --- decide --------------------------------------------------------------------------


def snapshot_file(folder: Path, in_force: InForce) -> str:
    """Return a file with a hot broker of a fast class, and an idle one of a slow class."""
    b1, b2 = BrokerId("b1:8080"), BrokerId("b2:8080")
    bundles = Boundaries.even(Namespace("t/ns"), 8).bundles
    hot = replace(report(b1, 0.8, dict.fromkeys(bundles, 20e6)), broker_class="fast")
    reports = {b1: hot, b2: replace(report(b2, 0.1, {}), broker_class="slow")}
    path = folder / "snapshot.json"
    path.write_bytes(encode_snapshot(Snapshot(reports=reports, in_force=in_force)))
    return str(path)


def test_a_model_is_tried_on_a_snapshot_before_it_is_published(tmp_path: Path) -> None:
    snapshot, model = snapshot_file(tmp_path, InForce()), file_of(tmp_path, COSTS)
    by_shares = json.loads(
        run("decide", "--shedder", "threshold", "--snapshot", snapshot, "--json").stdout
    )
    assert by_shares["cost"] == {"model": "traffic_share"}
    assert by_shares["rounds"][0]["moves"]
    got = run(
        "decide", "--shedder", "threshold", "--snapshot", snapshot, "--cost-model", model, "--json"
    )
    by_costs = json.loads(got.stdout)
    assert by_costs["cost"]["model"] == "learned"
    assert not by_costs["rounds"][0]["moves"]
    got = run(
        "decide",
        "--shedder",
        "threshold",
        "--snapshot",
        snapshot,
        "--cost-model",
        str(tmp_path / "none.json"),
    )
    assert got.exit_code == 2
    assert "No such file" in got.stderr


def test_a_model_that_the_snapshot_lacks_is_asked_for(tmp_path: Path) -> None:
    snapshot = snapshot_file(tmp_path, InForce(cost={"model": "learned", "madeAtMs": 1}))
    got = run("decide", "--shedder", "threshold", "--snapshot", snapshot)
    assert got.exit_code == 0
    assert "not in the snapshot; give it with --cost-model" in got.stderr
    got = run("decide", "--shedder", "threshold", "--snapshot", snapshot, "--cost-model", "none")
    assert got.stderr == ""


def test_the_model_of_a_snapshot_is_used_unless_told_otherwise(tmp_path: Path) -> None:
    path = Path(snapshot_file(tmp_path, InForce()))
    document = json.loads(path.read_text())
    document["costModel"] = json.loads(encode_costs(COSTS))
    path.write_text(json.dumps(document))
    assert not json.loads(
        run("decide", "--shedder", "threshold", "--snapshot", str(path), "--json").stdout
    )["rounds"][0]["moves"]
    got = run(
        "decide",
        "--shedder",
        "threshold",
        "--snapshot",
        str(path),
        "--cost-model",
        "none",
        "--json",
    )
    assert json.loads(got.stdout)["rounds"][0]["moves"]
    document["costModel"]["format"] = 2
    path.write_text(json.dumps(document))
    got = run("decide", "--shedder", "threshold", "--snapshot", str(path))
    assert got.exit_code == 2
    assert "costModel.format = 2; expected 1" in got.stderr
    got = run("decide", "--shedder", "threshold", "--snapshot", str(path), "--lenient")
    assert got.exit_code == 0
    assert "left out: " in got.stderr
