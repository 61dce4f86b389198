import asyncio
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Final, NoReturn
from urllib.parse import urlsplit

import structlog

from loadmanager.adapters.host.neighbours import SEARCH_EVERY_S, listener_on
from loadmanager.adapters.pulsar_admin import (
    AnswerRefused,
    PulsarAdmin,
    PulsarAdminError,
    Unanswered,
    answer_of,
)
from loadmanager.adapters.pulsar_admin.lookups import read_own_urls, read_topics
from loadmanager.adapters.pulsar_admin.ownership import read_owned
from loadmanager.attach.discovery import (
    MANAGER,
    PulsarCluster,
    addresses,
    locate,
    manager_of,
    prefer_tls,
    read_brokers,
    read_runtime,
    read_version,
)
from loadmanager.attach.placing import name_in
from loadmanager.attach.sampling import BrokerSample, Sampler
from loadmanager.core.bundle_traffic import BundleTraffic, topics_in
from loadmanager.core.ids import BrokerId, BundleId, TopicName
from loadmanager.core.load import BrokerUrls
from loadmanager.core.rates import Rates
from loadmanager.ports.broker import BrokerRefused, BrokerStats, BrokerUnreachable

log = structlog.get_logger()

FIRST_WINDOW_S: Final = 1.0
"""Window of the first sample, without which a broker would look idle."""

_KNOWN_FOR_S: Final = 60.0


@dataclass(slots=True)
class PulsarBroker:
    """One Pulsar broker, as a `BrokerControl` that refuses all commands.

    ``stays`` returns why a bundle never moves; such bundles are left out of the statistics, so that
    no leader moves them. ``cluster`` is "" until the broker has answered. ``claims`` is whether
    moves need a claim at their target, as with the modular load manager.
    """

    admin: PulsarAdmin
    url: str
    name: BrokerId
    stays: Callable[[BundleId, BundleTraffic], str]
    cluster: str = ""
    claims: bool = True
    _owned: Sized = ()
    _settings: Mapping[str, str] = field(default_factory=dict)
    _urls: BrokerUrls | None = None
    _version: str = ""
    _known_until_s: float = float("-inf")
    _missing: str = ""
    _sample: BrokerSample | None = None
    _process_id: int | None = None
    _look_again_s: float = float("-inf")
    _sampler: Sampler = field(init=False)

    def __post_init__(self) -> None:
        self._sampler = Sampler(self.admin, self.address)

    async def close(self) -> None:
        await self.admin.close()

    async def health(self, timeout_s: float) -> None:
        with _as_broker_error():
            try:
                async with asyncio.timeout(timeout_s):
                    answer = await self.admin.text(f"{self.url}/admin/v2/brokers/ready")
            except TimeoutError:
                raise Unanswered(f"{self.url}: not ready within {timeout_s:g} s") from None
        if answer.strip() != "ok":
            raise BrokerRefused(f"{self.url}: says {answer[:60]!r} of itself; expected 'ok'")

    async def owned(self) -> tuple[BundleId, ...]:
        with _as_broker_error():
            await self._know()
            before, self._owned = self._owned, ()
            found = await read_owned(self.admin, self.url, self.cluster, self.name, before)
            self._owned = found
            return tuple(found)

    async def stats(self) -> BrokerStats:
        """Return the traffic of each bundle that may move, since the last call."""
        with _as_broker_error():
            await self._know()
            begins = self._sample is None
            sample = await self._read()
            if sample is None and begins:
                await asyncio.sleep(FIRST_WINDOW_S)
                sample = await self._read()
        if sample is None:
            raise BrokerUnreachable(self._missing)
        self._sample = sample
        return BrokerStats(
            window_s=sample.window_s,
            bundles={
                bundle: traffic.stats()
                for bundle, traffic in sample.bundles.items()
                if not self.stays(bundle, traffic)
            },
            version=self._version,
            process_id=await self._process(),
            urls=self._urls,
        )

    async def _process(self) -> int | None:
        """Return the id of the process that listens on the broker's port, None if unknown.

        Pulsar does not report it. Without it, a sidecar in a container beside the broker's would
        measure itself. The search is slow, so it runs in a thread.
        """
        now_s = monotonic()
        if self._process_ended() or now_s >= self._look_again_s:
            self._look_again_s = now_s + SEARCH_EVERY_S
            parts = urlsplit(self.url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
            found = await asyncio.to_thread(listener_on, port)
            self._process_id = None if found is None else found.process_id
        return self._process_id

    def _process_ended(self) -> bool:
        return self._process_id is not None and not Path("/proc", str(self._process_id)).exists()

    async def topics(self, bundle: BundleId) -> Mapping[TopicName, Rates]:
        if self._sample is None or bundle not in self._sample.bundles:
            raise BrokerRefused(f"{self.name} did not serve {bundle} when it was last read")
        rates = self._sample.topics
        return {topic: rates[name] for name, topic, _ in topics_in(bundle, rates)}

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs at which the cluster may be asked, that of this broker first."""
        others = (one for one in sorted(self.admin.known) if one != self.name)
        return (self.url, *(self.admin.reachable(self.address(BrokerId(one))) for one in others))

    def address(self, broker: BrokerId) -> str:
        return self.url if broker == self.name else addresses(self.url)(broker)

    async def topic_of(self, bundle: BundleId) -> TopicName | None:
        """Return one that a lookup finds, though it may not exist. Raises `PulsarAdminError`."""
        return next(iter(await read_topics(self.admin, self.url, bundle)), name_in(bundle))

    async def _read(self) -> BrokerSample | None:
        settings = {self.name: self._settings}
        alone = PulsarCluster(name=self.cluster, brokers=(self.name,), settings=settings)
        samples, missing = await self._sampler.sample(alone)
        self._missing = missing.get(self.name, "")
        return samples.get(self.name)

    async def _know(self) -> None:
        """Read the settings, and the brokers that redirects may name, once a minute."""
        if monotonic() < self._known_until_s:
            return
        runtime = self._settings = await read_runtime(self.admin, self.url)
        self.claims = manager_of(runtime.get(MANAGER, "")) != "extensible"
        self.cluster = runtime["clusterName"]
        self._version = await read_version(self.admin, self.url)
        brokers = await read_brokers(self.admin, self.url, self.cluster)
        if self.name not in brokers:
            raise BrokerRefused(
                f"{self.url}: [broker] id {self.name} is no active broker of {self.cluster}; "
                f"expected one of {', '.join(brokers[:8])}"
            )
        self.admin.known = set(brokers)
        prefer_tls(self.admin, self.url, runtime)
        if self.admin.access.secret or self.admin.encrypts:
            others = {*brokers} - {self.name} - self.admin.reached.keys()
            await locate(self.admin, self.url, sorted(others))
        try:
            self._urls = await read_own_urls(self.admin, self.url, self.name)
        except AnswerRefused as error:
            log.debug("broker.urls.read_failed", error=str(error))
        self._known_until_s = monotonic() + _KNOWN_FOR_S

    async def renew_lease(self, *_: object, **__: object) -> NoReturn:
        """Refuse: the broker serves under Pulsar's own locks, without leases."""
        raise BrokerRefused(f"{self.name} owns its bundles by itself and obeys no agent")

    load = renew_lease
    unload = renew_lease


@contextmanager
def _as_broker_error() -> Iterator[None]:
    try:
        with answer_of("the broker"):
            yield
    except Unanswered as error:
        raise BrokerUnreachable(str(error)) from error
    except PulsarAdminError as error:
        raise BrokerRefused(str(error)) from error
