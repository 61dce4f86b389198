import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, TypeVar
from urllib.parse import urlsplit

from loadmanager.adapters.pulsar_admin.answers import (
    manager_of,
    read_brokers,
    read_dynamic,
    read_isolation,
    read_manager,
    read_own_urls,
    read_runtime,
    read_version,
)
from loadmanager.adapters.pulsar_admin.client import (
    NotPulsar,
    PulsarAdmin,
    PulsarAdminError,
    RightMissing,
    answer_of,
)
from loadmanager.core.ids import BrokerId
from loadmanager.core.policies import NO_POLICIES, Policies

Answer = TypeVar("Answer")
Name = TypeVar("Name", bound=str)

_MOST_DIGITS: Final = 6
FAILURE_DOMAINS: Final = "failureDomainsEnabled"
BALANCER_KEYS: Final = (
    "loadBalancerEnabled",
    "loadBalancerSheddingEnabled",
    "loadBalancerAutoBundleSplitEnabled",
    "loadBalancerLoadSheddingStrategy",
    FAILURE_DOMAINS,
)
# Pulsar's setting with which brokers repeat a page of metrics, by default for up to a minute.
BUFFERS: Final = "metricsBufferResponse"
MANAGER: Final = "loadManagerClassName"
_TOPICS: Final = "exposeTopicLevelMetricsInPrometheus"
_HOST_INTERVAL_MINUTES: Final = "loadBalancerHostUsageCheckIntervalMinutes"
MIXED: Final = "mixed"
_SHOWN: Final = (MANAGER, BUFFERS, *BALANCER_KEYS)
# Time until the settings of all brokers are read again if nothing is seen to change.
_SETTINGS_S: Final = 60.0
_USUAL_HOST_INTERVAL_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarCluster:
    """A cluster as the broker that answered describes it.

    ``manager`` is ``modular``, ``extensible``, ``simple``, or the class name of another one;
    `MIXED` if brokers differ. ``managers`` that run and ``settings`` are by broker that reports its
    settings, ``silent`` is why others do not. ``dynamic`` are settings that are overridden, and
    ``topic_metrics`` is whether ``/metrics/`` has a line for each topic, None if unknown.
    """

    name: str
    brokers: tuple[BrokerId, ...]
    version: str = ""
    manager: str = "unknown"
    managers: Mapping[BrokerId, str] = field(default_factory=dict)
    settings: Mapping[BrokerId, Mapping[str, str]] = field(default_factory=dict)
    dynamic: Mapping[str, str] = field(default_factory=dict)
    topic_metrics: bool | None = None
    encrypted: bool = False
    silent: Mapping[BrokerId, str] = field(default_factory=dict)
    isolation: Policies = NO_POLICIES
    host_interval_s: float = _USUAL_HOST_INTERVAL_S

    def differing(self, key: str) -> Mapping[str, tuple[BrokerId, ...]]:
        return _by_value({broker: one.get(key, "") for broker, one in self.settings.items()})

    @property
    def migration(self) -> str:
        """That brokers run different load managers, between which nothing moves, else ""."""
        kinds = sorted(_by_value(self.managers).items()) if self.manager == MIXED else []
        some = "; ".join(f"{kind}: {', '.join(names[:3])}" for kind, names in kinds)
        return f"brokers run different load managers ({some})" if kinds else ""


def _by_value(values: Mapping[BrokerId, str]) -> Mapping[str, tuple[BrokerId, ...]]:
    found: dict[str, tuple[BrokerId, ...]] = {}
    for broker, value in values.items():
        found[value] = (*found.get(value, ()), broker)
    return found


def addresses(url: str) -> Callable[[BrokerId], str]:
    scheme = urlsplit(url).scheme
    return lambda broker: f"{scheme}://{broker}"


