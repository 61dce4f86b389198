import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import inf
from time import monotonic
from typing import Final

from loadmanager.core.bundle_task import BundleTask, TaskKind
from loadmanager.core.bundle_traffic import CHANGE_EVENTS, BundleTraffic, topics_in
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import (
    BrokerId,
    BundleId,
    Namespace,
    TopicName,
    belongs_to_a_broker,
    namespace_of,
)
from loadmanager.core.plan import Cause
from loadmanager.core.policies import open_to
from loadmanager.core.wire.policies import decode_failure_domain
from loadmanager.pulsar.answers import (
    FAILURE_DOMAINS,
    PulsarCluster,
    ask_each,
    read_anti_affinity_group,
    read_boundaries,
    read_failure_domains,
    read_namespaces,
    read_tenants,
)
from loadmanager.pulsar.client import (
    NotPulsar,
    PulsarAdmin,
    PulsarAdminError,
    RequestFailed,
    RightMissing,
)
from loadmanager.pulsar.moves import proposal
from loadmanager.pulsar.observation import Observation, Rules, observe
from loadmanager.pulsar.sampling import Samples
from loadmanager.pulsar.strategy import Strategy

_KNOWN_FOR_S: Final = 300.0
_READ_A_ROUND: Final = 50  # Namespaces without a proposed move whose group is read in one window.
# Windows in a row after which a bundle counts as one without traffic, or with traffic again.
IDLE_WINDOWS: Final = 3


@dataclass(slots=True)
class Observer:
    """Observes windows; groups and failure domains are kept for five minutes, and read in turn."""

    admin: PulsarAdmin
    strategy: Strategy = field(default_factory=Strategy)
    _known: dict[Namespace, tuple[str, float]] = field(default_factory=dict)
    _unread: dict[Namespace, str] = field(default_factory=dict)
    _domains: tuple[Mapping[BrokerId, str], float] | None = None
    _quiet: dict[BundleId, tuple[bool, int]] = field(default_factory=dict)

    async def observe(
        self,
        url: str,
        cluster: PulsarCluster,
        samples: Samples,
        missing: Mapping[BrokerId, str],
        rules: Rules,
    ) -> Observation:
        """Return an observation in which policies hold; bundles whose ones are unknown stay."""
        samples, missing = self.strategy.take(cluster, samples, missing)
        self._unread = {}
        idle = self._note_quiet(samples)
        bundles = (bundle for sample in samples.values() for bundle in sample.bundles)
        served = {namespace_of(one) for one in bundles if not belongs_to_a_broker(one)}
        self._known = {name: one for name, one in self._known.items() if name in served}
        await self._read_groups(url, self._due(served)[:_READ_A_ROUND])
        refusals = {name: why for name in served if (why := cluster.isolation.refusal(name))}
        while True:
            groups = {name: group for name, (group, _) in self._known.items() if group}
            try:
                domains = await self._failure_domains(url, cluster) if groups else {}
            except PulsarAdminError as error:
                if isinstance(error, RightMissing):
                    raise
                domains = {}
                self._unread |= dict.fromkeys(groups, f"failure domains are not known: {error}")
            policies = replace(cluster.isolation, anti_affinity=groups, domains=domains)
            seen = observe(
                replace(cluster, isolation=policies),
                samples,
                missing,
                rules,
                groups,
                strategy=self.strategy,
                unknown=self._unread | refusals,
                idle=idle,
            )
            unread = self._due({namespace_of(one.bundle) for one in seen.proposals})
            if not unread:
                return seen
            await self._read_groups(url, unread)

    def _due(self, names: Iterable[Namespace]) -> list[Namespace]:
        """Return those whose group was not read for `_KNOWN_FOR_S`, the longest ago first."""
        fresh_s = monotonic() - _KNOWN_FOR_S
        read = sorted((self._known.get(name, ("", -inf))[1], name) for name in names)
        return [name for at_s, name in read if at_s < fresh_s]

    async def _read_groups(self, url: str, names: Sequence[Namespace]) -> None:
        read = partial(read_anti_affinity_group, self.admin, url)
        groups, failed = await ask_each(names, read, known=RequestFailed)
        for name, group in groups.items():
            self._known[name] = group, monotonic()
        for name, why in failed.items():
            self._unread[name] = f"its anti-affinity group is not known: {why}"

    async def _failure_domains(self, url: str, cluster: PulsarCluster) -> Mapping[BrokerId, str]:
        if "true" not in cluster.differing(FAILURE_DOMAINS):
            return {}
        if self._domains is None or self._domains[1] < monotonic() - _KNOWN_FOR_S:
            listed = await read_failure_domains(self.admin, url, cluster.name)
            found: dict[BrokerId, str] = {}
            try:
                for name, one in listed.items():
                    brokers = decode_failure_domain(name, json.dumps(one).encode())
                    found |= dict.fromkeys(brokers, name)
            except MalformedContent as error:
                raise NotPulsar(f"{url}: failure domain {error}") from None
            self._domains = found, monotonic()
        return self._domains[0]

    def _note_quiet(self, samples: Samples) -> set[BundleId]:
        """Return bundles without traffic over several windows, not those with one now and then."""
        noted: dict[BundleId, tuple[bool, int]] = {}
        for sample in samples.values():
            for bundle, traffic in sample.bundles.items():
                noted[bundle] = quiet, against = self._quiet.get(bundle, (False, 0))
                if sample.repeated_s or traffic.partial:
                    continue
                none = traffic.msgs_per_s + traffic.passing.msgs_per_s == 0
                against = against + 1 if none is not quiet else 0
                turns = against == IDLE_WINDOWS
                noted[bundle] = (quiet is not turns, 0 if turns else against)
        self._quiet = noted
        return {bundle for bundle, (quiet, _) in noted.items() if quiet}


