from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from loadmanager.core.ids import BrokerId, BundleId


class Cause(StrEnum):
    OVERLOADED = "overloaded"
    UNDERLOADED = "underloaded"
    IMBALANCE = "imbalance"
    SWAP = "swap"
    DRAINING = "draining"
    UNOWNED = "unowned"
    REQUESTED = "requested"
    OVERSIZED = "oversized"
    INHERITED = "inherited"
    ISOLATION = "isolation"
    ANTI_AFFINITY = "anti_affinity"
    COUNT = "count"


class Reason(StrEnum):
    """Why a broker or bundle was left alone, or could not take an offered bundle.

    A closed set: these values label the metric and appear in history and ``explain``.
    """

    # Rounds that do nothing.
    SHEDDING_OFF = "shedding_off"
    SESSION_DOUBTFUL = "session_doubtful"
    MEMBERSHIP_CHANGING = "membership_changing"
    BROKERS_LOST = "brokers_lost"
    REPORTS_STALE = "reports_stale"
    TOO_FEW_BROKERS = "too_few_brokers"
    COOLING_DOWN = "cooling_down"
    # Brokers that shed nothing.
    WITHIN_THRESHOLD = "within_threshold"
    CLUSTER_IDLE = "cluster_idle"
    TOO_FEW_BUNDLES = "too_few_bundles"
    BELOW_MINIMUM = "below_minimum"
    NO_BUNDLE_FITS = "no_bundle_fits"
    HITS_PENDING = "hits_pending"
    LOAD_UNKNOWN = "load_unknown"
    LOAD_OUTDATED = "load_outdated"
    ROLLING_RESTART = "rolling_restart"
    CONTRADICTED = "contradicted"
    # Brokers that cannot take a bundle.
    DRAINING = "draining"
    REPORT_STALE = "report_stale"
    DOMAIN_UNSUPPORTED = "domain_unsupported"
    TOO_MANY_TOPICS = "too_many_topics"
    OLDER_VERSION = "older_version"
    ISOLATED = "isolated"
    ANTI_AFFINITY = "anti_affinity"
    FAILURE_DOMAIN = "failure_domain"
    MORE_OF_NAMESPACE = "more_of_namespace"
    # Bundles that stay.
    NOT_OFFERED = "not_offered"
    NO_CANDIDATE = "no_candidate"
    SAME_BROKER = "same_broker"
    NO_IMPROVEMENT = "no_improvement"
    UNBALANCEABLE = "unbalanceable"
    RECENTLY_MOVED = "recently_moved"
    IN_FLIGHT = "in_flight"
    NAMESPACE_EXCLUDED = "namespace_excluded"
    ROUND_BUDGET = "round_budget"
    WORK_BUDGET = "work_budget"
    TRAFFIC_BUDGET = "traffic_budget"
    BROKER_BUDGET = "broker_budget"
    HOUR_BUDGET = "hour_budget"
    # Large bundles that are not split.
    NAMESPACE_FULL = "namespace_full"
    NAMESPACE_UNKNOWN = "namespace_unknown"
    # Inconsistencies.
    OUT_OF_STEP = "out_of_step"


@dataclass(frozen=True, slots=True)
class Offer:
    bundle: BundleId
    source: BrokerId
    cause: Cause
    target: BrokerId | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """A bundle and its next owner. ``source`` is None for a bundle without an owner."""

    bundle: BundleId
    source: BrokerId | None
    target: BrokerId
    cause: Cause


@dataclass(frozen=True, slots=True)
class Refusal:
    """A broker or bundle that was left alone, with the reason.

    ``subject`` is a broker id, a bundle name, or empty for the whole round.
    ``detail`` holds the decisive figures, for display.
    """

    subject: BrokerId | BundleId | str
    reason: Reason
    detail: str = ""


@dataclass(slots=True)
class Steps:
    """The work of a round, ``spent`` by broker row and purpose; a bundle weighed is a step."""

    left: int = 20_000_000
    spent: Counter[tuple[int, str]] = field(default_factory=Counter)

    def spend(self, broker: int, steps: int, why: str = "to weigh its bundles") -> None:
        self.left -= steps
        self.spent[broker, why] += steps


def cut_short(refusals: Iterable[Refusal]) -> str:
    """Return what used up the steps of a round, "" if they sufficed."""
    whole = (one for one in refusals if not one.subject)
    return next((one.detail for one in whole if one.reason is Reason.WORK_BUDGET), "")
