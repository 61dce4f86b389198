"""Merges whose leader or owner is frozen or killed in the middle of each write, and rivals."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from stories import place_all, story

from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BundleId
from loadmanager.core.orders import Orders, SplitOrder, encode_orders
from loadmanager.core.splitting.merging import Merge
from loadmanager.core.wire.policies import decode_boundaries
from loadmanager.ports.coordination import Operation, SetData
from loadmanager.ports.lookup import LookupRefused
from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.cluster import NAMESPACE, Cluster, make_config, play, topic_in

BY_HAND: dict[str, Any] = {"split": {"enabled": False}}
MOST_COMMITS = 8
BOUNDARIES = znodes.local_policies(NAMESPACE)


def boundaries_now(cluster: Cluster) -> Boundaries:
    """Return the namespace's bundles as they stand in the service."""
    node = cluster.service.dump()[BOUNDARIES]
    return decode_boundaries(BOUNDARIES, NAMESPACE, node.data, node.stat.version)


def text(bundle: BundleId) -> str:
    """Return the range of a bundle as people write it."""
    return bundle.rpartition("/")[2]


def orders_left(cluster: Cluster) -> list[BundleId]:
    """Return what is ordered to be cut or merged anywhere."""
    return [bundle for host in cluster.hosts for bundle in cluster.orders(host).splits]


async def two_on_two_brokers(cluster: Cluster) -> Boundaries:
    """Make a namespace of two bundles, one on each of two brokers."""
    boundaries = await cluster.make_namespace(2)
    await place_all(cluster, boundaries)
    lower, upper = boundaries.bundles
    target = next(host for host in cluster.hosts if host is not cluster.server(lower))
    await cluster.move_surely(upper, target)
    await cluster.until(lambda: cluster.servers(upper) == [target])
    return boundaries


async def all_well(cluster: Cluster, boundaries: Boundaries) -> Boundaries:
    """Wait until the two are one, or two as before, and are served; return which."""
    await cluster.until(lambda: not orders_left(cluster), within_s=120)
    now = boundaries_now(cluster)
    assert now.bundles in {boundaries.bundles, (Merge(*boundaries.bundles).whole,)}
    asking = next(agent for agent in cluster.living if agent.alive)
    await asyncio.gather(*(asking.look_up(topic_in(now, bundle)) for bundle in now.bundles))
    await cluster.settled(now.bundles, within_s=60)
    return now


@dataclass
class Interruption:
    """Freezes or kills the sidecar that makes the commit of this number, as it is on its way."""

    number: int
    kills: bool
    made: int = 0
    victim: Agent | None = None
    dying: asyncio.Future[None] | None = None

    def lie_in_wait(self, cluster: Cluster) -> None:
        """Count the commits of all from now on."""
        for agent in cluster.living:
            agent.coordination.before_commit = lambda _, agent=agent: self._commit(agent)

    def _commit(self, agent: Agent) -> None:
        self.made += 1
        if self.made != self.number:
            return
        self.victim = agent
        if self.kills:
            self.dying = asyncio.ensure_future(agent.kill())
        else:
            agent.coordination.freeze_at_next_commit = lambda: None


@pytest.mark.parametrize("kills", [False, True], ids=["frozen", "killed"])
@pytest.mark.parametrize("number", range(1, MOST_COMMITS + 1))
def test_a_writer_is_stopped_in_each_write(number: int, kills: bool) -> None:
    async def tell(cluster: Cluster) -> None:
        boundaries = await two_on_two_brokers(cluster)
        interruption = Interruption(number, kills)
        interruption.lie_in_wait(cluster)
        requests = cluster.leader.app.merge_requests
        merging = asyncio.ensure_future(
            requests.merge(NAMESPACE, text(boundaries.bundles[0]), None)
        )
        await cluster.until(lambda: interruption.victim is not None, within_s=30)
        await asyncio.sleep(2 * SESSION_S)
        victim = interruption.victim
        assert victim is not None
        if kills:
            cluster.start(victim.host)
        else:
            victim.coordination.thaw()
        await asyncio.gather(merging, return_exceptions=True)
        await all_well(cluster, boundaries)

    play(tell, 3, config=make_config(**BY_HAND))


