import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from time import monotonic
from typing import Final

from loadmanager.adapters.pulsar_admin import NotPulsar, PulsarAdmin, PulsarAdminError, RightMissing
from loadmanager.adapters.pulsar_admin.lookups import (
    read_anti_affinity_group,
    read_failure_domains,
)
from loadmanager.attach.discovery import FAILURE_DOMAINS, PulsarCluster
from loadmanager.attach.observation import GREEDY, Observation, Rules, observe
from loadmanager.attach.sampling import BrokerSample
from loadmanager.attach.strategy import Strategy
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BrokerId, BundleId, Namespace, belongs_to_a_broker, namespace_of
from loadmanager.core.wire.policies import decode_failure_domain

_KNOWN_FOR_S = 300.0
_READ_A_ROUND: Final = 50
"""Namespaces without a proposed move whose group is read in one window."""

IDLE_WINDOWS: Final = 3
"""Windows in a row after which a bundle counts as one without traffic, or with traffic again."""


@dataclass(slots=True)
class Observer:
    """Observes windows, with what lasts over several of them.

    The anti-affinity group of each namespace is kept for five minutes; with many namespaces they
    are read over several windows, first those of proposed moves. So are failure domains, if there
    are groups and Pulsar uses domains for them.
    """

    admin: PulsarAdmin
    strategy: Strategy = GREEDY
    _known: dict[Namespace, tuple[str, float]] = field(default_factory=dict)
    _unread: dict[Namespace, str] = field(default_factory=dict)
    _domains: tuple[Mapping[BrokerId, str], float] | None = None
    _quiet: dict[BundleId, tuple[bool, int]] = field(default_factory=dict)

    async def observe(
        self,
        url: str,
        cluster: PulsarCluster,
        samples: Mapping[BrokerId, BrokerSample],
        missing: Mapping[BrokerId, str],
        rules: Rules,
    ) -> Observation:
        """Return an observation of a window, in which policies hold.

        Bundles of a namespace whose group, or its failure domains, cannot be read stay. Raises
        `RightMissing`: a permission is missing; `LoadManagerError`: the cluster does not report
        what the strategy needs.
        """
        samples, missing = self.strategy.take(cluster, samples, missing)
        self._unread = {}
        idle = self._note_quiet(samples)
        await self._read_groups(url, self._oldest(samples))
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
                unknown=self._unread,
                idle=idle,
            )
            fresh_s = monotonic() - _KNOWN_FOR_S
            unread = {
                namespace
                for namespace in {namespace_of(one.bundle) for one in seen.proposals}
                if namespace not in self._known or self._known[namespace][1] < fresh_s
            }
            if not unread:
                return seen
            await self._read_groups(url, unread)

    def _oldest(self, samples: Mapping[BrokerId, BrokerSample]) -> list[Namespace]:
        """Return the namespaces to read now; forget those that are served no longer."""
        bundles = (bundle for sample in samples.values() for bundle in sample.bundles)
        served = {namespace_of(one) for one in bundles if not belongs_to_a_broker(one)}
        self._known = {name: one for name, one in self._known.items() if name in served}
        fresh_s = monotonic() - _KNOWN_FOR_S
        read_s = {name: self._known.get(name, ("", -inf))[1] for name in served}
        due = sorted((at_s, name) for name, at_s in read_s.items() if at_s < fresh_s)
        return [name for _, name in due[:_READ_A_ROUND]]

    async def _read_groups(self, url: str, namespaces: Iterable[Namespace]) -> None:
        names = sorted(namespaces)
        reading = (read_anti_affinity_group(self.admin, url, name) for name in names)
        found = await asyncio.gather(*reading, return_exceptions=True)
        for name, one in zip(names, found, strict=True):
            if isinstance(one, str):
                self._known[name] = (one, monotonic())
            elif isinstance(one, PulsarAdminError) and not isinstance(one, RightMissing):
                self._unread[name] = f"its anti-affinity group is not known: {one}"
            else:
                raise one

    async def _failure_domains(self, url: str, cluster: PulsarCluster) -> Mapping[BrokerId, str]:
        if "true" not in cluster.differing(FAILURE_DOMAINS):
            return {}
        if self._domains is None or self._domains[1] < monotonic() - _KNOWN_FOR_S:
            listed = await read_failure_domains(self.admin, url, cluster.name)
            try:
                found = {
                    broker: name
                    for name, one in listed.items()
                    for broker in decode_failure_domain(name, json.dumps(one).encode())
                }
            except MalformedContent as error:
                raise NotPulsar(f"{url}: failure domain {error}") from None
            self._domains = found, monotonic()
        return self._domains[0]

    def _note_quiet(self, samples: Mapping[BrokerId, BrokerSample]) -> set[BundleId]:
        """Return the bundles without traffic over several windows.

        Those with a message now and then do not change sides with each one.
        """
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
