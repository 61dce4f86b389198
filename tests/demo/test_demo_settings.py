import json
import re
import socket
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.cli import main
from loadmanager.core.bundles import Boundaries
from loadmanager.core.hashing import position
from loadmanager.core.ids import BrokerId, BundleId, Namespace, TopicName
from loadmanager.demo.cluster import DemoSettings, Kill, Member
from loadmanager.demo.figures import BrokerSample, ClusterSample, Evidence, Observer
from loadmanager.demo.traffic import Schedule, bundle_shares, topic_names, topic_shares
from loadmanager.reference_broker.changes import (
    BundleLoaded,
    EndReason,
    LeaseGranted,
    RecordFile,
    ServingEnded,
    Started,
)


def settings(**fields: Any) -> DemoSettings:
    return DemoSettings(data_dir=Path(), **fields)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("leader@15", Kill("leader", 15.0)),
        ("2@0.5", Kill("2", 0.5)),
        ("broker-3@7", Kill("3", 7.0)),
    ],
)
def test_a_kill_names_a_broker_and_a_second(text: str, expected: Kill) -> None:
    assert Kill.parse(text) == expected
    assert Kill.parse(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("leader", "'leader': expected seconds after the @"),
        ("leader@soon", "'leader@soon': expected seconds after the @"),
        ("leader@0", "'leader@0': expected more than 0 seconds"),
        ("leader@nan", "'leader@nan': expected more than 0 seconds"),
        ("0@5", "'0@5': expected leader@SECONDS or NUMBER@SECONDS"),
        ("zookeeper@5", "'zookeeper@5': expected leader@SECONDS or NUMBER@SECONDS"),
    ],
)
def test_another_kill_is_refused_with_the_form_that_is_meant(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Kill.parse(text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"brokers": 4, "bundles": 3}, "--bundles 3: expected at least one a broker"),
        ({"topics": 31}, "--topics 31: expected at least one a bundle"),
        (
            {"brokers": 2, "kills": (Kill("leader", 1), Kill("leader", 2))},
            "--kill: expected at most 1, so that one remains",
        ),
        ({"kills": (Kill("5", 1),)}, "--kill 5@1: expected broker 1 to 4"),
        (
            {"kills": (Kill("leader", 20),), "duration_s": 20.0},
            "--kill leader@20: expected before the end at 20 s",
        ),
        (
            {"kills": (Kill.parse("2@5"), Kill.parse("broker-02@9"))},
            "--kill 2@...: given 2 times; expected once",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        settings(**fields)


X = BundleId("public/demo/0x00000000_0x80000000")
Y = BundleId("public/demo/0x80000000_0xffffffff")


def refusal(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["demo", *arguments])
    return result.exit_code, result.output


def test_wrong_options_and_a_directory_that_holds_something_are_refused(tmp_path: Path) -> None:
    (tmp_path / "broker-1.record").touch()
    for option, text, message in (
        ("--kill", "leader", "'leader': expected seconds after the @"),
        ("--topics", "8", "--topics 8: expected at least one a bundle"),
        ("--data-dir", str(tmp_path), "expected an empty or a new directory"),
    ):
        code, output = refusal(option, text)
        assert (code, message in output) == (2, True)


def test_a_port_in_use_is_told_and_where_the_logs_are(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code, output = refusal("--json", "--port-base", str(port), "--data-dir", str(tmp_path))
    assert code == 1
    assert f"--port-base {port}: port {port} is in use; 9 are needed" in output
    assert f"all logs: {tmp_path}" in output


def record(path: Path, broker: str, bundle: BundleId, start_s: float, end_s: float | None) -> Path:
    file = RecordFile(path)
    file.write(Started(at_s=0.0, broker=broker, incarnation=broker))
    file.write(LeaseGranted(at_s=0.0, agent_epoch=1, until_s=100.0))
    file.write(BundleLoaded(at_s=start_s, bundle=bundle, fencing_token=1, agent_epoch=1))
    if end_s is not None:
        ended = ServingEnded(
            at_s=end_s,
            bundle=bundle,
            fencing_token=1,
            agent_epoch=1,
            start_s=start_s,
            end_s=end_s,
            why=EndReason.UNLOADED,
        )
        file.write(ended)
    file.close()
    return path


def test_bundles_served_by_two_brokers_at_once_are_counted(tmp_path: Path) -> None:
    first = record(tmp_path / "1", "b1:80", X, 1.0, 5.0)
    overlapping = record(tmp_path / "2", "b2:80", X, 4.9, 9.0)
    following = record(tmp_path / "3", "b3:80", X, 5.0, 9.0)
    other = record(tmp_path / "4", "b4:80", Y, 1.0, 5.0)
    assert Evidence.of({first: None, overlapping: None}) == Evidence(1, 1)
    assert Evidence.of({first: None, following: None}) == Evidence(1, 0)
    assert Evidence.of({first: None, other: None}) == Evidence(2, 0)


def test_a_killed_broker_counts_as_serving_until_it_was_dead(tmp_path: Path) -> None:
    killed = record(tmp_path / "1", "b1:80", X, 1.0, None)
    heir = record(tmp_path / "2", "b2:80", X, 8.0, 9.0)
    assert Evidence.of({killed: 7.0, heir: None}) == Evidence(1, 0)
    assert Evidence.of({killed: 8.5, heir: None}) == Evidence(1, 1)


NAMESPACE = Namespace("public/demo")


def round_robin(bundles: int, brokers: int) -> dict[BundleId, BrokerId]:
    names = Boundaries.even(NAMESPACE, bundles).bundles
    return {bundle: BrokerId(f"b{i % brokers}:80") for i, bundle in enumerate(names)}


def topic(local: str) -> TopicName:
    return TopicName("persistent", NAMESPACE, local)


def broker_shares(placement: dict[BundleId, BrokerId], seed: int) -> dict[BrokerId, float]:
    found: defaultdict[BrokerId, float] = defaultdict(float)
    for bundle, share in bundle_shares(placement, seed).items():
        found[placement[bundle]] += share
    return found


@given(bundles=st.integers(1, 64), extra=st.integers(0, 100))
def test_every_bundle_has_its_even_part_of_the_topics(bundles: int, extra: int) -> None:
    bounds = Boundaries.even(NAMESPACE, bundles)
    names = topic_names(bundles + extra, bounds, "murmur3")
    counts = Counter(bounds.at(position(name, "murmur3")) for name in names)
    assert len(set(names)) == bundles + extra
    assert set(counts) == set(bounds.bundles)
    assert max(counts.values()) - min(counts.values()) <= 1


@given(brokers=st.integers(2, 16), each=st.integers(1, 16), seed=st.integers(0, 2**32))
def test_one_broker_gets_its_hot_share(brokers: int, each: int, seed: int) -> None:
    shares = broker_shares(round_robin(brokers * each, brokers), seed)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert max(shares.values()) == pytest.approx(min(0.95, 2.2 / brokers))


@pytest.mark.parametrize("seed", range(20))
def test_spreading_the_largest_bundles_greedily_balances_to_well_below_1_25(seed: int) -> None:
    placement = round_robin(32, 4)
    shares = bundle_shares(placement, seed)
    loads = dict.fromkeys(placement.values(), 0.0)
    for share in sorted(shares.values(), reverse=True):
        loads[min(loads, key=loads.__getitem__)] += share
    assert max(loads.values()) * 4 < 1.1
    # What one move can shift stays below a third of what a broker has on the mean.
    assert max(shares.values()) * 4 < 0.33


def test_a_bundles_share_is_split_among_its_topics_as_zipf_says() -> None:
    first, second = Boundaries.even(NAMESPACE, 2).bundles
    bundle_of = {topic("a"): first, topic("b"): first, topic("c"): first, topic("d"): second}
    shares = topic_shares(bundle_of, {first: 0.55, second: 0.45}, seed=3)
    assert sorted(shares.values(), reverse=True) == pytest.approx([0.45, 0.3, 0.15, 0.1])
    assert shares[topic("d")] == pytest.approx(0.45)


def test_each_topic_keeps_its_own_steady_beat() -> None:
    shares = {topic("a"): 0.75, topic("b"): 0.25, topic("never"): 0.0}
    schedule = Schedule(shares, rate_per_s=40, start_s=100.0, seed=1)
    messages = schedule.due(110.0)
    assert messages == sorted(messages, key=lambda message: message[0])
    times = [due_s for due_s, name in messages if name == topic("a")]
    assert [b - a for a, b in pairwise(times)] == pytest.approx([1 / 30] * 299)
    assert Counter(name.local for _, name in messages) == {"a": 300, "b": 100}
    assert schedule.next_s > 110.0
    assert schedule.due(110.0) == []


B1, B2 = BrokerId("127.0.0.1:8081"), BrokerId("127.0.0.1:8082")
ANY = BundleId("public/demo/0x00000000_0xffffffff")
CONTROL = "known to brokers and sidecars"
METRICS = """\
# HELP pulsar_lb_cpu_usage percent
# TYPE pulsar_lb_cpu_usage gauge
pulsar_lb_cpu_usage{broker="127.0.0.1:8081",cluster="demo",metric="loadBalancing"} 41.5
pulsar_lb_cpu_usage{cluster="demo",broker="127.0.0.1:8082",metric="loadBalancing"} 1.2e+02
pulsar_lb_memory_usage{broker="127.0.0.1:8081",cluster="demo",metric="loadBalancing"} 9.0
"""


async def test_one_look_tells_leader_loads_and_owners_and_who_did_not_answer() -> None:
    stats = {"bundles": {ANY: {"msgRateIn": 2.5, "msgRateOut": 0.0}}}
    app = web.Application()

    async def answer(request: web.Request) -> web.Response:
        if "broker" in request.path.split("/")[1]:
            assert request.headers["Authorization"] == f"Bearer {CONTROL}"
        else:
            assert "Authorization" not in request.headers
        texts = {
            "/metrics": METRICS.replace("127.0.0.1:8081", request.host),
            "/loadmanager-broker/v1/stats": json.dumps(stats),
            "/admin/v2/brokers/leaderBroker": json.dumps({"brokerId": B2}),
        }
        return web.Response(text=texts[request.path])

    app.router.add_get("/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    alive = BrokerId(f"127.0.0.1:{runner.addresses[0][1]}")
    nowhere = "http://127.0.0.1:1"
    members = (
        Member(1, BrokerId("127.0.0.1:1"), nowhere, Path()),
        Member(2, alive, f"http://{alive}", Path()),
        Member(3, B2, nowhere, Path(), killed=True),
    )
    async with aiohttp.ClientSession() as http:
        look = await Observer(http, members, CONTROL).sample()
    await runner.cleanup()
    silent = BrokerSample(name="broker-1", broker=BrokerId("127.0.0.1:1"))
    seen = BrokerSample(name="broker-2", broker=alive, cpu_fraction=0.415, bundles=(ANY,))
    dead = BrokerSample(name="broker-3", broker=B2, killed=True)
    assert look == ClusterSample(look.at_s, B2, (silent, seen, dead))
    assert look.loads == {alive: 0.415}
    assert look.owners == {ANY: alive}
