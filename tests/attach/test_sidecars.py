"""Sidecars beside Pulsar brokers that own their bundles by themselves."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from fake_pulsar import FakeBroker, FakePulsar, lies_in
from prometheus_client import CollectorRegistry
from waiting import eventually

from loadmanager.adapters.clock import SystemClock
from loadmanager.common.cluster_conditions import ClusterDisagrees, Conditions, agree, conditions_of
from loadmanager.common.cluster_state import ClusterState
from loadmanager.common.context import Context, Identity
from loadmanager.config import Config
from loadmanager.core import znodes
from loadmanager.core.balancing import Balancing, BalancingMode
from loadmanager.core.bundle_task import TaskKind
from loadmanager.core.ids import BrokerId, BundleId, Namespace, parse_broker, parse_full_topic
from loadmanager.core.load import BrokerUrls, HostUsage, ResourceUsage
from loadmanager.core.wire.records import LeaderRecord, encode_balancing
from loadmanager.core.wire.standby import decode_standby
from loadmanager.leader.term import LeaderTerm
from loadmanager.ports.lookup import NamespaceUnknown, Unavailable
from loadmanager.pulsar.sidecar import BesidePulsar, make_pulsar_broker
from loadmanager.pulsar.state import SHEDDING, SWITCHES
from loadmanager.telemetry.metrics import Metrics
from loadmanager.wiring.application import Application, Sidecar
from tests.attach.conftest import isolation_policy
from tests.testbed.faults.agent import NoServer
from tests.testbed.memory import MemoryCoordination, MemoryService

SETTINGS: Mapping[str, Any] = {
    "report": {"sample_interval_s": 0.1, "min_interval_s": 0.1, "max_interval_s": 1},
    "leader": {"tick_interval_s": 0.1, "round_interval_s": 0.2, "settle_s": 0.2},
    "shedding": {
        "strategy": "uniform",
        "grace_period_s": 2,
        "settings": {"min_msgs_per_s": 1, "min_bytes_per_s": 1, "max_share": 0.5},
    },
}


class BusyProbe:
    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker

    def sample(
        self,
        *,
        broker_process_id: int | None = None,
        broker_port: int = 0,
        neighbour_ports: Collection[int] = (),
    ) -> HostUsage:
        del broker_process_id, broker_port, neighbour_ports
        msgs = sum(one[0] + one[1] for one in self._broker.grows.values())
        return HostUsage(
            window_s=1.0,
            cpu=ResourceUsage(5 + msgs / 20, 100),
            memory=ResourceUsage(10, 100),
            bandwidth_in=ResourceUsage(1, 100),
            bandwidth_out=ResourceUsage(1, 100),
        )


async def ask_leader(leader: LeaderRecord, bundle: BundleId) -> BrokerId:
    raise Unavailable(f"{leader.broker} was asked to place {bundle}")


@dataclass
class PulsarSidecar:
    context: Context
    application: Application
    coordination: MemoryCoordination
    beside: FakeBroker
    stopping: asyncio.Event
    task: asyncio.Task[None]

    @property
    def leads(self) -> bool:
        return self.application.leading.leader_term is not None

    def crash(self) -> None:
        """End it without a last word, its session at once."""
        self.coordination.suspend()
        self.task.cancel()
        self.coordination.expire()


@dataclass
class PulsarSidecars:
    """A cluster of them; each leaves within ``leave_s``."""

    pulsar: FakePulsar
    leave_s: float = 10.0
    service: MemoryService = field(default_factory=MemoryService)
    living: list[PulsarSidecar] = field(default_factory=list)

    async def start(self, beside: FakeBroker, **settings: Any) -> PulsarSidecar:
        config = Config.model_validate(
            {
                "broker": {"id": beside.name, "kind": "pulsar"},
                "zookeeper": {"chroot": "/lm"},
                **SETTINGS,
                **settings,
            }
        )
        coordination = MemoryCoordination(self.service, timeout_s=6.0, chroot="/lm")
        broker = make_pulsar_broker(config)
        clock, metrics = SystemClock(), Metrics(CollectorRegistry())
        context = Context(
            identity=Identity(
                broker=config.broker.id,
                urls=BrokerUrls(http_url=config.broker.http_url),
                sidecar_url=f"http://sidecar-{config.broker.id}",
                instance=f"{config.broker.id}/{len(self.living)}",
                started_at_ms=clock.wall_ms(),
                version="",
                host="here",
                process_id=1,
            ),
            coordination=coordination,
            cluster_state=ClusterState(coordination, clock, metrics),
            broker=broker,
            clock=clock,
            metrics=metrics,
        )
        ready: asyncio.Future[Application] = asyncio.get_running_loop().create_future()
        stopping = asyncio.Event()

        async def live() -> None:
            async with asyncio.TaskGroup() as commands:
                application = Application(
                    config,
                    context,
                    sample_host=BusyProbe(beside).sample,
                    ask_leader=ask_leader,
                    commands=commands,
                    rng=np.random.default_rng(7),
                    kind=BesidePulsar(broker, config.cluster.name),
                )
                ready.set_result(application)
                await Sidecar(context, NoServer(), application, broker.close).run(
                    stopping,
                    host="127.0.0.1",
                    port=7750,
                    conditions=conditions_of(config),
                    leave_s=self.leave_s,
                )

        task = asyncio.create_task(live())
        one = PulsarSidecar(context, await ready, coordination, beside, stopping, task)
        self.living.append(one)
        return one

    async def stop(self, one: PulsarSidecar) -> None:
        self.living.remove(one)
        one.stopping.set()
        await asyncio.wait_for(one.task, 30)

    def crash(self, one: PulsarSidecar) -> None:
        self.living.remove(one)
        one.crash()

    @property
    def leader(self) -> PulsarSidecar | None:
        return next((one for one in self.living if one.leads), None)

    async def ready(self) -> None:
        count = len(self.living)
        await eventually(
            lambda: (
                self.leader is not None
                and all(len(one.context.cluster_state.brokers) == count for one in self.living)
            )
        )


@asynccontextmanager
async def pulsar_sidecars(pulsar: FakePulsar) -> AsyncIterator[PulsarSidecars]:
    cluster = PulsarSidecars(pulsar)
    try:
        yield cluster
    finally:
        for one in list(cluster.living):
            await cluster.stop(one)
        await asyncio.sleep(0.05)  # Connections that were closed end in the loop's next turns.


OFF = dict.fromkeys(SWITCHES, "false")
NAMESPACE = Namespace("bench/skew")
OBSERVE = {"shedding": {"observe": True}}


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at brokers and at Pulsar's settings more often, so that no test has to wait."""
    monkeypatch.setattr("loadmanager.common.cluster_conditions._RETRY_S", 0.02)
    monkeypatch.setattr("loadmanager.pulsar.sidecar._PAUSE_S", 0.05)
    monkeypatch.setattr("loadmanager.pulsar.sidecar_term._LEAST_PAUSE_S", 0.1)
    monkeypatch.setattr("loadmanager.pulsar.sidecar_term.FIRST_WINDOW_S", 0.1)
    monkeypatch.setattr("loadmanager.pulsar.sidecar.OWNED_EVERY_S", 0.1)
    monkeypatch.setattr("loadmanager.pulsar.sidecar_term.CHECK_EVERY_S", 0.1)


