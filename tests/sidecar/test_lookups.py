import asyncio

import pytest
from stories import now_s, placed, served, story

from loadmanager.core import znodes
from loadmanager.core.ids import BundleId, Namespace, TopicName, parse_topic
from loadmanager.core.wire.records import encode_partitions
from loadmanager.ports.lookup import LookupRefused, NamespaceUnknown, Owner, Unavailable
from tests.testbed.faults.agent import Agent
from tests.testbed.faults.cluster import Cluster, order, topic_in
from tests.testbed.faults.host import Host
from tests.testbed.in_process import Fault


@story()
async def test_a_looked_up_bundle_is_placed_locked_and_loaded(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(4)
    topic = topic_in(boundaries, boundaries.bundles[2])

    owner = await cluster.agents[1].look_up(topic)

    await cluster.settled([boundaries.bundles[2]])
    host = cluster.server(boundaries.bundles[2])
    session = cluster.agent_of(host.name).coordination.session.session_id
    assert cluster.lock_sessions() == {boundaries.bundles[2]: session}
    assert owner == Owner(
        bundle=boundaries.bundles[2],
        broker=host.name,
        urls=cluster.agent_of(host.name).context.identity.urls,
        listeners={},
        fencing_token=host.serving[boundaries.bundles[2]],
        epoch=cluster.service.epochs[-1],
    )
    assert [await agent.look_up(topic) for agent in cluster.agents] == [owner] * 3
    assert [a.app.answering.owner_if_known(topic) for a in cluster.agents] == [owner] * 3


@story()
async def test_lookups_that_come_together_ask_the_leader_once(cluster: Cluster) -> None:
    await cluster.make_namespace(1)
    follower = next(agent for agent in cluster.agents if not agent.leads)
    topics = [parse_topic(f"persistent://acme/orders/t{n}") for n in range(50)]

    owners = await asyncio.gather(*(follower.look_up(topic) for topic in topics))

    assert len(set(map(id, owners))) == 1
    assert follower.questions == 1
    assert cluster.leader.metric("loadmanager_assignments_total", result="placed") == 1


@story(1)
async def test_a_lookup_whose_client_went_away_complains_to_nobody(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(1)
    cluster.hosts[0].cut = True
    await cluster.until(lambda: not cluster.agents[0].app.member.registered)
    lookup = asyncio.ensure_future(
        cluster.agents[0].look_up(topic_in(boundaries, boundaries.bundles[0]))
    )
    await asyncio.sleep(1.0)
    lookup.cancel()
    await asyncio.sleep(10.0)  # The shared search fails now; `run` fails on what is unheard.
    assert lookup.cancelled()


@story()
async def test_an_unknown_namespace_is_told_as_such(cluster: Cluster) -> None:
    answering = cluster.agents[0].app.answering
    topic = parse_topic("persistent://no/where/t")
    assert answering.owner_if_known(topic) is None
    with pytest.raises(NamespaceUnknown, match="namespace no/where does not exist"):
        await answering.find_owner(topic)
    with pytest.raises(NamespaceUnknown):
        await answering.partitions(topic)


@story(1, leader={"report_stale_s": 15.0})
async def test_without_a_broker_that_may_take_it_the_reasons_are_told(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(1)
    cluster.hosts[0].broker.inject(Fault.UNREACHABLE, "stats")
    await asyncio.sleep(20.0)
    with pytest.raises(Unavailable, match=r"no broker can take .*report_stale"):
        await cluster.agents[0].look_up(topic_in(boundaries, boundaries.bundles[0]))
    assert cluster.agents[0].metric("loadmanager_assignments_total", result="refused") > 0


@story(2)
async def test_a_lookup_of_a_bundle_that_never_arrives_times_out(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(1)
    (bundle,) = boundaries.bundles
    await cluster.hold_lock(bundle)
    asked_at_s = now_s()
    with pytest.raises(Unavailable, match=r"broker\d:8080 is to own it and does not serve it"):
        await cluster.agents[0].look_up(topic_in(boundaries, bundle))
    assert now_s() - asked_at_s == pytest.approx(5.0, abs=0.5)


@story(2, lookup={"wait_s": 0.0})
async def test_a_lookup_that_may_not_wait_has_the_bundle_placed(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(1)
    topic = topic_in(boundaries, boundaries.bundles[0])
    with pytest.raises(Unavailable, match="is to own it"):
        await cluster.agents[0].look_up(topic)
    await cluster.settled(boundaries.bundles)
    assert (await cluster.agents[0].look_up(topic)).bundle == boundaries.bundles[0]


@story(3)
async def test_a_silent_leader_is_asked_again_until_time_is_up(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(3)
    follower = next(agent for agent in cluster.agents if not agent.leads)
    topic, other, last = (topic_in(boundaries, bundle) for bundle in boundaries.bundles)
    follower.line_broken = True
    with pytest.raises(Unavailable, match="does not answer"):
        await follower.look_up(topic)
    assert follower.questions in {5, 6}

    later = asyncio.ensure_future(follower.look_up(other))
    await asyncio.sleep(2.5)
    follower.line_broken = False
    assert (await later).bundle == boundaries.bundles[1]
    follower.line_slow_s = 60.0
    asked_at_s = now_s()
    with pytest.raises(Unavailable, match="the leader has not decided in time"):
        await follower.look_up(last)
    assert now_s() - asked_at_s < 6.0


@story(2)
async def test_the_version_grows_only_when_an_answer_can_change(cluster: Cluster) -> None:
    boundaries, topics = await placed(cluster, 2)
    agent = cluster.agents[0]
    await cluster.until(lambda: all(at.serving for at in agent.cluster_state.owners.values()))
    version = agent.app.answering.cluster_state_version
    cluster.hosts[0].cpu_fraction = 0.5  # A new report, but the same addresses.
    reports = agent.cluster_state.loads.reports
    await cluster.until(lambda: agent.host.name in reports)
    before = reports[agent.host.name]
    await cluster.until(lambda: reports[agent.host.name] != before)
    assert agent.app.answering.cluster_state_version == version
    server = cluster.server(boundaries.bundles[0])
    other = next(host for host in cluster.hosts if host is not server)
    await cluster.moved(boundaries.bundles[0], other)
    await cluster.settled(boundaries.bundles)
    assert agent.app.answering.cluster_state_version > version
    assert (await agent.look_up(topics[0])).broker == other.name


@story(1)
async def test_the_partitions_of_a_topic_are_read(cluster: Cluster) -> None:
    answering = cluster.agents[0].app.answering
    boundaries = await cluster.make_namespace(3, Namespace("new/one"))
    assert (await answering.boundaries(Namespace("new/one"))).bundles == boundaries.bundles
    topic = parse_topic("persistent://new/one/t")
    assert await answering.partitions(topic) == 0
    await cluster.write(znodes.partitions(topic), encode_partitions(7))
    assert await answering.partitions(topic) == 7
    await cluster.write(znodes.partitions(topic), b"seven")
    with pytest.raises(Unavailable, match=r"partitions of .* cannot be read"):
        await answering.partitions(topic)
    cluster.agents[0].coordination.suspend()
    with pytest.raises(Unavailable, match="bundles of new/two cannot be read"):
        await answering.boundaries(Namespace("new/two"))


@story(2)
async def test_readiness_names_what_is_missing(cluster: Cluster) -> None:
    agent = cluster.agents[0]
    assert agent.app.answering.readiness().ready
    agent.coordination.suspend()
    assert agent.app.answering.readiness().reasons == ("the ZooKeeper session is suspended",)
    for other in cluster.agents[1:]:
        await other.kill()
    agent.coordination.reconnect()
    newcomer = cluster.start(cluster.hosts[1])
    await asyncio.sleep(0.0)
    assert "the cluster has not been read yet" in newcomer.app.answering.readiness().reasons


class Client:
    def __init__(self, cluster: Cluster, agent: Agent, topic: TopicName, bundle: BundleId) -> None:
        self._cluster, self._agent, self._topic, self._bundle = cluster, agent, topic, bundle
        self.named: list[str] = []
        self.refused: list[str] = []
        """Who was named without serving the bundle at the moment of the answer."""
        self.errors: list[LookupRefused] = []
        self.task = asyncio.ensure_future(self._ask())

    async def _ask(self) -> None:
        while True:
            try:
                owner = await self._agent.look_up(self._topic)
            except LookupRefused as error:
                self.errors.append(error)
            else:
                if owner.broker not in self.named[-1:]:
                    self.named.append(owner.broker)
                if self._bundle not in self._cluster.agent_of(owner.broker).host.serving:
                    self.refused.append(owner.broker)
            await asyncio.sleep(0.0005)


def _others(cluster: Cluster, *hosts: Host) -> list[Host]:
    return [host for host in cluster.hosts if host not in hosts]


def _slow_to_load(cluster: Cluster, host: Host, by_s: float) -> None:
    line = cluster.agent_of(host.name).line
    load = line.load

    async def slowly(bundle: BundleId, *, agent_epoch: int, fencing_token: int) -> None:
        await asyncio.sleep(by_s)
        await load(bundle, agent_epoch=agent_epoch, fencing_token=fencing_token)

    line.load = slowly


@pytest.mark.parametrize("seed", range(3))
def test_nobody_is_sent_to_an_owner_before_it_serves_or_by_itself_afterwards(seed: int) -> None:
    @story(4, seed=seed)
    async def tell(cluster: Cluster) -> None:
        boundaries, (topic, *_) = await placed(cluster, 4)
        bundle = boundaries.bundles[0]
        source = cluster.server(bundle)
        target, *bystanders = _others(cluster, source)
        _slow_to_load(cluster, target, by_s=0.3)
        asked = [cluster.agent_of(host.name) for host in (source, target, *bystanders)]
        clients = [Client(cluster, agent, topic, bundle) for agent in asked]
        await asyncio.sleep(0.1)
        for client in clients:
            client.refused.clear()
        await cluster.moved(bundle, target)
        await asyncio.sleep(0.1)
        for client in clients:
            client.task.cancel()
        assert [client.named for client in clients] == [[source.name, target.name]] * 4
        assert [client.errors for client in clients] == [[]] * 4
        assert clients[0].refused == [], "the former owner knows when it lets go"
        assert {who for client in clients for who in client.refused} <= {source.name}

    tell()


async def _on_its_way(cluster: Cluster, by_s: float) -> tuple[TopicName, Host, Host, Host]:
    """Return once nobody serves a topic: its source, its target, which is slow, and another."""
    boundaries, topics = await placed(cluster, 6)
    pairs = zip(topics, boundaries.bundles, strict=True)
    topic, bundle = next(p for p in pairs if cluster.server(p[1]) is not cluster.leader.host)
    source = cluster.server(bundle)
    target, other = _others(cluster, source)
    _slow_to_load(cluster, target, by_s)
    await cluster.move(bundle, target)
    await cluster.until(lambda: not cluster.servers(bundle))
    return topic, source, target, other


@story(3)
async def test_the_former_owner_knows_who_is_next(cluster: Cluster) -> None:
    topic, source, target, _ = await _on_its_way(cluster, by_s=0.5)
    asked = cluster.agent_of(source.name)
    questions = asked.questions
    owner = await asked.look_up(topic)
    assert owner.broker == target.name
    assert asked.questions == questions


@story(3, lookup={"wait_s": 0.2})
async def test_a_lookup_that_waited_in_vain_says_for_whom(cluster: Cluster) -> None:
    topic, *hosts = await _on_its_way(cluster, by_s=1.0)
    await asyncio.sleep(0.05)
    for host in hosts:
        with pytest.raises(Unavailable, match=f"{hosts[1].name} is to own it and does not serve"):
            await cluster.agent_of(host.name).look_up(topic)


@story(3)
async def test_a_broker_that_restarted_is_named_again_when_it_has_loaded(cluster: Cluster) -> None:
    boundaries, (topic, *_) = await placed(cluster, 3)
    bundle = boundaries.bundles[0]
    host = cluster.server(bundle)
    _slow_to_load(cluster, host, by_s=0.5)
    host.restart_broker()
    agent = cluster.agent_of(host.name)
    await cluster.until(lambda: not agent.app.answering.owner_if_known(topic))
    owner = await agent.look_up(topic)
    assert (owner.broker, cluster.servers(bundle)) == (host.name, [host])


async def _writes_of(cluster: Cluster, moves: dict[BundleId, Host]) -> int:
    leader_term = cluster.leader_term
    before = cluster.losses.writes
    await order(leader_term, {bundle: host.name for bundle, host in moves.items()})
    await cluster.until(lambda: all(cluster.servers(b) == [h] for b, h in moves.items()))
    await cluster.until(
        lambda: all(a.cluster_state.serving_owner(b) for a in cluster.agents for b in moves)
    )
    return cluster.losses.writes - before


@story(
    3,
    report={"min_interval_s": 300.0, "max_interval_s": 600.0},
    leader={"round_interval_s": 300.0, "report_stale_s": 3000.0},
)
async def test_a_move_is_four_commits_and_many_together_are_few_more(cluster: Cluster) -> None:
    boundaries = await served(cluster, 64)
    source, target, _ = cluster.hosts
    await _writes_of(cluster, dict.fromkeys(boundaries.bundles, source))
    one = await _writes_of(cluster, {boundaries.bundles[0]: target})
    others = await _writes_of(cluster, dict.fromkeys(boundaries.bundles[1:], target))
    # Orders; lock dropped; lock taken; and, once it is served, the list that says so.
    assert one == 4
    assert others <= 21
