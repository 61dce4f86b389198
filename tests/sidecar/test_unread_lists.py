"""Lists of owned bundles that change are read by those who need them, and name nobody before."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from counted_requests import CountingService, by_role, counted_cluster
from prometheus_client import CollectorRegistry
from stories import served, story

from loadmanager.common.cluster_state import UNREAD_FOR_S, ClusterOwners
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BundleId, Namespace, parse_broker, parse_bundle
from loadmanager.core.orders import encode_owned
from loadmanager.ports.coordination import CoordinationError, Node, Trigger
from loadmanager.ports.lookup import LookupRefused
from loadmanager.telemetry.metrics import Metrics
from tests.testbed.faults.agent import Agent
from tests.testbed.faults.cluster import Cluster, topic_in
from tests.testbed.faults.host import Host
from tests.testbed.faults.virtual_time import run

LISTS = "get /loadbalance/owned"
MOST_LISTS_A_LOOKUP = 3
WHOLE = parse_bundle("acme/orders/0x00000000_0xffffffff")
Tell = Callable[[Cluster, CountingService, Boundaries], Awaitable[None]]


def _told(tell: Tell, sidecars: int = 5) -> None:
    """Run a story of sidecars that read one list a second which nobody there needs."""

    async def program() -> None:
        async with counted_cluster(sidecars, read_ahead=1) as (cluster, service):
            boundaries = await served(cluster, 2 * sidecars)
            await asyncio.sleep(60.0)
            service.forget()
            await tell(cluster, service, boundaries)

    run(program())


def _bystander(cluster: Cluster) -> Agent:
    return by_role(cluster)["other"][0]


async def _move(cluster: Cluster, bundle: BundleId, to: Host | None = None) -> float:
    hosts, began_s = cluster.hosts, asyncio.get_running_loop().time()
    target = to or hosts[(hosts.index(cluster.server(bundle)) + 1) % len(hosts)]
    await cluster.move(bundle, target)
    await cluster.until(lambda: cluster.servers(bundle) == [target], every_s=0.001)
    return asyncio.get_running_loop().time() - began_s


def _has_let_go(cluster: Cluster, server: Host, bundle: BundleId) -> Callable[[], bool]:
    return lambda: server not in cluster.servers(bundle)


async def _leave_unread(cluster: Cluster, bundles: tuple[BundleId, ...]) -> BundleId:
    """Move bundles until the bystander has left the list of a bundle's former owner unread."""
    cluster_state = _bystander(cluster).cluster_state
    for _ in range(3):
        for bundle in bundles:
            await _move(cluster, bundle)
            await asyncio.sleep(0.1)
            listed = cluster_state.listed_owner(bundle)
            if listed != cluster.server(bundle).name and not cluster_state.lists.all_read:
                return bundle
    raise AssertionError("each change was read")


def test_who_needs_no_owner_reads_one_list_a_second_however_many_change() -> None:
    async def tell(cluster: Cluster, service: CountingService, boundaries: Boundaries) -> None:
        began_s = asyncio.get_running_loop().time()
        for _ in range(3):
            for bundle in boundaries.bundles:
                await _move(cluster, bundle)
        took_s = asyncio.get_running_loop().time() - began_s
        moves = 3 * len(boundaries.bundles)
        assert service.asked_by([cluster.leader])[LISTS] > 2 * moves
        # Each is the target of some moves, and follows the lists then.
        assert service.asked_by([_bystander(cluster)])[LISTS] < moves + took_s

    _told(tell)


def test_a_lookup_reads_what_was_left_unread_and_names_who_serves() -> None:
    async def tell(cluster: Cluster, _service: CountingService, boundaries: Boundaries) -> None:
        for _ in range(3):
            bundle = await _leave_unread(cluster, boundaries.bundles)
            asked, topic = _bystander(cluster), topic_in(boundaries, bundle)
            assert asked.app.answering.owner_if_known(topic) is None
            questions = asked.questions
            owner = await asked.look_up(topic)
            assert cluster.servers(bundle) == [cluster.agent_of(owner.broker).host]
            assert asked.questions == questions

    _told(tell)


def test_a_list_that_cannot_be_read_any_more_names_nobody_and_is_read_in_its_turn() -> None:
    async def tell(cluster: Cluster, _service: CountingService, boundaries: Boundaries) -> None:
        bundle = await _leave_unread(cluster, boundaries.bundles)
        asked = _bystander(cluster)
        asked.coordination.suspend()
        with pytest.raises(LookupRefused):
            await asked.look_up(topic_in(boundaries, bundle))
        asked.coordination.reconnect()
        owner = await asked.look_up(topic_in(boundaries, bundle))
        assert cluster.servers(bundle) == [cluster.agent_of(owner.broker).host]
        await _leave_unread(cluster, boundaries.bundles)
        lists, turns_s = asked.cluster_state.lists, len(cluster.hosts) + 2.0
        await cluster.until(lambda: lists.all_read, within_s=UNREAD_FOR_S + turns_s)
        await cluster.settled(boundaries.bundles, within_s=0.1)

    _told(tell)


