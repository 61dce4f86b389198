"""What Pulsar's brokers answer, and the cluster that they describe."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sized
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from time import monotonic
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

from loadmanager.core.bundle_traffic import Flow, TopicCounters, topics_in
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import InvalidName, MalformedContent
from loadmanager.core.ids import (
    BrokerId,
    BundleId,
    Namespace,
    TopicName,
    parse_broker,
    parse_bundle,
    parse_namespace,
)
from loadmanager.core.load import BrokerUrls
from loadmanager.core.policies import NO_POLICIES, Policies
from loadmanager.core.wire.policies import decode_isolation
from loadmanager.pulsar.client import (
    AnswerRefused,
    NotPulsar,
    PulsarAdmin,
    PulsarAdminError,
    RightMissing,
    answer_of,
    shown,
)

CONFIGURATION: Final = "/admin/v2/brokers/configuration"
RUNTIME: Final = f"{CONFIGURATION}/runtime"
_MOST_BROKERS: Final = 10_000
_REPORTS: Final = {"LocalBrokerData": "modular", "LoadReport": "simple"}
_KINDS: Final = ("modular", "extensible", "simple")


async def read_runtime(admin: PulsarAdmin, url: str) -> Mapping[str, str]:
    where = f"{url}{RUNTIME}"
    try:
        found = await admin.json(where)
    except RightMissing as error:
        raise RightMissing(f"{error}; the right of a superuser names the cluster") from None
    except AnswerRefused as error:
        if error.status:
            raise NotPulsar(f"{error}; expected the admin REST of a Pulsar broker") from None
        raise
    name = found.get("clusterName") if isinstance(found, dict) else None
    if not isinstance(name, str) or not name or not name.isprintable():
        raise NotPulsar(f"{where}: no clusterName; expected the settings of a Pulsar broker")
    return {key: value for key, value in found.items() if isinstance(value, str)}


async def read_brokers(admin: PulsarAdmin, url: str, cluster: str) -> tuple[BrokerId, ...]:
    where = f"{url}/admin/v2/brokers/{quote(cluster, safe='')}"
    expected = f"a list of at most {_MOST_BROKERS:,} brokers"
    found = await admin.json(where, list, expected)
    if len(found) > _MOST_BROKERS:
        raise NotPulsar(f"{where}: expected {expected}")
    if not found:
        raise NotPulsar(f"{where}: the cluster {cluster} has no active broker; start one")
    try:
        names = (str(one).removeprefix("http://").removeprefix("https://") for one in found)
        return tuple(sorted(map(parse_broker, names)))
    except InvalidName as error:
        raise NotPulsar(f"{where}: {error}") from None


async def read_dynamic(admin: PulsarAdmin, url: str) -> Mapping[str, str]:
    expected = "the dynamic settings of a Pulsar cluster"
    found = await admin.json(f"{url}{CONFIGURATION}/values", dict, expected)
    return {key: value for key, value in found.items() if isinstance(value, str)}


async def read_load_report(admin: PulsarAdmin, url: str) -> dict[str, Any]:
    where = f"{url}/admin/v2/broker-stats/load-report"
    found: dict[str, Any] = await admin.json(where, dict, "the load report of a Pulsar broker")
    return found


async def read_manager(admin: PulsarAdmin, url: str) -> str:
    """Return the kind of manager by the load report that it makes, "" if it makes none.

    A broker that cannot create the manager that is configured runs the simple one.
    """
    try:
        report = await read_load_report(admin, url)
    except (AnswerRefused, NotPulsar):
        return ""
    return _REPORTS.get(str(report.get("loadReportType")), "")


async def read_version(admin: PulsarAdmin, url: str) -> str:
    answer = await admin.text(f"{url}/admin/v2/brokers/version")
    return " ".join(answer.strip().strip('"').split())[:64]


def manager_of(class_name: str) -> str:
    last = class_name.rpartition(".")[2]
    kind = last.removesuffix("Wrapper").removesuffix("Impl").removesuffix("LoadManager").lower()
    return kind if kind in _KINDS else last or "unknown"


_ABSENT: Final = frozenset({HTTPStatus.NOT_FOUND})
# In the order of the fields of `BrokerUrls`.
_KEYS: Final = ("httpUrl", "httpUrlTls", "brokerUrl", "brokerUrlTls")


def lookup_path(topic: TopicName) -> str:
    return f"/lookup/v2/topic/{topic.domain}/{topic.namespace}/{quote(topic.local, safe='')}"


async def read_readiness(admin: PulsarAdmin, url: str, name: str) -> str:
    """Return why a broker is not ready for bundles, "" if it is."""
    ready = await admin.text(f"{url}/admin/v2/brokers/ready")
    right = ready.strip() == "ok"
    return "" if right else f"{name} says {ready[:60]!r} of itself; expected 'ok'"


async def read_owned(
    admin: PulsarAdmin, url: str, cluster: str, broker: BrokerId, before: Sized = ()
) -> Mapping[BundleId, bool]:
    """Return the bundles, without those of version 1, and whether each is active.

    One that is not active is being unloaded: its topics are closed one by one. Raises as
    `PulsarAdmin.json`, and `NotPulsar`: the answer is no object, or is empty unlike ``before``.
    """
    where = f"{url}/admin/v2/brokers/{quote(cluster, safe='')}/{broker}/ownedNamespaces"
    answer = await admin.json(where, dict, "an object of bundles")
    owned: dict[BundleId, bool] = {}
    for name, status in answer.items():
        with suppress(InvalidName):
            closing = isinstance(status, dict) and status.get("is_active") is False
            owned[parse_bundle(name)] = not closing
    if before and not owned:
        raise NotPulsar(f"{where}: lists no bundle; expected about {len(before):,}, as before")
    return owned


async def read_lookup(admin: PulsarAdmin, url: str, topic: TopicName) -> BrokerUrls:
    """Return the URLs of the broker that serves a topic; Pulsar places it if none does."""
    return await _read_urls(admin, f"{url}{lookup_path(topic)}")


async def _read_urls(admin: PulsarAdmin, where: str) -> BrokerUrls:
    found = await admin.json(where, dict, "the lookup answer of a Pulsar broker")
    texts = [text if isinstance(text := found.get(key), str) else "" for key in _KEYS]
    urls = BrokerUrls(*texts)
    if not urls.http_url and not urls.http_url_tls:
        raise NotPulsar(f"{where}: no httpUrl; expected the lookup answer of a Pulsar broker")
    return urls


async def read_own_urls(admin: PulsarAdmin, url: str, cluster: str, broker: BrokerId) -> BrokerUrls:
    topic = TopicName("persistent", Namespace(f"pulsar/{broker}"), "healthcheck")
    try:
        return await read_lookup(admin, url, topic)
    except AnswerRefused as error:
        if error.status not in _ABSENT:
            raise
    # Pulsar 2 finds a broker by the heartbeat's namespace of its first version alone.
    former = f"persistent/pulsar/{quote(cluster, safe='')}/{broker}/healthcheck"
    return await _read_urls(admin, f"{url}/lookup/v2/destination/{former}")


async def read_partitions(admin: PulsarAdmin, url: str, topic: TopicName) -> int:
    """Return the number of partitions, 0 if a topic is not partitioned or does not exist."""
    local, expected = quote(topic.local, safe=""), "a number of partitions"
    where = f"{url}/admin/v2/{topic.domain}/{topic.namespace}/{local}/partitions"
    answer = await admin.json(where, dict, expected, absent=_ABSENT, instead='{"partitions": 0}')
    count = answer.get("partitions")
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise NotPulsar(f"{where}: answered {shown(json.dumps(answer))}; expected {expected}")
    return count


async def read_boundaries(admin: PulsarAdmin, url: str, namespace: Namespace) -> Boundaries | None:
    where, expected = f"{url}/admin/v2/namespaces/{namespace}/bundles", "the boundaries of bundles"
    answer = await admin.json(where, dict, expected, absent=_ABSENT, instead='{"absent": true}')
    if "absent" in answer:
        return None
    try:
        found = tuple(int(str(one), 16) for one in answer.get("boundaries") or ())
        return Boundaries(namespace, found)
    except (TypeError, ValueError, InvalidName):
        shows = shown(json.dumps(answer))
        raise NotPulsar(f"{where}: answered {shows}; expected {expected}") from None


async def read_tenants(admin: PulsarAdmin, url: str) -> list[str]:
    return await _names(admin, f"{url}/admin/v2/tenants")


async def read_namespaces(admin: PulsarAdmin, url: str, tenant: str) -> frozenset[Namespace]:
    found: set[Namespace] = set()
    where = f"{url}/admin/v2/namespaces/{quote(tenant, safe='')}"
    for name in await _names(admin, where, absent=_ABSENT):
        with suppress(InvalidName):
            found.add(parse_namespace(name))
    return frozenset(found)


async def _names(admin: PulsarAdmin, where: str, absent: Collection[int] = ()) -> list[str]:
    answer = await admin.json(where, list, "a list of names", absent=absent, instead="[]")
    if not all(isinstance(one, str) for one in answer):
        raise NotPulsar(f"{where}: answered {answer!r:.60}; expected a list of names")
    return list(answer)


async def read_topics(admin: PulsarAdmin, url: str, bundle: BundleId) -> tuple[TopicName, ...]:
    namespace, _, bounds = bundle.rpartition("/")
    # Older versions ignore the bundle, and list all of the namespace.
    answer = await admin.json(f"{url}/admin/v2/persistent/{namespace}?bundle={bounds}")
    names = map(str, answer if isinstance(answer, list) else ())
    return tuple(topic for _, topic, _ in topics_in(bundle, names))


# Time until isolation policies are read again from a cluster that had none: brokers log a stack
# trace at each such request.
NONE_FOR_S: Final = 60.0
_NONE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.NO_CONTENT})


async def read_isolation(admin: PulsarAdmin, url: str, cluster: str) -> tuple[str, Policies]:
    """Return isolation policies as Pulsar's text, and parsed; raises as `PulsarAdmin.json`."""
    where = f"{url}/admin/v2/clusters/{quote(cluster, safe='')}/namespaceIsolationPolicies"
    if monotonic() < admin.missing_until_s.get(where, 0.0):
        return "{}", NO_POLICIES
    answer = await admin.text(where, _NONE, none := "{}")
    if answer is none:
        admin.missing_until_s[where] = monotonic() + NONE_FOR_S
    try:
        return answer, Policies(isolation=decode_isolation(where, answer.encode()))
    except MalformedContent as error:
        raise NotPulsar(str(error)) from None


