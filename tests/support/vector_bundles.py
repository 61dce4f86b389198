"""Comparing load data, names, splits and top lists with recorded decisions of Pulsar."""

from collections import Counter

import numpy as np
import pytest
from vector_inputs import RESOURCES, Count, Json, averages, broker_load, columns, rates, same, stats

from loadmanager.core.averages import Average, BundleAverages
from loadmanager.core.bundles import Boundaries
from loadmanager.core.columns import Listing
from loadmanager.core.errors import InvalidName
from loadmanager.core.hashing import FULL_RANGE_END, crc32, position
from loadmanager.core.ids import BrokerId, BundleId, bundle_id, namespace_of, parse_topic
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.plan import Reason
from loadmanager.core.scores import ResourceWeights, max_usage, percent_usage, weighted_max_usage
from loadmanager.core.settings import from_pulsar, with_arithmetic
from loadmanager.core.splitting.cutting import CannotSplit, can_split, even_cuts, split
from loadmanager.core.splitting.finder import SplitRules, find_splits
from loadmanager.core.splitting.positions import (
    SPLIT_ALGORITHMS,
    NoPositions,
    SplitAsk,
    SplitLimits,
    TopicLoad,
)
from loadmanager.core.top_k import heaviest

DEFAULT_STATS = dict(msgRateIn=50.0, msgRateOut=50.0, msgThroughputIn=5e4, msgThroughputOut=5e4)  # noqa: C408 - one line


def check_resource_usage(scenario: Json, count: Count) -> None:
    weights = with_arithmetic(from_pulsar(ResourceWeights, scenario["config"]), like_java=True)
    for one in scenario["rounds"]:
        for name, want in one["expected"]["brokers"].items():
            usage = np.array(columns(one["brokers"][name], "usage"))
            limit = np.array(columns(one["brokers"][name], "limit"))
            percent = percent_usage(usage, limit).tolist()
            assert dict(zip(RESOURCES, percent, strict=True)) == want["percentUsage"]
            assert float(max_usage(usage, limit)) == want["maxResourceUsage"]
            weighted = float(weighted_max_usage(usage, limit, weights))
            assert weighted == want["maxResourceUsageWithWeight"]
            count.answers += 1


def check_broker_load_data(scenario: Json, count: Count) -> None:
    config = scenario["config"]
    tracker = LoadTracker(
        weights=with_arithmetic(from_pulsar(ResourceWeights, config), like_java=True),
        history_fraction=config.get("loadBalancerHistoryResourcePercentage", 0.9),
    )
    for number, one in enumerate(scenario["rounds"]):
        if one.get("clear"):
            tracker.forget(BrokerId("b:1"), float(number))
        tracker.put(broker_load("b:1", one))
        tracker.sample()
        brokers = tracker.view(float(number)).brokers
        unweighted = ResourceWeights(direct_memory=1.0, like_java=True)
        got = {
            "maxResourceUsage": float(
                weighted_max_usage(brokers.usage, brokers.limit, unweighted)[0]
            ),
            "weightedMaxEMA": float(brokers.load_ema[0]),
            "msgThroughputEMA": float(brokers.bytes_ema[0]),
        }
        assert same(got, one["expected"])
        count.answers += 1


def check_bundle_data_update(scenario: Json, count: Count) -> None:
    counts = {"shortTerm": scenario["num_short_samples"], "longTerm": scenario["num_long_samples"]}
    start = scenario.get("initial") or {
        term: {**scenario.get("default_stats", DEFAULT_STATS), "numSamples": 0} for term in counts
    }
    short, long = (
        Average(most, start[term]["numSamples"], rates(start[term]))
        for term, most in counts.items()
    )
    now = BundleAverages(short, long)
    for one in scenario["rounds"]:
        now = now.add(stats(one["sample"]))
        for term, average in (("shortTerm", now.short), ("longTerm", now.long)):
            want = one["expected"][term]
            assert average.rates == rates(want)
            assert (average.samples, average.max_samples) == (
                want["numSamples"],
                want["maxSamples"],
            )
        assert now.topics == one["expected"]["topics"]
        count.answers += 1


def check_time_average(scenario: Json, count: Count) -> None:
    for one in scenario["rounds"]:
        known = {name: averages(found) for name, found in one["bundle_data"].items()}
        found = [known.get(name) or BundleAverages.supposed() for name in one["bundles"]]
        for term in ("short", "long"):
            rows = [np.zeros(4), *(getattr(bundle, term).rates.row() for bundle in found)]
            got = np.sum(rows, axis=0)
            want = {
                name.replace(f"{term}TermM", "m"): value for name, value in one["expected"].items()
            }
            assert all(map(same, got, rates(want).row()))
        count.answers += 1


def check_bundle_boundaries(scenario: Json, count: Count) -> None:
    for one in scenario["rounds"]:
        got = Boundaries.even(namespace_of(BundleId("t/n/x")), one["num_bundles"])
        assert [f"0x{bound:08x}" for bound in got.bounds] == one["expected"]["boundaries"]
        assert len(got.bundles) == one["expected"]["numBundles"]
        count.answers += 1