def test_a_broker_takes_its_bundle_as_soon_as_it_is_free_whatever_it_left_unread() -> None:
    async def tell(cluster: Cluster, _service: CountingService, boundaries: Boundaries) -> None:
        took_s = [await _move(cluster, bundle) for bundle in boundaries.bundles * 3]
        new = cluster.start(cluster.add_host())  # It has read none.
        await cluster.until(
            lambda: new.application and new.app.answering.readiness().ready, every_s=0.001
        )
        took_s += [await _move(cluster, bundle, to=new.host) for bundle in boundaries.bundles]
        assert max(took_s) < 0.2

    _told(tell)


def test_a_leader_has_read_all_lists_before_it_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    async def tell(cluster: Cluster, service: CountingService, boundaries: Boundaries) -> None:
        terms = len(service.epochs)
        for bundle in boundaries.bundles:
            await _move(cluster, bundle)
        behind = [one for one in cluster.living if not one.cluster_state.lists.all_read]
        refused = True

        def get(session_id: int, path: str, trigger: Trigger | None = None) -> Node:
            if refused and path.startswith(znodes.OWNED):
                raise CoordinationError(f"{path}: not now")
            return CountingService.get(service, session_id, path, trigger)

        monkeypatch.setattr(service, "get", get)
        await cluster.leader.app.election.resign()
        await cluster.until(lambda: len(service.epochs) > terms, every_s=0.001)
        heir = cluster.leader
        assert heir in behind
        await asyncio.sleep(3.0)
        assert heir.app.leading.elected
        assert heir.app.leading.leader_term is None
        refused = False
        await cluster.until(lambda: heir.app.leading.leader_term, every_s=0.001)
        assert heir.cluster_state.lists.all_read

    _told(tell)


def test_a_sidecar_that_starts_reads_the_lists_of_what_it_is_asked_for() -> None:
    async def tell(cluster: Cluster, service: CountingService, boundaries: Boundaries) -> None:
        asked = cluster.start(cluster.add_host())
        await cluster.until(
            lambda: asked.application and asked.app.answering.readiness().ready, every_s=0.001
        )
        assert service.asked_by([asked])[LISTS] < len(cluster.hosts) - 1
        for bundle in boundaries.bundles:
            server, read = cluster.server(bundle), service.asked_by([asked])[LISTS]
            unread = not asked.cluster_state.lists.is_read(server.name)
            owner = await asked.look_up(topic_in(boundaries, bundle))
            assert owner.broker == server.name
            assert service.asked_by([asked])[LISTS] == read + unread
        assert asked.questions == 0

    _told(tell)


def test_after_a_reconnect_lists_are_read_where_needed_and_name_nobody_before() -> None:
    async def tell(cluster: Cluster, service: CountingService, boundaries: Boundaries) -> None:
        asked = _bystander(cluster)
        await cluster.until(lambda: asked.cluster_state.lists.all_read)
        asked.coordination.suspend()
        for bundle in boundaries.bundles:
            server = cluster.server(bundle)
            if server is not asked.host:
                others = [host for host in cluster.hosts if host not in {server, asked.host}]
                await _move(cluster, bundle, to=others[0])
        service.forget()
        asked.coordination.reconnect()
        await asyncio.sleep(0.05)  # One list is read at once.
        assert not asked.cluster_state.lists.all_read
        for bundle in boundaries.bundles:
            known = asked.app.answering.owner_if_known(topic_in(boundaries, bundle))
            assert known is None or cluster.servers(bundle)[0].name == known.broker
        for bundle in boundaries.bundles:
            owner = await asked.look_up(topic_in(boundaries, bundle))
            assert cluster.servers(bundle) == [cluster.agent_of(owner.broker).host]
        assert service.asked_by([asked])[LISTS] <= 2 * len(cluster.hosts)

    _told(tell)


def test_a_lookup_of_a_bundle_that_stays_reads_the_list_of_its_owner_alone() -> None:
    async def tell(cluster: Cluster, service: CountingService, boundaries: Boundaries) -> None:
        asked = _bystander(cluster)
        lists = asked.cluster_state.lists

        def unread() -> dict[BundleId, Host]:
            """Return the bundles that are where the bystander knows them, on an unread list."""
            servers = {bundle: cluster.server(bundle) for bundle in boundaries.bundles}
            return {
                bundle: host
                for bundle, host in servers.items()
                if asked.cluster_state.listed_owner(bundle) == host.name
                and not lists.is_read(host.name)
            }

        for bundle in boundaries.bundles * 3:
            await _move(cluster, bundle)
            if len(set(unread().values())) > 1:
                break
        topic = topic_in(boundaries, next(iter(unread())))
        service.forget()
        await asked.look_up(topic)
        assert service.asked_by([asked])[LISTS] == 1
        assert not lists.all_read

    _told(tell)


