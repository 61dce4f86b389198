import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random

import pytest
from stories import place_all, story

from loadmanager.core import znodes
from loadmanager.core.ids import BrokerId, BundleId, Namespace, parse_broker
from loadmanager.core.load import BrokerUrls
from loadmanager.core.wire.records import LockRecord, encode_lock
from loadmanager.ports.coordination import Create, Node
from loadmanager.ports.lookup import Owner
from tests.testbed.faults.answers_watch import LAGS_IN_A_CHAIN
from tests.testbed.faults.cluster import Cluster, make_config
from tests.testbed.faults.host import Host
from tests.testbed.faults.monitor import Monitor
from tests.testbed.faults.seed_run import ACTIONS, run_seed
from tests.testbed.faults.trace import Trace
from tests.testbed.faults.violation import Invariant
from tests.testbed.faults.virtual_time import run

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


async def _two_that_serve_a_part_of_the_same(cluster: Cluster, _: Monitor) -> None:
    await _serve(cluster.hosts[0], WHOLE, 5)
    await _serve(cluster.hosts[1], HALF, 6)


async def _one_after_the_lease_of_another(cluster: Cluster, _: Monitor) -> None:
    await _serve(cluster.hosts[0], WHOLE, 5, lasts_s=2.0)
    await asyncio.sleep(2.1)
    await _serve(cluster.hosts[1], WHOLE, 6)


async def _a_token_below_one_before(cluster: Cluster, _: Monitor) -> None:
    await _serve(cluster.hosts[0], WHOLE, 6)
    cluster.hosts[0].kill_broker()
    await _serve(cluster.hosts[1], HALF, 5)


async def _an_epoch_that_goes_back(cluster: Cluster, _: Monitor) -> None:
    operator = await cluster.operator()
    await operator.ensure(znodes.EPOCH)
    for epoch in (1, 2):
        await operator.set(znodes.EPOCH, str(epoch).encode())
    await operator.delete(znodes.EPOCH)
    await operator.ensure(znodes.EPOCH)


async def _a_lock_taken_on_other_orders(cluster: Cluster, monitor: Monitor) -> None:
    agent = cluster.start(cluster.hosts[0])
    monitor.follow_agent(agent)
    await cluster.ready()
    record = LockRecord(urls=BrokerUrls(http_url="http://b"), broker=B0, epoch=7)
    assert agent.coordination.before_commit is not None
    lock = Create(znodes.lock(WHOLE), encode_lock(record), ephemeral=True)
    agent.coordination.before_commit([lock])


async def _an_answer_that_names_the_holder(cluster: Cluster, monitor: Monitor) -> None:
    token = await _one_sidecar_and_a_lock(cluster, monitor)
    monitor.answer_given(cluster.agents[0], _owner(token))


async def _an_answer_that_names_who_gave_the_lock_back(cluster: Cluster, monitor: Monitor) -> None:
    token = await _one_sidecar_and_a_lock(cluster, monitor)
    await cluster.delete(znodes.lock(WHOLE))
    await asyncio.sleep(1.0)
    monitor.answer_given(cluster.agents[0], _owner(token))


async def _the_same_by_one_that_was_cut_off(cluster: Cluster, monitor: Monitor) -> None:
    token = await _one_sidecar_and_a_lock(cluster, monitor)
    cluster.agents[0].coordination.suspend()
    monitor.look()
    await cluster.delete(znodes.lock(WHOLE))
    await asyncio.sleep(3.0)
    monitor.answer_given(cluster.agents[0], _owner(token))


async def _an_answer_that_names_a_broker_that_is_not_registered(
    cluster: Cluster, monitor: Monitor
) -> None:
    token = await _one_sidecar_and_a_lock(cluster, monitor)
    other = parse_broker("other:8080")
    monitor.answers.held[WHOLE][-1].what = (other, token)
    monitor.answer_given(cluster.agents[0], _owner(token, broker=other))


async def _an_answer_with_a_lower_token(cluster: Cluster, monitor: Monitor) -> None:
    token = await _one_sidecar_and_a_lock(cluster, monitor)
    agent, held = cluster.agents[0], monitor.answers.held[WHOLE]
    held.append(type(held[0])((B0, token + 1), 0.0))
    monitor.answer_given(agent, _owner(token + 1, epoch=2))
    await asyncio.sleep(0.1)
    monitor.answer_given(agent, _owner(token, epoch=2))


async def _an_answer_with_a_lower_epoch(cluster: Cluster, monitor: Monitor) -> None:
    token = await _one_sidecar_and_a_lock(cluster, monitor)
    monitor.answer_given(cluster.agents[0], _owner(token, epoch=2))
    monitor.answer_given(cluster.agents[0], _owner(token, epoch=1))


async def _nobody_serves_it_again(_: Cluster, monitor: Monitor) -> None:
    await _watch_for(monitor, monitor.availability.within_s - 1.0)
    assert not monitor.violations
    await _watch_for(monitor, 2.0)