async def read_failure_domains(
    admin: PulsarAdmin, url: str, cluster: str
) -> Mapping[str, Mapping[str, Any]]:
    where = f"{url}/admin/v2/clusters/{quote(cluster, safe='')}/failureDomains"
    expected = "failure domains by name, each a JSON object"
    found: dict[str, Any] = await admin.json(where, dict, expected, absent=_NONE)
    if not all(isinstance(one, dict) for one in found.values()):
        raise NotPulsar(f"{where}: expected {expected}")
    return found


async def read_anti_affinity_group(admin: PulsarAdmin, url: str, namespace: Namespace) -> str:
    """Return the anti-affinity group of a namespace, "" for none; raises as `PulsarAdmin.text`."""
    answer = await admin.text(f"{url}/admin/v2/namespaces/{namespace}/antiAffinity", _NONE)
    return answer.strip().strip('"')


_LINE: Final = re.compile(
    rb"^(pulsar_(?:broker_)?(?:in|out)_(?:messages|bytes)_total"
    rb"|pulsar_replication_(?:rate|throughput)_out"
    rb"|process_cpu_seconds_total|process_start_time_seconds|jetty_stats_seconds"
    rb"|pulsar_lb_(?:cpu|memory|directMemory|bandwidth_in|bandwidth_out)_usage)"
    rb"\{([^\n]*)\} ([^\s]+)",
    re.MULTILINE,
)
_LABEL: Final = re.compile(rb'(?<!\w)(\w++)="((?:[^"\\]++|\\.)*+)"')
_ESCAPED: Final = re.compile(r"\\(.)")
_MEANS: Final = {"n": "\n"}
_MOST_COUNTED: Final = 2.0**63


