"""Our key for each of Pulsar's load-balancer keys, or the reason why there is none.

A key that is a setting of a strategy is not in the tables: the strategies declare it
themselves, and `loadmanager.config.strategies` reads it under Pulsar's name.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Ours:
    """A key of our configuration, and what a text of Pulsar's means for it.

    ``read`` raises ValueError for a text that means nothing.
    """

    section: str
    key: str
    read: Callable[[str], object]


def switch(text: str) -> bool:
    words = {"true": True, "false": False}
    if text.strip().lower() not in words:
        raise ValueError("expected true or false")
    return words[text.strip().lower()]


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("expected a whole number") from None


def times(factor: float) -> Callable[[str], float]:
    """Return a reader that turns a number in Pulsar's unit into ours."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            raise ValueError("expected a number") from None
        return number * factor if factor >= 1 else number / round(1 / factor)

    return read


def level(text: str) -> str:
    """Return the least severity to log for a switch of debugging."""
    return "debug" if switch(text) else "info"


_SECONDS: Final = times(1)
_MINUTES: Final = times(60)
_MILLISECONDS: Final = times(0.001)
_PERCENT: Final = times(0.01)

TRANSLATED: Final[Mapping[str, tuple[Ours, ...]]] = {
    "loadBalancerEnabled": (
        Ours("shedding", "enabled", switch),
        Ours("split", "enabled", switch),
    ),
    "loadBalancerLoadSheddingStrategy": (Ours("shedding", "strategy", str.strip),),
    "loadBalancerLoadPlacementStrategy": (Ours("placement", "strategy", str.strip),),
    "loadBalancerSheddingEnabled": (Ours("shedding", "enabled", switch),),
    "loadBalancerSheddingIntervalMinutes": (Ours("leader", "round_interval_s", _MINUTES),),
    "loadBalancerSheddingGracePeriodMinutes": (Ours("shedding", "grace_period_s", _MINUTES),),
    "loadBalancerSheddingExcludedNamespaces": (Ours("shedding", "excluded_namespaces", names),),
    "loadBalancerDistributeBundlesEvenlyEnabled": (Ours("placement", "even_bundles", switch),),
    "preferLaterVersions": (Ours("placement", "prefer_later_versions", switch),),
    "loadBalancerReportUpdateThresholdPercentage": (
        Ours("report", "change_fraction", _PERCENT),
        Ours("report", "change_points", _PERCENT),
    ),
    "loadBalancerReportUpdateMinIntervalMillis": (Ours("report", "min_interval_s", _MILLISECONDS),),
    "loadBalancerReportUpdateMaxIntervalMinutes": (Ours("report", "max_interval_s", _MINUTES),),
    "loadBalancerHostUsageCheckIntervalMinutes": (Ours("report", "sample_interval_s", _MINUTES),),
    "loadBalancerOverrideBrokerNicSpeedGbps": (Ours("host", "nic_speed_mbit_per_s", times(1000)),),
    "loadBalancerOverrideBrokerNics": (Ours("host", "nics", names),),
    "loadBalancerBrokerMaxTopics": (Ours("placement", "max_topics_per_broker", whole),),
    "failureDomainsEnabled": (Ours("placement", "failure_domains", switch),),
    "defaultNumberOfNamespaceBundles": (Ours("cluster", "default_bundles", whole),),
    "loadBalancerAutoBundleSplitEnabled": (Ours("split", "enabled", switch),),
    "loadBalancerNamespaceBundleMaxTopics": (Ours("split", "max_topics", whole),),
    "loadBalancerNamespaceBundleMaxSessions": (Ours("split", "max_sessions", whole),),
    "loadBalancerNamespaceBundleMaxMsgRate": (Ours("split", "max_msgs_per_s", whole),),
    "loadBalancerNamespaceBundleMaxBandwidthMbytes": (Ours("split", "max_mib_per_s", whole),),
    "loadBalancerNamespaceMaximumBundles": (Ours("split", "max_bundles_per_namespace", whole),),
    "defaultNamespaceBundleSplitAlgorithm": (Ours("split", "algorithm", str.strip),),
    "flowOrQpsDifferenceThresholdPercentage": (Ours("split", "difference_percent", whole),),
    "loadBalancerMaxNumberOfBundlesToSplitPerCycle": (
        Ours("split", "max_splits_per_round", whole),
    ),
    "loadBalancerDebugModeEnabled": (Ours("log", "level", level),),
    "loadBalancerInFlightServiceUnitStateWaitingTimeInMillis": (
        Ours("lookup", "wait_s", _MILLISECONDS),
    ),
    "maxConcurrentLookupRequest": (Ours("lookup", "max_concurrent", whole),),
    "metadataStoreSessionTimeoutMillis": (Ours("zookeeper", "session_timeout_s", _MILLISECONDS),),
    "clusterName": (Ours("cluster", "name", str.strip),),
}

