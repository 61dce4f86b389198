"""Every recorded decision of Pulsar, decided again and compared."""

import gzip
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pytest
from small_view import view_of

from loadmanager.core.averages import Average, BundleAverages
from loadmanager.core.bundles import Boundaries
from loadmanager.core.cluster import ClusterView, TopBundle, UnknownBroker
from loadmanager.core.columns import Listing
from loadmanager.core.errors import InvalidName
from loadmanager.core.hashing import FULL_RANGE_END, crc32, position
from loadmanager.core.ids import BrokerId, BundleId, bundle_id, namespace_of, parse_topic
from loadmanager.core.load import BundleStats
from loadmanager.core.load_tracker import BrokerLoad, LoadTracker
from loadmanager.core.memory import Memory
from loadmanager.core.placement import (
    LeastAverageUsage,
    LeastLongTermMessageRate,
    LeastResourceUsageWithWeight,
    Placement,
    PlannedPlacement,
)
from loadmanager.core.placement.round_robin import take_turn
from loadmanager.core.plan import Offer, Reason
from loadmanager.core.policies import Policies
from loadmanager.core.rates import Rates
from loadmanager.core.scores import ResourceWeights, max_usage, percent_usage, weighted_max_usage
from loadmanager.core.settings import groups_of, settings_of, with_arithmetic
from loadmanager.core.shedding import (
    AvgShedder,
    OverloadShedder,
    Shedder,
    Spread,
    ThresholdShedder,
    TransferShedder,
    UniformLoadShedder,
)
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

Json = dict[str, Any]
T = TypeVar("T")
RESOURCES = ("cpu", "memory", "directMemory", "bandwidthIn", "bandwidthOut")


@dataclass(slots=True)
class Count:
    """How much was compared.

    ``answers`` are single decisions, compared with Pulsar's. Others are ``in_part``
    compared, ``left_out``, or known to be ``different``, each by a rule that
    ``tests/vectors/README.md`` tells.
    """

    scenarios: int = 0
    rounds: int = 0
    answers: int = 0
    in_part: int = 0
    left_out: int = 0
    different: int = 0


def rates(found: Json) -> Rates:
    """Return the rates in a record; those that are absent are 0."""
    names = ("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut")
    return Rates(*(float(found.get(name, 0.0)) for name in names))


def averages(found: Json) -> BundleAverages:
    short, long = rates(found["shortTerm"]), rates(found.get("longTerm", {}))
    return BundleAverages(Average(10, 1, short), Average(1000, 1, long), found.get("topics", 0))


def stats(found: Json) -> BundleStats:
    return BundleStats(
        msgs_in_per_s=found.get("msgRateIn", 0.0),
        msgs_out_per_s=found.get("msgRateOut", 0.0),
        bytes_in_per_s=found.get("msgThroughputIn", 0.0),
        bytes_out_per_s=found.get("msgThroughputOut", 0.0),
        topics=found.get("topics", 0),
        producers=found.get("producerCount", 0),
        consumers=found.get("consumerCount", 0),
        cache_size_bytes=found.get("cacheSize", 0),
    )


def columns(found: Json, part: str) -> tuple[float, ...]:
    return tuple(float(found.get(name, {}).get(part, 0.0)) for name in RESOURCES)


def broker_load(name: str, found: Json) -> BrokerLoad:
    return BrokerLoad(
        broker=BrokerId(name),
        usage=columns(found, "usage"),
        limit=columns(found, "limit"),
        totals=rates(found),
        listing=Listing.of(
            {BundleId(bundle): BundleStats() for bundle in found.get("bundles", ())}
        ),
    )


def msgs_per_s(brokers: Json) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {"long_msgs_per_s": {}, "preallocated_msgs_per_s": {}}
    for name, one in brokers.items():
        past, coming = one.get("timeAverageData", {}), one.get("preallocatedBundleData", {})
        long = (past.get(f"longTermMsgRate{way}", 0.0) for way in ("In", "Out"))
        arriving = (rates(each.get("longTerm", {})).msgs_per_s for each in coming.values())
        found["long_msgs_per_s"][name] = sum(long)
        found["preallocated_msgs_per_s"][name] = sum(arriving)
    return found


def views(scenario: Json) -> Iterator[tuple[Json, ClusterView]]:
    """Yield each round with its view; inputs that a round lacks are those of the one before."""
    now: Json = {"bundle_data": {}, "recently_unloaded": {}}
    for one in scenario["rounds"]:
        now |= {name: one[name] for name in (*now, "brokers") if name in one}
        yield (
            one,
            view_of(
                [broker_load(name, found) for name, found in now["brokers"].items()],
                {BundleId(name): averages(found) for name, found in now["bundle_data"].items()},
                recently_moved=now["recently_unloaded"],
                columns=msgs_per_s(now["brokers"]),
            ),
        )


