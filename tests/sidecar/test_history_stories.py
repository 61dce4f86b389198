import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from history_sinks import Archive, KeptHistory
from leader_at_work import LeaderAtWork, leader_at_work
from seed_samples import GivenSeed, head, rates
from snapshot_samples import report
from stories import served, start_hosts, story

from loadmanager.core import znodes
from loadmanager.core.averages import Average, BundleAverages
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.core.memory import RoundMemory
from loadmanager.core.orders import SplitOrder
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.seed import hour_of_week
from loadmanager.core.wire.standby import Standby, encode_standby
from loadmanager.leader import leader_state as seeding
from loadmanager.ports.history import SeedUnreadable
from tests.testbed.faults.agent import SESSION_S
from tests.testbed.faults.cluster import NAMESPACE, Cluster

BRISK: dict[str, Any] = {
    "split": {"enabled": False},
    "leader": {"round_interval_s": 5.0, "tick_interval_s": 1.0},
    "history": {"base_every_rounds": 3, "broker_class": "large"},
}


async def recorded(cluster: Cluster) -> tuple[Archive, Boundaries]:
    archive = Archive()
    cluster.build = archive.kept
    await start_hosts(cluster, 3)
    return archive, await served(cluster, 3)


def leaders(archive: Archive) -> list[KeptHistory]:
    return [sink for sink in archive.sinks if sink.count("term")]


@story(0, **BRISK)
async def test_every_agent_tells_each_report_that_it_publishes(cluster: Cluster) -> None:
    archive, boundaries = await recorded(cluster)
    owners = {bundle: cluster.server(bundle).name for bundle in boundaries.bundles}
    await cluster.until(
        lambda: (
            owners.keys()
            <= {
                bundle
                for sink in archive.sinks
                for record in sink.records
                if record.kind == "report"
                for bundle in record.body["bundles"]["bundle"]
            }
        )
    )
    for sink in archive.sinks:
        reports = sink.lines("report")
        assert [line["due"] for line in reports].count("first") == 1
        assert reports[0]["interval_s"] is None
        assert all(line["interval_s"] > 0 for line in reports[1:])
        assert {line["broker_class"] for line in reports} == {"large"}
        assert {line["broker"] for line in reports} == {sink.writer}
        owned = {bundle for line in reports for bundle in line["bundles"]["bundle"]}
        assert {bundle for bundle, owner in owners.items() if owner == sink.writer} <= owned


@story(0, **BRISK)
async def test_a_leader_tells_its_rounds_and_every_third_is_a_base(cluster: Cluster) -> None:
    archive, boundaries = await recorded(cluster)
    await cluster.until(lambda: archive.count("round") >= 7, within_s=60.0)
    (sink,) = leaders(archive)
    rounds = sink.lines("round")
    assert [line["round"] for line in rounds] == list(range(1, len(rounds) + 1))
    assert [line["round"] for line in rounds if line["base"]] == [1, 4, 7][: len(rounds)]
    last = rounds[-1]
    assert last["brokers"]["broker"] == sorted(host.name for host in cluster.hosts)
    assert (last["outcome"], last["steering"], last["mode"]) == ("quiet", "active", "safe")
    assert (last["shedder"], last["tick_interval_s"]) == ("ThresholdShedder", 1.0)
    assert json.loads(last["settings"])["shedder"]["strategy"] == "threshold"
    assessed = sink.lines("optimality")
    assert [line["round"] for line in assessed] == list(range(1, len(assessed) + 1))
    assert len(assessed) >= len(rounds) - 1
    for line in assessed:
        assert 0 < line["bound"] <= line["bound_within_policies"]
        assert line["largest"] == pytest.approx(line["bound"] * (1 + line["gap"]))
    base = sink.lines("bundles")[-1]
    assert set(boundaries.bundles) <= set(base["bundles"]["bundle"])
    reported = {(one["broker"], one["reported_at_ms"]) for one in archive.lines("report")}
    seen = zip(last["brokers"]["broker"], last["brokers"]["reported_at_ms"], strict=True)
    assert set(seen) <= reported


