"""A small cluster whose brokers cost what they cost: for the tests of the joint strategy."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from small_view import bundle, view_of

from loadmanager.core.averages import Average, BundleAverages
from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Listing
from loadmanager.core.filters import Limits
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.joint.deciding import learned_from
from loadmanager.core.joint.state import JointState
from loadmanager.core.load import BundleStats
from loadmanager.core.load_tracker import BrokerLoad
from loadmanager.core.memory import Memory
from loadmanager.core.planner import Plan
from loadmanager.core.rates import Rates
from loadmanager.core.shedding import JointShedder, Shed

CPU_PER_MSG = 2e-3
"""Percent of a core for a message per second: 20 microseconds."""

CPU_PER_BYTE = 2e-7
KBIT_PER_BYTE = 8e-3


@dataclass(frozen=True, kw_only=True)
class Broker:
    """A broker: what others use of it as fractions, how fast it is, and its bundles by number."""

    bundles: Sequence[int]
    background: float = 0.0
    speed: float = 1.0
    cores: float = 8.0
    network_kbit: float = 1e6
    memory_mib: float = 0.0
    memory_used: float = 0.0
    known: bool = True
    changed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What a bundle has: messages in per second (out as many), and the size of one in bytes."""

    msgs: float = 1000.0
    size: float = 1000.0
    long_msgs: float | None = None
    measured: bool = True
    topics: int = 1

    def rates(self, msgs: float) -> Rates:
        return Rates(msgs, msgs, msgs * self.size, msgs * self.size)


PLAIN = Traffic()


def view(
    brokers: Mapping[str, Broker],
    traffic: Mapping[int, Traffic] | None = None,
    *,
    now_s: float = 60.0,
    namespaces: Mapping[int, str] | None = None,
    **given: Any,
) -> ClusterView:
    of = {**dict.fromkeys((k for one in brokers.values() for k in one.bundles), PLAIN)}
    of |= {k: one for k, one in (traffic or {}).items() if k in of}
    names = {k: bundle(k, (namespaces or {}).get(k, "t/n")) for k in of}
    averages = {
        names[k]: BundleAverages(
            Average(10, 10, one.rates(one.msgs)),
            Average(1000, 500, one.rates(one.msgs if one.long_msgs is None else one.long_msgs)),
            one.topics,
        )
        for k, one in of.items()
        if one.measured
    }
    loads = [_load(key, one, of, names, now_s) for key, one in brokers.items()]
    return view_of(loads, averages, now_s=now_s, **given)


def _load(
    key: str, broker: Broker, of: Mapping[int, Traffic], names: Mapping[int, BundleId], now_s: float
) -> BrokerLoad:
    msgs = sum(of[k].msgs for k in broker.bundles)
    volume = sum(of[k].msgs * of[k].size for k in broker.bundles)
    cores = broker.cores * 100.0 if broker.known else 0.0
    network = broker.network_kbit if broker.known else 0.0
    cpu = broker.speed * 2 * (msgs * CPU_PER_MSG + volume * CPU_PER_BYTE)
    kbit = volume * KBIT_PER_BYTE
    used = (min(broker.background * cores + cpu, cores), broker.memory_used, 0.0, kbit, kbit)
    load = BrokerLoad(
        broker=BrokerId(key),
        seen_s=now_s - 1.0,
        usage=used if broker.known else (0.0,) * 5,
        limit=(cores, broker.memory_mib, 0.0, network, network),
        totals=Rates(msgs, msgs, volume, volume),
        listing=Listing.of(
            {
                names[k]: BundleStats(
                    msgs_in_per_s=of[k].msgs,
                    msgs_out_per_s=of[k].msgs,
                    bytes_in_per_s=of[k].msgs * of[k].size,
                    bytes_out_per_s=of[k].msgs * of[k].size,
                    topics=of[k].topics,
                    consumers=1,
                )
                for k in broker.bundles
            }
        ),
        topics=len(broker.bundles),
    )
    return replace(load, **broker.changed)


def open_limits(seen: ClusterView, **changed: Any) -> Limits:
    brokers = seen.age_s < 1e9
    movable = seen.bundles.known.copy()
    movable[:] = True
    return replace(Limits(gives=brokers, takes=brokers, movable=movable), **changed)


def after(plan: Plan, brokers: Mapping[str, Broker]) -> dict[str, Broker]:
    held = {key: list(one.bundles) for key, one in brokers.items()}
    numbers = {bundle(k): k for one in brokers.values() for k in one.bundles}
    for move in plan.moves:
        assert move.source is not None
        held[move.source].remove(numbers[move.bundle])
        held[move.target].append(numbers[move.bundle])
    return {key: replace(one, bundles=held[key]) for key, one in brokers.items()}


def learned(views: Iterable[ClusterView]) -> JointState:
    state = None
    for one in views:
        state = learned_from(one, state)
    assert state is not None
    return state


def decided(views: Iterable[ClusterView], shedder: JointShedder | None = None) -> list[Shed]:
    found: list[Shed] = []
    for one in views:
        memory = found[-1].memory if found else Memory()
        found.append((shedder or JointShedder()).decide(one, memory, open_limits(one)))
    return found