@pytest.fixture
async def sidecars(pulsar: FakePulsar) -> AsyncIterator[PulsarSidecars]:
    async with pulsar_sidecars(pulsar) as cluster:
        yield cluster


async def start_all(sidecars: PulsarSidecars, **settings: object) -> None:
    for broker in sidecars.pulsar.brokers:
        await sidecars.start(broker, **settings)
    await sidecars.ready()


def term(sidecars: PulsarSidecars) -> tuple[PulsarSidecar, LeaderTerm]:
    leader = sidecars.leader
    assert leader is not None
    leader_term = leader.application.leading.leader_term
    assert leader_term is not None
    return leader, leader_term


def most_bundles(pulsar: FakePulsar) -> int:
    return max(len(one.grows) for one in pulsar.brokers)


def put_all_on_the_first(pulsar: FakePulsar) -> None:
    for bundle in [one for broker in pulsar.brokers[1:] for one in broker.owned]:
        pulsar.hand_over(bundle, pulsar.brokers[0])


async def test_traffic_on_one_broker_spreads(pulsar: FakePulsar, sidecars: PulsarSidecars) -> None:
    await start_all(sidecars)
    await eventually(lambda: most_bundles(pulsar) <= 4)
    assert sum(len(one.grows) for one in pulsar.brokers) + len(pulsar.unserved) == 8
    assert pulsar.dynamic == OFF
    leader, leader_term = term(sidecars)
    await eventually(lambda: {one.state.value for one in leader_term.tasks.ended} == {"serving"})
    # What was moved is seen where it is, and nothing is left under way.
    await eventually(lambda: not list(leader_term.tasks.tasks))
    await eventually(
        lambda: (
            {b: at.broker for b, at in leader.context.cluster_state.owners.items()}
            == {
                b: one.name
                for one in pulsar.brokers
                for b in one.owned
                if not b.startswith("pulsar/")
            }
        )
    )


