import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final

import numpy as np

from loadmanager.core.averages import BundleAverages
from loadmanager.core.bounds import TOTAL
from loadmanager.core.duty_moves import Duties, DutyMoves
from loadmanager.core.errors import InvalidName, LoadManagerError, MalformedContent
from loadmanager.core.fields import parse_fields
from loadmanager.core.ids import BrokerId, BundleId, Namespace, namespace_of, parse_bundle
from loadmanager.core.load import BundleStats, LoadReport
from loadmanager.core.max_over_mean import RatePlan, rate_plan
from loadmanager.core.plan import Move, Steps
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.playback import Playback, run_rounds
from loadmanager.core.policies import Policies
from loadmanager.core.rates import total
from loadmanager.core.shedding.joint import JointShedder, MovePrice
from loadmanager.core.snapshot.document import Snapshot, view_of_snapshot
from loadmanager.core.wire.policies import isolation_from

_MOST_MOVES: Final = 10_000
_MOST_ROUNDS: Final = 20
# The joint strategy at its lowest price.
_PLANNER: Final = Planner(
    shedder=JointShedder(move_price=MovePrice.EVEN),
    settings=PlannerSettings(moves_per_round=_MOST_MOVES, moves_per_hour=_MOST_MOVES, settle_s=0.0),
)
_RATES: Final = ("msgsInPerS", "msgsOutPerS", "bytesInPerS", "bytesOutPerS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A hypothetical change: brokers added and lost, and factors on the traffic of namespaces."""

    add: int = 0
    lose: Sequence[str] = ()
    times: Mapping[Namespace, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Messages and bytes per second of each broker, and ``evened`` after the ``moves`` of ``plan``.

    ``placed`` counts the bundles of lost brokers that the least loaded one that may serves now;
    ``unserved`` are those that no remaining broker may serve, which are in no load.
    """

    loads: Mapping[str, tuple[float, float]]
    evened: Mapping[str, tuple[float, float]]
    moves: Sequence[Move]
    plan: RatePlan
    placed: int = 0
    unserved: tuple[BundleId, ...] = ()


def snapshot_in(content: Any, where: str) -> Snapshot:
    """Read the output of ``attach --once --json``. Raises `LoadManagerError`: it is none."""
    owned = {}
    try:
        for broker in content["brokers"]:
            traffic, name = broker["traffic"], BrokerId(str(broker["broker"]))
            rows = zip(traffic["bundle"], *(traffic[one] for one in _RATES), strict=True)
            owned[name] = {parse_bundle(bundle): _stats(rates) for bundle, *rates in rows}
        stays = frozenset(map(BundleId, content["staying"]))
        policies = content.get("isolation", {})
        every = parse_fields(f"{where}: isolation", json.dumps(policies).encode())
        isolation = {name: isolation_from(every.inner(name)) for name in every.names()}
    except (KeyError, TypeError, ValueError, OverflowError, InvalidName, MalformedContent) as error:
        raise LoadManagerError(
            f"{where}: {type(error).__name__} {error}; expected what "
            "loadmanager attach --once --json has printed"
        ) from None
    rates = [stats.row() for bundles in owned.values() for stats in bundles.values()]
    if not owned or not all(0 <= one <= TOTAL.most for one in chain.from_iterable(rates)):
        why = f"rates from 0 to {TOTAL.most:g}, of at least one broker"
        raise LoadManagerError(f"{where}: expected {why}")
    return _having(
        Snapshot(reports={}, policies=Policies(isolation=isolation, staying=stays)), owned
    )


def _stats(rates: Iterable[Any], times: float = 1.0) -> BundleStats:
    msgs_in, msgs_out, bytes_in, bytes_out = (times * float(one) for one in rates)
    return BundleStats(msgs_in, msgs_out, bytes_in, bytes_out)


def _having(seen: Snapshot, owned: Mapping[BrokerId, Mapping[BundleId, BundleStats]]) -> Snapshot:
    reports = {name: LoadReport(broker=name, bundles=dict(held)) for name, held in owned.items()}
    return replace(seen, reports=reports)


def forecast(seen: Snapshot, change: Change) -> Forecast:
    """Raises `LoadManagerError`: a broker or namespace does not exist, or no broker is left."""
    for broker in change.lose:
        if broker not in seen.reports:
            known = ", ".join(seen.reports)
            raise LoadManagerError(f"broker {broker} is not there; expected one of {known}")
    if change.add + len(seen.reports) == len(set(change.lose)):
        raise LoadManagerError("no broker would be left; expected at least one")
    there = {namespace_of(one) for report in seen.reports.values() for one in report.bundles}
    for namespace in change.times:
        if namespace not in there:
            raise LoadManagerError(f"namespace {namespace} has no bundle; expected one that has")
    every = {
        broker: {
            one: _stats(stats.row(), change.times.get(namespace_of(one), 1.0))
            for one, stats in report.bundles.items()
        }
        for broker, report in seen.reports.items()
    }
    stats = {one: rates for bundles in every.values() for one, rates in bundles.items()}
    owned = {broker: bundles for broker, bundles in every.items() if broker not in change.lose}
    # The host of a broker that is to be added is its name.
    owned |= {BrokerId(f"new-{number}:0"): {} for number in range(1, change.add + 1)}
    averages = {one: BundleAverages.supposed().add(rates) for one, rates in stats.items()}
    placed, unserved = Playback(_PLANNER, np.random.default_rng(0)).place(
        view_of_snapshot(replace(_having(seen, owned), averages=averages)),
        sorted(
            stats.keys() - chain.from_iterable(owned.values()),
            key=lambda one: (-stats[one].msgs_per_s, one),
        ),
    )
    for move in placed:
        owned[move.target][move.bundle] = stats[move.bundle]
    moves = _evened(_having(seen, owned))
    return Forecast(
        loads=_loads(owned),
        evened=_loads(owned, moves),
        moves=moves,
        plan=rate_plan(owned, moves),
        placed=len(placed),
        unserved=tuple(unserved),
    )


def _evened(cluster: Snapshot) -> tuple[Move, ...]:
    """Return where bundles go as policies and the joint strategy move them, in rounds."""
    policies, brokers = cluster.policies, tuple(cluster.reports)
    duties = Duties(registered=brokers, most=_MOST_MOVES, held=policies.staying)
    due = DutyMoves(view_of_snapshot(cluster), duties, Steps()).urgent
    found = {move.bundle: move for move in due}
    cluster = replace(
        cluster,
        policies=replace(policies, staying=policies.staying.union(found)),
        in_flight={move.bundle: move.target for move in due},
    )
    for done in run_rounds(cluster, _PLANNER, np.random.default_rng(0), _MOST_ROUNDS):
        for move in done.moves:
            found[move.bundle] = replace(found.get(move.bundle, move), target=move.target)
        if not done.moves:
            break
    return tuple(one for one in found.values() if one.source != one.target)


def _loads(
    owned: Mapping[BrokerId, Mapping[BundleId, BundleStats]], moves: Iterable[Move] = ()
) -> dict[str, tuple[float, float]]:
    held = {broker: dict(bundles) for broker, bundles in owned.items()}
    for move in moves:
        held[move.target][move.bundle] = held[move.source or move.target].pop(move.bundle)
    sums = {broker.removesuffix(":0"): total(one.values()) for broker, one in held.items()}
    return {broker: (one.msgs_per_s, one.bytes_per_s) for broker, one in sums.items()}


def document(now: Forecast, then: Forecast) -> dict[str, Any]:
    return {
        "now": _document(now),
        "changed": _document(then),
        "placed": then.placed,
        "unserved": list(then.unserved),
    }


def _document(one: Forecast) -> dict[str, Any]:
    return {
        "maxOverMean": one.plan.max_over_mean,
        "plannedMaxOverMean": one.plan.planned_max_over_mean,
        "leastMaxOverMean": one.plan.least_max_over_mean,
        "moves": [
            {"bundle": to.bundle, "source": to.source, "target": to.target.removesuffix(":0")}
            for to in one.moves
        ],
        "brokers": [
            {
                "broker": name,
                "msgsPerS": before[0],
                "bytesPerS": before[1],
                "evenedMsgsPerS": after[0],
                "evenedBytesPerS": after[1],
            }
            for (name, before), after in zip(one.loads.items(), one.evened.values(), strict=True)
        ],
    }