class Moment(NamedTuple):
    """When a page was made: on the broker's clock, and when it began to arrive, on ours."""

    at_s: float
    clock_s: float | None

    def since(self, before: "Moment") -> float:
        if (
            self.clock_s is not None
            and before.clock_s is not None
            and self.clock_s > before.clock_s
        ):
            return self.clock_s - before.clock_s
        return self.at_s - before.at_s


@dataclass(slots=True)
class Exposition:
    """One reading of a broker's metrics: counters of each topic, of which a partition is one.

    ``totals`` are the broker's own counters of bytes in and out, of all of its topics; None before
    4.0. ``usages`` are in percent, of ``cpu``, ``memory``, ``directMemory``, ``bandwidth_in`` and
    ``bandwidth_out``, as the broker's load manager last measured them. ``started_s`` is in seconds
    since 1970 by the broker's clock. ``clock_s`` is in seconds since its web service
    began, and ``at_s`` is when the page began to arrive, on the monotonic clock of this process.
    """

    topics: dict[str, TopicCounters] = field(default_factory=dict)
    totals: Flow | None = None
    usages: dict[str, float] = field(default_factory=dict)
    cpu_seconds: float | None = None
    started_s: float | None = None
    clock_s: float | None = None
    at_s: float = 0.0

    @property
    def moment(self) -> Moment:
        return Moment(self.at_s, self.clock_s)


