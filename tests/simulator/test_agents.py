"""What modelled agents publish, held to the rules of real ones."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmanager.config.sections import ReportSettings
from loadmanager.core import report as real
from loadmanager.core.ids import BrokerId, BundleId, Namespace, bundle_id
from loadmanager.core.load import BrokerUrls, BundleStats, LoadReport, ResourceUsage
from loadmanager.core.report import Published, ReportRules
from loadmanager.core.scores import RESOURCES
from loadmanager.simulator.agents import READING, Agents, Gone, Measured, Readings, Reported, due
from loadmanager.simulator.scenario import NoiseSettings

BROKERS = (BrokerId("a:8080"), BrokerId("b:8080"))
# The rows are not in the order of the names.
BUNDLES = tuple(bundle_id(Namespace("t/n"), n * 16, n * 16 + 16) for n in (2, 0, 3, 1))
EXACT = NoiseSettings(usage_fraction=0.0, rate_fraction=0.0, delay_s=0.25)
STEADY = ReportSettings(jitter_fraction=0.0)


def agents(report: ReportSettings = STEADY, noise: NoiseSettings = EXACT, seed: int = 1) -> Agents:
    return Agents(BROKERS, BUNDLES, report, noise, np.random.default_rng(seed))


def measured(owner: Sequence[int] = (0, 0, 1, 1), brokers: int = 2, **changed: object) -> Measured:
    bundles = len(owner)
    plain = Measured(
        owner=np.array(owner, dtype=np.intp),
        rates=np.outer(np.arange(1.0, bundles + 1.0), [100.0, 200.0, 1e5, 2e5]),
        topics=np.arange(1, bundles + 1),
        producers=np.full(bundles, 2),
        consumers=np.full(bundles, 3),
        usage=np.array([[200.0 * (row + 1), 500.0, 0.0, 1e4, 2e4] for row in range(brokers)]),
        limit=np.array([[800.0, 4096.0, 0.0, 1e6, 1e6]] * brokers),
        present=np.ones(brokers, dtype=np.bool_),
        draining=np.zeros(brokers, dtype=np.bool_),
        started_at_ms=np.arange(1, brokers + 1),
    )
    return replace(plain, **changed)  # type: ignore[arg-type]  # fields by name


def brokers_told(published: tuple[Reported, ...]) -> list[str]:
    return [one.broker for one in published]


# Few values, so that much is alike; whole ones, so that their order in a sum does not matter.
rate = st.sampled_from([0.0, 1000.0, 1050.0, 1090.0, 1110.0])
bundle_stats = st.builds(
    BundleStats, msgs_in_per_s=rate, bytes_out_per_s=rate.map(lambda each: each * 1000)
)
reports = st.builds(
    LoadReport,
    broker=st.just(BROKERS[0]),
    urls=st.just(BrokerUrls(http_url="")),
    sidecar_url=st.just(""),
    reported_at_ms=st.just(0),
    started_at_ms=st.sampled_from([0, 0, 0, 1]),
    cpu=st.builds(
        ResourceUsage, st.sampled_from([400.0, 430.0, 500.0]), st.sampled_from([800.0, 0.0])
    ),
    bandwidth_in=st.builds(ResourceUsage, st.sampled_from([0.0, 60.0]), st.just(100.0)),
    bundles=st.dictionaries(st.sampled_from(BUNDLES[:1]), bundle_stats),
    draining=st.sampled_from([False, False, False, True]),
)
rules = st.builds(
    ReportRules,
    min_interval_s=st.sampled_from([0.0, 5.0]),
    max_interval_s=st.sampled_from([10.0, 60.0]),
    change_fraction=st.sampled_from([0.0, 0.1]),
    change_points=st.sampled_from([0.05, 0.5]),
    jitter_fraction=st.sampled_from([0.0, 0.5]),
)


def reading(report: LoadReport, at_s: float) -> Readings:
    usage = [_fraction(getattr(report, name)) for name in RESOURCES]
    traffic = report.totals.msgs_per_s, report.totals.bytes_per_s
    row = (at_s, usage, *traffic, report.draining, report.started_at_ms)
    return np.array([row], dtype=READING)


def _fraction(used: ResourceUsage | None) -> float:
    return (used.fraction or 0.0) if used is not None else 0.0


@given(
    rules=rules,
    last=st.none() | reports,
    current=reports,
    age_s=st.integers(0, 70).map(float),
    jitter=st.sampled_from([0.0, 0.25, 1.0]),
)
def test_reports_are_due_for_all_brokers_at_once_as_for_each_by_itself(
    rules: ReportRules, last: LoadReport | None, current: LoadReport, age_s: float, jitter: float
) -> None:
    stands = None if last is None else Published(last, 100.0)
    told = due(
        rules,
        np.array([last is not None]),
        np.zeros(1, READING) if last is None else reading(last, 100.0),
        reading(current, 100.0 + age_s),
        np.array([jitter]),
        other_bundles=np.array(
            [last is not None and last.bundles.keys() != current.bundles.keys()]
        ),
    )
    assert told.tolist() == [real.due(rules, stands, current, 100.0 + age_s, jitter) is not None]


def test_the_first_reports_say_what_each_broker_does() -> None:
    published = agents().sample(10.0, measured())
    report = published[0].report()
    assert brokers_told(published) == ["a:8080", "b:8080"]
    assert report.cpu == ResourceUsage(200.0, 800.0)
    assert report.direct_memory is None
    assert list(report.bundles) == [BUNDLES[1], BUNDLES[0]]
    assert report.bundles[BUNDLES[1]] == BundleStats(
        msgs_in_per_s=200.0,
        msgs_out_per_s=400.0,
        bytes_in_per_s=2e5,
        bytes_out_per_s=4e5,
        topics=2,
        producers=2,
        consumers=3,
    )
    assert report.gains == {BUNDLES[0], BUNDLES[1]}
    assert published[1].load().totals.msgs_in_per_s == 700.0


def test_a_report_is_seen_after_its_delay_and_once() -> None:
    every = agents(noise=EXACT.model_copy(update={"delay_s": 12.0}))
    every.sample(0.0, measured())
    assert every.news(11.9) == []
    assert {one.broker for one in every.news(12.0)} == set(BROKERS)
    assert every.news(12.0) == []
    busier = every.sample(20.0, measured(rates=measured().rates * 2))
    assert all(15.0 < one.at_s <= 20.0 for one in busier)
    assert [one.seen_s - one.at_s for one in busier] == [12.0, 12.0]
    assert every.news(40.0) == sorted(busier, key=lambda one: one.at_s)


def test_what_does_not_change_is_told_as_a_sign_of_life_from_the_beginning_on() -> None:
    every = agents()
    assert {one.at_s for one in every.sample(0.0, measured())} == {0.0}
    told = [step for step in range(1, 14) if every.sample(10.0 * step, measured())]
    assert told == [7, 13]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"rates": measured().rates * 1.05}, []),
        ({"rates": measured().rates * 1.2}, ["a:8080", "b:8080"]),
        ({"usage": measured().usage + np.array([[0, 0, 0, 4e5, 0], [0] * 5])}, ["a:8080"]),
        ({"owner": np.array([0, 0, 0, 1])}, ["a:8080", "b:8080"]),
        ({"draining": np.array([False, True])}, ["b:8080"]),
        ({"started_at_ms": np.array([7, 2])}, ["a:8080"]),
        ({"present": np.array([True, False])}, []),
    ],
)
def test_a_change_is_told_by_its_broker(changed: dict[str, np.ndarray], told: list[str]) -> None:
    every = agents()
    every.sample(10.0, measured())
    assert brokers_told(every.sample(20.0, measured(**changed))) == told  # type: ignore[arg-type]  # fields by name


def test_shorter_steps_than_samples_publish_at_the_moments_of_the_agent() -> None:
    every = agents()
    every.sample(0.0, measured())
    at_s: list[dict[str, float]] = []
    for busier, steps in ((2, range(1, 21)), (4, range(21, 41))):
        now = measured(rates=measured().rates * busier)
        told = [one for step in steps for one in every.sample(step / 2, now)]
        at_s.append({one.broker: one.at_s for one in told})
    assert all(5.0 < moment_s <= 10.0 for moment_s in at_s[0].values())
    assert len(set(at_s[0].values())) == 2
    assert at_s[1] == {broker: moment_s + 5.0 for broker, moment_s in at_s[0].items()}


@pytest.mark.parametrize("seed", range(20))
def test_steps_longer_than_a_report_may_be_old_leave_no_report_stale(seed: int) -> None:
    noise = NoiseSettings(delay_s=2.0)
    brokers = [BrokerId(f"b-{number}:8080") for number in range(8)]
    told = Agents(brokers, BUNDLES, STEADY, noise, np.random.default_rng(seed))
    plain = measured(brokers=8)
    for step in range(5):
        now_s = 240.0 * step
        told.sample(now_s, plain)
        seen = told.news(now_s)
        if step:
            assert sorted(one.broker for one in seen if one.seen_s > now_s - 10.0) == brokers


def varied(told: Sequence[Reported], row: int = 0) -> list[ResourceUsage]:
    return [cpu for one in told if one.row == row and (cpu := one.report().cpu) is not None]


def test_reports_say_how_usage_varied_since_the_brokers_bundles_changed() -> None:
    every = agents(ReportSettings(jitter_fraction=0.0, change_points=0.0))
    told: list[Reported] = []
    for step in range(1, 30):
        cpu = [200.0 if step % 2 else 240.0, 400.0]
        usage = np.array([[used, 500.0, 0.0, 1e4, 2e4] for used in cpu])
        told += every.sample(10.0 * step, measured(usage=usage))
    first, second, *_, last = varied(told)
    assert (first.mean, first.variance) == (None, None)
    assert (second.mean, second.variance) == (220.0, 800.0)
    assert (last.mean, last.variance) == (220.0, 480.0)
    assert {one.variance for one in varied(told, row=1)} <= {None, 0.0}
    assert np.array_equal(
        [one for one in told if one.row == 0][-1].load().variance[:2], [480.0, 0.0]
    )
    moved = every.sample(300.0, measured((0, 0, 0, 1)))
    assert {(one.mean, one.variance) for row in (0, 1) for one in varied(moved, row)} == {
        (None, None)
    }


def test_usage_is_the_mean_since_the_last_sample() -> None:
    every = agents(ReportSettings(sample_interval_s=10, jitter_fraction=0.0))
    every.sample(0.0, measured())
    told: list[Reported] = []
    for step in range(1, 31):
        usage = np.full((2, 5), 700.0 if step % 2 else 500.0)
        told += every.sample(float(step), measured(usage=usage))
    means = {float(one.usage[0]) for one in told if one.row == 0}
    assert all(500.0 < mean < 700.0 for mean in means)
    assert means


def test_a_broker_that_left_is_seen_to_be_gone_and_reports_anew_when_back() -> None:
    every = agents()
    every.sample(10.0, measured())
    every.news(15.0)
    away = measured((0, 0, -1, -1), present=np.array([True, False]))
    assert every.sample(20.0, away) == ()
    assert every.news(20.0) == []
    assert every.news(20.25) == [Gone(BROKERS[1], 1, 20.25)]
    (back,) = every.sample(30.0, measured((0, 0, -1, -1)))
    assert (back.broker, back.former, len(back.rows)) == ("b:8080", (), 0)


@settings(max_examples=40)
@given(
    story=st.lists(st.lists(st.integers(-1, 11), min_size=24, max_size=24), min_size=1, max_size=3)
)
def test_what_is_listed_is_what_is_owned_by_name(story: list[list[int]]) -> None:
    brokers = tuple(BrokerId(f"b{n}:1") for n in range(12))
    order = np.random.default_rng(3).permutation(24).tolist()
    bundles = [bundle_id(Namespace("t/n"), n, n + 1) for n in order]
    every = Agents(brokers, bundles, STEADY, EXACT, np.random.default_rng(1))
    stands: dict[BrokerId, set[BundleId]] = {}
    for step, owner in enumerate(story, 1):
        for told in every.sample(10.0 * step, measured(owner, brokers=12)):
            assert list(told.listing.names) == sorted(told.listing.names)
            assert [bundles[row] for row in told.rows] == list(told.listing.names)
            stands[told.broker] = set(told.listing.names)
        for row, broker in enumerate(brokers):
            assert stands[broker] == {bundles[n] for n in range(24) if owner[n] == row}
