import asyncio
import json
import os
import socket
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from coordination_worlds import connected
from prometheus_client import CollectorRegistry
from stories import place_all, placed, reasons, served_beside, story

from loadmanager.adapters.broker.http_control import CONNECTIONS
from loadmanager.adapters.clock import SystemClock
from loadmanager.adapters.history.sink import ThreadedHistory
from loadmanager.adapters.zookeeper import zookeeper_options
from loadmanager.agent.ownership import PARALLEL
from loadmanager.agent.owning_agent import OwningAgent
from loadmanager.agent.registration import Displaced
from loadmanager.cli import main
from loadmanager.common.cluster_conditions import (
    OF_ATTACH,
    ChrootRefused,
    ClusterDisagrees,
    Conditions,
    agree,
    conditions_of,
)
from loadmanager.common.context import Context, first_leaf, make_identity
from loadmanager.config.model import chroot_of
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import MalformedContent
from loadmanager.core.hashing import HashName, position
from loadmanager.core.history.schema import Stream
from loadmanager.core.ids import BrokerId, parse_topic
from loadmanager.core.wire.records import LeaderRecord, encode_leader
from loadmanager.ports.broker import BrokerStats, BrokerUnreachable, NotTheContract
from loadmanager.wiring.sidecar import make_history
from tests.testbed.faults.agent import Agent
from tests.testbed.faults.cluster import NAMESPACE, Cluster, make_config, play
from tests.testbed.faults.host import Host
from tests.testbed.faults.virtual_time import VirtualClock, run
from tests.testbed.memory import MemoryCoordination, MemoryService

HASHES: tuple[HashName, ...] = ("murmur3", "crc32")


@story(1)
async def test_another_hash_stops_the_sidecar_and_names_both(cluster: Cluster) -> None:
    cluster.config = make_config(cluster={"hash": "murmur3"})
    newcomer = cluster.start(cluster.add_host())
    await cluster.until(lambda: not newcomer.alive)
    assert isinstance(newcomer.failure, ClusterDisagrees)
    assert "hashes topics with crc32" in str(newcomer.failure)
    assert "hash = 'murmur3'" in str(newcomer.failure)
    assert not newcomer.server.open


@story(0)
async def test_an_unreachable_service_is_tried_again_for_ever(cluster: Cluster) -> None:
    agent = cluster.start(cluster.add_host())
    agent.coordination.suspend()
    await asyncio.sleep(300.0)
    assert agent.alive
    assert agent.server.open
    assert not agent.app.answering.readiness().ready
    awaited = cluster.warnings("coordination.service.unavailable")
    assert 25 <= len(awaited) <= 31
    assert "suspended" in awaited[0]["error"]
    agent.coordination.reconnect()
    await cluster.until(lambda: agent.app.answering.readiness().ready, within_s=5.0)
    assert agent.metric("loadmanager_session_state", session="connected") == 1


@story(0)
async def test_a_reply_lost_to_the_first_question_is_no_harm(cluster: Cluster) -> None:
    agent = cluster.start(cluster.add_host())
    agent.coordination.lose_next_reply()
    await cluster.until(lambda: agent.application and agent.leads)
    assert cluster.service.dump()[znodes.CLUSTER].data == b'{"format":2,"hash":"crc32"}'


@pytest.mark.parametrize("configured", [None, "murmur3"])
def test_a_sidecar_hashes_as_the_cluster_recorded(configured: str | None) -> None:
    async def tell(cluster: Cluster) -> None:
        await cluster.write(znodes.CLUSTER, b'{"format":2,"hash":"murmur3"}')
        boundaries = await cluster.make_namespace(16)
        agent = cluster.start(cluster.add_host())
        await cluster.until(lambda: agent.application and agent.app.answering.readiness().ready)
        topic = parse_topic(f"persistent://{boundaries.namespace}/elsewhere")
        recorded, default = (boundaries.at(position(topic, name)) for name in HASHES)
        assert recorded != default
        assert await agent.app.answering.bundle_of(topic) == recorded

    play(tell, sidecars=0, config=make_config(cluster={"hash": configured}))


