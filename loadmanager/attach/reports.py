"""Samples of Pulsar's brokers as load reports, the form that history and strategies know."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loadmanager.attach.discovery import Addresses, PulsarCluster
from loadmanager.attach.sampling import BrokerSample
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import BrokerUrls, LoadReport, ResourceUsage

_PERCENT = 100.0


@dataclass(slots=True)
class Reports:
    """Makes load reports, each with what it gained and lost since the one before.

    A broker's life begins when it is seen first, and when its metrics say that it restarted.
    """

    address: Addresses
    _started_at_ms: dict[BrokerId, int] = field(default_factory=dict)
    _former: dict[BrokerId, frozenset[BundleId]] = field(default_factory=dict)

    def of(
        self, cluster: PulsarCluster, samples: Mapping[BrokerId, BrokerSample], at_ms: int
    ) -> Mapping[BrokerId, LoadReport]:
        """Return the report of each broker that has a sample; brokers that left are forgotten."""
        for gone in self._started_at_ms.keys() - set(cluster.brokers):
            del self._started_at_ms[gone]
            self._former.pop(gone, None)
        return {
            broker: self._report(cluster, broker, sample, at_ms)
            for broker, sample in samples.items()
        }

    def _report(
        self, cluster: PulsarCluster, broker: BrokerId, sample: BrokerSample, at_ms: int
    ) -> LoadReport:
        if sample.restarted or broker not in self._started_at_ms:
            self._started_at_ms[broker] = at_ms
            self._former.pop(broker, None)
        owned = frozenset(sample.bundles)
        former, self._former[broker] = self._former.get(broker, frozenset()), owned
        return LoadReport(
            broker=broker,
            urls=BrokerUrls(http_url=self.address(broker)),
            sidecar_url="",
            started_at_ms=self._started_at_ms[broker],
            version=cluster.version,
            reported_at_ms=at_ms,
            **_usages(sample),
            bundles={bundle: one.stats().rounded() for bundle, one in sample.bundles.items()},
            gains=owned - former,
            losses=former - owned,
        )


def _usages(sample: BrokerSample) -> dict[str, Any]:
    """Return what the host uses, else the CPU time of the broker's process without a limit."""
    if sample.host is not None and sample.host.usages:
        return dict(sample.host.usages)
    if sample.cpu_cores is None:
        return {}
    return {"cpu": ResourceUsage(_PERCENT * sample.cpu_cores, 0.0)}
