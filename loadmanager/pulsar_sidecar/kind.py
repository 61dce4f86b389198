import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

import structlog

from loadmanager.adapters.http.security.tls import ClientTls
from loadmanager.adapters.pulsar_admin import (
    Access,
    AnswerRefused,
    PulsarAdmin,
    PulsarAdminError,
    answer_of,
)
from loadmanager.adapters.pulsar_admin.client import confidential
from loadmanager.adapters.pulsar_admin.lookups import (
    read_boundaries,
    read_lookup,
    read_partitions,
)
from loadmanager.adapters.pulsar_admin.oauth2 import ClientCredentials
from loadmanager.agent.agent import Agent
from loadmanager.agent.load_reports import Publisher
from loadmanager.attach.discovery import ClusterReader
from loadmanager.attach.observation import Rules
from loadmanager.common.context import Context
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.common.subscriptions import Subscriptions
from loadmanager.config import Config
from loadmanager.core.bundle_traffic import SNAPSHOTS, BundleTraffic
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import InvalidName, LoadManagerError
from loadmanager.core.ids import BrokerId, BundleId, Namespace, TopicName, parse_broker
from loadmanager.core.lookup import LookupMode
from loadmanager.leader.election import Term
from loadmanager.lookup.service import LookupService, OwnBundles
from loadmanager.ports.lookup import NamespaceUnknown, Owner, Redirection, Unavailable
from loadmanager.pulsar_sidecar.broker import PulsarBroker
from loadmanager.pulsar_sidecar.observing_agent import ObservingAgent
from loadmanager.pulsar_sidecar.term import PulsarTerm, balancer_of, log_restored

_RULES: Final = Rules(pinned=(SNAPSHOTS,))
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
        with answer_of(what):
            yield
    except AnswerRefused as error:
        if error.status == HTTPStatus.NOT_FOUND:
            raise NamespaceUnknown(f"{what}: {error}") from None
        raise Unavailable(f"{what}: {error}") from None
    except PulsarAdminError as error:
        raise Unavailable(f"{what}: {error}") from None


log = structlog.get_logger()


@dataclass(slots=True)
class BesidePulsar:
    """A Pulsar broker, as a `Kind`; ``cluster`` is its name in loadmanager's configuration."""

    broker: PulsarBroker
    cluster: str
    _term: PulsarTerm | None = None

    def agent(
        self,
        _config: Config,
        context: Context,
        publisher: Publisher,
        _settings: RuntimeSettings,
        _commands: asyncio.TaskGroup,
    ) -> tuple[Agent, OwnBundles]:
        async def restore() -> None:
            try:
                reader = ClusterReader(self.broker.admin, self.broker.urls, with_isolation=False)
                log_restored(await balancer_of(context).restore(reader))
            except LoadManagerError as error:
                log.warning("pulsar.balancer.restore_failed", error=str(error))

        async def settled() -> None:
            if self._term is not None:
                await self._term.orders.settled()

        member = ObservingAgent(context, self.broker, publisher, settled=settled, last_left=restore)
        return member, ObservedBundles()

    @property
    def answering(self) -> Callable[..., LookupService]:
        """Make the service that answers from the observed owners, or else asks the broker."""
        return partial(ObservedLookups, self.broker)

    def stays(self, bundle: BundleId, /) -> bool:
        return bool(_RULES.why_stays(bundle, BundleTraffic()))

    def term(self, context: Context, term: Term, /) -> PulsarTerm:
        self._term = PulsarTerm(context, term, self.broker, self.cluster)
        return self._term


def make_pulsar_broker(config: Config) -> PulsarBroker:
    """Raises `TlsFilesUnusable`: a file cannot be read or does not fit the others."""
    settings = config.pulsar
    tls = None
    if settings.ca_file or settings.certificate_file:
        tls = ClientTls(
            _path(settings.ca_file), _path(settings.certificate_file), _path(settings.key_file)
        ).context
    oauth2 = None
    if settings.oauth2_key_file:
        oauth2 = ClientCredentials(
            key_file=Path(settings.oauth2_key_file),
            issuer_url=settings.oauth2_issuer_url,
            audience=settings.oauth2_audience,
            scope=settings.oauth2_scope,
        )
    url = settings.admin_url or config.broker.http_url
    itself = urlsplit(url).netloc
    access = Access(
        token_file=_path(settings.token_file),
        oauth2=oauth2,
        tls=tls,
        # On this host a token is safe without TLS, whose certificate rarely names 127.0.0.1.
        addresses={itself: itself} if confidential(url) else {},
    )
    return PulsarBroker(
        PulsarAdmin(access),
        url,
        config.broker.id,
        _RULES.why_stays,
    )


def _path(text: str) -> Path | None:
    return Path(text) if text else None
