from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from loadmanager.adapters.pulsar_admin import AnswerRefused, PulsarAdminError
from loadmanager.adapters.pulsar_admin.lookups import (
    read_boundaries,
    read_lookup,
    read_partitions,
)
from loadmanager.common.subscriptions import Subscriptions
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import BrokerId, BundleId, Namespace, TopicName, parse_broker
from loadmanager.core.lookup import LookupMode
from loadmanager.lookup.service import LookupService
from loadmanager.ports.lookup import NamespaceUnknown, Owner, Redirection, Unavailable
from loadmanager.pulsar_sidecar.broker import PulsarBroker

_NO_HANDOVERS: Final[Mapping[BundleId, BrokerId]] = MappingProxyType({})


class ObservedBundles:
    """The bundles of this sidecar's broker: those that its owned list has."""

    def __init__(self) -> None:
        self.changes = Subscriptions()
        self.handovers = _NO_HANDOVERS

    def serves(self, _bundle: BundleId) -> bool:
        return True


class ObservedLookups(LookupService):
    def __init__(self, broker: PulsarBroker, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._broker = broker

    async def boundaries(self, namespace: Namespace) -> Boundaries:
        """Ask the broker for boundaries that were not imported yet."""
        try:
            return await super().boundaries(namespace)
        except NamespaceUnknown:
            with _as_refused(f"the bundles of {namespace}"):
                found = await read_boundaries(self._broker.admin, self._broker.url, namespace)
            if found is None:
                raise
            return found

    async def partitions(self, topic: TopicName) -> int:
        """Return the broker's number of partitions of a topic; raises as `boundaries`."""
        await self.boundaries(topic.namespace)
        with _as_refused(f"the partitions of {topic}"):
            return await read_partitions(self._broker.admin, self._broker.url, topic)

    async def assign(self, bundle: BundleId) -> BrokerId:
        """Refuse: Pulsar places a bundle at its first lookup."""
        raise Unavailable(f"{bundle}: Pulsar's brokers place bundles by themselves")

    async def _follow(
        self,
        topic: TopicName,
        mode: LookupMode,  # noqa: ARG002 - the broker's answer ends every chain of redirects
        *,
        authoritative: bool,  # noqa: ARG002
    ) -> Owner | Redirection:
        bundle = await self.bundle_of(topic)
        known = self.owner_if_known(topic)
        return known if known is not None else await self._ask_broker(topic, bundle)

    async def _ask_broker(self, topic: TopicName, bundle: BundleId) -> Owner:
        with _as_refused(f"the owner of {topic}"):
            urls = await read_lookup(self._broker.admin, self._broker.url, topic)
        try:
            broker = parse_broker(urlsplit(urls.http_url or urls.http_url_tls).netloc)
        except InvalidName as error:
            raise Unavailable(f"the owner of {topic} has no address: {error}") from None
        leader = self.leader
        return Owner(
            bundle=bundle,
            broker=broker,
            urls=urls,
            listeners={},
            fencing_token=0,
            epoch=leader.epoch if leader else 0,
        )


@contextmanager
def _as_refused(what: str) -> Iterator[None]:
    try:
        yield
    except AnswerRefused as error:
        if error.status == HTTPStatus.NOT_FOUND:
            raise NamespaceUnknown(f"{what}: {error}") from None
        raise Unavailable(f"{what}: {error}") from None
    except PulsarAdminError as error:
        raise Unavailable(f"{what}: {error}") from None