@story(2)
async def test_without_its_broker_a_sidecar_answers_but_is_not_ready(cluster: Cluster) -> None:
    boundaries, topics = await placed(cluster, 2)
    host = cluster.add_host()
    host.kill_broker()
    agent = cluster.start(host)
    await cluster.until(lambda: agent.cluster_state.complete and agent.cluster_state.leader)
    assert [(await agent.look_up(t)).bundle for t in topics] == list(boundaries.bundles)
    assert not agent.app.member.registered
    (reason,) = agent.app.answering.readiness().reasons
    assert reason.startswith("the broker holds no lease: ")
    host.restart_broker()
    await cluster.until(lambda: agent.app.member.registered, within_s=2.0)


@story(3)
async def test_gauges_forget_a_broker_that_left(cluster: Cluster) -> None:
    other, left = cluster.agents[0], cluster.agents[2].host.name
    await asyncio.sleep(3.0)
    assert other.metric("loadmanager_picture_entries", what="brokers") == 3
    await cluster.agents[2].leave()
    await asyncio.sleep(3.0)
    assert other.metric("loadmanager_picture_entries", what="brokers") == 2
    assert (
        other.registry.get_sample_value("loadmanager_report_age_seconds", {"broker": left}) is None
    )


LOOPBACK = "http://127.0.0.1:7750"


def advertising_loopback(context: Context) -> Context:
    return replace(context, identity=replace(context.identity, sidecar_url=LOOPBACK))


def start(cluster: Cluster, broker: str, *, loopback: bool) -> Agent:
    host = Host(BrokerId(broker), cluster.rng)
    cluster.hosts.append(host)
    build, cluster.build = cluster.build, advertising_loopback if loopback else cluster.build
    try:
        return cluster.start(host)
    finally:
        cluster.build = build


@story(0)
async def test_it_is_not_ready_and_does_not_stand_for_election(cluster: Cluster) -> None:
    agent = start(cluster, "b1:8080", loopback=True)
    await cluster.until(lambda: agent.application and agent.app.member.registered)
    await cluster.until(lambda: "[sidecar] advertised_url" in reasons(agent))
    assert "b1:8080" in reasons(agent)
    assert not any(agent.leads for agent in cluster.agents)
    logged = cluster.warnings("sidecar.url.unreachable")
    assert len(logged) == 1
    assert f"[sidecar] advertised_url is {LOOPBACK}" in logged[0]["why"]
    other = start(cluster, "b2:8080", loopback=False)
    await cluster.until(lambda: other.application and other.app.answering.readiness().ready)
    assert other.leads


@story(0)
async def test_it_resigns_when_a_broker_of_another_host_registers(cluster: Cluster) -> None:
    first = start(cluster, "localhost:8080", loopback=True)
    await cluster.until(lambda: first.application and first.app.answering.readiness().ready)
    assert first.leads
    beside = start(cluster, "localhost:8081", loopback=True)
    await cluster.until(lambda: beside.application and beside.app.answering.readiness().ready)
    assert cluster.warnings("sidecar.url.unreachable") == []
    await beside.leave()
    second = start(cluster, "b2:8080", loopback=False)
    await cluster.until(lambda: second.application and second.app.member.registered)
    await cluster.until(lambda: second.leads and second.app.answering.readiness().ready)
    assert not first.app.answering.readiness().ready
    assert "b2:8080" in reasons(first)
    assert first.app.leading.leader_term is None
    assert len(cluster.service.epochs) == 2
    await second.leave()
    await cluster.until(lambda: first.leads and first.app.answering.readiness().ready)


WHY = "GET http://b:8080/stats: status 404 and no reason; expected the broker contract"


