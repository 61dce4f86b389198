"""What holds for every strategy of `attach`: what never moves, who may take, and when."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from loadmanager.cli.attach_output import examine
from loadmanager.config.sections import (
    LeaderSettings,
    PlacementSettings,
    PlannerSettings,
    SheddingSettings,
)
from loadmanager.config.strategies import SHEDDER_NAMES, planner_of
from loadmanager.core.bundle_task import Pause, TaskEvent, advanced
from loadmanager.core.bundle_traffic import BundleTraffic
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, Namespace, namespace_of
from loadmanager.core.load import ResourceUsage
from loadmanager.core.move_limits import HeldReason
from loadmanager.core.plan import Cause, Reason
from loadmanager.core.policies import IsolationPolicy, Policies
from loadmanager.core.rates import Rates
from loadmanager.core.shedding.joint import JointShedder
from loadmanager.pulsar.answers import BUFFERS, PulsarCluster, addresses
from loadmanager.pulsar.observation import Observation, Rules, Strategy, observe
from loadmanager.pulsar.sampling import BrokerSample, HostFigures, Hosts, SampledLoads
from tests.attach.test_strategies import EAGER

BROKERS = tuple(BrokerId(f"127.0.0.{number}:8080") for number in range(1, 5))
SHOP, BANK = Namespace("shop/orders"), Namespace("bank/books")
MIB = 1024.0 * 1024.0


def strategy(name: str, *, acts: bool = True, placement: str | None = None) -> Strategy:
    shedding = SheddingSettings(strategy=name, settings=EAGER.get(name, {}))
    beside = PlacementSettings() if placement is None else PlacementSettings(strategy=placement)
    planner = planner_of(shedding, beside, PlannerSettings(), LeaderSettings())
    planner = replace(planner, settings=replace(planner.settings, settle_s=0.0))
    hosts = None if name == "uniform" else Hosts()
    loads = SampledLoads(addresses("http://any"), planner.weights, of_windows=name == "joint")
    return Strategy(name=name, planner=planner, loads=loads, hosts=hosts, acts=acts)


def samples(
    *, began_s: float = 0.0, non_persistent: bool = False, internal: str = ""
) -> dict[BrokerId, BrokerSample]:
    one = BundleTraffic(
        msgs_in_per_s=2e3,
        msgs_out_per_s=4e3,
        bytes_in_per_s=4 * MIB,
        bytes_out_per_s=8 * MIB,
        topics=1,
        non_persistent=non_persistent,
        internal=internal,
    )
    bundles = [*Boundaries.even(SHOP, 8).bundles, *Boundaries.even(BANK, 8).bundles]
    return {
        broker: BrokerSample(
            window_s=10.0,
            bundles=dict.fromkeys(bundles, one) if broker == BROKERS[0] else {},
            began_s=began_s,
            host=HostFigures(
                usages={"cpu": ResourceUsage(180.0 if broker == BROKERS[0] else 10.0, 200.0)},
                age_s=20.0,
            ),
        )
        for broker in BROKERS
    }


def cluster(isolation: Policies | None = None, host_interval_s: float = 0.0) -> PulsarCluster:
    return PulsarCluster(
        name="research",
        brokers=BROKERS,
        version="4.0.7",
        manager="modular",
        isolation=Policies() if isolation is None else isolation,
        host_interval_s=host_interval_s,
    )


def look(
    decides: Strategy,
    there: Mapping[BrokerId, BrokerSample],
    rules: Rules | None = None,
    *,
    at: PulsarCluster | None = None,
) -> Observation:
    at = at or cluster()
    known, missing = decides.take(at, there, {})
    seen = observe(at, known, missing, rules or Rules(), strategy=decides)
    decides.record_choice()
    return seen


def moved(seen: Observation) -> set[Namespace]:
    return {namespace_of(one.bundle) for one in seen.proposals}


@pytest.mark.parametrize("name", SHEDDER_NAMES)
def test_no_strategy_moves_what_never_moves_or_more_than_it_may(name: str) -> None:
    assert moved(look(strategy(name), samples()))
    assert moved(look(strategy(name), samples(), Rules(exclude=("shop/*",)))) == {BANK}
    assert moved(
        look(strategy(name), samples(), at=cluster(Policies(anti_affinity={BANK: "x"})))
    ) == {SHOP}
    assert not moved(look(strategy(name), samples(non_persistent=True)))
    assert moved(
        look(strategy(name), samples(non_persistent=True), Rules(move_non_persistent=True))
    )
    assert not moved(look(strategy(name), samples(internal="persistent://shop/orders/__x")))
    assert len(look(strategy(name), samples(), Rules(most_moves=1)).proposals) == 1
    assert not look(strategy(name), samples(), Rules(most_moves=0)).proposals


@pytest.mark.parametrize("name", SHEDDER_NAMES)
def test_isolation_policies_hold_for_every_strategy(name: str) -> None:
    own = IsolationPolicy(
        namespaces=("shop/.*",), primary=(r"127\.0\.0\.1", r"127\.0\.0\.2"), secondary=()
    )
    seen = look(strategy(name), samples(), at=cluster(Policies(isolation={"own": own})))
    targets: dict[Namespace, set[BrokerId]] = {SHOP: set(), BANK: set()}
    for one in seen.proposals:
        targets[namespace_of(one.bundle)].add(one.target)
    assert seen.proposals
    assert targets[SHOP] <= {BROKERS[1]}
    assert targets[BANK] <= {BROKERS[2], BROKERS[3]}


@pytest.mark.parametrize("name", SHEDDER_NAMES)
def test_a_broker_without_a_sample_neither_gives_nor_takes(name: str) -> None:
    decides = strategy(name)
    there = samples()
    look(decides, there)
    del there[BROKERS[1]]
    again = look(decides, there)
    assert BROKERS[1] not in {one.target for one in again.proposals}


class Watched:
    """A strategy whose clock a test sets, and what it sees and has ordered."""

    def __init__(self, name: str, *, acts: bool = True, host_interval_s: float = 0.0) -> None:
        self.now_s = 1000.0
        self.at = cluster(host_interval_s=host_interval_s)
        self.decides = strategy(name, acts=acts)
        self.decides.loads.monotonic_s = lambda: self.now_s

    def look(self) -> Observation:
        return look(self.decides, samples(began_s=self.now_s - 10.0), at=self.at)

    def carry_out(self, seen: Observation) -> None:
        task = seen.proposals[0]
        for event in (TaskEvent.ORDER_WRITTEN, TaskEvent.DONE):
            task = advanced(task, event, self.now_s)
            self.decides.task(task)


@pytest.mark.parametrize("name", [name for name in SHEDDER_NAMES if name != "uniform"])
def test_nothing_is_decided_on_figures_of_hosts_of_before_the_last_move(name: str) -> None:
    watched = Watched(name)
    watched.carry_out(watched.look())
    # The window began after the move; what the hosts' figures show began 20 s before now.
    watched.now_s += 15.0
    early = watched.look()
    assert not early.proposals
    assert [one.reason for one in early.refusals] == [Reason.COOLING_DOWN]
    assert "began before the last move ended" in early.verdict
    watched.now_s += 10.0
    assert "began before the last move ended" not in watched.look().verdict


def test_a_bundle_without_traffic_that_moves_delays_no_decision() -> None:
    watched = Watched("threshold")
    seen = watched.look()
    idle = replace(seen, proposals=(replace(seen.proposals[0], cause=Cause.COUNT),))
    watched.carry_out(idle)
    watched.now_s += 15.0
    assert "began before the last move ended" not in watched.look().verdict


def test_a_bundle_that_moved_rests_and_others_may_move() -> None:
    watched = Watched("threshold")
    first = watched.look()
    watched.carry_out(first)
    watched.now_s += 60.0
    again = watched.look()
    # Only the first one was ordered; the other moves of that look are free to be chosen again.
    assert first.proposals[0].bundle not in {one.bundle for one in again.proposals}
    assert first.proposals[1].bundle in {one.bundle for one in again.proposals}


def test_it_decides_once_for_each_time_that_hosts_are_measured() -> None:
    watched = Watched("avg", host_interval_s=60.0)
    assert watched.look().proposals
    watched.now_s += 30.0
    between = watched.look()
    assert not between.proposals
    assert "brokers measure their hosts every 60 s; the next decision is in 30 s" in between.verdict
    watched.now_s += 30.0
    assert watched.look().proposals


def test_without_acting_the_last_choice_is_shown_until_the_next() -> None:
    watched = Watched("threshold", acts=False, host_interval_s=60.0)
    chosen = watched.look().proposals
    watched.now_s += 30.0
    assert watched.look().proposals == chosen


@pytest.mark.parametrize(
    ("pauses_s", "priced_s"),
    [((), 1.0), ((0.3, 0.4), 1.0), ((0.3, 4.1, 9.0), 4.0), ((90.0,), 60.0)],
)
def test_moves_are_priced_by_measured_pauses(pauses_s: tuple[float, ...], priced_s: float) -> None:
    watched = Watched("joint")
    (one, *_) = watched.look().proposals
    for pause_s in pauses_s:
        ordered = advanced(one, TaskEvent.ORDER_WRITTEN, 0.0)
        watched.decides.task(
            advanced(ordered, TaskEvent.DONE, watched.now_s, pause=Pause(5.0, 5.0 + pause_s))
        )
    watched.look()
    decided = watched.decides.decided
    assert decided is not None
    assert isinstance(decided.planner.shedder, JointShedder)
    assert decided.planner.shedder.pause_s == priced_s


def test_a_task_that_was_never_ordered_delays_nothing() -> None:
    watched = Watched("threshold")
    (one, *_) = watched.look().proposals
    watched.decides.task(advanced(one, TaskEvent.TERM_ENDED, watched.now_s, "held: budget"))
    watched.now_s += 1.0
    assert one.bundle in {again.bundle for again in watched.look().proposals}


def at_rates(*shares: float, **more: Any) -> dict[BrokerId, BrokerSample]:
    """Return samples of brokers with four bundles each, that have so many messages a second."""
    bundles = iter(Boundaries.even(SHOP, 16).bundles)
    return {
        broker: BrokerSample(
            window_s=10.0,
            bundles={
                next(bundles): BundleTraffic(share / 4, 0.0, 100 * share / 4, 0.0, topics=1, **more)
                for _ in range(4)
            },
        )
        for broker, share in zip(BROKERS, shares, strict=True)
    }


def passing(sample: BrokerSample, msgs_per_s: float) -> BrokerSample:
    brief = Rates(msgs_out_per_s=msgs_per_s / 4, bytes_out_per_s=25 * msgs_per_s)
    bundles = {name: replace(one, passing=brief) for name, one in sample.bundles.items()}
    return replace(sample, bundles=bundles)


def test_what_passes_moves_nothing_and_its_broker_receives_nothing() -> None:
    even, uneven = at_rates(100, 100, 100, 100), at_rates(400, 100, 0, 100)
    busy = passing(even[BROKERS[1]], 10_000)
    seen = look(Strategy(), {**even, BROKERS[1]: busy})
    assert (seen.proposals, seen.plan and seen.plan.max_over_mean) == ((), 1.0)
    assert seen.shares["passing"] > 0.9
    assert BROKERS[2] in {one.target for one in look(Strategy(), uneven).proposals}
    into = look(Strategy(), {**uneven, BROKERS[2]: passing(uneven[BROKERS[2]], 10_000)})
    assert BROKERS[2] not in {one.target for one in into.proposals}


def test_a_bundle_that_two_brokers_list_stays_and_is_a_problem() -> None:
    there = at_rates(1_000, 0, 0, 0)
    (twice, traffic), *_ = there[BROKERS[0]].bundles.items()
    second = there[BROKERS[1]]
    there[BROKERS[1]] = replace(second, bundles={**second.bundles, twice: traffic})
    seen = look(Strategy(), there, Rules(split=True))
    assert twice not in {one.bundle for one in (*seen.proposals, *seen.splits)}
    assert seen.proposals
    assert seen.staying[twice] == f"listed by {BROKERS[0]} and {BROKERS[1]}"
    one = next(one for one in examine(seen) if one.about == twice)
    assert (one.level, "unload --bundle 0x00000000_0x10000000" in one.remedy) == ("problem", True)


def test_the_verdict_names_what_is_counted_what_may_move_and_what_holds_the_rest() -> None:
    there = at_rates(100, 100, 100, 100)
    held = at_rates(0, 300, 0, 0, non_persistent=True)[BROKERS[1]]
    there[BROKERS[1]] = held
    there[BROKERS[2]] = replace(
        passing(there[BROKERS[2]], 200),
        homeless=BundleTraffic(100.0, 0.0, 10_000.0, 10_000.0, topics=7),
    )
    seen = look(Strategy(), there)
    # 300 + 300 held + 200 that pass are counted, of 1,000.
    assert seen.shares == pytest.approx(
        {"counted": 0.8, "mayMove": 0.3, "non-persistent": 0.3, "passing": 0.2}
    )
    share = (
        "80 % of the traffic is counted, 30 % may move (held: non-persistent 30 %, passing 20 %)"
    )
    assert seen.verdict.endswith(f"; {share}")
    found = {one.what: one.level for one in examine(seen)}
    assert found[share] == found["7 topics lie in no listed bundle (moving?)"] == "note"
    repeats = replace(there[BROKERS[3]], repeated_s=20.0)
    also = look(Strategy(), {**there, BROKERS[3]: repeats})
    assert also.verdict.endswith("; 1 brokers repeat pages: their rates are of 30 s")
    noted = examine(also)
    assert any(BUFFERS in one.remedy and str(BROKERS[3]) in one.what for one in noted)
    by_count = {
        broker: replace(
            one, bundles={name: replace(b, bytes_in_per_s=0.0) for name, b in one.bundles.items()}
        )
        for broker, one in at_rates(100, 0, 0, 0).items()
    }
    assert look(Strategy(), by_count).shares["counted"] == 1.0


@pytest.mark.parametrize(("steps", "cut"), [(20, True), (20_000_000, False)])
def test_a_round_that_used_up_its_steps_makes_what_it_found_and_says_so(
    steps: int, cut: bool
) -> None:
    decides = strategy("joint")
    settings = replace(decides.planner.settings, steps_per_round=steps)
    decides.planner = replace(decides.planner, settings=settings)
    seen = look(decides, samples())
    assert bool(seen.proposals) is not cut or len(seen.proposals) == 1
    assert (HeldReason.WORK in seen.holds) is cut
    assert ("the round was cut short: 127.0.0.1:8080 with 16 bundles" in seen.verdict) is cut
