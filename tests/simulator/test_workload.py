"""Loads over time: patterns, traces, and the topics and bundles that have them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from loadmanager.core.bundles import Boundaries
from loadmanager.core.hashing import position
from loadmanager.core.ids import Namespace, parse_topic
from loadmanager.core.scores import FloatArray
from loadmanager.simulator.scenario import Even, Hot, Load, LogNormal, Pattern, Skew, Zipf
from loadmanager.simulator.traces import Trace
from loadmanager.simulator.workload import Factor, Topics, Workload, process, weights

HOUR_S = 3600.0
SPACE = Namespace("tenant/space")


def pattern(**fields: object) -> Pattern:
    return TypeAdapter[Pattern](Pattern).validate_python(fields)


def at_times(wanted: Pattern, times_s: list[float], bundles: int = 1) -> list[Factor]:
    at_work = process(wanted, bundles, np.random.default_rng(1))
    return [at_work(time_s) for time_s in times_s]


def generator() -> np.random.Generator:
    return np.random.default_rng(1)


def of_load(*loads: Load) -> Workload:
    return Workload(Topics(loads, (), 1, generator()), None, generator())


def replayed(
    names: str, times_s: list[float], rates: np.ndarray, bundles: int = 1, **how: Any
) -> tuple[Topics, Workload]:
    """Return the topics of a trace, one for each letter, and the load that it makes of them."""
    topics = tuple(f"persistent://{SPACE}/{name}" for name in names)
    trace = Trace(times_s=np.array(times_s), topics=topics, rates=rates)
    found = Topics((), topics, bundles, generator())
    return found, Workload(found, trace, generator(), **how)


@pytest.mark.parametrize(("kind", "period_h"), [("day", 24), ("week", 168)])
def test_a_day_and_a_week_are_highest_at_their_peak(kind: str, period_h: float) -> None:
    tide = pattern(kind=kind, amplitude=0.4, peak_h=10.0)
    hours = [10.0, 10.0 + period_h / 4, 10.0 + period_h / 2, 10.0 + period_h]
    found = at_times(tide, [hour * HOUR_S for hour in hours])
    assert found == pytest.approx([1.4, 1.0, 0.6, 1.4])


def test_jitter_has_the_mean_1_and_the_deviation_asked_for() -> None:
    noise = pattern(kind="jitter", fraction=0.3, memory_s=0.0)
    (found,) = at_times(noise, [0.0], bundles=200_000)
    assert np.mean(found) == pytest.approx(1.0, abs=0.01)
    assert np.std(found) == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize("kind", ["jitter", "burst"])
def test_what_is_the_same_for_a_load_is_one_number(kind: str) -> None:
    (found,) = at_times(pattern(kind=kind, each="load"), [0.0], bundles=50)
    assert np.size(found) == 1


def test_bursts_come_as_often_and_last_as_long_as_asked_for() -> None:
    bursts = pattern(kind="burst", factor=4.0, length_s=60.0, every_s=600.0)
    times_s = np.arange(0.0, 6000.0, 20.0).tolist()
    found = np.array(at_times(bursts, times_s, bundles=500))
    assert set(np.unique(found)) == {1.0, 4.0}
    share = (found == 4.0).mean(axis=1)
    assert share.mean() == pytest.approx(0.1, abs=0.01)
    assert share[0] == pytest.approx(0.1, abs=0.05)  # Not only after a while.
    begun = ((found[1:] == 4.0) & (found[:-1] == 1.0)).sum() / 500
    assert begun == pytest.approx(10.0, abs=0.7)


FLASH = {"kind": "flash", "at_s": 100.0, "factor": 5.0}


@pytest.mark.parametrize(
    ("fields", "times_s", "factors"),
    [
        (
            {"kind": "steps", "at_s": (10.0, 20.0), "factors": (0.0, 3.0)},
            [9.0, 10.0, 19.0, 20.0, 1e6],
            [1.0, 0.0, 0.0, 3.0, 3.0],
        ),
        (
            FLASH | {"rise_s": 40.0, "hold_s": 100.0, "fall_s": 200.0},
            [99.0, 120.0, 140.0, 239.0, 340.0, 440.0, 1e6],
            [1.0, 3.0, 5.0, 5.0, 3.0, 1.0, 1.0],
        ),
        (
            FLASH | {"rise_s": 0.0, "hold_s": 50.0, "fall_s": 0.0},
            [99.0, 100.0, 149.0, 150.0],
            [1.0, 5.0, 5.0, 1.0],
        ),
        (
            {"kind": "trend", "per_hour": -0.5, "from_s": HOUR_S},
            [0.0, HOUR_S, 2 * HOUR_S, 9 * HOUR_S],
            [1.0, 1.0, 0.5, 0.0],
        ),
        ({"kind": "growth", "doubling_h": 2.0}, [0.0, 2 * HOUR_S, 6 * HOUR_S], [1.0, 2.0, 8.0]),
        # Bursts that follow each other without a break are one.
        (
            {"kind": "burst", "factor": 2.0, "length_s": 60.0, "every_s": 60.0},
            [0.0, 30.0, 1000.0],
            [2.0, 2.0, 2.0],
        ),
    ],
    ids=["steps", "flash", "flash at once", "trend", "growth", "bursts"],
)
def test_a_pattern_has_its_factor_at_each_time(
    fields: dict[str, object], times_s: list[float], factors: list[float]
) -> None:
    assert at_times(pattern(**fields), times_s) == pytest.approx(factors)


def test_a_shift_multiplies_all_of_its_namespace_and_nothing_else() -> None:
    other = Namespace("tenant/other")
    fields = {"bundles": 1, "topics": 1, "msgs_in_per_s": 10.0}
    two = of_load(*(Load.model_validate({**fields, "namespace": name}) for name in (SPACE, other)))
    two.shift(other, 2.5)
    two.shift(other, 2.0)
    assert two.at(0.0)[:, 0].tolist() == [10.0, 50.0]


def test_a_trace_holds_each_row_until_the_next_one() -> None:
    rates = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    found, trace = replayed("abc", [10.0, 30.0], rates, bundles=2)

    def rows(moment: int) -> list[list[float]]:
        lists = [rates[moment][found.traced == bundle].sum(axis=0).tolist() for bundle in range(2)]
        return [list(map(float, one)) for one in lists]

    assert trace.at(9.0).tolist() == [[0.0] * 4] * 2
    assert trace.at(10.0).tolist() == rows(0)
    assert trace.at(29.0).tolist() == rows(0)
    assert trace.at(1e6).tolist() == rows(1)


def test_an_interpolated_trace_goes_evenly_from_one_row_to_the_next() -> None:
    rates = np.array([10.0, 30.0, 20.0], dtype=np.float32).repeat(4).reshape(3, 1, 4)
    _, trace = replayed("a", [0.0, 100.0, 200.0], rates, interpolated=True)
    found = [float(trace.at(now_s)[0, 0]) for now_s in (0.0, 25.0, 100.0, 150.0, 200.0, 900.0)]
    assert found == [10.0, 15.0, 30.0, 25.0, 20.0, 20.0]


def test_patterns_change_what_a_trace_says() -> None:
    doubled = pattern(kind="steps", at_s=[50.0], factors=[2.0])
    ones = np.ones((1, 1, 4), dtype=np.float32)
    _, trace = replayed("a", [0.0], ones, trace_patterns=[doubled])
    assert [float(trace.at(now_s)[0, 3]) for now_s in (0.0, 60.0)] == [1.0, 2.0]


some_patterns = st.lists(
    st.sampled_from(
        [
            {"kind": "day", "spread_h": 5.0},
            {"kind": "jitter", "fraction": 1.0},
            {"kind": "jitter", "each": "load", "memory_s": 0.0},
            {"kind": "burst", "factor": 0.0},
            {"kind": "flash", "at_s": 50.0},
            {"kind": "trend", "per_hour": -40.0},
        ]
    ),
    max_size=3,
)


@settings(max_examples=30)
@given(patterns=some_patterns, seed=st.integers(0, 9))
def test_demand_is_positive_and_of_its_seed(patterns: list[dict[str, object]], seed: int) -> None:
    def demanded() -> list[FloatArray]:
        fields = {"namespace": SPACE, "bundles": 5, "topics": 9, "msgs_in_per_s": 100.0}
        load = Load.model_validate({**fields, "patterns": patterns})
        rng = np.random.default_rng(seed)
        one = Workload(Topics([load], (), 1, rng), None, rng)
        return [one.at(time_s) for time_s in (0.0, 60.0, 70.0, 300.0)]

    first, again = demanded(), demanded()
    assert all((rates >= 0).all() for rates in first)
    assert all((one == other).all() for one, other in zip(first, again, strict=True))


def load(**given_values: object) -> Load:
    usual = {"namespace": SPACE, "bundles": 8, "topics": 100, "msgs_in_per_s": 1000.0}
    return Load.model_validate({**usual, **given_values})


def topics(*loads: Load, traced: tuple[str, ...] = (), seed: int = 1) -> Topics:
    return Topics(loads, traced, 4, np.random.default_rng(seed))


def test_a_bundle_has_the_topics_whose_names_hash_into_its_range() -> None:
    found = topics(load())
    cut = Boundaries.even(SPACE, 8)
    names = [parse_topic(f"persistent://{SPACE}/topic-{number}") for number in range(100)]
    at = [cut.at(position(name, "crc32")) for name in names]
    assert found.bundles == cut.bundles
    assert found.topics.tolist() == [at.count(bundle) for bundle in cut.bundles]
    np.testing.assert_allclose(found.shares[0].msgs_in_per_s, found.topics * 10.0)


def test_a_message_in_makes_the_other_rates_and_clients_are_counted_by_topic() -> None:
    found = topics(
        load(fan_out=3.0, message_bytes=100.0, producers_per_topic=2.0, consumers_per_topic=0.5)
    )
    assert found.shares[0].profile.tolist() == [1.0, 3.0, 100.0, 300.0]
    assert found.producers.tolist() == (2 * found.topics).tolist()
    assert found.consumers.tolist() == np.rint(found.topics / 2).astype(int).tolist()


def test_loads_of_one_namespace_share_its_bundles_and_none_of_their_topics() -> None:
    both = topics(load(topics=60), load(topics=40))
    assert len(both.bundles) == 8
    assert both.topics.tolist() == topics(load(topics=100)).topics.tolist()
    assert both.shares[0].rows == both.shares[1].rows


def test_topics_of_a_trace_fall_into_bundles_by_their_names() -> None:
    names = tuple(f"persistent://tenant/old/order-{number}" for number in range(20))
    found = topics(load(), traced=names)
    cut = Boundaries.even(Namespace("tenant/old"), 4)
    at = [cut.at(position(parse_topic(name), "crc32")) for name in names]
    assert [found.bundles[row] for row in found.traced] == at
    assert found.topics[8:].tolist() == found.producers[8:].tolist()
    assert found.topics[8:].sum() == 20


def test_a_trace_and_a_load_of_one_namespace_share_its_bundles() -> None:
    found = topics(load(), traced=(f"persistent://{SPACE}/order-1",))
    assert len(found.bundles) == 8
    assert found.topics.sum() == 101


skews: st.SearchStrategy[Skew] = st.one_of(
    st.just(Even()),
    st.builds(Zipf, kind=st.just("zipf"), exponent=st.floats(0, 5)),
    st.builds(LogNormal, kind=st.just("log_normal"), sigma=st.floats(0, 5)),
    st.builds(Hot, kind=st.just("hot"), topics=st.integers(1, 50), share=st.floats(0.01, 1.0)),
)


@settings(max_examples=50)
@given(skew=skews, count=st.integers(1, 200), seed=st.integers(0, 99))
def test_shares_make_up_the_whole(skew: Skew, count: int, seed: int) -> None:
    found = weights(skew, count, np.random.default_rng(seed))
    assert len(found) == count
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("hot", "count", "want"),
    [(2, 10, [0.025] * 8 + [0.4] * 2), (9, 4, [0.25] * 4)],
    ids=["together", "more than there are"],
)
def test_hot_topics_have_their_share_together(hot: int, count: int, want: list[float]) -> None:
    skew = Hot(kind="hot", topics=hot, share=0.8)
    found = np.sort(weights(skew, count, np.random.default_rng(3)))
    np.testing.assert_allclose(found, want)