@story(0)
async def test_it_says_so_once_a_minute_and_is_not_ready(cluster: Cluster) -> None:
    host = cluster.add_host()
    agent = cluster.start(host)
    answers: list[Exception] = [BrokerUnreachable("connection refused")]

    async def stats() -> BrokerStats:
        raise answers[-1]

    async def health(timeout_s: float) -> None:
        del timeout_s
        raise answers[-1]

    real = agent.line.stats, agent.line.health
    agent.line.stats, agent.line.health = stats, health
    await asyncio.sleep(10.0)
    answers.append(NotTheContract(WHY))
    await asyncio.sleep(170.0)
    assert not agent.app.answering.readiness().ready
    assert f"the broker holds no lease: {WHY}" in agent.app.answering.readiness().reasons
    told = [one for one in cluster.log_entries if WHY in str(one)]
    assert 3 <= len(told) <= 4
    assert {one["event"] for one in told} == {"broker.lease.missing"}
    assert len(cluster.log_entries) <= 12
    agent.line.stats, agent.line.health = real
    await cluster.until(lambda: agent.app.answering.readiness().ready, within_s=10.0)


PLACES = {
    "broker0:8080": ["0x00000000_0x2aaaaaaa", "0xaaaaaaa8_0xd5555552", "0xd5555552_0xffffffff"],
    "broker1:8080": ["0x55555554_0x7ffffffe"],
    "broker2:8080": ["0x2aaaaaaa_0x55555554", "0x7ffffffe_0xaaaaaaa8"],
}
SIX = Boundaries.even(NAMESPACE, 6)
MEMORY: dict[str, Any] = {
    "usage": {},
    "highHits": {},
    "lowHits": {},
    "roundsOver": 0,
    "planned": {},
    "turn": 0,
    "turnOrder": [],
    "shedAtS": {},
}
STATE: dict[str, Any] = {
    "memory": {
        "shedder": {**MEMORY, "usage": dict.fromkeys(PLACES, 0.1)},
        "placement": MEMORY,
        "movedAtS": {},
        "startedAtMs": dict.fromkeys(PLACES, 1_700_000_000_000),
    },
    "averages": {bundle: [10, 178, 0, *[0.0] * 8] for bundle in SIX.bundles},
    "running": {broker: [1_700_000_000_000, 0.1, 0.0] for broker in PLACES},
    "departedAtS": {},
    "splitRestsS": {},
}
LEFT = {
    "/admin/local-policies/acme/orders": b'{"bundles":{"boundaries":["0x00000000","0x2aaaaaaa",'
    b'"0x55555554","0x7ffffffe","0xaaaaaaa8","0xd5555552","0xffffffff"],"numBundles":6}}',
    **{f"/loadbalance/agents/{broker}": b"" for broker in PLACES},
    "/loadbalance/brokers": b"",
    "/loadbalance/cluster": b'{"hash":"murmur3"}',
    "/loadbalance/epoch": b"broker0:8080/0",
    **{
        f"/loadbalance/orders/{broker}": json.dumps(
            {"epoch": 1, "bundles": {"acme/orders": ranges}, "handovers": {}, "splits": {}}
        ).encode()
        for broker, ranges in PLACES.items()
    },
    "/loadbalance/owned": b"",
    "/loadbalance/state": zlib.compress(json.dumps(STATE).encode()),
    **{f"/namespace/{bundle.rpartition('/')[0]}": b"" for bundle in SIX.bundles},
}


@story(0)
async def test_each_broker_takes_the_bundles_that_it_had(cluster: Cluster) -> None:
    for path, content in LEFT.items():
        await cluster.write(path, content)
    assert cluster.service.dump()[znodes.EPOCH].stat.version == 1
    hosts = [cluster.add_host() for _ in PLACES]
    early = cluster.start(hosts[0])
    await cluster.until(lambda: not early.alive)
    assert isinstance(early.failure, ClusterDisagrees)
    assert {path: cluster.service.dump()[path].data for path in LEFT} == LEFT
    await cluster.write(znodes.CLUSTER, b'{"format":2,"hash":"murmur3"}')
    for host in hosts:
        cluster.start(host)
    await cluster.ready()
    await cluster.settled(SIX.bundles)
    for broker, ranges in PLACES.items():
        (host,) = (one for one in hosts if one.name == BrokerId(broker))
        assert sorted(host.serving) == [f"{NAMESPACE}/{one}" for one in ranges]
    assert cluster.service.epochs == [2]
    await cluster.until(lambda: bool(cluster.warnings("leadership.state.inherited")))
    assert [one["bundles"] for one in cluster.warnings("leadership.state.inherited")] == [6]
    assert not cluster.warnings("znode.content.refused")


