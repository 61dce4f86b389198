"""Topics with real names fall where a broker's hash puts them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmanager.core.bundles import Boundaries
from loadmanager.core.hashing import position
from loadmanager.core.ids import Namespace, parse_topic
from loadmanager.simulator.scenario import Load
from loadmanager.simulator.scenario.loads import Even, Hot, LogNormal, Skew, Zipf
from loadmanager.simulator.topics import Topics, weights

SPACE = Namespace("tenant/space")


def load(**given_values: object) -> Load:
    usual = {"namespace": SPACE, "bundles": 8, "topics": 100, "msgs_in_per_s": 1000.0}
    return Load.model_validate({**usual, **given_values})


def topics(*loads: Load, traced: tuple[str, ...] = (), seed: int = 1) -> Topics:
    return Topics.of(loads, traced, 4, np.random.default_rng(seed))


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


def test_bundles_of_namespaces_lie_one_after_the_other() -> None:
    other = Namespace("tenant/other")
    found = topics(load(bundles=3), load(namespace=other, bundles=5))
    assert found.namespaces == {SPACE: slice(0, 3), other: slice(3, 8)}
    assert found.bundles == (*Boundaries.even(SPACE, 3).bundles, *Boundaries.even(other, 5).bundles)


def test_a_skew_over_bundles_deals_topics_out_evenly() -> None:
    found = topics(load(over="bundles", topics=18, skew={"kind": "zipf", "exponent": 1.0}))
    assert sorted(found.topics.tolist()) == [2, 2, 2, 2, 2, 2, 3, 3]
    largest = np.sort(found.shares[0].msgs_in_per_s)[::-1]
    np.testing.assert_allclose(largest / largest[0], 1 / np.arange(1.0, 9.0))


def test_a_bundle_without_topics_has_no_traffic() -> None:
    found = topics(load(over="bundles", topics=3))
    assert (found.shares[0].msgs_in_per_s > 0).tolist() == (found.topics > 0).tolist()
    assert found.shares[0].msgs_in_per_s.sum() == pytest.approx(1000.0)


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


def test_the_same_seed_draws_the_same_and_another_one_differs() -> None:
    skewed = load(skew={"kind": "log_normal", "sigma": 1.0})
    first, again, other = (
        topics(skewed, seed=seed).shares[0].msgs_in_per_s.tolist() for seed in (1, 1, 2)
    )
    assert first == again != other


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
