"""Each invariant is noticed when it is broken: by a history that is made up here."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, BundleId, Namespace, parse_broker
from loadmanager.core.load import BrokerUrls
from loadmanager.core.orders import Orders, encode_orders
from loadmanager.core.wire.records import LockRecord, encode_lock
from loadmanager.ports.coordination import Create
from loadmanager.ports.lookup import Owner
from tests.testbed.faults.availability_watch import LAGS_TO_A_NEW_OWNER
from tests.testbed.faults.cluster import Cluster, make_config
from tests.testbed.faults.host import Host
from tests.testbed.faults.monitor import Monitor
from tests.testbed.faults.trace import Trace
from tests.testbed.faults.violation import Invariant
from tests.testbed.faults.virtual_time import run
from tests.testbed.memory import MemoryCoordination

WHOLE = BundleId("acme/orders/0x00000000_0xffffffff")
HALF = BundleId("acme/orders/0x00000000_0x80000000")
NAMESPACE = Namespace("acme/orders")
B0 = BrokerId("broker0:8080")

Told = list[tuple[Invariant, str]]


def _watched(tell: Callable[[Cluster, Monitor], Awaitable[None]]) -> Told:
    """Return what a monitor tells of what ``tell`` does to a cluster without sidecars."""

    async def program() -> Told:
        cluster = Cluster(make_config(), Random(1))  # noqa: S311 - to be repeatable
        monitor = Monitor(cluster, Trace())
        for _ in range(2):
            monitor.follow_host(cluster.add_host())
        await tell(cluster, monitor)
        await cluster.close()
        return [(found.invariant, found.subject) for found in monitor.violations]

    return run(program())


async def _serve(host: Host, bundle: BundleId, token: int, lasts_s: float = 10.0) -> None:
    broker = host.broker
    state = await broker.renew_lease(agent_epoch=1, until_s=None, incarnation=None)
    await broker.renew_lease(
        agent_epoch=1, until_s=state.clock_s + lasts_s, incarnation=broker.incarnation
    )
    await broker.load(bundle, agent_epoch=1, fencing_token=token)


def test_two_brokers_that_serve_a_part_of_the_same_are_told_of() -> None:
    async def tell(cluster: Cluster, _: Monitor) -> None:
        await _serve(cluster.hosts[0], WHOLE, 5)
        await _serve(cluster.hosts[1], HALF, 6)

    assert _watched(tell) == [(Invariant.ONE_SERVER, HALF)]


def test_a_broker_whose_lease_has_run_out_serves_nothing() -> None:
    async def tell(cluster: Cluster, _: Monitor) -> None:
        await _serve(cluster.hosts[0], WHOLE, 5, lasts_s=2.0)
        await asyncio.sleep(2.1)
        await _serve(cluster.hosts[1], WHOLE, 6)

    assert _watched(tell) == []


def test_a_token_below_one_before_is_told_of() -> None:
    async def tell(cluster: Cluster, _: Monitor) -> None:
        await _serve(cluster.hosts[0], WHOLE, 6)
        cluster.hosts[0].kill_broker()
        await _serve(cluster.hosts[1], HALF, 5)

    assert _watched(tell) == [(Invariant.TOKENS_GROW, HALF)]


def test_an_epoch_that_goes_back_is_told_of() -> None:
    async def tell(cluster: Cluster, _: Monitor) -> None:
        operator = await cluster.operator()
        await operator.ensure(znodes.EPOCH)
        for epoch in (1, 2):
            await operator.set(znodes.EPOCH, str(epoch).encode())
        await operator.delete(znodes.EPOCH)
        await operator.ensure(znodes.EPOCH)

    assert _watched(tell) == [(Invariant.TOKENS_GROW, znodes.EPOCH)]


async def _ordered(operator: MemoryCoordination, epoch: int) -> None:
    await operator.set(znodes.orders(B0), encode_orders(Orders(epoch)))


def test_orders_that_a_leader_writes_after_its_term_are_told_of() -> None:
    async def tell(cluster: Cluster, _: Monitor) -> None:
        operator = await cluster.operator()
        await operator.ensure(znodes.EPOCH)
        await operator.ensure(znodes.orders(B0))
        await operator.set(znodes.EPOCH, b"first")
        await _ordered(operator, 1)
        await operator.set(znodes.EPOCH, b"second")
        await _ordered(operator, 1)
        await _ordered(operator, 2)

    assert _watched(tell) == [(Invariant.ORDERS_OF_THE_TERM, znodes.orders(B0))]


def test_a_lock_taken_on_other_orders_than_those_told_last_is_told_of() -> None:
    async def tell(cluster: Cluster, monitor: Monitor) -> None:
        agent = cluster.start(cluster.hosts[0])
        monitor.follow_agent(agent)
        await cluster.ready()
        record = LockRecord(urls=BrokerUrls(http_url="http://b"), broker=B0, epoch=7)
        operation = _lock(encode_lock(record))
        assert agent.coordination.before_commit is not None
        agent.coordination.before_commit([operation])

    assert _watched(tell) == [(Invariant.ORDERS_OF_THE_TERM, znodes.lock(WHOLE))]


def _lock(content: bytes) -> Create:
    return Create(znodes.lock(WHOLE), content, ephemeral=True)


def _owner(token: int, *, broker: BrokerId = B0, epoch: int = 1) -> Owner:
    urls = BrokerUrls(http_url=f"http://{broker}")
    return Owner(
        bundle=WHOLE, broker=broker, urls=urls, listeners={}, fencing_token=token, epoch=epoch
    )


async def _one_sidecar_and_a_lock(cluster: Cluster, monitor: Monitor) -> int:
    """Return the token of a lock that broker0 holds, beside whose broker a sidecar runs."""
    monitor.follow_agent(cluster.start(cluster.hosts[0]))
    await cluster.ready()
    record = LockRecord(urls=BrokerUrls(http_url=f"http://{B0}"), broker=B0, epoch=0)
    operator = await cluster.operator()
    lock = await operator.create(znodes.lock(WHOLE), encode_lock(record), ephemeral=True)
    await asyncio.sleep(1.0)
    monitor.look()
    return lock.czxid


def test_an_answer_that_names_the_holder_is_right() -> None:
    async def tell(cluster: Cluster, monitor: Monitor) -> None:
        token = await _one_sidecar_and_a_lock(cluster, monitor)
        monitor.answer_given(cluster.agents[0], _owner(token))

    assert _watched(tell) == []


@pytest.mark.parametrize("since_s", [0.1, 1.0])
def test_an_answer_that_names_who_gave_the_lock_back_is_wrong_after_a_moment(
    since_s: float,
) -> None:
    async def tell(cluster: Cluster, monitor: Monitor) -> None:
        token = await _one_sidecar_and_a_lock(cluster, monitor)
        await (await cluster.operator()).delete(znodes.lock(WHOLE))
        await asyncio.sleep(since_s)
        monitor.answer_given(cluster.agents[0], _owner(token))

    wrong = [(Invariant.LOOKUPS_NAME_OWNERS, WHOLE)] if since_s > 0.5 else []
    assert _watched(tell) == wrong


def test_a_sidecar_that_was_cut_off_before_cannot_know_better() -> None:
    async def tell(cluster: Cluster, monitor: Monitor) -> None:
        token = await _one_sidecar_and_a_lock(cluster, monitor)
        cluster.agents[0].coordination.suspend()
        monitor.look()
        await (await cluster.operator()).delete(znodes.lock(WHOLE))
        await asyncio.sleep(3.0)
        monitor.answer_given(cluster.agents[0], _owner(token))

    assert _watched(tell) == []


@pytest.mark.parametrize("broken", [True, False])
def test_what_was_late_when_the_connection_broke_is_never_heard_of(broken: bool) -> None:
    async def tell(cluster: Cluster, monitor: Monitor) -> None:
        token = await _one_sidecar_and_a_lock(cluster, monitor)
        session = cluster.agents[0].coordination
        await asyncio.sleep(10.0)
        session.delay_replies(0.8)
        monitor.look()
        await (await cluster.operator()).delete(znodes.lock(WHOLE))
        await asyncio.sleep(0.7)
        session.delay_replies(0.0)
        monitor.look()
        if broken:
            session.suspend()
        for _ in range(10):
            monitor.look()
            await asyncio.sleep(0.5)
        monitor.answer_given(cluster.agents[0], _owner(token))

    assert _watched(tell) == ([] if broken else [(Invariant.LOOKUPS_NAME_OWNERS, WHOLE)])


def test_an_answer_that_names_a_broker_that_is_not_registered_is_told_of() -> None:
    async def tell(cluster: Cluster, monitor: Monitor) -> None:
        token = await _one_sidecar_and_a_lock(cluster, monitor)
        other = parse_broker("other:8080")
        monitor.answers.held[WHOLE][-1].what = (other, token)
        monitor.answer_given(cluster.agents[0], _owner(token, broker=other))

    assert _watched(tell) == [(Invariant.LOOKUPS_NAME_OWNERS, WHOLE)]


@pytest.mark.parametrize(("less_token", "epoch"), [(1, 2), (0, 1), (0, 0)])
def test_an_answer_with_a_lower_token_or_epoch_than_the_last_is_told_of(
    less_token: int, epoch: int
) -> None:
    async def tell(cluster: Cluster, monitor: Monitor) -> None:
        token = await _one_sidecar_and_a_lock(cluster, monitor)
        agent, held = cluster.agents[0], monitor.answers.held[WHOLE]
        held.append(type(held[0])((B0, token + 1), 0.0))
        monitor.answer_given(agent, _owner(token + 1, epoch=2))
        await asyncio.sleep(0.1)
        monitor.answer_given(agent, _owner(token + 1 - less_token, epoch=epoch))

    # Epoch 0 says that no leader is known now, which may be.
    assert _watched(tell) == ([(Invariant.ANSWERS_GO_ON, WHOLE)] if epoch else [])


def _namespace_whose_bundle_was_served(
    then: Callable[[Cluster, Monitor], Awaitable[None]],
) -> Callable[[Cluster, Monitor], Awaitable[None]]:
    async def tell(cluster: Cluster, monitor: Monitor) -> None:
        monitor.follow_agent(cluster.start(cluster.hosts[0]))
        await cluster.ready()
        await cluster.make_namespace(1, NAMESPACE)
        await _serve(cluster.hosts[1], WHOLE, 5)
        monitor.look()
        cluster.hosts[1].kill_broker()
        await then(cluster, monitor)

    return tell


async def _watch_for(monitor: Monitor, lasts_s: float) -> None:
    for _ in range(round(lasts_s / 0.5)):
        monitor.look()
        await asyncio.sleep(0.5)


def test_a_bundle_that_nobody_serves_again_is_told_of_after_the_bound() -> None:
    async def then(_: Cluster, monitor: Monitor) -> None:
        await _watch_for(monitor, monitor.availability.within_s - 1.0)
        assert not monitor.violations
        await _watch_for(monitor, 2.0)

    assert _watched(_namespace_whose_bundle_was_served(then))[0] == (Invariant.SERVED_AGAIN, WHOLE)


def test_the_bound_is_later_by_a_few_lags_where_replies_are_late() -> None:
    lag_s = 1.5

    async def then(cluster: Cluster, monitor: Monitor) -> None:
        late = cluster.start(cluster.hosts[1])
        monitor.follow_agent(late)
        await cluster.until(lambda: late.application is not None)
        late.coordination.delay_replies(lag_s)
        monitor.disturbed()
        await _watch_for(monitor, monitor.availability.within_s + LAGS_TO_A_NEW_OWNER * lag_s - 1.0)
        assert not monitor.violations
        await _watch_for(monitor, 2.0)

    assert _watched(_namespace_whose_bundle_was_served(then))[0] == (Invariant.SERVED_AGAIN, WHOLE)


def test_the_bound_does_not_run_while_no_broker_is_fit() -> None:
    async def then(cluster: Cluster, monitor: Monitor) -> None:
        cluster.hosts[0].freeze_broker()
        await _watch_for(monitor, 3 * monitor.availability.within_s)

    assert _watched(_namespace_whose_bundle_was_served(then)) == []


def test_the_bound_runs_anew_after_each_fault() -> None:
    async def then(_: Cluster, monitor: Monitor) -> None:
        for _another in range(3):
            await _watch_for(monitor, monitor.availability.within_s - 1.0)
            monitor.disturbed()

    assert _watched(_namespace_whose_bundle_was_served(then)) == []


def test_a_namespace_that_is_gone_need_not_be_served() -> None:
    async def then(cluster: Cluster, monitor: Monitor) -> None:
        await (await cluster.operator()).delete(znodes.local_policies(NAMESPACE))
        await _watch_for(monitor, 2 * monitor.availability.within_s)

    assert _watched(_namespace_whose_bundle_was_served(then)) == []


def test_a_process_that_ends_by_an_error_is_told_of() -> None:
    async def tell(cluster: Cluster, monitor: Monitor) -> None:
        await cluster.write(znodes.CLUSTER, b'{"format":2,"hash":"md5"}')
        agent = cluster.start(cluster.hosts[0])
        monitor.follow_agent(agent)
        await cluster.until(lambda: not agent.alive)

    assert _watched(tell) == [(Invariant.NOTHING_UNHEARD, "broker0:8080/0")]


def test_the_boundaries_of_a_namespace_are_those_in_the_service() -> None:
    async def tell(cluster: Cluster, monitor: Monitor) -> None:
        await cluster.make_namespace(4, NAMESPACE)
        assert monitor.bundles_of(NAMESPACE) == Boundaries.even(NAMESPACE, 4).bundles
        assert list(monitor.namespaces) == [NAMESPACE]

    assert _watched(tell) == []
