"""The bundles that the in-memory broker serves now, by topic, and the tokens that it accepts."""

from collections.abc import Iterator
from dataclasses import dataclass

from loadmanager.core.hashing import HashName, lies_in, position
from loadmanager.core.ids import BundleId, Namespace, TopicName, namespace_of
from loadmanager.reference_broker.changes import EndReason, ServingEnded
from loadmanager.reference_broker.outcomes import StaleToken
from loadmanager.reference_broker.traffic import BundleTraffic


@dataclass(slots=True, eq=False)
class Served:
    """One bundle from its load to its end.

    ``in_service`` counts requests that have begun and not ended; a ``closing`` bundle accepts no
    new ones and ends with the last of them.
    """

    bundle: BundleId
    fencing_token: int
    agent_epoch: int
    start_s: float
    traffic: BundleTraffic
    in_service: int = 0
    closing: bool = False

    def ended(self, *, end_s: float, at_s: float, why: EndReason) -> ServingEnded:
        """Return the change that it was served up to ``end_s``, as noticed at ``at_s``."""
        return ServingEnded(
            at_s=at_s,
            bundle=self.bundle,
            fencing_token=self.fencing_token,
            agent_epoch=self.agent_epoch,
            start_s=self.start_s,
            end_s=end_s,
            why=why,
        )


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request in service, from `MemoryBroker.begin_publish` to its end."""

    topic: TopicName
    served: Served


class ServingSet:
    """The bundles of one broker, by name and by namespace.

    Ranges may overlap for a moment, when the parts of a split are loaded before their parent is
    unloaded: a topic then belongs to the bundle with the newest token.
    """

    def __init__(self, hash_name: HashName) -> None:
        self._hash_name: HashName = hash_name
        self._served: dict[BundleId, Served] = {}
        self._by_namespace: dict[Namespace, dict[BundleId, Served]] = {}

    def __iter__(self) -> Iterator[Served]:
        """Yield the bundles, including closing ones; some may be removed during the iteration."""
        return iter([*self._served.values()])

    def __contains__(self, served: Served) -> bool:
        """Return whether ``served`` itself is in the set, not only a bundle of that name."""
        return self._served.get(served.bundle) is served

    def get(self, bundle: BundleId) -> Served | None:
        """Return ``bundle``, or None if it is not served."""
        return self._served.get(bundle)

    def add(self, served: Served) -> None:
        """Begin to serve a bundle that is not in the set."""
        self._served[served.bundle] = served
        self._by_namespace.setdefault(namespace_of(served.bundle), {})[served.bundle] = served

    def remove(self, served: Served) -> None:
        """Remove a bundle that is not served any more."""
        del self._served[served.bundle]
        namespace = namespace_of(served.bundle)
        del self._by_namespace[namespace][served.bundle]
        if not self._by_namespace[namespace]:
            del self._by_namespace[namespace]

    def find(self, topic: TopicName) -> Served | None:
        """Return the bundle that accepts new requests for ``topic``, if there is one."""
        at = position(topic, self._hash_name)
        candidates = self._by_namespace.get(topic.namespace, {}).values()
        holding = [one for one in candidates if not one.closing and lies_in(at, one.bundle)]
        return max(holding, key=lambda one: one.fencing_token, default=None)


class FencingTokens:
    """The lowest token with which each bundle may still be loaded.

    It is the highest token of a load, or one above the highest that an unload ended. All are kept
    until the process ends: each bundle that is split or moved away leaves one number.
    """

    def __init__(self) -> None:
        self._least: dict[BundleId, int] = {}

    def take(self, bundle: BundleId, token: int) -> None:
        """Accept ``token`` for ``bundle``, and no lower one from now on.

        Raises:
            StaleToken: a higher one was accepted before, or an unload ended this one.
        """
        least = self._least.get(bundle, 0)
        if token < least:
            raise StaleToken(f"{bundle}: fencing token {token} is over; expected {least} or more")
        self._least[bundle] = token

    def end(self, bundle: BundleId, token: int) -> None:
        """Accept neither ``token`` nor a lower one for ``bundle`` any more."""
        self._least[bundle] = max(self._least.get(bundle, 0), token + 1)
