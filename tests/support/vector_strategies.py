"""Comparing shedders and placements with recorded decisions of Pulsar."""

from dataclasses import replace

import numpy as np
import pytest
from vector_inputs import Count, Json, by_source, rates, same, views

from loadmanager.core.broker_table import BrokerLoad
from loadmanager.core.cluster import ClusterView, TopBundle, TransferLimits, UnknownBroker
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load_tracker import view_of
from loadmanager.core.memory import Memory
from loadmanager.core.placement import (
    LeastAverageUsage,
    LeastLongTermMessageRate,
    Placement,
    PlannedPlacement,
)
from loadmanager.core.placement.round_robin import take_turn
from loadmanager.core.plan import Reason
from loadmanager.core.settings import from_pulsar, with_arithmetic
from loadmanager.core.shedding import AvgShedder, Shedder, Spread, TransferShedder

_SOME_BUNDLE = BundleId("t/n/0x00000000_0xffffffff")


SKIPPED = {
    Reason.LOAD_OUTDATED: "OutDatedData",
    Reason.TOO_FEW_BROKERS: "NoBrokers",
    Reason.LOAD_UNKNOWN: "NoLoadData",
    Reason.TOO_FEW_BUNDLES: "NoBundles",
    Reason.HITS_PENDING: "HitCount",
    Reason.COOLING_DOWN: "CoolDown",
}


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


def check_transfer_shedder(scenario: Json, count: Count) -> None:
    """Compare TransferShedder: moves, or why there are none, the spread and the counters."""
    config = dict(scenario["config"])
    excluded = config.pop("loadBalancerSheddingExcludedNamespaces", ())
    shedder = from_pulsar(
        TransferShedder, {**config, "loadBalancerSheddingExcludedNamespaces": frozenset(excluded)}
    )
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
            load_ema=found["weightedMaxEMA"],
            bytes_ema=found["msgThroughputEMA"],
        )
        for name, found in now["brokers"].items()
    ]
    policies = scenario.get("policies", {})
    kinds = ("isolation_namespaces", "anti_affinity_namespaces")
    allowed = {name: frozenset(to) for name, to in policies.get("allowed_brokers", {}).items()}
    available: list[BrokerId] = one.get("available_brokers", list(now["brokers"]))
    limits = TransferLimits(
        available=frozenset(available),
        owners=scenario.get("owners"),
        restricted=frozenset(name for kind in kinds for name in policies.get(kind, ())),
        allowed=allowed if policies or "owners" in scenario else None,
    )
    moved = now["recently_unloaded_bundles"]
    view = view_of(loads, {}, now_s=float(one["now"]), recently_moved=moved)
    return replace(view, limits=limits, top_bundles=tops)


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
        every = {*ema, *one["candidates"]}
        view = view_of([BrokerLoad(broker=BrokerId(b), load_ema=ema.get(b)) for b in every], {})
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
