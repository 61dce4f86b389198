"""What is promised of time: that somebody leads, and that what is asked for is served."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from random import Random

import pytest
from stories import place_all, story

from loadmanager.core import znodes
from loadmanager.core.ids import BrokerId, BundleId, Namespace
from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.availability_watch import (
    ASKED_FOR_S,
    AvailabilityWatch,
    served_when_asked_within_s,
)
from tests.testbed.faults.cluster import Cluster, make_config
from tests.testbed.faults.leader_watch import (
    LAGS_TO_A_LEADER,
    LeaderWatch,
    any_sidecar_leads,
    led_within_s,
)
from tests.testbed.faults.monitor import Monitor
from tests.testbed.faults.topics import topic_of
from tests.testbed.faults.trace import Trace
from tests.testbed.faults.violation import Invariant
from tests.testbed.faults.virtual_time import run

WHOLE = BundleId("acme/orders/0x00000000_0xffffffff")
NAMESPACE = Namespace("acme/orders")

Told = list[tuple[Invariant, str]]

_LAG_S = 1.5
_LATER_S = LAGS_TO_A_LEADER * _LAG_S


def _leader_watch() -> tuple[LeaderWatch, Told]:
    told: Told = []
    watch = LeaderWatch(16.0, lambda invariant, subject, _: told.append((invariant, subject)))
    watch.look(1000.0, led=True, healthy=True)
    return watch, told


def test_the_bounds_are_made_of_the_settings() -> None:
    config = make_config(leader={"tick_interval_s": 1.5})
    assert led_within_s(config) == SESSION_S + 1.5 + 5.0
    assert served_when_asked_within_s(config) == led_within_s(config) + 10.0


@pytest.mark.parametrize(
    ("disturbed_s", "looks", "late_s", "lag_s"),
    [
        (None, [(1016.0, False)], 1016.5, 0.0),
        (1010.0, [(1026.0, False), (1026.5, True), (1042.5, False)], 1043.0, 0.0),
        (None, [(1016.0 + _LATER_S, False)], 1016.5 + _LATER_S, _LAG_S),
    ],
    ids=["nobody leads", "anew after a fault and after a leader", "late replies"],
)
def test_that_nobody_leads_is_told_of_after_the_bound(
    disturbed_s: float | None, looks: Sequence[tuple[float, bool]], late_s: float, lag_s: float
) -> None:
    watch, told = _leader_watch()
    if disturbed_s is not None:
        watch.disturbed(disturbed_s)
    for at_s, led in looks:
        watch.look(at_s, led=led, healthy=True, lag_s=lag_s)
    assert not told
    watch.look(late_s, led=False, healthy=True, lag_s=lag_s)
    assert told == [(Invariant.SOMEBODY_LEADS, znodes.LEADER)]
    assert watch.longest_s == 16.5 + LAGS_TO_A_LEADER * lag_s


def test_the_bound_of_a_leader_does_not_run_where_nobody_can_lead() -> None:
    watch, told = _leader_watch()
    for at_s in range(1001, 1100):
        watch.look(float(at_s), led=False, healthy=at_s % 10 != 0)
    assert not told


@pytest.mark.parametrize("lag_s", [0.5, 1.0, 2.0])
@story(2)
async def test_nine_late_replies_follow_one_another_until_a_successor_leads(
    cluster: Cluster, lag_s: float
) -> None:
    """Each reply more delays all bundles without an owner, where ZooKeeper is slow."""
    boundaries = await cluster.make_namespace(4)
    await place_all(cluster, boundaries)
    (leader,) = (agent for agent in cluster.living if agent.leads)
    (successor,) = (agent for agent in cluster.living if agent is not leader)
    successor.coordination.delay_replies(lag_s)
    await leader.kill()
    cluster.service.expire(leader.coordination.session.session_id)
    began_s = asyncio.get_running_loop().time()
    await cluster.until(lambda: any_sidecar_leads(cluster.living, cluster.service.nodes), 60.0)
    assert asyncio.get_running_loop().time() - began_s < 9.0 * lag_s + 0.5


def _availability() -> tuple[AvailabilityWatch, Told]:
    told: Told = []
    watch = AvailabilityWatch(
        25.0, 26.0, lambda invariant, subject, _: told.append((invariant, subject))
    )
    watch.asked(WHOLE, 1000.0)
    return watch, told


def test_what_is_asked_for_and_not_served_is_told_of_after_the_bound() -> None:
    watch, told = _availability()
    for at_s in range(1000, 1027, 2):
        watch.asked(WHOLE, float(at_s))
    watch.look([WHOLE], [], fit=True, at_s=1026.0)
    assert not told
    watch.look([WHOLE], [], fit=True, at_s=1026.5)
    assert told == [(Invariant.SERVED_WHEN_ASKED, WHOLE)]


def test_the_bound_of_what_is_asked_for_stands_while_nobody_asks_a_healthy_sidecar() -> None:
    watch, told = _availability()
    assert ASKED_FOR_S == 7.0
    # Asked for until 1007.0, from 1050.0 to 1059.0, and from 1090.0 on.
    watch.look([WHOLE], [], fit=True, at_s=1049.0)
    watch.asked(WHOLE, 1050.0)
    watch.asked(WHOLE, 1052.0)
    watch.look([WHOLE], [], fit=True, at_s=1089.0)
    assert not told
    assert watch.longest_asked_s == 16.0
    for at_s in range(1090, 1101, 2):
        watch.asked(WHOLE, float(at_s))
    watch.look([WHOLE], [], fit=True, at_s=1100.0)
    assert not told
    watch.look([WHOLE], [], fit=True, at_s=1100.5)
    assert told == [(Invariant.SERVED_WHEN_ASKED, WHOLE)]


def test_the_bound_of_what_is_asked_for_begins_anew_with_a_fault_while_nobody_asks() -> None:
    watch, told = _availability()
    watch.disturbed(1040.0)
    for at_s in range(1050, 1077, 2):
        watch.asked(WHOLE, float(at_s))
    watch.look([WHOLE], [], fit=True, at_s=1076.0)
    assert not told
    watch.look([WHOLE], [], fit=True, at_s=1076.5)
    assert told


@pytest.mark.parametrize("what", ["no broker is fit", "a fault", "an answer", "deleted"])
def test_the_bound_of_what_is_asked_for_does_not_run(what: str) -> None:
    watch, told = _availability()
    if what == "a fault":
        watch.disturbed(1010.0)
    elif what == "an answer":
        watch.answered(WHOLE)
    watch.look(
        [] if what == "deleted" else [WHOLE], [], fit=what != "no broker is fit", at_s=1010.0
    )
    if what in {"no broker is fit", "a fault"}:
        for at_s in range(1010, 1037, 2):
            watch.asked(WHOLE, float(at_s))
    watch.look([WHOLE], [], fit=True, at_s=1036.0)
    assert not told


def _watched(tell: Callable[[Cluster, Monitor, Agent], Awaitable[None]]) -> Told:
    async def program() -> Told:
        cluster = Cluster(make_config(), Random(1))  # noqa: S311 - to be repeatable
        monitor = Monitor(cluster, Trace())
        agent = cluster.start(cluster.add_host())
        await cluster.ready()
        await cluster.make_namespace(1, NAMESPACE)
        await tell(cluster, monitor, agent)
        await cluster.close()
        return [(found.invariant, found.subject) for found in monitor.violations]

    return run(program())


async def _look_for(monitor: Monitor, lasts_s: float) -> None:
    for _ in range(round(lasts_s / 0.5)):
        monitor.look()
        await asyncio.sleep(0.5)


def test_a_healthy_sidecar_that_does_not_lead_is_seen() -> None:
    async def tell(cluster: Cluster, monitor: Monitor, agent: Agent) -> None:
        await _look_for(monitor, 1.0)
        operator = await cluster.operator()
        await operator.delete(znodes.LEADER)
        another = replace(agent.context.identity, broker=BrokerId("other:8080"), instance="other")
        await operator.create(znodes.LEADER, another.leader_content(1), ephemeral=True)
        await _look_for(monitor, 18.0)
        assert agent.app.member.registered

    assert _watched(tell) == [(Invariant.SOMEBODY_LEADS, znodes.LEADER)]


def test_a_question_to_a_healthy_sidecar_counts_and_no_other_does() -> None:
    async def tell(_: Cluster, monitor: Monitor, agent: Agent) -> None:
        topic = topic_of(WHOLE)
        agent.coordination.suspend()
        monitor.asked(agent, topic)
        agent.coordination.reconnect()
        await _look_for(monitor, 30.0)
        assert not monitor.violations
        for _number in range(14):
            monitor.asked(agent, topic)
            await _look_for(monitor, 2.0)

    assert _watched(tell) == [(Invariant.SERVED_WHEN_ASKED, WHOLE)]