async def read_exposition(blocks: AsyncIterator[bytes]) -> Exposition:
    seen = Exposition()
    async for block in blocks:
        seen.at_s = seen.at_s or monotonic()
        for line in _LINE.finditer(block):
            metric, labels, text = line.groups()
            value = _number(text)
            if value is None:
                continue
            if metric == b"process_start_time_seconds":
                seen.started_s = value
            elif metric == b"process_cpu_seconds_total":
                seen.cpu_seconds = value
            elif metric == b"jetty_stats_seconds":
                seen.clock_s = value
            elif metric.startswith(b"pulsar_lb_"):
                seen.usages[metric[10:-6].decode()] = value
            elif metric.startswith(b"pulsar_broker_"):
                bytes_in, bytes_out = seen.totals or (0.0, 0.0)
                into = metric == b"pulsar_broker_in_bytes_total"
                seen.totals = bytes_in + into * value, bytes_out + (not into) * value
            else:
                _count(seen.topics, metric, labels, value)
    seen.at_s = seen.at_s or monotonic()
    return seen


def _count(topics: dict[str, TopicCounters], metric: bytes, text: bytes, value: float) -> None:
    labels = {}
    for name, quoted in _LABEL.findall(text):
        label = quoted.decode("utf-8", errors="replace")
        if "\\" in label:
            label = _ESCAPED.sub(lambda one: _MEANS.get(one[1], one[1]), label)
        labels[name.decode()] = label
    name = labels.get("topic", "")
    # The line of the subscription already counts its consumers, and those of a whole namespace are
    # there where its topics are not exposed.
    if "consumer_name" in labels or "consumer_id" in labels or "://" not in name:
        return
    if (partition := labels.get("partition", "")).isdigit():
        name = f"{name}-partition-{partition}"
    topic = topics.get(name) or topics.setdefault(name, TopicCounters())
    if metric == b"pulsar_in_messages_total":
        topic.msgs_in = value
    elif metric == b"pulsar_in_bytes_total":
        topic.bytes_in = value
    else:
        flows, series = topic.out, labels.get("subscription", "")
        if metric.startswith(b"pulsar_replication_"):
            topic.replicated = flows = topic.replicated or {}
            series = labels.get("remote_cluster", "")
        msgs, size = flows.get(series, (0.0, 0.0))
        of_msgs = metric in {b"pulsar_out_messages_total", b"pulsar_replication_rate_out"}
        flows[sys.intern(series)] = (value, size) if of_msgs else (msgs, value)


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < _MOST_COUNTED else None


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
    ``cordoned`` brokers take no bundle, and those of them that are ``draining`` are emptied: our
    own marks, of which Pulsar knows nothing.
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
    cordoned: frozenset[BrokerId] = frozenset()
    draining: frozenset[BrokerId] = frozenset()

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


@dataclass
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
        silent = await self._read_settings(url, name, unread)
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

    async def _read_settings(
        self, url: str, cluster: str, brokers: list[BrokerId]
    ) -> Mapping[BrokerId, str]:
        """Read settings and addresses of brokers; return the reason by broker without them."""
        admin, address = self.admin, addresses(url)
        confidential = admin.access.secret or admin.encrypts
        if confidential:
            former = {} if self._cluster is None else self._cluster.silent
            lost = [one for one in brokers if one not in admin.reached or one in former]
            await locate(admin, url, cluster, set(lost) - admin.deferred)
        began_s = monotonic()
        answers, silent = await ask_each(brokers, lambda one: read_runtime(admin, address(one)))
        await admin.waited(began_s, map(address, map(BrokerId, admin.known)))
        lost = [one for one in silent if one not in admin.deferred]
        if lost and not confidential and await locate(admin, url, cluster, lost):
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


async def locate(admin: PulsarAdmin, url: str, cluster: str, brokers: Iterable[BrokerId]) -> bool:
    """Look up where brokers are reached, with TLS and from here; return whether any is found."""
    found, _ = await ask_each(tuple(brokers), lambda one: read_own_urls(admin, url, cluster, one))
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
