from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.rates import Rates, six_digits, total

NO_BUNDLES: Mapping[BundleId, "BundleStats"] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """Usage and capacity of one resource, in the same unit.

    A limit of zero or less means that the limit is unknown: the resource then has no fraction
    and is ignored in scores. Usage above the limit is real overload and is not clipped, because
    clipping would hide which broker is worst.

    ``usage`` is the last sample; ``mean`` and ``variance`` are over the last samples, None if
    there was only one.
    """

    usage: float
    limit: float
    mean: float | None = None
    variance: float | None = None

    @property
    def fraction(self) -> float | None:
        """Usage over limit, 0.0 idle and 1.0 full; None when the limit is unknown."""
        return self.usage / self.limit if self.limit > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUsage:
    """Usage of a broker's host (or container, or process tree) over one window.

    Units are those of Pulsar's load reports: CPU in percent of one core (limit 100
    per core), memory in MiB, bandwidth in kbit/s. None means that the resource could not be
    measured, or that it has no rate yet because this was the first sample.
    """

    window_s: float
    cpu: ResourceUsage | None = None
    memory: ResourceUsage | None = None
    bandwidth_in: ResourceUsage | None = None
    bandwidth_out: ResourceUsage | None = None


@dataclass(frozen=True, slots=True)
class BundleStats(Rates):
    """The traffic of one bundle: mean rates over the broker's last window, and current counts."""

    topics: int = 0
    producers: int = 0
    consumers: int = 0
    cache_size_bytes: int = 0

    def rounded(self) -> "BundleStats":
        """Return these figures with rates rounded to six digits, as in load reports."""
        counts = (self.topics, self.producers, self.consumers, self.cache_size_bytes)
        msgs_in, msgs_out, bytes_in, bytes_out = map(six_digits, self.row())
        return BundleStats(msgs_in, msgs_out, bytes_in, bytes_out, *counts)


@dataclass(frozen=True, slots=True)
class BrokerUrls:
    http_url: str = ""
    http_url_tls: str = ""
    broker_url: str = ""
    broker_url_tls: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The name, addresses and state of a broker, without its loads.

    ``sidecar_url`` is where the agent's sidecar serves requests. ``started_at_ms`` distinguishes
    a restarted broker from a repeated report. ``broker_class`` names brokers of one kind
    (hardware, image), "" if not set.
    """

    broker: BrokerId
    urls: BrokerUrls = BrokerUrls()
    persistent_topics: bool = True
    non_persistent_topics: bool = True
    protocols: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    advertised_listeners: Mapping[str, BrokerUrls] = field(
        default_factory=lambda: MappingProxyType({})
    )
    started_at_ms: int = 0
    version: str = ""
    sidecar_url: str = ""
    draining: bool = False
    healthy: bool = True
    broker_class: str = ""

    @property
    def takes(self) -> bool:
        """Whether the broker may be given bundles: it neither drains nor is cordoned."""
        return self.persistent_topics and not self.draining


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport(Registration):
    """Registration and loads of a broker, as published by its agent.

    ``reported_at_ms`` is on the agent's wall clock and only for display: ages are computed from
    when the leader saw the loads, on the leader's own clock.
    """

    reported_at_ms: int = 0
    cpu: ResourceUsage | None = None
    memory: ResourceUsage | None = None
    direct_memory: ResourceUsage | None = None
    bandwidth_in: ResourceUsage | None = None
    bandwidth_out: ResourceUsage | None = None
    bundles: Mapping[BundleId, BundleStats] = field(default_factory=lambda: NO_BUNDLES)
    gains: frozenset[BundleId] = frozenset()
    losses: frozenset[BundleId] = frozenset()

    @property
    def totals(self) -> Rates:
        return total(self.bundles.values())

    @property
    def topics(self) -> int:
        return sum(stats.topics for stats in self.bundles.values())


def registration_fields(registration: Registration) -> dict[str, Any]:
    return {one.name: getattr(registration, one.name) for one in fields(Registration)}


def registration_of(report: Registration) -> Registration:
    return Registration(**registration_fields(report))


def with_registration(report: LoadReport, registration: Registration) -> LoadReport:
    return replace(report, **registration_fields(registration))