def check_topic_to_bundle(scenario: Json, count: Count) -> None:
    for one in scenario["rounds"]:
        bounds = tuple(int(bound, 16) for bound in one["boundaries"])
        for text, want in zip(one["topics"], one["expected"]["topics"], strict=True):
            count.answers += 1
            if want.get("exception") == "IllegalArgumentException":
                with pytest.raises(InvalidName):
                    parse_topic(text)
                continue
            topic = parse_topic(text)
            at = position(topic, "crc32")
            got = Boundaries(topic.namespace, bounds).at(at)
            if "exception" in want:  # Pulsar cannot look this one up; see tests/vectors/README.md
                count.answers -= 1
                count.different += 1
                assert at == FULL_RANGE_END
                assert got.endswith(one["boundaries"][-1])
            else:
                assert (str(topic), topic.namespace) == (want["topic"], want["namespace"])
                assert (at, got) == (want["hash"], want["bundle"])


def check_split_algorithm(scenario: Json, count: Count) -> None:
    limits = with_arithmetic(from_pulsar(SplitLimits, scenario["config"]), like_java=True)
    for one in scenario["rounds"]:
        want, namespace = one["expected"], one["namespace"]
        lower, upper = (int(bound, 16) for bound in one["bundle_range"].split("_"))
        bundle = bundle_id(namespace, lower, upper)
        traffic = {name: rates(found) for name, found in one.get("topic_stats", {}).items()}
        topics = [
            TopicLoad(crc32(name), *((t.msgs_per_s, t.bytes_per_s) if t else (None, None)))
            for name in one["topics"]
            for t in [traffic.get(name)]
        ]
        force = bool(one.get("force"))
        ask = SplitAsk(lower, upper, topics, tuple(one.get("positions") or ()), force)
        count.answers += 1
        assert can_split(bundle) == want["can_split"]
        algorithm = SPLIT_ALGORITHMS[one["split_algorithm"]]
        if "exception" in want:
            with pytest.raises(NoPositions):
                algorithm(ask, limits)
            continue
        cuts = algorithm(ask, limits)
        assert (None if cuts is None else list(cuts)) == want["split_boundaries"]
        former = Boundaries(namespace, tuple(int(bound, 16) for bound in one["boundaries"]))
        check_cut(former, bundle, cuts or (), want)
        if "num_bundles" in one:
            check_n_way(former, bundle, one["num_bundles"], want)


def check_cut(former: Boundaries, bundle: BundleId, cuts: tuple[int, ...], want: Json) -> None:
    if "split_exception" in want:
        with pytest.raises(CannotSplit):
            split(former, bundle, cuts)
    elif "new_boundaries" in want:
        after = split(former, bundle, cuts)
        assert [f"0x{bound:08x}" for bound in after.bounds] == want["new_boundaries"]
        new = [name for name in after.bundles if name not in former.bundles]
        assert [name.rpartition("/")[2] for name in new] == want["split_bundles"]


def check_n_way(former: Boundaries, bundle: BundleId, parts: int, want: Json) -> None:
    if "n_way_exception" in want:
        with pytest.raises(CannotSplit):
            split(former, bundle, even_cuts(bundle, parts))
    else:
        after = split(former, bundle, even_cuts(bundle, parts))
        new = [name for name in after.bundles if name not in former.bundles]
        assert [name.rpartition("/")[2] for name in new] == want["n_way_bundles"]


def check_splitter_task(scenario: Json, count: Count) -> None:
    rules = with_arithmetic(from_pulsar(SplitRules, scenario["config"]), like_java=True)
    for one in scenario["rounds"]:
        reports = {
            broker: {bundle: stats(found) for bundle, found in load["lastStats"].items()}
            for broker, load in one["brokers"].items()
        }
        long = {name: rates(found["longTerm"]) for name, found in one["bundle_data"].items()}
        found = find_splits(rules, reports, long.get, one["namespace_bundle_count"])
        got, want = {s.bundle: s.broker for s in found.chosen}, one["expected"]
        if want.get("order_dependent"):
            count.in_part += 1
            full = {r.subject for r in found.refusals if r.reason is Reason.NAMESPACE_FULL}
            assert full | got.keys() == want["eligible"].keys()
            assert got.items() <= want["eligible"].items()
            assert Counter(map(namespace_of, got)) == Counter(want["per_namespace_count"])
        else:
            count.answers += 1
            assert got == want["bundles_to_split"]


def check_top_k(scenario: Json, count: Count) -> None:
    config = scenario["config"]
    left_out = {*config.get("loadBalancerSheddingExcludedNamespaces", ())}
    if not config.get("loadBalancerSheddingBundlesWithPoliciesEnabled", False):
        left_out |= {*scenario.get("isolation_namespaces", ())}
        left_out |= {*scenario.get("anti_affinity_namespaces", ())}
    for one in scenario["rounds"]:
        found = {BundleId(name): stats(one_) for name, one_ in one["bundle_stats"].items()}
        got = heaviest(
            Listing.of(found), one["topk"], left_out=left_out.__contains__, like_java=True
        )
        assert [top.bundle for top in got] == one["expected"]["top_bundles"]
        count.answers += 1