@story()
async def test_the_cluster_record_is_made_anew_in_an_empty_service(cluster: Cluster) -> None:
    operator = await cluster.operator()
    before = await operator.get(znodes.CLUSTER)
    assert before is not None
    await operator.delete(znodes.CLUSTER)
    await asyncio.sleep(2.0)
    assert await operator.get(znodes.CLUSTER) is None
    cluster.service.expire(cluster.leader.coordination.session.session_id)
    await asyncio.sleep(5.0)
    after = await operator.get(znodes.CLUSTER)
    assert after is not None
    assert after.data == before.data


@story()
async def test_orders_of_a_former_session_are_void_if_none_stand(cluster: Cluster) -> None:
    boundaries, agent = await served_beside(cluster, 6)
    operator = await cluster.operator()
    for one in cluster.living:
        one.coordination.suspend()
    for host in cluster.hosts:
        if await operator.get(znodes.orders(host.name)) is not None:
            await operator.delete(znodes.orders(host.name))
    for one in cluster.living:
        cluster.service.expire(one.coordination.session.session_id)
        one.coordination.reconnect()
    member = agent.app.member
    assert isinstance(member, OwningAgent)
    ownerships = member._ownerships
    await cluster.until(lambda: ownerships.orders and not ownerships.orders.bundles)
    await place_all(cluster, boundaries)
    await cluster.settled(boundaries.bundles)


@story()
async def test_a_sidecar_that_finds_another_hash_recorded_ends(cluster: Cluster) -> None:
    agent = cluster.leader
    await cluster.write(znodes.CLUSTER, b'{"format":2,"hash":"murmur3"}')
    assert agent.alive
    cluster.service.expire(agent.coordination.session.session_id)
    await cluster.until(lambda: not agent.alive, within_s=10.0)
    assert isinstance(agent.failure, ClusterDisagrees)


DEFAULT = "/loadmanager/standalone"
RECORD = b'{"hash":"murmur3"}'
OF_PULSAR = b'{"serviceUrl":"http://b:8080"}'


async def agree_on(nodes: dict[str, bytes], chroot: str, conditions: Conditions) -> HashName:
    """Have a sidecar agree with what somebody else has left in ZooKeeper."""
    service = MemoryService()
    hand = await connected(MemoryCoordination(service))
    for path, content in nodes.items():
        await hand.create(path, content)
    joining = await connected(MemoryCoordination(service, chroot=chroot))
    return await agree(joining, SystemClock(), conditions)


@pytest.mark.parametrize("chroot", ["/", DEFAULT])
@pytest.mark.parametrize(
    ("path", "content", "error", "said"),
    [
        ("/managed-ledgers/public", b"", ChrootRefused, "/managed-ledgers exists in it"),
        (znodes.LEADER, OF_PULSAR, ChrootRefused, "in it was written by a Pulsar broker"),
        (
            znodes.LEADER,
            b'{"brokerId":"b:8080","serviceUrl":"http://b:8080"}',
            ChrootRefused,
            "/loadbalance/leader in it was written by a Pulsar broker",
        ),
        (
            znodes.CLUSTER,
            RECORD,
            ClusterDisagrees,
            "are of version 0.1, which recorded no format; expected format 2",
        ),
        (znodes.CLUSTER, RECORD, ClusterDisagrees, "docs/upgrade.md"),
        *(
            (
                znodes.CLUSTER,
                b'{"format":%d,"hash":"crc32"}' % number,
                ClusterDisagrees,
                f"format {number}; this version reads and writes format 2",
            )
            for number in (1, 3)
        ),
        (
            znodes.CLUSTER,
            b'{"format":"x","hash":"crc32"}',
            MalformedContent,
            "format = 'x'; expected a whole number",
        ),
    ],
)
async def test_what_others_left_in_a_chroot_is_refused_by_name(
    path: str, content: bytes, error: type[Exception], *, said: str, chroot: str
) -> None:
    below = "" if chroot == "/" else chroot
    with pytest.raises(error) as refused:
        await agree_on({below + path: content}, chroot, Conditions())
    assert said in str(refused.value)
    named = "[zookeeper] chroot" if error is ChrootRefused else znodes.CLUSTER
    assert named in str(refused.value)