async def test_a_bundle_of_two_brokers_stays(pulsar: FakePulsar, sidecars: PulsarSidecars) -> None:
    twice = BundleId(pulsar.brokers[0].owned[0])
    first, second, third = (parse_broker(one.name) for one in pulsar.brokers)
    pulsar.brokers[1].owned.append(twice)
    rarely = {"tick_interval_s": 0.3, "round_interval_s": 600, "settle_s": 0.5}
    await start_all(sidecars, leader=rarely)
    leader, leader_term = term(sidecars)
    lists = leader.context.cluster_state.lists
    await eventually(lambda: set(lists.listing(twice)) == {first, second})
    assert await leader_term.order_unload({twice: first}, third) == {}
    await eventually(lambda: any("listed by" in one.note for one in leader_term.tasks.ended))
    assert twice not in {bundle for bundle, _ in pulsar.unloads}


async def test_a_leader_that_only_observes_moves_nothing_and_leaves_pulsars_balancer_on(
    pulsar: FakePulsar, sidecars: PulsarSidecars
) -> None:
    await start_all(sidecars, **OBSERVE)
    leader, _ = term(sidecars)
    rounds = leader.context.metrics.rounds.labels("observed")
    await eventually(lambda: rounds._value.get() >= 3)
    assert (pulsar.unloads, pulsar.dynamic) == ([], {})
    reports = leader.context.cluster_state.loads.reports
    first = reports[pulsar.brokers[0].name].report  # type: ignore[index]  # names of brokers
    assert len(first.bundles) == 8
    assert first.totals.msgs_in_per_s > 0
    assert first.cpu is not None
    assert first.cpu.usage > 50
    assert first.version == "4.0.7"
    assert first.urls.broker_url == f"pulsar://binary-{pulsar.brokers[0].name}"
    assert leader.context.cluster_state.known_boundaries(NAMESPACE) is not None


async def test_pulsars_balancer_follows_ours(pulsar: FakePulsar, sidecars: PulsarSidecars) -> None:
    pulsar.dynamic[SHEDDING] = "true"
    await start_all(sidecars)
    await eventually(lambda: pulsar.dynamic == OFF)
    coordination = sidecars.living[0].coordination
    paused = encode_balancing(Balancing(mode=BalancingMode.PAUSED, by="test"))
    await coordination.create(znodes.BALANCING, paused)
    await eventually(lambda: pulsar.dynamic == {SHEDDING: "true"})
    await coordination.delete(znodes.BALANCING)
    await eventually(lambda: pulsar.dynamic == OFF)


async def test_after_a_crash_of_the_leader_another_one_goes_on_and_the_last_one_restores(
    pulsar: FakePulsar, sidecars: PulsarSidecars
) -> None:
    pulsar.dynamic[SHEDDING] = "true"
    await start_all(sidecars)
    await eventually(lambda: most_bundles(pulsar) <= 4)
    leader, _ = term(sidecars)
    sidecars.crash(leader)
    await eventually(lambda: sidecars.leader is not None)
    assert pulsar.dynamic == OFF
    put_all_on_the_first(pulsar)
    await sidecars.start(leader.beside)
    await sidecars.ready()
    await eventually(lambda: most_bundles(pulsar) <= 4)
    for one in list(sidecars.living)[:2]:
        await sidecars.stop(one)
        assert pulsar.dynamic == OFF
    await sidecars.stop(sidecars.living[0])
    assert pulsar.dynamic == {SHEDDING: "true"}


