import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from loadmanager.core.bounds import TOTAL
from loadmanager.core.duty_moves import Served, duty_moves
from loadmanager.core.errors import InvalidName, LoadManagerError, MalformedContent
from loadmanager.core.fields import parse_fields
from loadmanager.core.ids import BrokerId, BundleId, Namespace, namespace_of, parse_bundle
from loadmanager.core.load import BrokerUrls, BundleStats, LoadReport
from loadmanager.core.max_over_mean import Flags, Floats, Places, RatePlan, over_mean, rate_plan
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.playback import run_rounds
from loadmanager.core.policies import NO_POLICIES, Policies, open_to
from loadmanager.core.shedding.joint import JointShedder, MovePrice
from loadmanager.core.snapshot.document import Snapshot
from loadmanager.core.wire.policies import isolation_from

_MOST_MOVES: Final = 10_000
_MOST_ROUNDS: Final = 20
_COLUMNS: Final = ("bundle", "msgsInPerS", "msgsOutPerS", "bytesInPerS", "bytesOutPerS")


class SnapshotRefused(LoadManagerError):
    """The content is no observation of a cluster, or lacks the broker or namespace to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRates:
    """One observation: K bundles on B brokers.

    ``owner`` is the (K,) index of each bundle's broker, ``rates`` are (K, 2) messages and bytes per
    second, in and out. The bundles of ``stays`` never move.
    """

    brokers: tuple[str, ...]
    bundles: tuple[BundleId, ...]
    owner: Places
    rates: Floats
    stays: frozenset[BundleId] = frozenset()
    policies: Policies = NO_POLICIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A hypothetical change: brokers added and lost, and factors on the traffic of namespaces."""

    add: int = 0
    lose: Sequence[str] = ()
    times: Mapping[Namespace, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """``loads`` are those of the brokers (B, 2), ``evened`` those after the moves of ``plan``.

    ``placed`` counts the bundles of lost brokers that the least loaded one that may serves now;
    ``unserved`` are those that no remaining broker may serve, which are in no load.
    """

    seen: ObservedRates
    loads: Floats
    evened: Floats
    plan: RatePlan
    placed: int = 0
    unserved: tuple[BundleId, ...] = ()


def snapshot_in(content: Any, where: str) -> ObservedRates:
    """Read the output of ``attach --once --json``. Raises `SnapshotRefused`."""
    brokers: list[str] = []
    rows: list[tuple[BundleId, int, float, float]] = []
    try:
        for place, broker in enumerate(content["brokers"]):
            brokers.append(str(broker["broker"]))
            columns = (broker["traffic"][name] for name in _COLUMNS)
            rows += [
                (parse_bundle(name), place, float(mi) + float(mo), float(bi) + float(bo))
                for name, mi, mo, bi, bo in zip(*columns, strict=True)
            ]
        stays = frozenset(map(BundleId, content["staying"]))
        policies = content.get("isolation", {})
        every = parse_fields(f"{where}: isolation", json.dumps(policies).encode())
        isolation = {name: isolation_from(every.inner(name)) for name in every.names()}
    except (KeyError, TypeError, ValueError, OverflowError, InvalidName, MalformedContent) as error:
        raise SnapshotRefused(
            f"{where}: {type(error).__name__} {error}; expected what "
            "loadmanager attach --once --json has printed"
        ) from None
    rates = np.array([row[2:] for row in rows], dtype=float).reshape(len(rows), 2)
    if not brokers or not ((rates >= 0) & (rates <= TOTAL.most)).all():
        why = f"rates from 0 to {TOTAL.most:g}, of at least one broker"
        raise SnapshotRefused(f"{where}: expected {why}")
    return ObservedRates(
        brokers=tuple(brokers),
        bundles=tuple(row[0] for row in rows),
        owner=np.array([row[1] for row in rows], dtype=np.intp),
        rates=rates,
        stays=stays,
        policies=Policies(isolation=isolation),
    )


def forecast(seen: ObservedRates, change: Change) -> Forecast:
    """Raises `SnapshotRefused`: a broker or namespace does not exist, or no broker is left."""
    _check(seen, change)
    kept = [one for one in seen.brokers if one not in change.lose]
    brokers = (*kept, *(f"new-{number}" for number in range(1, change.add + 1)))
    # The host of a broker that is to be added is its name.
    names = tuple(BrokerId(name if ":" in name else f"{name}:0") for name in brokers)
    place = {name: at for at, name in enumerate(brokers)}
    factors = [change.times.get(namespace_of(one), 1.0) for one in seen.bundles]
    rates = seen.rates * np.array(factors, dtype=float).reshape(-1, 1)
    owner = np.array([place.get(seen.brokers[at], -1) for at in seen.owner], dtype=np.intp)
    lost = np.flatnonzero(owner < 0)
    policies = seen.policies
    may = {
        row: open_to(policies, policies.governing(namespace_of(seen.bundles[row])), names)
        for row in lost.tolist()
    }
    _place(may, owner, rates, len(brokers))
    served = owner >= 0
    changed = ObservedRates(
        brokers=brokers,
        bundles=tuple(one for one, kept in zip(seen.bundles, served, strict=True) if kept),
        owner=owner[served],
        rates=rates[served],
        stays=seen.stays,
        policies=seen.policies,
    )
    served_at = Served(
        brokers=names,
        registered=names,
        bundles=changed.bundles,
        owner=changed.owner,
        sizes=over_mean(changed.rates, len(brokers)),
        policies=policies,
        held=seen.stays,
    )
    moves = {one.bundle: one.target for one in duty_moves(served_at, _MOST_MOVES)}
    evened = changed.owner.copy()
    evened[list(moves)] = list(moves.values())
    _even_out(changed, names, evened, {*seen.stays, *(changed.bundles[row] for row in moves)})
    moves.update(
        (row, int(evened[row])) for row in np.flatnonzero(evened != changed.owner).tolist()
    )
    plan = rate_plan(changed.rates, changed.owner, len(brokers), moves.items())
    return Forecast(
        seen=changed,
        loads=_loads(changed.rates, changed.owner, len(brokers)),
        evened=_loads(changed.rates, evened, len(brokers)),
        plan=plan,
        placed=int(served[lost].sum()),
        unserved=tuple(seen.bundles[row] for row in np.flatnonzero(~served).tolist()),
    )


def _even_out(
    seen: ObservedRates, names: tuple[BrokerId, ...], owner: Places, stays: set[BundleId]
) -> None:
    """Assign bundles as the joint strategy moves them, in rounds, at the lowest price."""
    planner = Planner(
        shedder=JointShedder(move_price=MovePrice.EVEN),
        settings=PlannerSettings(
            moves_per_round=_MOST_MOVES, moves_per_hour=_MOST_MOVES, settle_s=0.0
        ),
    )
    stats = [
        BundleStats(msgs_in_per_s=float(msgs), bytes_in_per_s=float(size))
        for msgs, size in seen.rates
    ]
    cluster = Snapshot(
        reports={
            name: LoadReport(
                broker=name,
                urls=BrokerUrls(http_url=""),
                sidecar_url="",
                started_at_ms=0,
                reported_at_ms=0,
                bundles={seen.bundles[row]: stats[row] for row in np.flatnonzero(owner == place)},
            )
            for place, name in enumerate(names)
        },
        policies=replace(seen.policies, staying=frozenset(stays)),
    )
    row_of = {bundle: row for row, bundle in enumerate(seen.bundles)}
    for done in run_rounds(cluster, planner, np.random.default_rng(0), _MOST_ROUNDS):
        for move in done.moves:
            owner[row_of[move.bundle]] = names.index(move.target)
        if not done.moves:
            break


def _check(seen: ObservedRates, change: Change) -> None:
    for broker in change.lose:
        if broker not in seen.brokers:
            known = ", ".join(seen.brokers)
            raise SnapshotRefused(f"broker {broker} is not there; expected one of {known}")
    if change.add + len(seen.brokers) == len(set(change.lose)):
        raise SnapshotRefused("no broker would be left; expected at least one")
    there = {namespace_of(one) for one in seen.bundles}
    for namespace in change.times:
        if namespace not in there:
            raise SnapshotRefused(f"namespace {namespace} has no bundle; expected one that has")


def _place(may: Mapping[int, Flags], owner: Places, rates: Floats, brokers: int) -> None:
    sizes = rates / np.maximum(rates.sum(axis=0) / brokers, 1e-9)
    loads = _loads(sizes[owner >= 0], owner[owner >= 0], brokers)
    for bundle in sorted(may, key=lambda one: -sizes[one].max()):
        if not may[bundle].any():
            continue
        target = int(np.where(may[bundle], loads.max(axis=1), np.inf).argmin())
        owner[bundle] = target
        loads[target] += sizes[bundle]


def _loads(rates: Floats, owner: Places, brokers: int) -> Floats:
    loads = np.zeros((brokers, rates.shape[1]))
    np.add.at(loads, owner, rates)
    return loads


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
            {
                "bundle": one.seen.bundles[move.bundle],
                "source": one.seen.brokers[move.source],
                "target": one.seen.brokers[move.target],
            }
            for move in one.plan.moves
        ],
        "brokers": [
            {
                "broker": BrokerId(name),
                "msgsPerS": float(before[0]),
                "bytesPerS": float(before[1]),
                "evenedMsgsPerS": float(after[0]),
                "evenedBytesPerS": float(after[1]),
            }
            for name, before, after in zip(one.seen.brokers, one.loads, one.evened, strict=True)
        ],
    }
