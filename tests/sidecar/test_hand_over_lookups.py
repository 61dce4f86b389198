import asyncio

import pytest
from stories import place_all, served, story

from loadmanager.core.ids import BundleId, TopicName
from loadmanager.ports.lookup import LookupRefused, Redirection, Unavailable
from tests.testbed.faults.agent import Agent
from tests.testbed.faults.cluster import Cluster, order
from tests.testbed.faults.host import Host


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

    line.load = slowly  # type: ignore[method-assign]


@pytest.mark.parametrize("seed", range(3))
def test_nobody_is_sent_to_an_owner_before_it_serves_or_by_itself_afterwards(seed: int) -> None:
    @story(4, seed=seed)
    async def tell(cluster: Cluster) -> None:
        boundaries = await cluster.make_namespace(4)
        (topic, *_), (bundle, *_) = await place_all(cluster, boundaries), boundaries.bundles
        source = cluster.server(bundle)
        target, *bystanders = _others(cluster, source)
        _slow_to_load(cluster, target, by_s=0.3)
        asked = [cluster.agent_of(host.name) for host in (source, target, *bystanders)]
        clients = [Client(cluster, agent, topic, bundle) for agent in asked]
        await asyncio.sleep(0.1)
        for client in clients:
            client.refused.clear()
        await cluster.move(bundle, target)
        await cluster.until(lambda: cluster.servers(bundle) == [target])
        await asyncio.sleep(0.1)
        for client in clients:
            client.task.cancel()
        assert [client.named for client in clients] == [[source.name, target.name]] * 4
        assert [client.errors for client in clients] == [[]] * 4
        assert clients[0].refused == [], "the former owner knows when it lets go"
        assert {who for client in clients for who in client.refused} <= {source.name}

    tell()


@story(3)
async def test_the_former_owner_knows_who_is_next(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(6)
    topics, bundles = await place_all(cluster, boundaries), boundaries.bundles
    index, bundle = next(
        (i, b) for i, b in enumerate(bundles) if cluster.server(b) is not cluster.leader.host
    )
    source = cluster.server(bundle)
    target, _ = _others(cluster, source)
    _slow_to_load(cluster, target, by_s=0.5)
    asked = cluster.agent_of(source.name)
    questions = asked.questions
    await cluster.move(bundle, target)
    await cluster.until(lambda: not cluster.servers(bundle))
    owner = await asked.look_up(topics[index])
    assert owner.broker == target.name
    assert asked.questions == questions


@story(3, lookup={"wait_s": 0.2})
async def test_a_lookup_that_waited_in_vain_says_for_whom(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(3)
    (topic, *_), (bundle, *_) = await place_all(cluster, boundaries), boundaries.bundles
    source = cluster.server(bundle)
    target, other = _others(cluster, source)
    _slow_to_load(cluster, target, by_s=1.0)
    await cluster.move(bundle, target)
    await cluster.until(lambda: not cluster.servers(bundle))
    await asyncio.sleep(0.05)
    for host in (source, target, other):
        with pytest.raises(Unavailable, match=f"{target.name} is to own it and does not serve"):
            await cluster.agent_of(host.name).look_up(topic)


@story(3, lookup={"mode": "redirect"})
async def test_in_redirect_mode_the_client_is_sent_to_the_planned_owner(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(3)
    (topic, *_), (bundle, *_) = await place_all(cluster, boundaries), boundaries.bundles
    source = cluster.server(bundle)
    target, other = _others(cluster, source)
    _slow_to_load(cluster, target, by_s=0.5)
    await cluster.move(bundle, target)
    await cluster.until(lambda: not cluster.servers(bundle))
    await asyncio.sleep(0.05)
    onward = Redirection(cluster.agent_of(target.name).url, authoritative=True)
    for host in (source, other):
        answering = cluster.agent_of(host.name).app.answering
        assert await answering.find_owner_or_redirect(topic, authoritative=False) == onward
    answering = cluster.agent_of(target.name).app.answering
    answer = await answering.find_owner_or_redirect(topic, authoritative=True)
    assert not isinstance(answer, Redirection)
    assert answer.broker == target.name


@story(3)
async def test_a_broker_that_restarted_is_named_again_when_it_has_loaded(cluster: Cluster) -> None:
    boundaries = await cluster.make_namespace(3)
    (topic, *_), (bundle, *_) = await place_all(cluster, boundaries), boundaries.bundles
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