MOST_TENANTS: Final = 50  # Tenants whose namespaces are read in one round.
# A namespace with more bundles is left to Pulsar: each placement takes a lookup.
MOST_BUNDLES: Final = 128
_TRIED_FOR_S: Final = 60.0
_MOST_NAMES: Final = 100_000
_MOST_COORDINATORS: Final = 64


@dataclass(slots=True)
class NewNamespaces:
    """Places the bundles of new namespaces that no broker serves yet.

    Pulsar places a bundle at its first lookup, by load figures that do not yet include bundles
    placed just before: a namespace that many clients begin to use at once may end up on few.
    """

    admin: PulsarAdmin
    _known: dict[str, frozenset[Namespace] | None] | None = None
    _until_s: dict[Namespace, float] = field(default_factory=dict)

    async def proposals(
        self,
        url: str,
        cluster: PulsarCluster,
        samples: Samples,
        rules: Rules,
    ) -> tuple[BundleTask, ...]:
        """Return a broker for each bundle of a new namespace that no broker serves.

        A namespace counts as new for a minute after it is first read. Those that the rules exclude,
        that have an anti-affinity group or more than `MOST_BUNDLES` bundles are left to Pulsar.
        Nothing is proposed while a broker has no sample, because it may serve such a bundle.
        """
        listed, now_s = await self._list(url), monotonic()
        new = ((name, until_s) for name, until_s in self._until_s.items() if name in listed)
        self._until_s = {name: until_s for name, until_s in new if now_s < until_s}
        if not samples.keys() >= set(cluster.brokers):
            return ()
        found: list[BundleTask] = []
        for name in sorted(self._until_s):
            with suppress(RequestFailed):
                left = await self._unserved(url, name, samples, rules)
                found += spread(name, left, cluster, samples)
                if not left:
                    del self._until_s[name]
        return tuple(found)

    async def _list(self, url: str) -> frozenset[Namespace]:
        """Return the namespaces; read those of tenants not read yet, or read longest ago."""
        tenants = await read_tenants(self.admin, url)
        known, unread = (self._known or {}), None if self._known is None else frozenset[Namespace]()
        new = {one: unread for one in tenants if one not in known}
        self._known = {**new, **{one: known[one] for one in known if one in set(tenants)}}
        due = list(self._known)[:MOST_TENANTS]
        read = partial(read_namespaces, self.admin, url)
        found, _ = await ask_each(due, read, known=RequestFailed)
        for tenant in due:
            before = self._known[tenant] = self._known.pop(tenant)
            if (names := found.get(tenant)) is not None:
                self._known[tenant] = names
                fresh = frozenset() if before is None else names - before
                self._until_s |= dict.fromkeys(fresh, monotonic() + _TRIED_FOR_S)
        return frozenset().union(*(names or () for names in self._known.values()))

    async def _unserved(
        self, url: str, namespace: Namespace, samples: Samples, rules: Rules
    ) -> list[BundleId]:
        boundaries = await read_boundaries(self.admin, url, namespace)
        if boundaries is None or len(boundaries.bundles) > MOST_BUNDLES:
            return []
        served = set(chain.from_iterable(one.bundles for one in samples.values()))
        left = [one for one in boundaries.bundles if one not in served]
        if not left or rules.why_stays(left[0], BundleTraffic()):
            return []
        return [] if await read_anti_affinity_group(self.admin, url, namespace) else left


def spread(
    namespace: Namespace, bundles: list[BundleId], cluster: PulsarCluster, samples: Samples
) -> list[BundleTask]:
    isolation, brokers = cluster.isolation, tuple(samples)
    open_mask = open_to(isolation, isolation.governing(namespace), brokers, cluster.brokers)
    counts = {
        broker: sum(namespace_of(one) == namespace for one in samples[broker].bundles)
        for broker, is_open in zip(brokers, open_mask, strict=True)
        if is_open and not isolation.refusal(namespace)
    }
    msgs_per_s = {broker: samples[broker].total.msgs_per_s for broker in counts}
    found: list[BundleTask] = []
    for bundle in bundles if counts else ():
        target = min(counts, key=lambda one: (counts[one], msgs_per_s[one], one))
        counts[target] += 1
        found.append(
            proposal(
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

    A modular broker that begins to serve another bundle of the namespace looks that topic up,
    which makes Pulsar's leader place it if no broker serves its bundle.
    """
    return _topic_in(bundle, [CHANGE_EVENTS]) is not None


def name_in(bundle: BundleId) -> TopicName | None:
    """Return the name of a topic whose hash is in a bundle; its lookup creates no topic."""
    # These exist, which some brokers require of what they look up.
    name = "transaction_coordinator_assign-partition"
    coordinators = (f"{name}-{number}" for number in range(_MOST_COORDINATORS))
    others = (f"loadmanager-{number}" for number in range(_MOST_NAMES))
    system = namespace_of(bundle) == "pulsar/system"
    return _topic_in(bundle, chain(coordinators if system else (), others))


def _topic_in(bundle: BundleId, local_names: Iterable[str]) -> TopicName | None:
    names = (f"persistent://{namespace_of(bundle)}/{local}" for local in local_names)
    return next((topic for _, topic, _ in topics_in(bundle, names)), None)