@story(0, **BRISK)
async def test_reports_and_ticks_give_the_leaders_own_averages(cluster: Cluster) -> None:
    archive, boundaries = await recorded(cluster)
    await cluster.until(lambda: archive.count("bundles") >= 3, within_s=90.0)
    (sink,) = leaders(archive)
    reports = {(one["broker"], one["reported_at_ms"]): one for one in archive.lines("report")}
    averages: dict[str, tuple[int, float]] = {}
    current: dict[str, dict[str, float]] = {}
    compared = 0
    for line in sink.lines("tick", "bundles"):
        if line["kind"] == "bundles":
            told = line["bundles"]
            for bundle, samples, mean in zip(
                told["bundle"], told["long_samples"], told["long_msgs_in_per_s"], strict=True
            ):
                if bundle in averages:
                    assert averages[bundle][0] == samples
                    assert averages[bundle][1] == pytest.approx(mean)
                    compared += 1
                averages[bundle] = (samples, mean)
            continue
        for broker, at_ms in zip(*line["taken"].values(), strict=True):
            columns = reports[broker, at_ms]["bundles"]
            current[broker] = dict(zip(columns["bundle"], columns["msgs_in_per_s"], strict=True))
        if line["sampled"] and averages:
            for bundle, rate in (item for one in current.values() for item in one.items()):
                samples, mean = averages.get(bundle, (0, 0.0))
                averages[bundle] = (samples + 1, (mean * samples + rate) / (samples + 1))
    assert compared >= len(boundaries.bundles)


@story(0, **BRISK)
async def test_a_move_by_hand_is_told_from_the_decision_to_its_end(cluster: Cluster) -> None:
    archive, boundaries = await recorded(cluster)
    bundle = boundaries.bundles[0]
    source = cluster.server(bundle)
    target = next(host for host in cluster.hosts if host is not source)
    await cluster.leader.app.bundle_requests.unload(
        NAMESPACE, bundle.rpartition("/")[2], target.name
    )
    await cluster.settled(boundaries.bundles)
    (sink,) = leaders(archive)
    *_, move = (line for line in sink.lines("move") if line["bundle"] == bundle)
    assert (move["source"], move["target"]) == (source.name, target.name)
    assert (move["cause"], move["outcome"], move["round"]) == ("requested", "moved", 0)
    *_, end = (line for line in sink.lines("hand_over") if line["bundle"] == bundle)
    assert (end["source"], end["target"], end["outcome"]) == (source.name, target.name, "finished")
    assert end["ordered_at_ms"] <= end["released_at_ms"] <= end["acquired_at_ms"]
    assert 0.0 <= end["pause_s"] <= end["took_s"]
    firsts = [line for line in sink.lines("move") if line["source"] is None]
    assert {line["bundle"] for line in firsts} == set(boundaries.bundles)
    assert {line["outcome"] for line in firsts} == {"placed"}
    numbers = [line["move"] for line in sink.lines("move")]
    assert numbers == list(range(1, len(numbers) + 1))


@story(0, **BRISK)
async def test_splits_and_merges_are_told_and_the_next_round_is_a_base(cluster: Cluster) -> None:
    archive, boundaries = await recorded(cluster)
    whole = boundaries.bundles[1]
    split = cluster.leader.app.bundle_requests.split
    await split(NAMESPACE, whole.rpartition("/")[2], SplitOrder("range_equally_divide"))
    await cluster.until(lambda: archive.count("cut"), within_s=60.0)
    (cut,) = archive.lines("cut")
    assert (cut["action"], cut["whole"], len(cut["parts"])) == ("split", whole, 2)
    (sink,) = leaders(archive)
    done = sink.count("round")
    await cluster.until(lambda: sink.count("round") > done)
    assert sink.lines("round")[done]["base"]
    lower, upper = cut["parts"]
    merge = cluster.leader.app.bundle_requests.merge
    await merge(NAMESPACE, lower.rpartition("/")[2], upper.rpartition("/")[2])
    await cluster.until(lambda: archive.count("cut") == 2, within_s=60.0)
    *_, joined = archive.lines("cut")
    assert (joined["action"], joined["whole"]) == ("merge", whole)
    assert joined["parts"] == [lower, upper]


@story(0, **BRISK)
async def test_the_next_leader_tells_a_term_of_its_own_and_who_left(cluster: Cluster) -> None:
    archive, _ = await recorded(cluster)
    await cluster.until(lambda: archive.count("round") >= 2)
    first = cluster.leader
    await first.kill()
    await cluster.until(
        lambda: (
            len(leaders(archive)) == 2 and all(sink.count("round") for sink in leaders(archive))
        ),
        within_s=4 * SESSION_S + 60.0,
    )
    former, present = sorted(leaders(archive), key=lambda one: one.lines("term")[0]["epoch"])
    assert former.writer == first.host.name
    assert present.lines("term")[0]["event"] == "began"
    assert present.lines("round")[0]["epoch"] > former.lines("round")[-1]["epoch"]
    assert present.lines("round")[0]["base"]
    assert len(present.lines("round")[0]["departed_ago_s"]) == 1


B1, B2 = BrokerId("b1:8080"), BrokerId("b2:8080")
NS = Namespace("t/ns")
BUNDLES = Boundaries.even(NS, 4).bundles
SIZES = dict(zip(BUNDLES, (1000.0, 10.0, 10.0, 980.0), strict=True))