async def _no_broker_is_fit(cluster: Cluster, monitor: Monitor) -> None:
    cluster.hosts[0].freeze_broker()
    await _watch_for(monitor, 3 * monitor.availability.within_s)


async def _a_process_that_ends_by_an_error(cluster: Cluster, monitor: Monitor) -> None:
    await cluster.write(znodes.CLUSTER, b'{"format":2,"hash":"md5"}')
    agent = cluster.start(cluster.hosts[0])
    monitor.follow_agent(agent)
    await cluster.until(lambda: not agent.alive)


@pytest.mark.parametrize(
    ("history", "told"),
    [
        (_two_that_serve_a_part_of_the_same, (Invariant.ONE_SERVER, HALF)),
        (_one_after_the_lease_of_another, None),
        (_a_token_below_one_before, (Invariant.TOKENS_GROW, HALF)),
        (_an_epoch_that_goes_back, (Invariant.TOKENS_GROW, znodes.EPOCH)),
        (_a_lock_taken_on_other_orders, (Invariant.ORDERS_OF_THE_TERM, znodes.lock(WHOLE))),
        (_an_answer_that_names_the_holder, None),
        (_an_answer_that_names_who_gave_the_lock_back, (Invariant.LOOKUPS_NAME_OWNERS, WHOLE)),
        (_the_same_by_one_that_was_cut_off, None),
        (
            _an_answer_that_names_a_broker_that_is_not_registered,
            (Invariant.LOOKUPS_NAME_OWNERS, WHOLE),
        ),
        (_an_answer_with_a_lower_token, (Invariant.ANSWERS_GO_ON, WHOLE)),
        (_an_answer_with_a_lower_epoch, (Invariant.ANSWERS_GO_ON, WHOLE)),
        (
            _namespace_whose_bundle_was_served(_nobody_serves_it_again),
            (Invariant.SERVED_AGAIN, WHOLE),
        ),
        (_namespace_whose_bundle_was_served(_no_broker_is_fit), None),
        (_a_process_that_ends_by_an_error, (Invariant.NOTHING_UNHEARD, "broker0:8080/0")),
    ],
)
def test_a_broken_promise_is_told_of_and_no_other_history(
    history: Callable[[Cluster, Monitor], Awaitable[None]], told: tuple[Invariant, str] | None
) -> None:
    """Builds of `tests/sidecar/test_simulated_broken_builds.py` break the others."""
    assert _watched(history)[:1] == [told] * (told is not None)


OFTEN = ("copy the ensemble's data", "restore older data")


@story(2)
async def test_restored_data_are_older_and_have_no_ephemeral_nodes(cluster: Cluster) -> None:
    service = cluster.service
    boundaries = await cluster.make_namespace(2)
    await place_all(cluster, boundaries)
    copy, held = service.snapshot(), service.dump()
    await cluster.delete(znodes.LEADER)
    await cluster.until(lambda: len(service.epochs) == 2)
    later = service.zxid
    for agent in list(cluster.living):
        await agent.kill()
        service.close_session(agent.coordination.session.session_id)
    for host in cluster.hosts:
        host.kill_broker()
    service.restore(copy)
    restored = service.dump()
    lasting = {path: node for path, node in held.items() if not node.stat.ephemeral_owner}
    assert restored == lasting
    assert restored[znodes.EPOCH].stat.version == 1
    assert service.zxid > later  # A leader of the ensemble begins above all of its former epoch.
    for host in cluster.hosts:
        host.restart_broker()
        cluster.start(host)
    await cluster.ready()
    await place_all(cluster, boundaries)
    assert service.epochs == [2]


@pytest.mark.parametrize("seed", [3, 8])
def test_older_data_restored_again_and_again_break_no_promise(seed: int) -> None:
    actions = [replace(one, weight=one.weight + 8 * (one.name in OFTEN)) for one in ACTIONS]
    outcome = run_seed(seed, actions=actions)
    assert not outcome.violation, "\n".join([*outcome.last_lines, outcome.violation])
    assert outcome.happened["restore older data"] > 0


@story(2)
async def test_a_late_server_and_late_replies_add_up(cluster: Cluster) -> None:
    await cluster.write("/elsewhere", b"before")
    agent = next(one for one in cluster.living if not one.leads)
    server = cluster.service.add_server()
    agent.coordination.connect_to(server)
    told_at_s: dict[bytes, float] = {}

    def told(node: Node | None) -> None:
        if node is not None:
            told_at_s[node.data] = asyncio.get_running_loop().time()

    agent.coordination.watch("/elsewhere", told)
    await cluster.until(lambda: agent.coordination.is_on(server) and told_at_s)
    cluster.service.lag(server, 1.0)
    agent.coordination.delay_replies(0.5)
    lag_s = agent.coordination.lag_s
    assert lag_s == 1.5
    began_s = asyncio.get_running_loop().time()
    await cluster.write("/elsewhere", b"after")
    await cluster.until(lambda: b"after" in told_at_s)
    # The event is as late as both, and the read that it asks for takes time again.
    assert lag_s < told_at_s[b"after"] - began_s < LAGS_IN_A_CHAIN * lag_s
