"""Placement of the bundles of new namespaces that no broker serves yet.

Pulsar places a bundle at its first lookup, by load figures that do not yet include bundles
placed just before. So a namespace that many clients begin to use at once may end up on few
brokers.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from time import monotonic
from typing import Final

from loadmanager.adapters.pulsar_admin import PulsarAdmin, RequestFailed
from loadmanager.adapters.pulsar_admin.lookups import (
    read_anti_affinity_group,
    read_boundaries,
    read_namespaces,
    read_tenants,
)
from loadmanager.attach.discovery import PulsarCluster
from loadmanager.attach.observation import Rules
from loadmanager.attach.sampling import BrokerSample
from loadmanager.attach.tasks import Proposal
from loadmanager.core.bundle_task import TaskKind
from loadmanager.core.bundle_traffic import CHANGE_EVENTS, BundleTraffic, topics_in
from loadmanager.core.ids import BrokerId, BundleId, Namespace, TopicName, namespace_of
from loadmanager.core.plan import Cause
from loadmanager.core.policies import open_to

MOST_TENANTS: Final = 50
"""Tenants whose namespaces are read in one round."""

MOST_BUNDLES: Final = 128
"""A namespace with more bundles is left to Pulsar: each placement takes a lookup."""

_TRIED_FOR_S: Final = 60.0
_MOST_NAMES: Final = 100_000
_COORDINATORS: Final = "transaction_coordinator_assign"
_MOST_COORDINATORS: Final = 64


@dataclass(slots=True)
class NewNamespaces:
    admin: PulsarAdmin
    _known: dict[str, frozenset[Namespace] | None] | None = None
    _until_s: dict[Namespace, float] = field(default_factory=dict)

    async def proposals(
        self,
        url: str,
        cluster: PulsarCluster,
        samples: Mapping[BrokerId, BrokerSample],
        rules: Rules,
    ) -> tuple[Proposal, ...]:
        """Return a broker for each bundle of a new namespace that no broker serves.

        A namespace counts as new for a minute after it is first read. Those that the rules exclude,
        that have an anti-affinity group or more than `MOST_BUNDLES` bundles are left to Pulsar.
        Nothing is proposed while a broker has no sample, because it may serve such a bundle. Raises
        `PulsarAdminError`: namespaces, bundles or groups cannot be read.
        """
        listed, now_s = await self._list(url), monotonic()
        self._until_s = {
            name: until_s
            for name, until_s in self._until_s.items()
            if name in listed and now_s < until_s
        }
        if not samples.keys() >= set(cluster.brokers):
            return ()
        found: list[Proposal] = []
        for name in sorted(self._until_s):
            try:
                placed = await self._of(url, name, cluster, samples, rules)
            except RequestFailed:
                continue
            if placed is None:
                del self._until_s[name]
            else:
                found += placed
        return tuple(found)

    async def _list(self, url: str) -> frozenset[Namespace]:
        """Return the namespaces; read those of tenants not read yet, and of those read longest ago.

        The namespaces of a tenant that is there at the start are not new when they are first read.
        """
        tenants = await read_tenants(self.admin, url)
        known, unread = (self._known or {}), None if self._known is None else frozenset[Namespace]()
        new = {one: unread for one in tenants if one not in known}
        self._known = {**new, **{one: known[one] for one in known if one in set(tenants)}}
        due = list(self._known)[:MOST_TENANTS]
        reading = (read_namespaces(self.admin, url, one) for one in due)
        found = await asyncio.gather(*reading, return_exceptions=True)
        for tenant, names in zip(due, found, strict=True):
            before = self._known[tenant] = self._known.pop(tenant)
            if isinstance(names, frozenset):
                self._known[tenant] = names
                fresh = frozenset() if before is None else names - before
                self._until_s |= dict.fromkeys(fresh, monotonic() + _TRIED_FOR_S)
            elif not isinstance(names, RequestFailed):
                raise names
        return frozenset().union(*(names or () for names in self._known.values()))

    async def _of(
        self,
        url: str,
        namespace: Namespace,
        cluster: PulsarCluster,
        samples: Mapping[BrokerId, BrokerSample],
        rules: Rules,
    ) -> list[Proposal] | None:
        """Return the placements of a namespace, None if it needs none now or later."""
        boundaries = await read_boundaries(self.admin, url, namespace)
        if boundaries is None or len(boundaries.bundles) > MOST_BUNDLES:
            return None
        served = set(chain.from_iterable(one.bundles for one in samples.values()))
        left = [one for one in boundaries.bundles if one not in served]
        if not left or rules.why_stays(left[0], BundleTraffic()):
            return None
        if await read_anti_affinity_group(self.admin, url, namespace):
            return None
        return spread(namespace, left, cluster, samples)


def spread(
    namespace: Namespace,
    bundles: list[BundleId],
    cluster: PulsarCluster,
    samples: Mapping[BrokerId, BrokerSample],
) -> list[Proposal]:
    """Return a broker for each bundle: with the fewest of the namespace, then the fewest msg/s."""
    isolation, brokers = cluster.isolation, tuple(samples)
    open_mask = open_to(isolation, isolation.governing(namespace), brokers, cluster.brokers)
    counts = {
        broker: sum(namespace_of(one) == namespace for one in samples[broker].bundles)
        for broker, is_open in zip(brokers, open_mask, strict=True)
        if is_open
    }
    if not counts:
        return []
    msgs_per_s = {broker: samples[broker].total.msgs_per_s for broker in counts}
    found: list[Proposal] = []
    for bundle in bundles:
        target = min(counts, key=lambda one: (counts[one], msgs_per_s[one], one))
        counts[target] += 1
        found.append(
            Proposal(
                kind=TaskKind.PLACE,
                bundle=bundle,
                source=None,
                target=target,
                cause=Cause.UNOWNED,
                reason=f"its namespace is new; {target} has the fewest of its bundles",
            )
        )
    return found


def holds_policies(bundle: BundleId) -> bool:
    """Return whether a bundle contains the topic of its namespace's policies.

    A modular broker that begins to serve another bundle of the namespace looks that topic up. If
    no broker serves its bundle, that lookup makes Pulsar's leader place it.
    """
    return _topic_in(bundle, [CHANGE_EVENTS]) is not None


def name_in(bundle: BundleId) -> TopicName | None:
    """Return the name of a topic whose hash is in a bundle; its lookup creates no topic.

    Topics of transaction coordinators exist, which some brokers require of what they look up.
    """
    coordinators = (f"{_COORDINATORS}-partition-{number}" for number in range(_MOST_COORDINATORS))
    others = (f"loadmanager-{number}" for number in range(_MOST_NAMES))
    system = namespace_of(bundle) == "pulsar/system"
    return _topic_in(bundle, chain(coordinators if system else (), others))


def _topic_in(bundle: BundleId, local_names: Iterable[str]) -> TopicName | None:
    names = (f"persistent://{namespace_of(bundle)}/{local}" for local in local_names)
    return next((topic for _, topic, _ in topics_in(bundle, names)), None)