OURS = LeaderRecord(broker=BrokerId("b:8080"), service_url="http://b:8080", epoch=3)
AT_DEFAULT = (DEFAULT, Conditions(default_chroot=DEFAULT))


@pytest.mark.parametrize(
    ("nodes", "chroot", "conditions", "found"),
    [
        ({"/managed-ledgers": b"", znodes.LEADER: OF_PULSAR}, *AT_DEFAULT, "crc32"),
        ({znodes.LEADER: encode_leader(OURS)}, "/", Conditions(), "crc32"),
        ({znodes.LEADER: b"\xff"}, "/", Conditions(), "crc32"),
        ({znodes.LEADER: b"{}"}, "/", Conditions(), "crc32"),
        # The two ways out of a cluster of version 0.1, and what is left of it then.
        ({znodes.CLUSTER: b'{"format":2,"hash":"murmur3"}'}, "/", Conditions(), "murmur3"),
        ({znodes.CLUSTER: RECORD}, DEFAULT, Conditions(), "crc32"),
        (
            {znodes.CLUSTER: RECORD, DEFAULT + znodes.CLUSTER: b'{"format":2,"hash":"crc32"}'},
            *AT_DEFAULT,
            "crc32",
        ),
        ({znodes.CLUSTER: b"\xff"}, *AT_DEFAULT, "crc32"),
        ({znodes.CLUSTER: b""}, *AT_DEFAULT, "crc32"),
        ({znodes.CLUSTER: b'{"name":"x"}'}, *AT_DEFAULT, "crc32"),
    ],
)
async def test_nodes_that_are_no_hindrance(
    nodes: dict[str, bytes], chroot: str, conditions: Conditions, found: HashName
) -> None:
    assert await agree_on(nodes, chroot, conditions) == found


async def test_a_cluster_of_version_0_1_at_the_root_is_told_both_ways_out() -> None:
    with pytest.raises(ChrootRefused) as refused:
        await agree_on({znodes.CLUSTER: RECORD}, DEFAULT, Conditions(default_chroot=DEFAULT))
    assert "version 0.1" in str(refused.value)
    assert 'chroot = "/"' in str(refused.value)
    assert f'chroot = "{DEFAULT}"' in str(refused.value)


def test_the_chroot_is_named_after_the_cluster_unless_it_is_set() -> None:
    unset = make_config(cluster={"name": "east"})
    assert chroot_of(unset) == "/loadmanager/east"
    assert conditions_of(unset).default_chroot == "/loadmanager/east"
    for chosen in ("/", "/mine"):
        config = make_config(zookeeper={"chroot": chosen})
        assert chroot_of(config) == chosen
        assert conditions_of(config).default_chroot == ""


@pytest.mark.parametrize("first", ["contract", "pulsar", OF_ATTACH])
@pytest.mark.parametrize("second", ["contract", "pulsar", OF_ATTACH])
async def test_only_one_kind_of_sidecar_may_use_a_chroot(first: str, second: str) -> None:
    """Both would be elected by one node, and count one epoch."""
    service = MemoryService()
    one, other = [await connected(MemoryCoordination(service)) for _ in range(2)]
    await agree(one, SystemClock(), Conditions("crc32", kind=first))
    joining = agree(other, SystemClock(), Conditions("crc32", kind=second))
    if first == second:
        assert await joining == "crc32"
    else:
        with pytest.raises(ClusterDisagrees, match=f"kind = {first!r}, and this is of kind"):
            await joining


