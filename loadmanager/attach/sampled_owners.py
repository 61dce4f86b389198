"""Where bundles are, as the brokers' samples show it, and as moves and splits found them since."""

from collections.abc import Collection, Mapping

from loadmanager.attach.sampling import BrokerSample
from loadmanager.common.cluster_owners import Holding
from loadmanager.common.subscriptions import Subscriptions
from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import BrokerId, BundleId, TopicName, parse_full_topic


class SampledOwners:
    """The owners of one cluster; the next look replaces what was found."""

    def __init__(self) -> None:
        self.brokers: Collection[BrokerId] = ()
        self.owners: dict[BundleId, Holding] = {}
        self.owner_changes = Subscriptions()
        self._topics: dict[BundleId, str] = {}

    def sampled(
        self, brokers: Collection[BrokerId], samples: Mapping[BrokerId, BrokerSample]
    ) -> None:
        """Take up a look at the cluster."""
        self.brokers, self.owners, self._topics = brokers, {}, {}
        for broker, sample in samples.items():
            for bundle, traffic in sample.bundles.items():
                self.owners[bundle] = Holding(broker, 0)
                self._topics[bundle] = traffic.topic
        self.owner_changes.notify()

    def found(self, owners: Mapping[BundleId, BrokerId | None]) -> None:
        """Note which brokers serve bundles now, None for none."""
        for bundle, broker in owners.items():
            if broker is None:
                self.owners.pop(bundle, None)
            else:
                self.owners[bundle] = Holding(broker, 0)
        self.owner_changes.notify()

    def listed_owner(self, bundle: BundleId) -> BrokerId | None:
        """Return the broker that serves a bundle, None for none that is known."""
        holding = self.owners.get(bundle)
        return holding.broker if holding else None

    async def topic_of(self, bundle: BundleId) -> TopicName | None:
        """Return a topic that a bundle had in the last look, None if it had none."""
        try:
            return parse_full_topic(self._topics.get(bundle, ""))
        except InvalidName:
            return None
