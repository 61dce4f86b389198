"""What the pipeline writes out for Spark is what leaders compute: scores and shares."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pytest
from moved_cluster import BROKER_LOAD, ROUNDS, frame, report
from pyspark.sql import Row

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Listing
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import BundleStats
from loadmanager.core.load_tracker import BrokerLoad, LoadTracker
from loadmanager.core.projection import TrafficShare
from loadmanager.core.rates import Rates
from loadmanager.core.scores import RESOURCES, FloatArray, ResourceWeights, weighted_max_usage
from loadmanager.pipeline.costs import RATES
from loadmanager.pipeline.move_effects.predictions import SHARE, with_predictions
from loadmanager.pipeline.move_effects.windows import TRAFFIC, USED, loads, weights_in_force

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
WEIGHTS = ResourceWeights(cpu=0.5, direct_memory=2.0, bandwidth_out=0.0)
BROKER = BrokerId("a:1")
BUNDLES = tuple(BundleId(f"t/n/0x{n}0000000_0x{n + 1}0000000") for n in range(6))
TERMS = np.random.default_rng(5).uniform(0.01, 0.1, (len(USED), len(RATES)))


def test_the_score_is_that_of_leaders(spark: "SparkSession") -> None:
    rng = np.random.default_rng(3)
    usage, limit = rng.uniform(0, 120, (40, 5)), rng.choice([0.0, 100.0, 250.0], (40, 5))
    told = [
        report("c", f"b{row}:1", 100, 0, **amounts(usage[row], limit[row]))
        for row in range(len(usage))
    ]
    names = ("cpu", "direct_memory", "bandwidth_in", "bandwidth_out")
    weights = ",".join(f'"weights_{name}":{getattr(WEIGHTS, name)}' for name in names)
    rounds = [{"cluster": "c", "at_ms": 1, "settings": f'{{"filters":{{{weights}}}}}'}]
    in_force = weights_in_force(frame(spark, ROUNDS, rounds))
    found = loads(frame(spark, BROKER_LOAD, told), in_force).collect()
    scores = {row["broker"]: row["score"] for row in found}
    wanted = weighted_max_usage(usage, limit, WEIGHTS)
    assert [scores[f"b{row}:1"] for row in range(len(usage))] == pytest.approx(wanted.tolist())


def amounts(usage: FloatArray, limit: FloatArray) -> dict[str, float]:
    columns = {"usage": usage, "limit": limit}
    return {
        f"{name}_{what}": float(values[number])
        for what, values in columns.items()
        for number, name in enumerate(RESOURCES)
    }


def rates_of(stats: BundleStats) -> list[float]:
    traffic = [getattr(stats, name) for name in TRAFFIC]
    return [*traffic, float(stats.topics), float(stats.producers + stats.consumers)]


def some_bundles() -> Mapping[BundleId, BundleStats]:
    rng = np.random.default_rng(4)

    def one() -> BundleStats:
        msgs_in, msgs_out, bytes_in, bytes_out = rng.uniform(1, 100, 4).tolist()
        topics, producers, consumers = rng.integers(1, 9, 3).tolist()
        return BundleStats(
            msgs_in_per_s=msgs_in, msgs_out_per_s=msgs_out,
            bytes_in_per_s=bytes_in, bytes_out_per_s=bytes_out,
            topics=topics, producers=producers, consumers=consumers,
        )  # fmt: skip

    return {bundle: one() for bundle in BUNDLES}


def used_by(of: Mapping[BundleId, BundleStats]) -> dict[str, float]:
    rates = np.sum([rates_of(one) for one in of.values()], axis=0)
    return dict(zip(USED, (TERMS @ rates).tolist(), strict=True))


def seen(of: Mapping[BundleId, BundleStats]) -> ClusterView:
    tracker = LoadTracker()
    load = BrokerLoad(
        broker=BROKER,
        usage=tuple(used_by(of).get(name, 0.0) for name in RESOURCES),
        limit=(1e3,) * len(RESOURCES),
        totals=Rates(*(sum(getattr(one, name) for one in of.values()) for name in TRAFFIC)),
        listing=Listing.of(of),
        topics=sum(one.topics for one in of.values()),
    )
    tracker.put(load)
    tracker.sample()
    return tracker.view(1.0)


def test_what_a_bundle_was_to_use_is_what_leaders_predict(spark: "SparkSession") -> None:
    bundles = some_bundles()
    view = seen(bundles)
    whole = {name: sum(getattr(one, name) for one in bundles.values()) for name in TRAFFIC}
    source = Row(**whole, **{f"{name}_usage": used for name, used in used_by(bundles).items()})
    names = ("bundle", "source_before", *RATES)
    orders = spark.createDataFrame(
        [(bundle, source, *rates_of(stats)) for bundle, stats in bundles.items()], list(names)
    )
    found = {row["bundle"]: row for row in with_predictions(orders).collect()}
    for bundle in bundles:
        usage = TrafficShare().usage(view, bundle, BROKER)
        predicted = dict(zip(RESOURCES, usage, strict=True))
        told = found[bundle][SHARE].asDict()
        assert told == pytest.approx({one: float(predicted[one]) for one in USED})
