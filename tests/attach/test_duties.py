"""What `attach` moves whatever the traffic: what policies require, and bundles without traffic."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attach_process import attached
from click.testing import CliRunner, Result
from fake_pulsar import FakePulsar

from loadmanager.cli import main
from loadmanager.core.bundle_traffic import CHANGE_EVENTS, SNAPSHOTS, BundleTraffic
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.core.plan import Cause
from loadmanager.core.policies import IsolationPolicy, Policies
from loadmanager.core.rates import Rates
from loadmanager.pulsar.answers import ClusterReader, PulsarCluster
from loadmanager.pulsar.balancing import Observer
from loadmanager.pulsar.client import Access, PulsarAdmin
from loadmanager.pulsar.observation import Observation, Rules, Strategy, observe
from loadmanager.pulsar.sampling import BrokerSample
from tests.attach.conftest import isolation_policy, seen

BROKERS = tuple(BrokerId(f"127.0.0.{number}:8080") for number in range(1, 5))
SYSTEM = Boundaries.even(Namespace("pulsar/system"), 4)


def test_a_policy_set_later_moves_what_it_forbids_with_that_reason(hosts: FakePulsar) -> None:
    assert "isolation" not in {move["cause"] for move in seen(hosts)["proposals"]}
    first = hosts.brokers[0]
    hosts.isolation["own"] = isolation_policy("bench/skew", ["127.0.0.1"])
    told = seen(hosts)
    forbidden = {bundle for one in hosts.brokers[1:] for bundle in one.owned}
    assert {move["bundle"] for move in told["proposals"]} == forbidden
    assert {(m["target"], m["cause"]) for m in told["proposals"]} == {(first.name, "isolation")}
    assert "isolation policy own keeps it off" in told["proposals"][0]["reason"]
    assert "5 moves (5 by isolation) would bring" in told["verdict"]
    assert len(seen(hosts, "--most-moves", "2")["proposals"]) == 2
    assert seen(hosts, "--exclude", "bench/*")["proposals"] == []


def test_groups_of_all_namespaces_are_read_and_spread(hosts: FakePulsar) -> None:
    other = "bench/other/0x00000000_0xffffffff"
    hosts.brokers[2].owned.append(other)
    hosts.groups.update({"bench/skew": "apart", "bench/other": "apart"})
    told = seen(hosts)
    leaving = {one for one in hosts.brokers[2].owned if one != other}
    assert {move["bundle"] for move in told["proposals"]} == leaving
    assert {move["cause"] for move in told["proposals"]} == {"anti_affinity"}
    assert "other namespaces of the anti-affinity group apart" in told["proposals"][0]["reason"]
    for bundle in leaving:
        hosts.hand_over(bundle, hosts.brokers[1])
    told = seen(hosts)
    assert told["proposals"] == []
    assert set(told["staying"].values()) == {"its namespace has an anti-affinity group"}


def test_failure_domains_are_used_where_pulsar_uses_them(hosts: FakePulsar) -> None:
    first, second, third = hosts.brokers
    for bundle in [*second.owned, *third.owned]:
        hosts.hand_over(bundle, first)
    other = "bench/other/0x00000000_0xffffffff"
    second.owned.append(other)
    hosts.groups.update({"bench/skew": "apart", "bench/other": "apart"})
    hosts.domains.update({"east": {"brokers": [first.name, second.name]}})
    assert seen(hosts)["proposals"] == []
    hosts.settings["failureDomainsEnabled"] = "true"
    (move,) = seen(hosts)["proposals"]
    assert (move["bundle"], move["target"]) == (other, third.name)
    first.tells("/admin/v2/clusters/research/failureDomains", '{"east": {"brokers": ["x"]}}')
    told = seen(hosts)
    assert told["proposals"] == []
    assert all("failure domains are not known" in why for why in told["staying"].values())


def test_a_namespace_whose_group_is_not_known_stays_and_others_move(pulsar: FakePulsar) -> None:
    first = pulsar.brokers[0]
    first.refuses("/admin/v2/namespaces/bench/skew/antiAffinity", 500, "no such luck")
    told = seen(pulsar)
    assert told["proposals"] == []
    (why,) = set(told["staying"].values())
    assert why.startswith("its anti-affinity group is not known")
    assert "no such luck" in why
    free = Boundaries.even(Namespace("bench/free"), 2)
    first.owned += free.bundles
    for number in range(16):
        topic = f"persistent://bench/free/topic-{number}"
        first.topics[topic], first.grows[topic] = [1e3] * 4, (50.0, 100.0, 5e3, 1e4)
    assert {move["bundle"] for move in seen(pulsar)["proposals"]} <= set(free.bundles)


def look(
    owned: Mapping[BrokerId, Mapping[BundleId, BundleTraffic]],
    rules: Rules | None = None,
    isolation: Mapping[str, IsolationPolicy] | None = None,
    **more: Any,
) -> Observation:
    cluster = PulsarCluster(
        name="research", brokers=BROKERS, isolation=Policies(isolation=isolation or {})
    )
    samples = {
        broker: BrokerSample(window_s=10.0, bundles=bundles) for broker, bundles in owned.items()
    }
    strategy = Strategy()
    strategy.take(cluster, samples, {})
    return observe(cluster, samples, {}, rules or Rules(), strategy=strategy, **more)


def traffic(msgs_per_s: float, needed: str = "", *, partial: bool = False) -> BundleTraffic:
    return BundleTraffic(
        msgs_in_per_s=msgs_per_s, bytes_in_per_s=1e3 * msgs_per_s, needed=needed, partial=partial
    )


@pytest.mark.parametrize(
    ("windows", "moves"),
    [
        ([{}] * 3, True),
        ([{}] * 2, False),
        # A message now and then does not make it one with traffic again.
        ([{}, {}, {}, {"msgs_in_per_s": 1.0}], True),
        ([{}, {}, {"msgs_in_per_s": 1.0}, {}], False),
        ([*[{}] * 3, *[{"msgs_in_per_s": 1.0}] * 3], False),
        # Pages that are repeated or incomplete, and the catching up of consumers, say nothing.
        ([{"repeated_s": 10.0}] * 4, False),
        ([{"partial": True}] * 4, False),
        ([{"passing": Rates(0.0, 5.0, 0.0, 5.0)}] * 4, False),
    ],
)
async def test_a_bundle_has_no_traffic_if_it_had_none_for_three_windows(
    pulsar: FakePulsar, windows: list[dict[str, Any]], *, moves: bool
) -> None:
    admin = PulsarAdmin(Access())
    observer = Observer(ClusterReader(admin, (pulsar.url,)))
    names = tuple(BrokerId(one.name) for one in pulsar.brokers)
    cluster = PulsarCluster(name="research", brokers=names)
    idle = Boundaries.even(Namespace("bench/skew"), 8).bundles[:2]
    for change in windows:
        repeated_s = change.get("repeated_s", 0.0)
        traffic = replace(BundleTraffic(), **{k: v for k, v in change.items() if k != "repeated_s"})
        sample = BrokerSample(window_s=10.0, bundles={}, repeated_s=repeated_s)
        samples = dict.fromkeys(names, sample)
        samples[names[0]] = replace(sample, bundles=dict.fromkeys(idle, traffic))
        seen = await observer.observe(cluster, samples, {})
    await admin.close()
    assert (Cause.COUNT in {one.cause for one in seen.proposals}) is moves


@pytest.mark.parametrize("move_system", [False, True])
def test_bundles_of_pulsars_own_namespaces_are_spread_only_on_request(*, move_system: bool) -> None:
    idle = dict.fromkeys(SYSTEM.bundles, BundleTraffic())
    owned = {BROKERS[0]: idle, BROKERS[1]: {}, BROKERS[2]: {}, BROKERS[3]: {}}
    seen = look(owned, Rules(move_system=move_system), idle=idle)
    assert len({one.target for one in seen.proposals}) == (3 if move_system else 0)
    assert {one.cause for one in seen.proposals} <= {Cause.COUNT}
    if move_system:
        assert seen.verdict == "3 moves spread bundles without traffic"


NEEDED = f"persistent://shop/orders/{CHANGE_EVENTS}"
ONE, OTHER, ELSEWHERE, _ = Boundaries.even(Namespace("shop/orders"), 4).bundles


@pytest.mark.parametrize(
    ("msgs_per_s", "other_stays", "pinned", "moved"),
    [
        # Another bundle of the same size helps as much.
        (40.0, False, (), OTHER),
        (40.0, True, (), ONE),
        (40.0, True, (CHANGE_EVENTS, SNAPSHOTS), None),
        # Less than 2 % of a broker's mean are not worth it.
        (0.3, True, (), None),
    ],
)
def test_change_events_move_when_no_other_bundle_helps(
    msgs_per_s: float, *, other_stays: bool, pinned: tuple[str, ...], moved: BundleId | None
) -> None:
    other = replace(traffic(40.0), non_persistent=other_stays)
    here = {ONE: traffic(msgs_per_s, NEEDED), OTHER: other}
    there = {ELSEWHERE: traffic(1.0)}
    seen = look({BROKERS[0]: here, BROKERS[1]: there}, Rules(pinned=pinned))
    assert [one.bundle for one in seen.proposals] == ([] if moved is None else [moved])
    assert (ONE in seen.staying) is bool(pinned)
    if moved == ONE:
        (one,) = seen.proposals
        assert "no bundle without topics that others need helps" in one.reason
    else:
        assert NEEDED in {**seen.staying, **seen.late}[ONE]


def test_a_bundle_with_change_events_is_split_as_any_other() -> None:
    (bundle,) = Boundaries.even(Namespace("shop/one"), 1).bundles
    topics = {f"persistent://shop/one/topic-{n}": Rates(50.0, 0.0, 5e4, 0.0) for n in range(4)}
    sample = BrokerSample(window_s=10.0, bundles={bundle: traffic(200.0, NEEDED)}, topics=topics)
    cluster = PulsarCluster(name="research", brokers=BROKERS[:2])
    samples = {BROKERS[0]: sample, BROKERS[1]: BrokerSample(window_s=10.0, bundles={})}
    strategy = Strategy()
    strategy.take(cluster, samples, {})
    seen = observe(cluster, samples, {}, Rules(split=True), strategy=strategy)
    assert [one.bundle for one in seen.splits] == [bundle]
    assert seen.proposals == ()
    # Here moves alone would do, though of bundles that move last: a split cannot be undone.
    every = [Boundaries.even(Namespace(f"shop/n{number}"), 1).bundles[0] for number in range(4)]
    one = replace(sample, bundles=dict.fromkeys(every, traffic(50.0, NEEDED)))
    samples, strategy = {**samples, BROKERS[0]: one}, Strategy()
    strategy.take(cluster, samples, {})
    seen = observe(cluster, samples, {}, Rules(split=True), strategy=strategy)
    assert seen.splits == ()
    assert len(seen.proposals) == 1


def test_a_drained_broker_gives_all_but_what_is_excluded_pinned_or_its_own() -> None:
    first, second, third, fourth = BROKERS
    names = Boundaries.even(Namespace("bench/skew"), 4).bundles
    own = BundleId(f"pulsar/research/{first}/0x00000000_0xffffffff")
    (kept,) = Boundaries.even(Namespace("bench/kept"), 1).bundles
    given = {
        names[0]: replace(traffic(10.0), non_persistent=True),
        names[1]: replace(traffic(20.0), internal="persistent://bench/skew/__offsets"),
        names[2]: traffic(30.0, partial=True),
        names[3]: traffic(5.0, CHANGE_EVENTS),
        SYSTEM.bundles[0]: BundleTraffic(),
        kept: traffic(1.0),
        own: BundleTraffic(),
    }
    owned = {first: given, second: {names[0]: BundleTraffic()}, third: {}}
    rules = Rules(exclude=("bench/kept",), pinned=(CHANGE_EVENTS,), move_partial=False)
    cluster = PulsarCluster(
        name="research",
        brokers=BROKERS[:3],
        cordoned=frozenset({first, third}),
        draining=frozenset({first, fourth}),
    )
    samples = {name: BrokerSample(window_s=10.0, bundles=one) for name, one in owned.items()}
    strategy = Strategy()
    strategy.take(cluster, samples, {})
    found = observe(cluster, samples, {}, rules, strategy=strategy)
    assert {(one.bundle, one.target) for one in found.proposals} == {
        (bundle, second) for bundle in (names[1], names[2], SYSTEM.bundles[0])
    }
    assert {one.cause for one in found.proposals} == {Cause.DRAINING}
    assert found.urgent
    assert "3 moves (3 by draining) would bring" in found.verdict
    left = found.leaving[first]
    assert left.keys() == given.keys() - {own}
    assert {bundle: why for bundle, why in left.items() if why} == {
        names[0]: f"listed by {first} and {second}",
        names[3]: f"holds {CHANGE_EVENTS}, which other topics of its namespace need",
        kept: "bench/kept is excluded",
    }
    assert found.leaving[fourth] == {}, "it has left the cluster"
    few = observe(cluster, samples, {}, replace(rules, most_moves=1), strategy=strategy)
    assert [one.bundle for one in few.proposals] == [SYSTEM.bundles[0]]
    assert few.leaving[first][names[1]] == ""
    shut_off = replace(cluster, cordoned=frozenset(BROKERS))
    shut = observe(shut_off, samples, {}, rules, strategy=strategy)
    assert shut.leaving[first][names[1]] == "no broker that may serve it takes bundles"


@pytest.fixture
def attach(hosts: FakePulsar, tmp_path: Path) -> Callable[..., Result]:
    given = ["attach", "--pulsar", hosts.url, "--state-dir", str(tmp_path)]
    return lambda *more: CliRunner().invoke(main, [*given, *more])


def test_a_broker_is_drained_also_while_paused_and_takes_nothing_until_it_is_uncordoned(
    hosts: FakePulsar, tmp_path: Path, attach: Callable[..., Result]
) -> None:
    first = hosts.brokers[0]
    drain, uncordon = ("--drain", first.name, "--drain-timeout"), ("--uncordon", first.name)
    former = {"format": 1, "brokers": {first.name: {"since_ms": 1, "left": 0}}}
    (tmp_path / "attach-research.drains").write_text(json.dumps(former), encoding="utf-8")
    unseen = attach(*drain, "0")
    assert unseen.exit_code == 1
    assert "no controller has begun; expected attach --balance to run" in unseen.stdout
    assert "takes bundles again" in attach(*uncordon).stdout
    assert "was not cordoned" in attach(*uncordon).stdout
    assert attach("--pause").exit_code == 0
    kept = "bench/kept/0x00000000_0xffffffff"
    leaving = len(first.owned)
    first.owned.append(kept)
    command = ["--pulsar", hosts.url, "--interval", "0.3", "--json", "--state-dir", str(tmp_path)]
    with attached(*command, "--balance", "--settle", "0", "--exclude", "bench/kept") as process:
        process.until("paused by attach --pause at 20")
        stays = "1 bundles are left, of which 1 stay: bench/kept is excluded"
        for _ in range(24):  # The first five seconds may be too few.
            partly = attach(*drain, "5")
            assert partly.exit_code == 1
            if stays in partly.stdout:
                break
        assert stays in partly.stdout
        assert first.owned == [kept]
        first.owned.clear()
        empty = attach(*drain, "60")
        assert empty.exit_code == 0
        assert f"{first.name} is empty: it is safe to stop" in empty.stdout
        assert len(hosts.unloads) == leaving
        assert "not paused" in attach("--resume").stdout
        assert attach("--resume").exit_code == 0
        process.until('"verdict"', times=2 + sum('"verdict"' in line for line in process.lines))
        assert first.name not in {target for _, target in hosts.unloads}
        assert attach(*uncordon).exit_code == 0
        process.until(f'"target": "{first.name}"')
        (tmp_path / "attach-research.cordons").write_text("[]", encoding="utf-8")
        process.until("expected the cordons of attach; remove it, and all brokers take bundles")
        process.end()


def test_what_cannot_be_cordoned_is_refused_with_what_to_do(
    hosts: FakePulsar, attach: Callable[..., Result]
) -> None:
    first, second, third = (one.name for one in hosts.brokers)

    def refused(*options: str) -> str:
        found = attach(*options)
        assert found.exit_code == 1, found.output
        return found.stderr

    assert "no broker of research; expected one of 127.0.0.1" in refused("--drain", "nobody:8080")
    hosts.isolation["own"] = isolation_policy("bench/skew", ["127.0.0.1"])
    assert "isolation policy own allows no other broker" in refused("--drain", first)
    hosts.isolation["own"] = isolation_policy(r"(bench)/\1", ["127.0.0.1"])
    assert attach("--cordon", second).exit_code == 0, "a policy that is refused is none"
    hosts.isolation.clear()
    assert attach("--cordon", third).exit_code == 0
    assert f"no broker of research besides {first} takes bundles" in refused("--cordon", first)
    told = json.loads(attach("--once", "--interval", "0.3", "--json").stdout)
    assert (told["cordoned"], told["draining"]) == (sorted([second, third]), {})
    assert {one["target"] for one in told["proposals"]} <= {first}
    assert f"{second}: cordoned, takes no bundle" in attach("--once", "--interval", "0.3").stdout
