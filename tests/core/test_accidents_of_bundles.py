"""Pulsar's accidents with bundles, splits and names; ``test_accidents.py`` has the table."""

from dataclasses import replace

import pytest
from small_view import bundle

from loadmanager.config import ConfigError
from loadmanager.config.pulsar_import import import_settings
from loadmanager.config.strategies import filled
from loadmanager.core.bundles import Boundaries
from loadmanager.core.hashing import FULL_RANGE_END, position
from loadmanager.core.ids import BrokerId, Namespace, parse_topic
from loadmanager.core.load import BundleStats
from loadmanager.core.rates import Rates
from loadmanager.core.shedding import ThresholdShedder
from loadmanager.core.splitting.cutting import CannotSplit, split
from loadmanager.core.splitting.finder import SplitRules, find_splits
from loadmanager.core.splitting.positions import SPLIT_ALGORITHMS, SplitAsk, SplitLimits, TopicLoad

SPACE = Namespace("t/n")


@pytest.mark.parametrize(("mib_per_s", "splits"), [(2047, 0), (2048, 2), (4096, 1)])
def test_a_limit_of_two_gigabytes_splits_everything_only_in_parity(
    mib_per_s: int, splits: int
) -> None:
    reports = {BrokerId("a:1"): {bundle(number): BundleStats(topics=2) for number in (1, 2)}}
    traffic = {bundle(1): Rates(0.0, 0.0, 1.0)}
    for like_java, count in ((True, splits), (False, 0)):
        rules = SplitRules(max_mib_per_s=mib_per_s, like_java=like_java)
        found = find_splits(rules, reports, traffic.get, {SPACE: 2})
        assert len(found.chosen) == count


@pytest.mark.parametrize("like_java", [True, False])
def test_the_heaviest_are_split_in_whatever_order_they_are_reported(like_java: bool) -> None:
    rules = SplitRules(max_topics=1, max_bundles=6, like_java=like_java)
    rates = {bundle(number): Rates(0.0, 0.0, float(number % 3)) for number in range(5)}
    listed = [(bundle(number), BundleStats(topics=5)) for number in range(5)]
    for order in (listed, listed[::-1]):
        found = find_splits(rules, {BrokerId("a:1"): dict(order)}, rates.get, {SPACE: 4})
        assert [one.bundle for one in found.chosen] == [bundle(2), bundle(1)]


@pytest.mark.parametrize(
    ("algorithm", "ask", "parity", "safe"),
    [
        # Both topics at 5 stay on one side, and the other has none.
        ("topic_count", SplitAsk(0, 99, [TopicLoad(5), TopicLoad(5), TopicLoad(9)]), (5,), (7,)),
        ("topic_count", SplitAsk(5, 99, [TopicLoad(5), TopicLoad(5)]), (5,), None),
        ("topic_count", SplitAsk(5, 99, [TopicLoad(5), TopicLoad(6)]), (5,), (6,)),
        ("given", SplitAsk(0, 99, [TopicLoad(5), TopicLoad(9)], positions=(7, 7)), (7, 7), (7,)),
        (
            "traffic",
            SplitAsk(0, 99, [TopicLoad(5, 9.0, 0.0)] * 3 + [TopicLoad(8, 9.0, 0.0)]),
            (6, 6, 7),
            (7,),
        ),
        (
            "traffic",
            SplitAsk(
                9, FULL_RANGE_END, [TopicLoad(FULL_RANGE_END - n, 9.0, 0.0) for n in range(2)]
            ),
            (FULL_RANGE_END,),
            (),
        ),
    ],
)
def test_cuts_that_part_nothing_are_made_only_in_parity(
    algorithm: str, ask: SplitAsk, parity: tuple[int, ...], safe: tuple[int, ...] | None
) -> None:
    name = {
        "topic_count": "topic_count_equally_divide",
        "given": "specified_positions_divide",
        "traffic": "flow_or_qps_equally_divide",
    }[algorithm]
    limits = SplitLimits(max_msgs_per_s=10)
    assert SPLIT_ALGORITHMS[name](ask, replace(limits, like_java=True)) == parity
    assert SPLIT_ALGORITHMS[name](ask, limits) == safe
    if len(set(parity)) < len(parity) or not all(ask.lower < cut < ask.upper for cut in parity):
        bounds = sorted({0, ask.lower, ask.upper, FULL_RANGE_END})
        whole = Boundaries(SPACE, tuple(bounds))
        with pytest.raises(CannotSplit):
            split(whole, whole.at(ask.lower), parity)


def test_the_topic_with_the_last_hash_is_found_in_both_modes() -> None:
    topic = parse_topic("persistent://public/default/t-dukgt2d")
    assert position(topic, "crc32") == FULL_RANGE_END
    boundaries = Boundaries.even(topic.namespace, 4)
    assert boundaries.at(FULL_RANGE_END) == boundaries.bundles[-1]


def test_a_misspelt_weight_wins_only_where_pulsars_keys_are_read() -> None:
    right, wrong = "loadBalancerBandwidthInResourceWeight", "loadBalancerBandwithInResourceWeight"
    both = {right: 1.0, wrong: 0.5}
    found = {"loadBalancerLoadSheddingStrategy": "ThresholdShedder", right: "1.0", wrong: "0.5"}
    assert f"{right} = 0.5" in import_settings(found, "localhost").toml()
    assert filled(ThresholdShedder, {right: 1.0}, "[x]").weights.bandwidth_in == 1.0
    with pytest.raises(ConfigError, match=f"{wrong} is unknown; did you mean {right}"):
        filled(ThresholdShedder, both, "[x]")