async def test_the_last_one_restores_also_what_older_brokers_keep_until_they_are_told(
    pulsar: FakePulsar, sidecars: PulsarSidecars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadmanager.pulsar.sidecar_term.SETTLE_S", 1.5)
    pulsar.older, sidecars.leave_s = True, 1.0
    one = await sidecars.start(pulsar.brokers[0])
    await eventually(lambda: pulsar.dynamic == OFF)
    await sidecars.stop(one)
    assert pulsar.dynamic == {}
    assert {pulsar.runtime(broker)[SHEDDING] for broker in pulsar.brokers} == {"true"}


async def test_nothing_moves_while_it_sheds(pulsar: FakePulsar, sidecars: PulsarSidecars) -> None:
    await start_all(sidecars)
    await eventually(lambda: most_bundles(pulsar) <= 4)
    leader, leader_term = term(sidecars)
    pulsar.dynamic[SHEDDING] = "true"
    await eventually(lambda: "was switched on by others" in leader_term.look().balancing.reason)
    assert leader_term.look().balancing.mode is BalancingMode.OBSERVING
    held = leader.context.metrics.balancing_held
    await eventually(lambda: held._value.get() == 1)
    await eventually(lambda: not list(leader_term.tasks.tasks))  # What was ordered before goes on.
    before = len(pulsar.unloads)
    put_all_on_the_first(pulsar)
    observed = leader.context.metrics.rounds.labels("observed")
    seen = observed._value.get()
    await eventually(lambda: observed._value.get() >= seen + 2)
    assert len(pulsar.unloads) == before
    assert pulsar.dynamic[SHEDDING] == "true"
    pulsar.dynamic[SHEDDING] = "false"
    await eventually(lambda: most_bundles(pulsar) <= 4)
    await eventually(lambda: held._value.get() == 0)


async def test_shedding_that_is_off_already_holds_the_leader_until_that_is_undone(
    pulsar: FakePulsar, sidecars: PulsarSidecars
) -> None:
    pulsar.dynamic[SHEDDING] = "false"
    await start_all(sidecars)
    _, leader_term = term(sidecars)
    await eventually(lambda: "is overridden with false" in leader_term.look().balancing.reason)
    assert "end it, or delete that override" in leader_term.look().balancing.reason
    assert (pulsar.unloads, pulsar.dynamic) == ([], {SHEDDING: "false"})
    del pulsar.dynamic[SHEDDING]
    await eventually(lambda: most_bundles(pulsar) <= 4)


async def test_lookups_name_the_observed_owner_and_else_whom_the_broker_names(
    pulsar: FakePulsar, sidecars: PulsarSidecars
) -> None:
    await start_all(sidecars, **OBSERVE)
    asked = sidecars.living[2]
    lookups, beside = asked.application.answering, asked.beside
    topic = parse_full_topic(next(iter(pulsar.brokers[0].grows)))
    leader, _ = term(sidecars)
    await eventually(lambda: leader.context.cluster_state.known_boundaries(NAMESPACE))
    owner = await lookups.find_owner(topic)
    assert owner.urls.broker_url == f"pulsar://binary-{pulsar.brokers[0].name}"
    assert owner.fencing_token > 0
    assert not [path for path in beside.asked if path.startswith("/lookup") and "skew" in path]
    # Nobody serves it: the broker's own lookup has Pulsar place it.
    bundle = next(one for one in pulsar.brokers[0].owned if lies_in(str(topic), one))
    pulsar.hand_over(bundle, None)
    pulsar.unloaded.append(bundle)
    await eventually(lambda: lookups.owner_if_known(topic) is None)
    owner = await lookups.find_owner(topic)
    assert (owner.broker, bundle in beside.owned) == (beside.name, True)
    with pytest.raises(NamespaceUnknown):
        await lookups.find_owner(parse_full_topic("persistent://bench/none/t"))


async def test_what_must_stay_is_listed_and_not_reported_so_that_nobody_moves_it(
    pulsar: FakePulsar, sidecars: PulsarSidecars
) -> None:
    first = pulsar.brokers[0]
    stays = BundleId("public/functions/0x00000000_0xffffffff")
    volatile = BundleId("bench/volatile/0x00000000_0xffffffff")
    first.owned += [stays, volatile]
    first.topics["non-persistent://bench/volatile/t"] = [0.0, 0.0, 0.0, 0.0]
    first.grows["non-persistent://bench/volatile/t"] = (900.0, 900.0, 900.0, 900.0)
    await start_all(sidecars)
    await eventually(lambda: most_bundles(pulsar) <= 4)
    leader, leader_term = term(sidecars)
    assert {stays, volatile} <= leader.context.cluster_state.owners.keys()
    assert not {stays, volatile} & leader_term.tasks.assigned.keys()
    assert not {stays, volatile} & {bundle for bundle, _ in pulsar.unloads}


async def test_moves_empty_a_drained_broker(pulsar: FakePulsar, sidecars: PulsarSidecars) -> None:
    await start_all(sidecars, **OBSERVE)
    first = pulsar.brokers[0]
    await sidecars.living[1].coordination.create(znodes.draining(first.name), b"{}")  # type: ignore[arg-type]  # the name of a broker
    await eventually(lambda: not first.grows and not pulsar.unserved)
    assert all(bundle.startswith("pulsar/") for bundle in first.owned)


async def test_what_somebody_has_unloaded_rests_under_the_next_leader_too(
    pulsar: FakePulsar, sidecars: PulsarSidecars
) -> None:
    rarely = {"tick_interval_s": 0.3, "round_interval_s": 600, "settle_s": 0.5}
    await start_all(sidecars, leader=rarely, **OBSERVE)
    leader, leader_term = term(sidecars)
    first, second = (parse_broker(one.name) for one in pulsar.brokers[:2])
    bundle = BundleId(pulsar.brokers[0].owned[0])
    await eventually(lambda: leader_term.tasks.assigned.get(bundle) == first)
    assert await leader_term.order_unload({bundle: first}, second) == {}
    state = await leader.coordination.get(znodes.STATE)
    assert state is not None
    assert bundle in decode_standby(znodes.STATE, state.data).memory.moved_at_s


async def test_a_broker_that_does_not_answer_is_taken_out_until_it_does(
    sidecars: PulsarSidecars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadmanager.pulsar.sidecar.LOST_AFTER_S", 0.5)
    await start_all(sidecars, **OBSERVE)
    mute = sidecars.living[2]

    async def unwell(_request: web.Request) -> web.Response:
        return web.Response(status=500)

    mute.beside.instead["/admin/v2/brokers/ready"] = unwell
    cluster_state = sidecars.living[0].context.cluster_state
    await eventually(lambda: mute.beside.name not in cluster_state.brokers)
    # The registration is deleted a moment before the agent knows that it has ended.
    await eventually(lambda: any("500" in why for why in mute.application.member.unready()))
    mute.beside.instead.clear()
    await eventually(lambda: mute.beside.name in cluster_state.brokers)
    assert not list(mute.application.member.unready())


def with_two_topics(first: FakeBroker) -> tuple[str, str, str]:
    """Return a bundle of the broker, its topic, and another one with the same traffic."""
    whole = first.owned[0]
    topic = next(one for one in first.topics if lies_in(one, whole))
    other = next(name for n in range(1000) if lies_in(name := f"{topic}-{n}", whole))
    first.topics[other], first.grows[other] = [0.0] * 4, first.grows[topic]
    return whole, topic, other


@pytest.mark.parametrize("algorithm", ["flow_or_qps_equally_divide", "topic_count_equally_divide"])
async def test_a_bundle_that_is_too_large_is_cut_between_its_topics(
    pulsar: FakePulsar, sidecars: PulsarSidecars, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    monkeypatch.setattr("loadmanager.pulsar.sidecar_term.WINDOW_S", 0.1)
    whole, topic, other = with_two_topics(pulsar.brokers[0])
    await start_all(sidecars, split={"max_msgs_per_s": 1, "algorithm": algorithm})
    await eventually(lambda: all(whole not in one.owned for one in pulsar.brokers))
    _, leader_term = term(sidecars)

    def bundles() -> list[str]:
        return [one for broker in pulsar.brokers for one in broker.owned]

    # A half may be on its way when the other one is served.
    await eventually(lambda: not pulsar.unserved and not pulsar.unloaded and len(bundles()) == 10)
    halves = [one for one in bundles() if lies_in(topic, one) or lies_in(other, one)]
    assert len(halves) == 2
    await eventually(lambda: whole not in leader_term.tasks.assigned)
    ended = [one for one in leader_term.tasks.ended if one.bundle == whole]
    assert ("split", "serving") in {(one.kind.value, one.state.value) for one in ended}


async def test_a_refused_split_is_final(pulsar: FakePulsar, sidecars: PulsarSidecars) -> None:
    pulsar.cuts = False
    with_two_topics(pulsar.brokers[0])
    await start_all(sidecars, split={"max_msgs_per_s": 1})
    leader, leader_term = term(sidecars)

    def splits() -> list[str]:
        return [one.state.value for one in leader_term.tasks.ended if one.kind is TaskKind.SPLIT]

    await eventually(splits)
    rounds = leader.context.metrics.rounds.labels("quiet")
    seen = rounds._value.get()
    await eventually(lambda: rounds._value.get() >= seen + 2)
    assert splits() == ["failed"]


async def test_boundaries_follow_any_split(pulsar: FakePulsar, sidecars: PulsarSidecars) -> None:
    await start_all(sidecars, **OBSERVE)
    assert sidecars.leader is not None
    cluster_state = sidecars.leader.context.cluster_state
    await eventually(lambda: cluster_state.known_boundaries(NAMESPACE))
    first = pulsar.brokers[0]
    whole = next(one for one in first.owned if one.startswith(NAMESPACE))
    lower = whole.rpartition("/")[2].partition("_")[0]
    upper = whole.rpartition("_")[2]
    cut = f"0x{(int(lower, 16) + int(upper, 16)) // 2:08x}"
    first.owned.remove(whole)
    first.owned += [f"{NAMESPACE}/{lower}_{cut}", f"{NAMESPACE}/{cut}_{upper}"]

    def follows() -> bool:
        known = cluster_state.known_boundaries(NAMESPACE)
        return known is not None and int(cut, 16) in known.bounds

    await eventually(follows)


async def test_groups_and_isolation_policies_are_entered_as_pulsar_has_them(
    pulsar: FakePulsar, sidecars: PulsarSidecars
) -> None:
    pulsar.groups[NAMESPACE] = "apart"
    first = pulsar.brokers[0].name.replace(".", "\\.")
    pulsar.isolation["alone"] = isolation_policy("bench/.*", [first])
    await start_all(sidecars)
    leader, leader_term = term(sidecars)
    await eventually(
        lambda: leader_term.look().view.policies.anti_affinity.get(NAMESPACE) == "apart"
    )
    assert "alone" in leader_term.look().view.policies.isolation
    rounds = leader.context.metrics.rounds.labels("quiet")
    await eventually(lambda: rounds._value.get() >= 2)
    assert pulsar.unloads == []


async def test_failure_domains_are_entered_as_pulsar_has_them(
    pulsar: FakePulsar, sidecars: PulsarSidecars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadmanager.pulsar.sidecar_term.POLICIES_EVERY_S", 0.1)
    names = [one.name for one in pulsar.brokers]
    pulsar.domains |= {"east": {"brokers": names[:2]}, "west": {"brokers": names[2:]}}
    await start_all(sidecars, **OBSERVE)
    _, leader_term = term(sidecars)

    def seen() -> dict[str, str]:
        return {str(one): name for one, name in leader_term.look().view.policies.domains.items()}

    await eventually(lambda: seen() == {names[0]: "east", names[1]: "east", names[2]: "west"})
    del pulsar.domains["west"]
    await eventually(lambda: seen() == {names[0]: "east", names[1]: "east"})


async def test_a_cluster_without_isolation_policies_is_not_asked_for_them_at_each_look(
    sidecars: PulsarSidecars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadmanager.pulsar.sidecar_term.POLICIES_EVERY_S", 0.1)
    await start_all(sidecars)
    leader, _ = term(sidecars)
    asked = leader.beside.asked
    await eventually(lambda: asked.count("/admin/v2/clusters/research/failureDomains") >= 3)
    assert asked.count("/admin/v2/clusters/research/namespaceIsolationPolicies") == 1


async def test_sidecars_of_another_kind_are_refused_in_the_same_chroot(
    pulsar: FakePulsar, sidecars: PulsarSidecars
) -> None:
    one = await sidecars.start(pulsar.brokers[0])
    await eventually(lambda: one.application.member.registered)
    with pytest.raises(ClusterDisagrees, match="kind = 'pulsar'"):
        await agree(one.coordination, one.context.clock, Conditions(kind="contract"))
    # That is how `attach --restore --config` comes to what a leader stored.
    assert await agree(one.coordination, one.context.clock, Conditions()) == "crc32"


async def test_a_broker_id_that_pulsar_does_not_know_is_named(pulsar: FakePulsar) -> None:
    stranger = FakeBroker(name="127.0.0.1:1")
    async with pulsar_sidecars(pulsar) as cluster:
        one = await cluster.start(stranger, pulsar={"admin_url": pulsar.url})
        why = "[broker] id 127.0.0.1:1 is no active broker of research"
        await eventually(lambda: any(why in one for one in one.application.member.unready()))
