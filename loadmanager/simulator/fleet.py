"""The modelled brokers in columns: capacity, usage, and saturation."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from loadmanager.core.columns import Indices
from loadmanager.core.ids import BrokerId
from loadmanager.core.rates import BYTES_IN, BYTES_OUT, MSGS_IN, MSGS_OUT
from loadmanager.core.scores import BANDWIDTH_IN, BANDWIDTH_OUT, CPU, MEMORY, FloatArray
from loadmanager.simulator.scenario.model import BrokerClass

PORT: Final = 8080
"""The port of a modelled broker; its id is ``name:port``."""

_KIB_PER_MIB: Final = 1024.0
_BITS_PER_MBIT: Final = 1e6
_ROUNDING: Final = 1e-9
_REPORTED: Final = (CPU, MEMORY, BANDWIDTH_IN, BANDWIDTH_OUT)
# From the units here to those of load reports: percent of a core, MiB, kbit/s.
_REPORT_UNITS: Final = np.array([100.0, 1.0, 1e-3, 1e-3])


@dataclass(frozen=True, eq=False, kw_only=True)
class Fleet:
    """All brokers of a scenario, present or not; B brokers, four resources of `run.RESOURCES`.

    Resources are in cores, MiB, and bits per second in and out. ``background`` is the usage by
    other processes. ``class_of`` is the class of each broker; on a broker of a class a message or
    byte per second costs ``per_work`` (C, 4 kinds of traffic, 4), and a topic and a connection
    cost ``per_thing`` (C, 2, 4).
    """

    brokers: tuple[BrokerId, ...]
    rows_of: Mapping[str, Indices]
    capacity: FloatArray
    background: FloatArray
    class_of: Indices
    per_work: FloatArray
    per_thing: FloatArray
    cpu_growth: float = 0.0

    @classmethod
    def of(cls, classes: Sequence[BrokerClass], cpu_growth: float = 0.0) -> "Fleet":
        names = [name for group in classes for name in group.brokers]
        counts = [group.count for group in classes]
        rows_of = {name: np.array([row]) for row, name in enumerate(names)}
        ends = np.cumsum(counts)
        for group, end in zip(classes, ends.tolist(), strict=True):
            rows_of[group.name] = np.arange(end - group.count, end)
        return cls(
            brokers=tuple(BrokerId(f"{name}:{PORT}") for name in names),
            rows_of=rows_of,
            capacity=np.repeat([_capacity(group) for group in classes], counts, axis=0),
            background=np.repeat([_background(group) for group in classes], counts, axis=0),
            class_of=np.repeat(np.arange(len(classes)), counts),
            per_work=np.stack([_per_work(group) for group in classes]),
            per_thing=np.stack([_per_thing(group) for group in classes]),
            cpu_growth=cpu_growth,
        )

    def rows(self, names: Iterable[str]) -> list[int]:
        """Return the rows of brokers or whole classes, each once, in the order named."""
        return list(dict.fromkeys(int(row) for name in names for row in self.rows_of[name]))

    def variable(self, work: FloatArray, cpu_work: FloatArray) -> FloatArray:
        """Return (B, 4) the cost of each broker's traffic.

        ``work`` (B, 4) are its rates; ``cpu_work`` the rates weighted for CPU.
        """
        per_work = self.per_work[self.class_of]
        amounts = np.einsum("bk,bkr->br", work, per_work)
        amounts[:, 0] = (cpu_work * per_work[:, :, 0]).sum(axis=1)
        return np.asarray(amounts)

    def fixed(self, things: FloatArray, background: FloatArray) -> FloatArray:
        """Return (B, 4) the usage without traffic: by other processes, topics and connections.

        ``things`` (B, 2) are the topics and connections.
        """
        per_thing = self.per_thing[self.class_of]
        return np.asarray(background + np.einsum("bk,bkr->br", things, per_thing))

    def use(
        self, fixed: FloatArray, variable: FloatArray, waiting: FloatArray | None = None
    ) -> "Use":
        """Return the demand on each broker, and the served part.

        ``fixed``, ``variable`` and ``waiting`` (B, 4) are the usage without traffic, for the
        traffic, and for the backlog. If demand exceeds the capacity of any resource, the broker
        serves all traffic at a lower rate, by the factor with which the scarcest resource has room
        for it beside the fixed usage. The backlog is served with the remaining
        room.
        """
        demand = (fixed + variable) / self.capacity
        served = self._fits(fixed, variable)
        used = fixed + variable * served[:, np.newaxis]
        caught_up = np.zeros(len(served))
        if waiting is not None:
            caught_up = self._fits(used, waiting)
            more = waiting * caught_up[:, np.newaxis]
            used, demand = used + more, demand + more / self.capacity
        cores = self.capacity[:, 0]
        if self.cpu_growth:
            used[:, 0] = grown_cpu(used[:, 0] / cores, self.cpu_growth) * cores
        return Use(self.grown(demand), served, caught_up, np.minimum(used, self.capacity))

    def grown(self, fractions: FloatArray) -> FloatArray:
        if not self.cpu_growth:
            return fractions
        cpu = grown_cpu(fractions[:, :1], self.cpu_growth)
        return np.hstack([cpu, fractions[:, 1:]])

    def _fits(self, used: FloatArray, asked: FloatArray) -> FloatArray:
        """Return (B,) the fraction of the demand for which all resources have room."""
        capacity = self.capacity.copy()
        capacity[:, 0] *= full_at(self.cpu_growth)
        room = np.maximum(capacity - used, 0.0)
        short = asked > room
        fits = np.where(short, room / np.where(short, asked, 1.0), 1.0)
        # A broker whose fixed usage exceeds a resource has no room for traffic.
        beyond = (used > capacity * (1.0 + _ROUNDING)).any(axis=1)
        return np.where(beyond, 0.0, fits.min(axis=1))

    def cost(self, work: FloatArray, things: FloatArray, cpu_work: FloatArray) -> FloatArray:
        """Return (C, K, 4): the cost of each bundle on a broker of each class.

        ``work`` (K, 4) is the demanded traffic, ``cpu_work`` the same weighted for CPU;
        ``things`` (K, 2) are topics and connections.
        """
        amounts = work @ self.per_work
        amounts[:, :, 0] = (cpu_work @ self.per_work[:, :, 0].T).T
        return np.asarray(amounts + things @ self.per_thing)


@dataclass(frozen=True, eq=False)
class Use:
    """The demand on brokers and their usage.

    ``demand`` (B, 4) is a fraction of capacity, ``usage`` an amount that never exceeds it.
    ``served_fraction`` (B,) of the demanded traffic is served, and ``caught_up_fraction`` of the
    backlog that clients could send.
    """

    demand: FloatArray
    served_fraction: FloatArray
    caught_up_fraction: FloatArray
    usage: FloatArray


def grown_cpu(fraction: FloatArray, growth: float) -> FloatArray:
    """Return the CPU demand for work with the nominal demand ``fraction`` of a broker.

    It grows quadratically up to a full broker, and linearly from there on.
    """
    return np.asarray(fraction * (1.0 + growth * np.minimum(fraction, 1.0)))


def full_at(growth: float) -> float:
    """Return the fraction at which `grown_cpu` is 1."""
    return (math.sqrt(1.0 + 4.0 * growth) - 1.0) / (2.0 * growth) if growth else 1.0


def in_report_units(amounts: FloatArray) -> FloatArray:
    """Return (B, 4) amounts as (B, 5) in the units and order of load reports.

    Direct memory is 0 of 0, as from an agent that cannot measure it.
    """
    found = np.zeros((len(amounts), 5))
    found[:, _REPORTED] = amounts * _REPORT_UNITS
    return found


def _capacity(group: BrokerClass) -> list[float]:
    network = group.network_mbit_per_s * _BITS_PER_MBIT
    return [group.cores, group.memory_mib, network, network]


def _background(group: BrokerClass) -> list[float]:
    other = group.background
    return [
        other.cores,
        other.memory_mib,
        other.network_in_mbit_per_s * _BITS_PER_MBIT,
        other.network_out_mbit_per_s * _BITS_PER_MBIT,
    ]


def _per_work(group: BrokerClass) -> FloatArray:
    cost = group.cost
    found = np.zeros((4, 4))
    message = [cost.cpu_us_per_msg * 1e-6, cost.memory_kib_per_msg_per_s / _KIB_PER_MIB]
    found[MSGS_IN, :2] = found[MSGS_OUT, :2] = message
    found[BYTES_IN, 0] = found[BYTES_OUT, 0] = cost.cpu_ns_per_byte * 1e-9
    found[MSGS_IN, 2] = found[MSGS_OUT, 3] = cost.wire_bytes_per_msg * 8.0
    found[BYTES_IN, 2] = found[BYTES_OUT, 3] = 8.0
    return found


def _per_thing(group: BrokerClass) -> FloatArray:
    cost = group.cost
    return np.array(
        [
            [cost.cpu_us_per_topic_s * 1e-6, cost.memory_kib_per_topic / _KIB_PER_MIB, 0.0, 0.0],
            [
                cost.cpu_us_per_connection_s * 1e-6,
                cost.memory_kib_per_connection / _KIB_PER_MIB,
                0.0,
                0.0,
            ],
        ]
    )
