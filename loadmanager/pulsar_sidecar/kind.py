import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from loadmanager.adapters.http.security.tls import ClientTls
from loadmanager.adapters.pulsar_admin import Access, PulsarAdmin
from loadmanager.agent.agent import Agent
from loadmanager.agent.load_reports import Publisher
from loadmanager.attach.observation import Rules
from loadmanager.common.context import Context
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.config import Config
from loadmanager.core.bundle_traffic import BundleTraffic
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BundleId
from loadmanager.leader.election import Term
from loadmanager.lookup.service import LookupService, OwnBundles
from loadmanager.pulsar_sidecar.broker import PulsarBroker
from loadmanager.pulsar_sidecar.lookups import ObservedBundles, ObservedLookups
from loadmanager.pulsar_sidecar.observing_agent import ObservingAgent
from loadmanager.pulsar_sidecar.term import PulsarTerm, balancer_of, log_restored

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
                log_restored(await balancer_of(context, self.broker).restore(self.broker.url))
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
        return bool(Rules().why_stays(bundle, BundleTraffic()))

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
    access = Access(token_file=_path(settings.token_file), tls=tls)
    return PulsarBroker(
        PulsarAdmin(access),
        settings.admin_url or config.broker.http_url,
        config.broker.id,
        Rules().why_stays,
    )


def _path(text: str) -> Path | None:
    return Path(text) if text else None
