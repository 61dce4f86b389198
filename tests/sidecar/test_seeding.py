from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from leader_at_work import LeaderAtWork, leader_at_work
from seed_samples import GivenSeed, head, rates
from snapshot_samples import report
from waiting import eventually

from loadmanager.core import znodes
from loadmanager.core.averages import Average, BundleAverages
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.rates import Rates
from loadmanager.core.round_memory import RoundMemory
from loadmanager.core.seed import hour_of_week
from loadmanager.core.wire.standby import Standby, encode_standby
from loadmanager.leader import warm_start as seeding
from loadmanager.ports.history import SeedUnreadable
from loadmanager.ports.lookup import NotLeader, Unavailable

B1, B2 = BrokerId("b1:8080"), BrokerId("b2:8080")
NS = Namespace("t/ns")
BUNDLES = Boundaries.even(NS, 4).bundles
SIZES = dict(zip(BUNDLES, (1000.0, 10.0, 10.0, 980.0), strict=True))


@asynccontextmanager
async def beginner(seeds: GivenSeed) -> AsyncIterator[LeaderAtWork]:
    planner = Planner(settings=PlannerSettings(settle_s=0.0))
    async with leader_at_work(
        planner, round_interval_s=0.02, tick_interval_s=3600, seeds=seeds
    ) as at_work:
        await at_work.create_namespace(Boundaries.even(NS, 4))
        await at_work.report(report(B1, 0.1, {}), report(B2, 0.1, {}))
        yield at_work


def fresh(at_work: LeaderAtWork) -> GivenSeed:
    """Let the source have a seed of history that ended an hour ago."""
    seeds = at_work.context.seeds
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


async def test_parts_of_bundles_that_were_split_since_are_supposed_from_the_whole() -> None:
    async with beginner(GivenSeed()) as at_work:
        seeds = fresh(at_work)
        seeds.sizes = {Boundaries.even(NS, 1).bundles[0]: 1000.0}
        averages = await begin(at_work)
        assert averages.keys() == set(BUNDLES)
        total = sum(one.short.rates.msgs_in_per_s for one in averages.values())
        assert total == pytest.approx(1000.0)


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


async def test_nothing_is_asked_of_a_leader_that_is_still_being_opened() -> None:
    async with beginner(GivenSeed()) as at_work:
        seeds = fresh(at_work)
        seeds.hangs = True
        at_work.lead()
        await eventually(lambda: seeds.hours)
        with pytest.raises(Unavailable, match="no leader is at work"):
            at_work.leading.require_term()
        with pytest.raises(NotLeader):
            await at_work.leading.assign(BUNDLES[0])


async def test_without_any_seed_nothing_is_told() -> None:
    async with beginner(GivenSeed()) as at_work:
        assert await begin(at_work) == {}
        for result in ("used", "stale", "late", "unreadable", "foreign"):
            assert metric(at_work, "loadmanager_seeds_total", result=result) == 0


async def test_reports_soon_count_more_than_what_was_supposed() -> None:
    seeds = GivenSeed(sizes=dict.fromkeys(BUNDLES, 1000.0))
    async with leader_at_work(Planner(), round_interval_s=3600, seeds=seeds) as at_work:
        seeds.seed_head = head(at_work.context.clock.wall_ms())
        await at_work.create_namespace(Boundaries.even(NS, 4))
        await at_work.report(report(B1, 0.1, dict.fromkeys(BUNDLES, 0.0)))
        at_work.lead()

        def short() -> Rates:
            averages = at_work.leader_term.look().averages.get(BUNDLES[0])
            return averages.short.rates if averages else Rates(1e9)

        await eventually(lambda: at_work.leading.leader_term and short().msgs_in_per_s < 10.0)
