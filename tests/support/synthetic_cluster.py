"""Clusters of any size that anybody can make again.

A 64-bit linear congruential generator draws each broker's CPU and then the rate of each
of its bundles, so that two programs in two languages decide on the same numbers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import BrokerUrls, BundleStats, LoadReport, ResourceUsage
from loadmanager.core.rates import Rates

Shape = Literal["hot5pct", "spread"]
"""One broker in twenty far above the others, or all of them anywhere from 5 to 95 %."""

SHAPES: Final[tuple[Shape, ...]] = ("hot5pct", "spread")
BUNDLES_PER_BROKER: Final = 100
CORES: Final = 16
NOW_S: Final = 60.0
"""When decisions are taken; all brokers joined and reported at 0."""

_KBIT_PER_BYTE: Final = 8e-3
_WIDTH: Final = 2**32 // BUNDLES_PER_BROKER
_ALL: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class SyntheticBroker:
    """One broker: its CPU in percent of all its cores, and what its bundles carry.

    It reports its network where that has a limit.
    """

    name: BrokerId
    cpu_percent: float
    bundles: Mapping[BundleId, BundleStats]
    network_kbit: float = 0.0

    @property
    def totals(self) -> Rates:
        every = self.bundles.values()
        return Rates(
            sum(one.msgs_in_per_s for one in every),
            sum(one.msgs_out_per_s for one in every),
            sum(one.bytes_in_per_s for one in every),
            sum(one.bytes_out_per_s for one in every),
        )

    def report(self, *, grown_by: float = 1.0) -> LoadReport:
        bundles = {name: _times(stats, grown_by) for name, stats in self.bundles.items()}
        return LoadReport(
            broker=self.name,
            urls=BrokerUrls(http_url=f"http://{self.name}"),
            sidecar_url=f"http://{self.name}",
            reported_at_ms=0,
            started_at_ms=0,
            cpu=ResourceUsage(self.cpu_percent * CORES, 100.0 * CORES),
            bandwidth_in=self._network(self.totals.bytes_in_per_s * grown_by),
            bandwidth_out=self._network(self.totals.bytes_out_per_s * grown_by),
            bundles=bundles,
        )

    def _network(self, bytes_per_s: float) -> ResourceUsage:
        used = bytes_per_s * _KBIT_PER_BYTE if self.network_kbit else 0.0
        return ResourceUsage(used, self.network_kbit)


def synthetic_brokers(count: int, shape: Shape) -> Iterator[SyntheticBroker]:
    draws = _draws()
    for number in range(count):
        cpu = _cpu_percent(number, shape, next(draws))
        rates = [(1 + 200 * next(draws) ** 4) * cpu / 50 for _ in range(BUNDLES_PER_BROKER)]
        bundles = {_bundle(number, part): _stats(rate) for part, rate in enumerate(rates)}
        yield SyntheticBroker(BrokerId(f"broker-{number}:8080"), cpu, bundles)


def _draws() -> Iterator[float]:
    state = 42
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) & _ALL
        yield (state >> 11) / 2**53


def _cpu_percent(number: int, shape: Shape, draw: float) -> float:
    if shape == "spread":
        return 5 + 90 * draw
    return (85 if number % 20 == 0 else 40) + 10 * draw


def _bundle(broker: int, part: int) -> BundleId:
    last = part == BUNDLES_PER_BROKER - 1
    upper = 0xFFFFFFFF if last else (part + 1) * _WIDTH
    return BundleId(f"bench/ns-{broker}/0x{part * _WIDTH:08x}_0x{upper:08x}")


def _stats(msgs_per_s: float) -> BundleStats:
    return BundleStats(
        msgs_in_per_s=msgs_per_s,
        msgs_out_per_s=2 * msgs_per_s,
        bytes_in_per_s=1024 * msgs_per_s,
        bytes_out_per_s=2048 * msgs_per_s,
        topics=1,
    )


def _times(stats: BundleStats, factor: float) -> BundleStats:
    return _stats(stats.msgs_in_per_s * factor)