_SIMPLE: Final = "belongs to SimpleLoadManager, which Pulsar has given up"
_CHANNEL: Final = "the extensible load manager's state channel; ownership here is a ZooKeeper lock"
_BROKERS_OWN: Final = "the broker's own business, which it goes on reading itself"

UNUSED: Final[Mapping[str, str]] = {
    "loadManagerClassName": "loadmanager is the load manager",
    "loadManagerMigrationEnabled": "nothing is migrated between Pulsar's own load managers",
    "loadBalancerPlacementStrategy": _SIMPLE,
    "loadBalancerBrokerUnderloadedThresholdPercentage": _SIMPLE,
    "loadBalancerBrokerComfortLoadLevelPercentage": _SIMPLE,
    "bootstrapNamespaces": "bundles are placed by load when they are first asked for",
    "loadBalancerResourceQuotaUpdateIntervalMinutes": "the leader keeps its state after each round",
    "loadBalancerMaxNumberOfBundlesInBundleLoadReport": "reports hold every bundle of the broker",
    "exposeBundlesMetricsInPrometheus": (
        "`loadmanager explain` shows each bundle; a time series for each would drown the rest"
    ),
    "enablePersistentTopics": _BROKERS_OWN,
    "enableNonPersistentTopics": _BROKERS_OWN,
    "atLeastOneBundleSelected": (
        "a broker that is to shed always offers one bundle; in safe mode only if that helps"
    ),
    "defaultNumberOfSystemNamespaceBundles": "namespaces are created with a number of bundles",
    "loadBalancerAutoUnloadSplitBundlesEnabled": (
        "the parts of a split bundle are placed by the next round, if that balances better"
    ),
    "supportedNamespaceBundleSplitAlgorithms": "all four are supported",
    "topicBundleAssignmentStrategy": "[cluster] hash says how a topic finds its bundle",
    "namespaceBundleUnloadingTimeoutMs": _BROKERS_OWN,
    "brokerShutdownTimeoutMs": _BROKERS_OWN,
    "loadBalancerMultiPhaseBundleUnload": (
        "every planned hand-over announces the move to the broker"
    ),
    "loadBalancerSplitIntervalMinutes": "bundles are split in the leader's rounds",
    "loadBalancerNamespaceBundleSplitConditionHitCountThreshold": (
        "splits are decided on long-term averages, which one burst does not lift"
    ),
    "loadBalancerServiceUnitStateTombstoneDelayTimeInSeconds": _CHANNEL,
    "loadBalancerServiceUnitStateMonitorIntervalInSeconds": (
        "ownership is compared with the orders in every round"
    ),
    "loadBalancerServiceUnitStateMaxConcurrentOverrides": (
        "see [planner] max_placements_per_round and max_in_flight_per_broker"
    ),
    "loadManagerServiceUnitStateTableViewClassName": _CHANNEL,
    "loadBalancerServiceUnitTableViewSyncer": _CHANNEL,
    "maxConcurrentTopicLoadRequest": _BROKERS_OWN,
    "topicLoadTimeoutSeconds": _BROKERS_OWN,
    "allowAutoTopicCreation": "a lookup needs no topic, only its name",
    "httpRequestsLimitEnabled": "see [lookup] max_concurrent",
    "httpRequestsMaxPerSecond": "see [lookup] max_concurrent",
    "advertisedListeners": _BROKERS_OWN,
    "internalListenerName": _BROKERS_OWN,
    "lookupPropertyPrefix": "reports carry no properties of the broker",
    "metadataStoreOperationTimeoutSeconds": "requests to ZooKeeper end with the session",
    "zookeeperSessionExpiredPolicy": (
        "a broker with an expired session always stops serving and joins again"
    ),
}

MISSPELT: Final[Mapping[str, str]] = {
    "loadBalancerBandwithInResourceWeight": "loadBalancerBandwidthInResourceWeight",
    "loadBalancerBandwithOutResourceWeight": "loadBalancerBandwidthOutResourceWeight",
}
"""Older names of weights; as in Pulsar, they count where the right name has its default, 1.0."""

DEPLOYMENT: Final = frozenset(
    {
        "advertisedAddress",
        "bindAddress",
        "webServicePort",
        "webServicePortTls",
        "brokerServicePort",
        "brokerServicePortTls",
        "metadataStoreUrl",
        "zookeeperServers",
    }
)
"""Keys that say where broker and ZooKeeper are; `loadmanager.config.pulsar_import` joins them."""

SECURITY: Final = re.compile(
    "(authenticat|authoriz|anonymousUserRole|superUserRoles|proxyRoles|token|tls|sasl|kinit|athenz"
    "|brokerClient(Tls|Trust|Key|Authentication|Ssl)|bookkeeper(TLS|ClientAuthentication)"
    "|encryption|zookeeper.*acl|kerberos|ssl)",
    re.IGNORECASE,
)
"""Keys about access rights and TLS: what they protect is open until it is set up here."""
