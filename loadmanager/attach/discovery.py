import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar
from urllib.parse import quote, urlsplit

from loadmanager.adapters.pulsar_admin import (
    AnswerRefused,
    NotPulsar,
    PulsarAdmin,
    PulsarAdminError,
    RequestFailed,
    RightMissing,
)
from loadmanager.adapters.pulsar_admin.lookups import read_isolation
from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import BrokerId, parse_broker
from loadmanager.core.policies import NO_POLICIES, Policies

Answer = TypeVar("Answer")

RUNTIME: Final = "/admin/v2/brokers/configuration/runtime"
_MOST_BROKERS: Final = 10_000
FAILURE_DOMAINS: Final = "failureDomainsEnabled"
BALANCER_KEYS: Final = (
    "loadBalancerEnabled",
    "loadBalancerSheddingEnabled",
    "loadBalancerAutoBundleSplitEnabled",
    "loadBalancerLoadSheddingStrategy",
    FAILURE_DOMAINS,
)
BUFFERS: Final = "metricsBufferResponse"
"""Pulsar's setting with which brokers repeat a page of metrics, by default for up to a minute."""

_HOST_INTERVAL_MINUTES: Final = "loadBalancerHostUsageCheckIntervalMinutes"
_USUAL_HOST_INTERVAL_S: Final = 60.0
_FLAGS: Final = {"true": True, "false": False}
_MANAGERS: Final = {
    "ModularLoadManagerImpl": "modular",
    "ModularLoadManagerWrapper": "modular",
    "ExtensibleLoadManagerImpl": "extensible",
    "ExtensibleLoadManagerWrapper": "extensible",
    "SimpleLoadManagerImpl": "simple",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarCluster:
    """A cluster as the broker that answered describes it.

    Attributes:
        manager: ``modular``, ``extensible``, ``simple``, or the class name of another manager.
        settings: of Pulsar's own balancer, by broker that reports them.
        topic_metrics: whether ``/metrics/`` has a line for each topic; None if unknown.
        silent: the reason, by broker that did not report its settings.
        isolation: isolation policies of namespaces; empty if they were not read.
        host_interval_s: seconds between two measurements of a broker's host.
    """

    name: str
    brokers: tuple[BrokerId, ...]
    version: str = ""
    manager: str = "unknown"
    settings: Mapping[BrokerId, Mapping[str, str]] = field(default_factory=dict)
    topic_metrics: bool | None = None
    silent: Mapping[BrokerId, str] = field(default_factory=dict)
    isolation: Policies = NO_POLICIES
    host_interval_s: float = _USUAL_HOST_INTERVAL_S

    def differing(self, key: str) -> Mapping[str, tuple[BrokerId, ...]]:
        found: dict[str, tuple[BrokerId, ...]] = {}
        for broker, settings in self.settings.items():
            value = settings.get(key, "")
            found[value] = (*found.get(value, ()), broker)
        return found


def addresses(url: str) -> Callable[[BrokerId], str]:
    """Return the function from brokers to their URLs, all with the scheme of ``url``."""
    scheme = urlsplit(url).scheme
    return lambda broker: f"{scheme}://{broker}"


async def discover(admin: PulsarAdmin, url: str) -> PulsarCluster:
    """Return the cluster of the broker at ``url``; raises as `describe`."""
    cluster = await describe(admin, url)
    return replace(cluster, isolation=await read_isolation(admin, url, cluster.name))


async def describe(admin: PulsarAdmin, url: str) -> PulsarCluster:
    """Return the cluster of the broker at ``url``, without its isolation policies.

    Raises `PulsarAdminError`: it does not answer as a Pulsar broker, or refuses the request; the
    message names the missing permission.
    """
    runtime = await read_runtime(admin, url)
    name = runtime["clusterName"]
    brokers = await read_brokers(admin, url, name)
    admin.known = set(brokers)
    version = await read_version(admin, url)
    address = addresses(url)
    answers, silent = await ask_each(brokers, lambda one: read_runtime(admin, address(one)))
    settings = {
        broker: {key: one.get(key, "") for key in (*BALANCER_KEYS, BUFFERS)}
        for broker, one in answers.items()
    }
    return PulsarCluster(
        name=name,
        brokers=brokers,
        version=version,
        manager=manager_of(runtime.get("loadManagerClassName", "")),
        settings=settings,
        topic_metrics=_FLAGS.get(runtime.get("exposeTopicLevelMetricsInPrometheus", "")),
        silent=silent,
        host_interval_s=_host_interval_s(runtime.get(_HOST_INTERVAL_MINUTES, "")),
    )


async def ask_each(
    brokers: Iterable[BrokerId], ask: Callable[[BrokerId], Awaitable[Answer]]
) -> tuple[dict[BrokerId, Answer], dict[BrokerId, str]]:
    """Ask all brokers at once; return the answers, and the reason by broker without one."""
    names = tuple(brokers)
    found = await asyncio.gather(*map(ask, names), return_exceptions=True)
    answers: dict[BrokerId, Answer] = {}
    failed: dict[BrokerId, str] = {}
    for broker, one in zip(names, found, strict=True):
        if isinstance(one, PulsarAdminError):
            failed[broker] = str(one)
        elif isinstance(one, BaseException):
            raise one
        else:
            answers[broker] = one
    return answers, failed


async def discover_at_any(admin: PulsarAdmin, urls: Iterable[str]) -> tuple[PulsarCluster, str]:
    """Return the first cluster that answers, and its URL; raises as `discover` at the first one."""
    first: PulsarAdminError | None = None
    for url in urls:
        try:
            return await discover(admin, url), url
        except RequestFailed as error:
            first = first or error
    raise first or NotPulsar("expected the URL of a broker")


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
    if not isinstance(found, dict) or not isinstance(found.get("clusterName"), str):
        raise NotPulsar(f"{where}: no clusterName; expected the settings of a Pulsar broker")
    return {key: value for key, value in found.items() if isinstance(value, str)}


async def read_brokers(admin: PulsarAdmin, url: str, cluster: str) -> tuple[BrokerId, ...]:
    where = f"{url}/admin/v2/brokers/{quote(cluster, safe='')}"
    found = await admin.json(where)
    if not isinstance(found, list) or len(found) > _MOST_BROKERS:
        raise NotPulsar(f"{where}: expected a list of at most {_MOST_BROKERS:,} brokers")
    if not found:
        raise NotPulsar(f"{where}: the cluster {cluster} has no active broker; start one")
    try:
        names = (str(one).removeprefix("http://").removeprefix("https://") for one in found)
        return tuple(sorted(map(parse_broker, names)))
    except InvalidName as error:
        raise NotPulsar(f"{where}: {error}") from None


async def read_version(admin: PulsarAdmin, url: str) -> str:
    answer = await admin.text(f"{url}/admin/v2/brokers/version")
    return " ".join(answer.strip().strip('"').split())[:64]


def manager_of(class_name: str) -> str:
    last = class_name.rpartition(".")[2]
    return _MANAGERS.get(last, last or "unknown")


def _host_interval_s(value: str) -> float:
    return 60.0 * int(value) if value.isdecimal() else _USUAL_HOST_INTERVAL_S