def test_lookups_of_what_nobody_owns_yet_read_bundles_and_lists_of_planned_owners_once() -> None:
    async def tell(cluster: Cluster, service: CountingService, _boundaries: Boundaries) -> None:
        boundaries = await cluster.make_namespace(40, Namespace("acme/cold"))
        service.forget()
        others = by_role(cluster)["other"]
        asked = {bundle: others[n % len(others)] for n, bundle in enumerate(boundaries.bundles)}
        owners = await asyncio.gather(
            *(one.look_up(topic_in(boundaries, bundle)) for bundle, one in asked.items())
        )
        assert all(cluster.server(one.bundle).name == one.broker for one in owners)
        # It reads two changes of the list that it waits for; before, it read each change of all.
        assert service.asked_by(others)[LISTS] <= MOST_LISTS_A_LOOKUP * len(owners)
        cold = await cluster.make_namespace(32, Namespace("acme/colder"))
        service.forget()
        alone = _bystander(cluster)
        await asyncio.gather(*(alone.look_up(topic_in(cold, bundle)) for bundle in cold.bundles))
        # And once with the watch.
        assert service.asked_by([alone])["get /admin/local-policies"] == 2

    _told(tell, sidecars=10)


def test_a_leader_that_is_notified_late_makes_no_lookup_name_a_broker_that_let_go() -> None:
    async def tell(cluster: Cluster, _service: CountingService, boundaries: Boundaries) -> None:
        named = []
        for _ in range(5):
            bundle = await _leave_unread(cluster, boundaries.bundles)
            asked, server = _bystander(cluster), cluster.server(bundle)
            target = next(one for one in cluster.hosts if one not in {server, asked.host})
            cluster.leader.coordination.delay_replies(1.0)
            for agent in cluster.living:
                if agent.host is target:
                    agent.coordination.delay_commits_s = 0.3  # It takes the lock later.
            moving = asyncio.ensure_future(cluster.move(bundle, target))
            await cluster.until(_has_let_go(cluster, server, bundle), every_s=0.001)
            await asyncio.sleep(0.1)
            owner = await asked.look_up(topic_in(boundaries, bundle))
            named.append(owner.broker != server.name)
            await moving
            cluster.leader.coordination.delay_replies(0.0)
            for agent in cluster.living:
                agent.coordination.delay_commits_s = 0.0
            await asyncio.sleep(2.0)
        assert all(named)

    _told(tell)


@pytest.mark.parametrize("leader_known", [True, False])
def test_lookups_without_a_leader_read_the_locks(leader_known: bool) -> None:
    async def tell(cluster: Cluster, service: CountingService, boundaries: Boundaries) -> None:
        cold = await cluster.make_namespace(8, Namespace("acme/cold"))
        asked = _bystander(cluster)
        asked.line_broken = True
        if not leader_known:
            asked.cluster_state.leader_read(None)
        waiting = [
            asyncio.ensure_future(asked.look_up(topic_in(cold, bundle))) for bundle in cold.bundles
        ]
        await asyncio.sleep(0.5)
        service.forget()
        elsewhere = [host for host in cluster.hosts if host is not asked.host]
        for bundle in boundaries.bundles:
            at = cluster.server(bundle)
            if at is not asked.host:
                others = [host for host in elsewhere if host is not at]
                await _move(cluster, bundle, to=others[0])
        assert service.asked_by([asked])[LISTS] <= 2  # One a second, that nobody there needs.
        placed_s = asyncio.get_running_loop().time()
        for bundle in cold.bundles:
            await cluster.leader.look_up(topic_in(cold, bundle))
        owners = await asyncio.gather(*waiting)
        assert asyncio.get_running_loop().time() - placed_s < 1.5
        assert all(cluster.server(one.bundle).name == one.broker for one in owners)
        asked.line_broken = False

    _told(tell, sidecars=8)


@story(1)
async def test_a_list_that_changes_unread_changes_answers(cluster: Cluster) -> None:
    operator, first, second = await cluster.operator(), parse_broker("a:1"), parse_broker("b:1")
    changed: list[bool] = []
    lists = ClusterOwners(
        operator,
        cluster.agents[0].clock,
        Metrics(CollectorRegistry()),
        answers_changed=lambda: changed.append(lists.all_read),
        completed=lambda: None,
        read_ahead=4,  # Three lists as they are found, and one change.
    )
    await cluster.write(znodes.owned(first), encode_owned({}))
    await cluster.write(znodes.owned(second), encode_owned({}))
    lists.open()
    await cluster.until(lambda: lists.complete)
    for _ in range(2):
        await cluster.write(znodes.owned(first), encode_owned({WHOLE: 60}))
        await cluster.until(lambda: WHOLE in lists.holdings)
    await cluster.until(lambda: not lists.is_read(first))
    assert lists.is_read(second)
    former = len(changed)
    await cluster.write(znodes.owned(second), encode_owned({}))
    await cluster.until(lambda: not lists.is_read(second))
    assert len(changed) == former + 1
    assert await lists.until_read(1.0, first)
    assert not lists.is_read(second)
    await operator.delete(znodes.owned(second))
    await cluster.until(lambda: lists.all_read)
    await cluster.write(znodes.owned(first), encode_owned({}))
    await cluster.until(lambda: not lists.all_read)
    lists.close()
    assert not await lists.until_read(1.0)