@asynccontextmanager
async def beginner(seeds: GivenSeed) -> AsyncIterator[LeaderAtWork]:
    planner = Planner(settings=PlannerSettings(settle_s=0.0))
    async with leader_at_work(
        planner,
        round_interval_s=0.02,
        tick_interval_s=3600,
        read_seed=seeds.read,
    ) as at_work:
        await at_work.create_namespace(Boundaries.even(NS, 4))
        await at_work.report(report(B1, 0.1, {}), report(B2, 0.1, {}))
        yield at_work


def fresh(at_work: LeaderAtWork) -> GivenSeed:
    """Let the source have a seed of history that ended an hour ago."""
    seeds = getattr(at_work.context.read_seed, "__self__", None)
    assert isinstance(seeds, GivenSeed)
    seeds.seed_head = head(at_work.context.clock.wall_ms() - 3_600_000)
    seeds.sizes = SIZES
    return seeds


async def begin(at_work: LeaderAtWork) -> dict[BundleId, BundleAverages]:
    at_work.lead()
    await at_work.rounds(1)
    return dict(at_work.leader_term.look().averages)


def metric(at_work: LeaderAtWork, name: str, **labels: str) -> float:
    return at_work.registry.get_sample_value(name, labels) or 0.0


async def test_a_leader_without_a_past_knows_what_its_bundles_usually_do() -> None:
    async with beginner(GivenSeed()) as at_work:
        seeds = fresh(at_work)
        averages = await begin(at_work)
        assert averages.keys() == set(BUNDLES)
        assert averages[BUNDLES[0]].short == Average(10, 1, rates(1000.0))
        assert averages[BUNDLES[0]].long == Average(1000, 30, rates(1000.0))
        assert seeds.hours == [hour_of_week(at_work.context.clock.wall_ms())]
        assert metric(at_work, "loadmanager_seeded_bundles") == 4
        assert metric(at_work, "loadmanager_seeds_total", result="used") == 1
        # Its first placements are even by what bundles do, not by their number.
        loads = dict.fromkeys((B1, B2), 0.0)
        for one in BUNDLES:
            loads[await at_work.leader_term.assign(one)] += SIZES[one]
        assert max(loads.values()) <= 1.1 * sum(SIZES.values()) / 2


async def test_what_the_leader_before_left_is_kept_and_nothing_is_read() -> None:
    async with beginner(GivenSeed()) as at_work:
        seeds = fresh(at_work)
        left = BundleAverages(Average(10, 10, rates(5.0)), Average(1000, 400, rates(5.0)))
        await at_work.write(
            znodes.STATE, encode_standby(Standby(RoundMemory(), dict.fromkeys(BUNDLES, left)))
        )
        assert await begin(at_work) == dict.fromkeys(BUNDLES, left)
        assert seeds.hours == []


async def test_a_leader_that_inherited_only_the_heaviest_is_told_of_the_rest() -> None:
    async with beginner(GivenSeed()) as at_work:
        fresh(at_work)
        await at_work.report(report(B1, 0.1, dict.fromkeys(BUNDLES, 1.0)))
        left = BundleAverages(Average(10, 10, rates(5.0)), Average(1000, 400, rates(5.0)))
        await at_work.write(
            znodes.STATE, encode_standby(Standby(RoundMemory(), {BUNDLES[0]: left}))
        )
        averages = await begin(at_work)
        assert averages[BUNDLES[0]] == left
        assert averages[BUNDLES[3]].short.rates == rates(980.0)


@pytest.mark.parametrize(
    ("change", "result"),
    [
        (lambda s, now_ms: setattr(s, "seed_head", head(now_ms - 8 * 86_400_000)), "stale"),
        (lambda s, now_ms: setattr(s, "seed_head", head(now_ms, "west")), "foreign"),
        (lambda s, _: setattr(s, "error", SeedUnreadable("gone")), "unreadable"),
        (lambda s, _: setattr(s, "hangs", True), "late"),
    ],
)
async def test_a_seed_that_cannot_be_used_is_told_and_the_leader_begins_cold(
    monkeypatch: pytest.MonkeyPatch, change: object, result: str
) -> None:
    monkeypatch.setattr(seeding, "WITHIN_S", 0.05)
    async with beginner(GivenSeed()) as at_work:
        seeds = fresh(at_work)
        assert callable(change)
        change(seeds, at_work.context.clock.wall_ms())
        assert await begin(at_work) == {}
        assert metric(at_work, "loadmanager_seeds_total", result=result) == 1
        assert metric(at_work, "loadmanager_seeded_bundles") == 0
        assert {await at_work.leader_term.assign(one) for one in BUNDLES} == {B1, B2}