@story(**BY_HAND)
async def test_boundaries_that_somebody_else_wrote_meanwhile_bring_both_back_to_be_tried_again(
    cluster: Cluster,
) -> None:
    boundaries = await two_on_two_brokers(cluster)
    written: list[int] = []
    operator = await cluster.operator()

    def write_first(operations: Sequence[Operation]) -> None:
        if not written and any(
            isinstance(one, SetData) and one.path == BOUNDARIES for one in operations
        ):
            node = cluster.service.dump()[BOUNDARIES]
            written.append(node.stat.version)
            writing.append(asyncio.ensure_future(operator.set(BOUNDARIES, node.data)))

    writing: list[asyncio.Future[Any]] = []
    for agent in cluster.living:
        agent.coordination.before_commit = write_first
        agent.coordination.delay_commits_s = 0.1
    requests = cluster.leader.app.merge_requests
    whole = await requests.merge(NAMESPACE, text(boundaries.bundles[0]), None)
    for agent in cluster.living:
        agent.coordination.delay_commits_s = 0.0
    assert len(writing) == 1
    assert cluster.warnings("bundle.merge.rejected")
    assert (await all_well(cluster, boundaries)).bundles == (whole,)


@pytest.mark.parametrize("after_s", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("rival", ["split", "unload", "second sidecar", "hand"])
def test_rivals_of_a_merge_leave_one_or_two_bundles_and_no_order(
    rival: str, after_s: float
) -> None:
    async def tell(cluster: Cluster) -> None:
        boundaries = await two_on_two_brokers(cluster)
        lower, _ = boundaries.bundles
        app = cluster.leader.app
        merging = asyncio.ensure_future(app.merge_requests.merge(NAMESPACE, text(lower), None))
        await asyncio.sleep(after_s)
        try:
            if rival == "split":
                order = SplitOrder("specified_positions_divide", (0x20000000,))
                await app.split_requests.split(NAMESPACE, text(lower), order)
            elif rival == "unload":
                await app.unload_requests.unload(NAMESPACE, None, None)
            elif rival == "second sidecar":
                cluster.start(cluster.server(boundaries_now(cluster).bundles[0]))
            else:
                holder = next(host for host in cluster.hosts if host.serving)
                nothing = encode_orders(Orders(cluster.orders(holder).epoch))
                await cluster.write(znodes.orders(holder.name), nothing)
        except (LookupRefused, AssertionError):
            assert not merging.cancelled()
        await asyncio.gather(merging, return_exceptions=True)
        await cluster.until(lambda: not orders_left(cluster), within_s=120)
        now = boundaries_now(cluster)
        assert len(now.bundles) <= 3
        await asyncio.gather(*(cluster.leader.look_up(topic_in(now, b)) for b in now.bundles))
        await cluster.settled(now.bundles, within_s=60)

    play(tell, 3, config=make_config(**BY_HAND))


@story(sidecars=2, **BY_HAND)
async def test_orders_of_a_newer_kind_are_refused_by_name_and_given_up(cluster: Cluster) -> None:
    """As a merge is by a sidecar that does not know it: nothing is touched."""
    boundaries = await two_on_two_brokers(cluster)
    lower, _ = boundaries.bundles
    await cluster.leader_term.splits.order(lower, SplitOrder("fold_in_three", (1,)))
    await cluster.until(lambda: cluster.warnings("bundle.split.refused"))
    assert "algorithm 'fold_in_three'" in str(cluster.warnings("bundle.split.refused"))
    await cluster.until(lambda: not orders_left(cluster), within_s=120)
    await cluster.settled(boundaries.bundles)