@dataclass(slots=True)
class ClusterReader:
    """Reads one cluster again and again, at any broker that answers.

    ``urls`` are those to ask, the one that answered last first. The settings of brokers are kept
    for a minute, unless the list of brokers or a dynamic setting changes.
    """

    admin: PulsarAdmin
    urls: tuple[str, ...]
    with_isolation: bool = True
    _cluster: PulsarCluster | None = None
    _settings: dict[BrokerId, Mapping[str, str]] = field(default_factory=dict)
    _kinds: dict[BrokerId, str] = field(default_factory=dict)
    _read_s: float = float("-inf")
    _given: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._given = self.urls

    @property
    def url(self) -> str:
        return self.urls[0]

    def add(self, urls: Iterable[str]) -> None:
        encrypted = self.url.startswith("https:")
        self._put_first(*self.urls, *(one for one in urls if "https:" in one or not encrypted))

    def _put_first(self, *urls: str) -> None:
        self.urls = tuple(dict.fromkeys(urls))

    def forget(self) -> None:
        self._read_s = float("-inf")

    async def at_any(self, ask: Callable[[str], Awaitable[Answer]]) -> Answer:
        """Return the first answer. Raises `PulsarAdminError`: no broker gave one."""
        failed: list[PulsarAdminError] = []
        for url in self.urls:
            try:
                with answer_of(url):
                    answer = await ask(url)
            except PulsarAdminError as error:
                if not failed:
                    await self.admin.probe(self.urls[1:], every=True)
                failed.append(error)
            else:
                self._put_first(url, *self.urls)
                return answer
        raise next((one for one in failed if isinstance(one, RightMissing)), failed[0])

    async def read(self) -> PulsarCluster:
        """Raises `PulsarAdminError`: no broker answers as a Pulsar broker, or all refuse."""
        cluster = await self.at_any(self._read)
        named = map(addresses(self.url), cluster.brokers)
        self._put_first(self.url, *self._given, *map(self.admin.reachable, named))
        return cluster

    async def _read(self, url: str) -> PulsarCluster:
        admin, former = self.admin, self._cluster
        if former is None:
            runtime = await read_runtime(admin, url)
            prefer_tls(admin, url, runtime)
        name = runtime["clusterName"] if former is None else former.name
        brokers = await read_brokers(admin, url, name)
        admin.known = set(brokers)
        await admin.probe(map(addresses(url), brokers))
        dynamic = await read_dynamic(admin, url)
        isolation = NO_POLICIES
        if self.with_isolation:
            _, isolation = await read_isolation(admin, url, name)
        version = "" if former is None else former.version
        fresh = monotonic() < self._read_s + _SETTINGS_S
        if not fresh or former is None or (former.brokers, former.dynamic) != (brokers, dynamic):
            self._read_s = monotonic()
            self._settings = {}
            self._kinds = {one: kind for one, kind in self._kinds.items() if one in brokers}
            version = await read_version(admin, url)
        unread = [one for one in brokers if one not in self._settings]
        silent = await self._read_settings(url, unread)
        known = self._settings
        if not known:
            raise NotPulsar(next(iter(silent.values())))
        managers = {one: self._kinds.get(one) or manager_of(known[one][MANAGER]) for one in known}
        kinds, figures = set(managers.values()), {one[_TOPICS] for one in known.values()}
        minutes = next(iter(known.values()))[_HOST_INTERVAL_MINUTES]
        whole = int(minutes) if minutes.isdecimal() and len(minutes) < _MOST_DIGITS else 0
        self._cluster = PulsarCluster(
            name=name,
            brokers=brokers,
            version=version,
            manager=MIXED if len(kinds) > 1 else kinds.pop(),
            managers=managers,
            settings={one: {key: known[one][key] for key in _SHOWN} for one in known},
            dynamic=dynamic,
            topic_metrics=False if "false" in figures else figures == {"true"} or None,
            encrypted=admin.encrypts,
            silent=silent,
            isolation=isolation,
            host_interval_s=60.0 * whole or _USUAL_HOST_INTERVAL_S,
        )
        return self._cluster

    async def _read_settings(self, url: str, brokers: list[BrokerId]) -> Mapping[BrokerId, str]:
        """Read settings and addresses of brokers; return the reason by broker without them."""
        admin, address = self.admin, addresses(url)
        confidential = admin.access.secret or admin.encrypts
        if confidential:
            former = {} if self._cluster is None else self._cluster.silent
            lost = [one for one in brokers if one not in admin.reached or one in former]
            await locate(admin, url, set(lost) - admin.deferred)
        answers, silent = await ask_each(brokers, lambda one: read_runtime(admin, address(one)))
        lost = [one for one in silent if one not in admin.deferred]
        if lost and not confidential and await locate(admin, url, lost):
            more, still = await ask_each(lost, lambda one: read_runtime(admin, address(one)))
            answers |= more
            silent = {one: still.get(one, silent[one]) for one in silent if one not in more}
        unknown = [one for one in answers if one not in self._kinds]
        kinds, _ = await ask_each(unknown, lambda one: read_manager(admin, address(one)))
        self._kinds |= kinds
        for broker, runtime in answers.items():
            kept = (_TOPICS, _HOST_INTERVAL_MINUTES, *_SHOWN)
            self._settings[broker] = {key: runtime.get(key, "") for key in kept}
        return silent


def prefer_tls(admin: PulsarAdmin, url: str, runtime: Mapping[str, str]) -> None:
    """Have brokers asked with TLS if ``url`` is, or if it offers TLS and a token is sent."""
    parts, port = urlsplit(url), re.search(r"\d+", runtime.get("webServicePortTls", ""))
    if parts.scheme == "https":
        admin.encrypts = True
    elif admin.access.secret and port is not None:
        admin.encrypts = True
        host = parts.netloc.rpartition(":")[0] if parts.port else parts.netloc
        admin.reached[parts.netloc] = f"https://{host}:{port[0]}"


async def locate(admin: PulsarAdmin, url: str, brokers: Iterable[BrokerId]) -> bool:
    """Look up where brokers are reached, with TLS and from here; return whether any is found."""
    found, _ = await ask_each(tuple(brokers), lambda one: read_own_urls(admin, url, one))
    for broker, urls in found.items():
        tls = admin.encrypts or (admin.access.secret and bool(urls.http_url_tls))
        base = urls.http_url_tls if tls else urls.http_url
        with suppress(ValueError):
            parts = urlsplit(base)
            if parts.scheme in ({"https"} if tls else {"http", "https"}) and parts.port != 0:
                admin.reached[broker] = base.rstrip("/")
                reached = admin.access.addresses.get(broker, admin.reached[broker])
                admin.reached[parts.netloc] = reached
    return bool(found)


async def ask_each(
    names: Iterable[Name],
    ask: Callable[[Name], Awaitable[Answer]],
    *,
    known: type[PulsarAdminError] = PulsarAdminError,
) -> tuple[dict[Name, Answer], dict[Name, str]]:
    """Ask all at once; return the answers, and the reason by name without one.

    Raises what is not ``known``, once all have answered.
    """

    async def understood(name: Name) -> Answer:
        with answer_of(str(name)):
            return await ask(name)

    names = tuple(names)
    found = await asyncio.gather(*map(understood, names), return_exceptions=True)
    answers: dict[Name, Answer] = {}
    failed: dict[Name, str] = {}
    for name, one in zip(names, found, strict=True):
        if isinstance(one, known):
            failed[name] = str(one)
        elif isinstance(one, BaseException):
            raise one
        else:
            answers[name] = one
    return answers, failed
