from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic

from loadmanager.adapters.pulsar_admin import PulsarAdmin
from loadmanager.adapters.pulsar_admin.lookups import read_anti_affinity_group
from loadmanager.attach.discovery import PulsarCluster
from loadmanager.attach.observation import GREEDY, Observation, Rules, observe
from loadmanager.attach.sampling import BrokerSample
from loadmanager.attach.strategy import Strategy
from loadmanager.core.ids import BrokerId, Namespace, namespace_of

_KNOWN_FOR_S = 300.0


@dataclass(slots=True)
class Observer:
    """Reads the group of each namespace with a proposed move, and keeps it for five minutes."""

    admin: PulsarAdmin
    strategy: Strategy = GREEDY
    _known: dict[Namespace, tuple[str, float]] = field(default_factory=dict)

    async def observe(
        self,
        url: str,
        cluster: PulsarCluster,
        samples: Mapping[BrokerId, BrokerSample],
        missing: Mapping[BrokerId, str],
        rules: Rules,
    ) -> Observation:
        """Return an observation that proposes no move of a bundle with an anti-affinity group.

        Raises `PulsarAdminError`: a group cannot be read; `LoadManagerError`: the cluster does not
        report what the strategy needs.
        """
        samples, missing = self.strategy.take(cluster, samples, missing)
        until_s = monotonic()
        self._known = {
            name: one for name, one in self._known.items() if one[1] > until_s - _KNOWN_FOR_S
        }
        while True:
            grouped = {namespace for namespace, (group, _) in self._known.items() if group}
            seen = observe(cluster, samples, missing, rules, grouped, strategy=self.strategy)
            unknown = {namespace_of(one.bundle) for one in seen.proposals} - self._known.keys()
            if not unknown:
                self.strategy.record_choice()
                return seen
            for namespace in sorted(unknown):
                group = await read_anti_affinity_group(self.admin, url, namespace)
                self._known[namespace] = (group, monotonic())