def test_the_identity_tells_an_address_that_others_can_reach() -> None:
    async def program() -> list[str]:
        clock = VirtualClock()
        sections: list[dict[str, str]] = [
            {"listen_host": "10.0.0.7"},
            {"listen_host": "::1"},
            {"listen_host": "0.0.0.0", "advertised_url": "http://lb:80"},  # noqa: S104 - it is what is tested
        ]
        security = {"anonymous": "lookup"}
        made = [
            make_identity(make_config(sidecar=s, security=security), 7750, clock) for s in sections
        ]
        assert len({identity.instance for identity in made}) == 3
        return [identity.sidecar_url for identity in made]

    assert run(program()) == ["http://10.0.0.7:7750", "http://[::1]:7750", "http://lb:80"]


def test_access_and_host_name_checks_reach_zookeeper_s_options() -> None:
    login = {"digest_user": "me", "digest_password": "s3cret"}
    options = zookeeper_options(make_config(zookeeper=login))
    assert (options.tls_verify_hostname, options.creator_only) == (True, None)
    assert options.auth_data() == [("digest", "me:s3cret")]
    assert options.hosts == make_config(zookeeper=login).zookeeper.hosts
    section = {**login, "tls_verify_hostname": False, "creator_only": False}
    options = zookeeper_options(make_config(zookeeper=section))
    assert (options.tls_verify_hostname, options.creator_only) == (False, False)


def test_the_first_of_nested_errors_is_told() -> None:
    inner = Displaced("another one")
    assert first_leaf(ExceptionGroup("a", [ExceptionGroup("b", [inner]), ValueError()])) is inner


def test_no_renewal_waits_for_a_connection_behind_other_commands() -> None:
    assert CONNECTIONS >= PARALLEL + 2


def test_the_command_tells_each_fault_of_the_configuration_and_its_place(tmp_path: Path) -> None:
    file = tmp_path / "lm.toml"
    file.write_text('[broker]\nid = "localhost:8080"\n[shedding]\nstrategy = "Nobody"\n')
    ended = CliRunner().invoke(main, ["agent", "--config", str(file)])
    assert ended.exit_code == 2
    assert ended.stdout == ""
    told = f'{file}: [shedding] strategy = "Nobody"; expected one of '
    assert ended.stderr.startswith(told)


def test_the_command_tells_why_it_cannot_listen_and_how_many_connections_fit() -> None:
    agent = f"{sys.executable} -m loadmanager agent"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        keys = (
            "broker.id=localhost:8080",
            "sidecar.listen_host=127.0.0.1",
            f"sidecar.listen_port={port}",
            "log.format=json",
        )
        sets = " ".join(f"--set {key}" for key in keys)
        ended = subprocess.run(
            ["sh", "-c", f"ulimit -Sn 300; ulimit -Hn 500; exec {agent} {sets}"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ended.returncode == 1
    assert "loadmanager agent: " in ended.stderr
    assert f"127.0.0.1 port {port}: address already in use, by " in ended.stderr
    assert f"(process {os.getpid()}); expected a free port as [sidecar] listen_port" in ended.stderr
    assert "Traceback" not in ended.stderr
    said = ended.stdout + ended.stderr
    (line,) = (one for one in said.splitlines() if "http.open_files.too_few" in one)
    assert "500" in line
    assert "244" in line
    assert "[http] max_connections" in line


def test_the_command_tells_that_an_address_is_not_this_host_s() -> None:
    sets = ["--set", "broker.id=localhost:8080", "--set", "sidecar.listen_host=192.0.2.1"]
    command = [sys.executable, "-m", "loadmanager", "agent", *sets]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert "expected an address of this host as [sidecar] listen_host" in ended.stderr


def test_history_goes_where_the_configuration_says(tmp_path: Path) -> None:
    config = make_config(history={"dir": str(tmp_path), "write": "reports"})
    history = make_history(config, make_identity(config, 7750, SystemClock()), CollectorRegistry())
    assert isinstance(history, ThreadedHistory)
    history.close(10.0)
    assert (history.wants(Stream.REPORTS), history.wants(Stream.ROUNDS)) == (True, False)