def same(got: object, want: object) -> bool:
    if isinstance(want, dict) and isinstance(got, Mapping):
        return got.keys() == want.keys() and all(same(got[key], want[key]) for key in want)
    if isinstance(want, str) and isinstance(got, float):
        return math.isnan(got) if want == "NaN" else got == float(want)
    if isinstance(want, float) and isinstance(got, float):
        return math.isclose(got, want, rel_tol=1e-9, abs_tol=1e-12)
    return got == want


def by_source(offers: tuple[Offer, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for offer in offers:
        found.setdefault(offer.source, []).append(offer.bundle)
    return found


_SOME_BUNDLE = BundleId("t/n/0x00000000_0xffffffff")


SKIPPED = {
    Reason.LOAD_OUTDATED: "OutDatedData",
    Reason.TOO_FEW_BROKERS: "NoBrokers",
    Reason.LOAD_UNKNOWN: "NoLoadData",
    Reason.TOO_FEW_BUNDLES: "NoBundles",
    Reason.HITS_PENDING: "HitCount",
    Reason.COOLING_DOWN: "CoolDown",
}


def from_pulsar(kind: type[T], keys: Json) -> T:
    """Return settings from Pulsar's own keys, with our defaults, which are Pulsar's, for others."""
    given: Json = {name: from_pulsar(group, keys) for name, group in groups_of(kind).items()}
    for setting in settings_of(kind):
        key, divisor = setting.doc.pulsar_key, setting.doc.pulsar_divisor
        value = keys.get(key)
        if "Bandwidth" in key and (value is None or float(value) == setting.default):
            value = keys.get(key.replace("Bandwidth", "Bandwith"), value)  # misspelt-weight
        if value is not None:
            given[setting.name] = value / divisor if divisor != 1.0 else value
    return kind(**given)


def check_shedder(kind: type[Shedder], scenario: Json, count: Count) -> None:
    """Compare a modular shedder: what it unloads, and the history it keeps."""
    shedder = with_arithmetic(from_pulsar(kind, scenario["config"]), like_java=True)
    memory = Memory()
    for one, view in views(scenario):
        if "active_brokers" in one:
            memory = memory.only(one["active_brokers"])
        shed = shedder.shed(view, memory)
        memory, want = shed.memory, one["expected"]
        assert by_source(shed.offers) == want["unloads"]
        assert same(dict(memory.usage), want.get("brokerAvgResourceUsage", {}))
        count.answers += 1


def check_avg_shedder(scenario: Json, count: Count) -> None:
    """Compare AvgShedder: unloads, plan, counters, scores, and where it then places bundles."""
    # The recorded runs had the default of their time; ours is that of Pulsar 5.0.
    config = {"maxUnloadPercentage": 0.2, **scenario["config"]}
    shedder, memory = with_arithmetic(from_pulsar(AvgShedder, config), like_java=True), Memory()
    planned_before: set[str] = set()
    for number, (one, view) in enumerate(views(scenario)):
        shed = shedder.shed(view, memory)
        memory, want = shed.memory, one["expected"]
        assert by_source(shed.offers) == want["unloads"]
        assert memory.planned == want["plan"] == {o.bundle: o.target for o in shed.offers}
        assert memory.high_hits == want["brokerHitCountForHigh"]
        assert memory.low_hits == want["brokerHitCountForLow"]
        scores = shedder.scores(view)
        assert same(dict(zip(view.brokers.names, scores.tolist(), strict=True)), want["scores"])
        if "sorted_brokers" in want:
            order = np.argsort(scores, kind="stable").tolist()
            assert [view.brokers.names[row] for row in order] == want["sorted_brokers"]
        for asked, answer in zip(
            one.get("placements", ()), want.get("placements", ()), strict=True
        ):
            by_name = _is_by_name(answer, number, planned_before | {*memory.planned})
            if by_name:
                check_avg_placement(view, memory, asked, answer)
            count.answers += by_name
            count.left_out += not by_name
        count.answers += 1
        planned_before |= want["plan"].keys()


def _is_by_name(answer: Json, number: int, planned: set[str]) -> bool:
    """Return whether a recorded placement in round ``number`` is what a plan by name gives.

    Pulsar's plan was then keyed by a bundle's statistics; ``planned`` bundles are those
    for which it made one in this or an earlier round.
    """
    if "equal_data_of" in answer or answer["source"] == "sticky":
        return False
    if answer["source"] == "planned":
        return bool(answer["planned_round"] == number)
    return answer["bundle"] not in planned


def check_avg_placement(view: ClusterView, memory: Memory, asked: Json, answer: Json) -> None:
    """Compare where a bundle is placed, planned or at random."""
    rows = view.rows([BrokerId(name) for name in asked["candidates"]])
    best = PlannedPlacement().rank(view, rows, BundleId(asked["bundle"]), memory).best
    got = [view.brokers.names[row] for row in best.tolist()]
    planned = answer["source"] == "planned"
    assert sorted(got) == ([answer["broker"]] if planned else sorted(answer["candidates"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredTransfers(TransferShedder):
    """TransferShedder with the brokers that Pulsar's filters left, as recorded."""

    available: Collection[BrokerId] = ()
    allowed: Mapping[str, Collection[BrokerId]] = field(default_factory=dict)

    def may_take(self, view: ClusterView, bundle: BundleId, target: BrokerId) -> bool:
        left = {*self.available}.intersection(
            self.allowed.get(namespace_of(bundle), self.available)
        )
        return target in left and TransferShedder.may_take(self, view, bundle, target)


def check_transfer_shedder(scenario: Json, count: Count) -> None:
    """Compare TransferShedder: moves, or why there are none, the spread and the counters."""
    config = dict(scenario["config"])
    excluded = config.pop("loadBalancerSheddingExcludedNamespaces", ())
    shedder = from_pulsar(
        FilteredTransfers, {**config, "loadBalancerSheddingExcludedNamespaces": frozenset(excluded)}
    )
    allowed = scenario.get("policies", {}).get("allowed_brokers", {})
    # Times are kept in milliseconds: equality at exactly the delay must not be rounded away.
    shedder = replace(
        with_arithmetic(shedder, like_java=True),
        shedding_delay_s=shedder.shedding_delay_s * 1000,
        load_ttl_s=shedder.load_ttl_s * 1000,
    )
    now: Json = {"top_bundles": {}, "recently_unloaded_bundles": {}}
    memory, spread = Memory(), Spread(0.0, 0.0)
    for one in scenario["rounds"]:
        now |= {name: one[name] for name in (*now, "brokers") if name in one}
        moved_at = one.get("recently_unloaded_brokers", {})
        memory = replace(memory, shed_at_s={name: float(at) for name, at in moved_at.items()})
        available = now["brokers"].keys()
        if "policies" in scenario or "owners" in scenario:
            available = one.get("available_brokers", available)
        shedder = replace(shedder, available=available, allowed=allowed)
        shed = shedder.shed(transfer_view(scenario, one, now), memory)
        memory, spread, want = shed.memory, shed.spread or spread, one["expected"]
        got = {(o.source, o.bundle, o.target, str(o.cause)) for o in shed.offers}
        names = ("sourceBroker", "serviceUnit", "destBroker")
        assert got == {
            (*(d[name] for name in names), d["reason"].lower()) for d in want["decisions"]
        }
        assert want["skip_reason"] == (None if got else SKIPPED[shed.refusals[0].reason])
        assert same(spread.mean, want["load_avg"])
        assert same(spread.std, want["load_std"])
        assert memory.rounds_over == want["unloadConditionHitCount"]
        assert sorted(memory.shed_at_s) == want["recently_unloaded_brokers_after"]
        count.answers += 1


def transfer_view(scenario: Json, one: Json, now: Json) -> ClusterView:
    tops = {
        broker: [TopBundle(t["bundleName"], rates(t["stats"]).bytes_per_s) for t in top]
        for broker, top in now["top_bundles"].items()
    }
    loads = [
        BrokerLoad(
            broker=BrokerId(name),
            seen_s=float(found["updatedAt"]),
            totals=rates(found),
        )
        for name, found in now["brokers"].items()
    ]
    emas = {
        ours: {name: found[theirs] for name, found in now["brokers"].items()}
        for ours, theirs in (("load_ema", "weightedMaxEMA"), ("bytes_ema", "msgThroughputEMA"))
    }
    policies = scenario.get("policies", {})
    kinds = ("isolation_namespaces", "anti_affinity_namespaces")
    # With one group for both kinds: where their bundles may go is recorded.
    grouped = {name: "group" for kind in kinds for name in policies.get(kind, ())}
    for name in {*one.get("available_brokers", ())} - now["brokers"].keys():
        loads.append(BrokerLoad(broker=name, seen_s=float(one["now"])))
        emas["load_ema"][name] = emas["bytes_ema"][name] = math.nan
    moved = {*now["recently_unloaded_bundles"]}
    for broker, some in tops.items() if "owners" in scenario else ():
        moved |= {one.bundle for one in some if scenario["owners"].get(one.bundle) != broker}
    view = view_of(loads, {}, now_s=float(one["now"]), recently_moved=moved, columns=emas)
    return replace(view, policies=Policies(anti_affinity=grouped), top_bundles=tops)


def check_placement(kind: type[Placement], history: str, scenario: Json, count: Count) -> None:
    """Compare a modular placement: the best brokers and scores, or the running usage."""
    placement = with_arithmetic(from_pulsar(kind, scenario["config"]), like_java=True)
    memory = Memory()
    for one, view in views(scenario):
        if "active_brokers" in one:
            memory = memory.only(one["active_brokers"])
        want = one["expected"]
        count.answers += 1
        if "exception" in want:
            with pytest.raises(UnknownBroker):
                view.rows(one["candidates"])
            continue
        rows = view.rows(one["candidates"])
        ranking = placement.rank(view, rows, _SOME_BUNDLE, memory)
        memory = ranking.memory
        assert {view.brokers.names[row] for row in ranking.best.tolist()} == {*want["best_brokers"]}
        if isinstance(placement, LeastLongTermMessageRate):
            got = zip(rows.tolist(), placement.scores(view, rows).tolist(), strict=True)
            assert same({view.brokers.names[row]: score for row, score in got}, want["scores"])
        if history:
            assert same(dict(memory.usage), want[history])


def check_ext_placement(scenario: Json, count: Count) -> None:
    """Compare the extensible manager's placement: the best brokers."""
    placement = from_pulsar(LeastAverageUsage, scenario["config"])
    for one in scenario["rounds"]:
        ema = {name: found["weightedMaxEMA"] for name, found in one["brokers"].items()}
        every = [BrokerLoad(broker=BrokerId(b)) for b in {*ema, *one["candidates"]}]
        view = view_of(every, {}, columns={"load_ema": ema})
        rows = view.rows(one["candidates"])
        best = placement.rank(view, rows, _SOME_BUNDLE, Memory()).best
        got = sorted(view.brokers.names[row] for row in best.tolist())
        assert got == one["expected"]["best_brokers"]
        count.answers += 1


def check_round_robin(scenario: Json, count: Count) -> None:
    memory, got = Memory(), None
    for one in scenario["rounds"]:
        got = None
        if one["candidates"]:
            got, memory = take_turn(tuple(one["candidates"]), memory, like_java=True)
        assert got == one["expected"]["broker"]
        count.answers += 1


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


SUFFIX: Final = ".jsonl.gz"


class Differs(AssertionError):
    """A recorded decision is decided differently here."""


CHECKS: Final[Mapping[str, Callable[[Json, Count], None]]] = {
    "avg_shedder": check_avg_shedder,
    "broker_load_data": check_broker_load_data,
    "bundle_boundaries": check_bundle_boundaries,
    "bundle_data_update": check_bundle_data_update,
    "bundle_split_algorithm": check_split_algorithm,
    "bundle_splitter_task": check_splitter_task,
    "ext_least_resource_usage_with_weight": check_ext_placement,
    "least_long_term_message_rate": partial(check_placement, LeastLongTermMessageRate, ""),
    "least_resource_usage_with_weight": partial(
        check_placement, LeastResourceUsageWithWeight, "brokerAvgResourceUsageWithWeight"
    ),
    "overload_shedder": partial(check_shedder, OverloadShedder),
    "resource_usage": check_resource_usage,
    "round_robin_broker_selector": check_round_robin,
    "threshold_shedder": partial(check_shedder, ThresholdShedder),
    "time_average_broker_data": check_time_average,
    "top_k_bundles": check_top_k,
    "topic_to_bundle": check_topic_to_bundle,
    "transfer_shedder": check_transfer_shedder,
    "uniform_load_shedder": partial(check_shedder, UniformLoadShedder),
}
"""The check of each algorithm: a scenario, and the count to add to."""


def compare(path: Path) -> Count:
    """Compare every scenario of one file, and return how much that was.

    Raises:
        Differs: a decision is not Pulsar's; the first such ends the comparison.
    """
    check, count = CHECKS[path.name.removesuffix(SUFFIX)], Count()
    for line in gzip.decompress(path.read_bytes()).splitlines():
        scenario = json.loads(line)
        count.scenarios += 1
        count.rounds += len(scenario["rounds"])
        try:
            check(scenario, count)
        except AssertionError as failure:
            raise Differs(f"{scenario['id']} {scenario['tags']}: {failure}") from failure
    return count
