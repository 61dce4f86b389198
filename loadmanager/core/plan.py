from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId, BundleId


class _Code(StrEnum):
    """A code: its ``meaning`` as a sentence, and what it ``takes`` to end it."""

    meaning: str
    takes: str

    def __new__(cls, value: str, meaning: str = "", takes: str = "") -> Self:
        one = str.__new__(cls, value)
        one._value_, one.meaning, one.takes = value, meaning, takes
        return one


class Cause(_Code):
    OVERLOADED = "overloaded", "Its broker carried more than the strategy allows."
    UNDERLOADED = "underloaded", "Another broker carried far less than the rest."
    IMBALANCE = "imbalance", "Its broker carried more than the one it went to."
    SWAP = "swap", "It went back in exchange for a larger bundle, to even a pair of brokers out."
    DRAINING = "draining", "Its broker is draining: everything is taken off it."
    UNOWNED = "unowned", "No broker owned it, and it was asked for or its broker had left."
    REQUESTED = "requested", "An operator requested its unload from the broker."
    OVERSIZED = "oversized", "It has more traffic, topics or sessions than one bundle may have."
    INHERITED = "inherited", "A former leader ordered it, and it is not carried out yet."
    ISOLATION = "isolation", "An isolation policy forbids its broker to serve it."
    ANTI_AFFINITY = (
        "anti_affinity",
        "Its broker served other namespaces of its anti-affinity group.",
    )
    COUNT = "count", "Its broker had more bundles without traffic than others."


class Reason(_Code):
    """Why a broker or bundle was left alone, or could not take an offered bundle.

    A closed set: these values label the metric and appear in history and ``explain``.
    """

    # Rounds that do nothing.
    SHEDDING_OFF = (
        "shedding_off",
        "Shedding is switched off, so loaded bundles stay where they are.",
        "Set [shedding] enabled = true.",
    )
    SESSION_DOUBTFUL = (
        "session_doubtful",
        "The leader was not sure of its own session, so it decided nothing.",
        "A connection to ZooKeeper that lasts through a round.",
    )
    MEMBERSHIP_CHANGING = (
        "membership_changing",
        "A broker joined or left a moment ago, so nothing was moved until that settles.",
        "No broker joining or leaving for settle_s seconds.",
    )
    BROKERS_LOST = (
        "brokers_lost",
        "So many brokers were lost lately that moving load could make it worse.",
        "Brokers coming back, lost_window_s seconds passing, or a higher max_lost_fraction.",
    )
    REPORTS_STALE = (
        "reports_stale",
        "Too many brokers have not reported for long, so the cluster's load is not known.",
        "Fresh reports of those brokers, or a higher max_stale_fraction.",
    )
    TOO_FEW_BROKERS = (
        "too_few_brokers",
        "There are not two brokers with load data, so there is nowhere to move anything.",
        "A second broker that reports its load.",
    )
    COOLING_DOWN = (
        "cooling_down",
        "A broker took part in a move and has not reported long enough since then.",
        "A report of that broker more than shedding_delay_s after the move.",
    )
    # Brokers that shed nothing.
    WITHIN_THRESHOLD = (
        "within_threshold",
        "The load is within what the strategy tolerates.",
        "More load than the threshold allows, or a lower threshold.",
    )
    CLUSTER_IDLE = (
        "cluster_idle",
        "No broker carries any load.",
        "Load on some broker.",
    )
    TOO_FEW_BUNDLES = (
        "too_few_bundles",
        "The broker has no bundle to spare: giving its only one away moves the problem.",
        "More bundles on the broker; split the one that is too heavy.",
    )
    BELOW_MINIMUM = (
        "below_minimum",
        "What the broker would shed is less than a move is worth.",
        "More difference between brokers, or lower minimums of the strategy.",
    )
    NO_BUNDLE_FITS = (
        "no_bundle_fits",
        "The broker should shed, but none of its bundles may move now or fits the amount.",
        "Smaller bundles (split them), or recently moved ones becoming free again.",
    )
    HITS_PENDING = (
        "hits_pending",
        "The imbalance has not lasted for as many rounds as the strategy waits for.",
        "The same imbalance in more rounds, or fewer hits in the strategy's settings.",
    )
    LOAD_UNKNOWN = (
        "load_unknown",
        "There is no load data of a broker that takes part.",
        "A load report, and one sample of the averages after it.",
    )
    LOAD_OUTDATED = (
        "load_outdated",
        "The load data is too old to decide on.",
        "Fresh load reports.",
    )
    ROLLING_RESTART = (
        "rolling_restart",
        "Brokers restart one after the other: what is moved now is moved again within minutes.",
        "The end of the rolling restart, or more than 0.9 of a resource in use.",
    )
    CONTRADICTED = (
        "contradicted",
        (
            "For five minutes the broker reports more than the level by 15 percent, while what its "
            "bundles are predicted to use is within it."
        ),
        "Nothing: this is a fault of the strategy. Report it with the history.",
    )
    # Brokers that cannot take a bundle.
    DRAINING = (
        "draining",
        "The broker is draining (marked, stopping, unhealthy) or takes no locks: it gets none.",
        "No mark, good health for a while, and locks taken in time.",
    )
    REPORT_STALE = (
        "report_stale",
        "The broker's load report is too old, so it neither takes nor sheds anything.",
        "A report younger than report_stale_s.",
    )
    DOMAIN_UNSUPPORTED = (
        "domain_unsupported",
        "The broker takes no bundles: it is cordoned, or serves no persistent topics.",
        "The end of the cordon, or persistent topics switched on at that broker.",
    )
    TOO_MANY_TOPICS = (
        "too_many_topics",
        "The broker has more topics than a broker should have, and another has fewer.",
        "Fewer topics on it, or a higher max_topics_per_broker.",
    )
    OLDER_VERSION = (
        "older_version",
        "The broker runs an older version than others, which are preferred.",
        "An upgrade of that broker, or prefer_later_versions = false.",
    )
    ISOLATED = (
        "isolated",
        "Isolation policies keep that namespace off the broker.",
        "Another isolation policy for the namespace or for the broker.",
    )
    ANTI_AFFINITY = (
        "anti_affinity",
        "The broker serves more namespaces of the same anti-affinity group than others do.",
        "Namespaces of the group leaving it, or another group.",
    )
    FAILURE_DOMAIN = (
        "failure_domain",
        "The broker's failure domain serves more of the anti-affinity group than others do.",
        "Namespaces of the group leaving the domain, or brokers in other domains.",
    )
    MORE_OF_NAMESPACE = (
        "more_of_namespace",
        "The broker has more bundles of that namespace than others; they are spread evenly.",
        "even_bundles = false, or bundles of the namespace leaving it.",
    )
    # Bundles that stay.
    NOT_OFFERED = (
        "not_offered",
        "The strategy offered others, or saw nothing to shed here.",
        "More load here than on the others, by the measure of the strategy.",
    )
    NO_CANDIDATE = (
        "no_candidate",
        "No broker may take the bundle now.",
        "A broker that is refused for none of the reasons given.",
    )
    SAME_BROKER = (
        "same_broker",
        "Its own broker is the best place for it.",
        "A broker that the placement prefers.",
    )
    NO_IMPROVEMENT = (
        "no_improvement",
        "Wherever it went, that broker would stand about as high as its own does now.",
        "A broker with more room, a smaller bundle, or a smaller margin.",
    )
    UNBALANCEABLE = (
        "unbalanceable",
        "The bundle is most of its broker's load: moving it would move the problem.",
        "A split of the bundle, or a larger broker.",
    )
    RECENTLY_MOVED = (
        "recently_moved",
        "The bundle moved a short time ago and rests.",
        "The end of its grace period, or a shorter one.",
    )
    IN_FLIGHT = (
        "in_flight",
        "The bundle is on its way to another broker.",
        "Its arrival there.",
    )
    NAMESPACE_EXCLUDED = (
        "namespace_excluded",
        "Bundles of its namespace are never shed.",
        "The namespace taken out of excluded_namespaces.",
    )
    ROUND_BUDGET = (
        "round_budget",
        "The round had moved as many bundles as one round may.",
        "The next round, or a higher max_moves_per_round.",
    )
    WORK_BUDGET = (
        "work_budget",
        "The round had used all steps that it may take to decide.",
        "The next round, or less of what the detail names.",
    )
    TRAFFIC_BUDGET = (
        "traffic_budget",
        "The round had moved as much traffic as one round may.",
        "The next round, or a higher max_bytes_per_s_per_round.",
    )
    BROKER_BUDGET = (
        "broker_budget",
        "As many moves as allowed were under way to or from its broker.",
        "Their arrival, or a higher max_in_flight_per_broker.",
    )
    HOUR_BUDGET = (
        "hour_budget",
        "As many bundles as allowed had moved within the hour.",
        "Time, or a higher max_moves_per_hour.",
    )
    # Large bundles that are not split.
    NAMESPACE_FULL = (
        "namespace_full",
        "The namespace has as many bundles as a namespace may have.",
        "A higher limit of bundles per namespace.",
    )
    NAMESPACE_UNKNOWN = (
        "namespace_unknown",
        "The namespace's boundaries are not known, so nothing of it can be cut.",
        "Boundaries in the namespace's local policies.",
    )
    # Inconsistencies.
    OUT_OF_STEP = (
        "out_of_step",
        "Orders, locks, lists, reports or boundaries did not agree about it.",
        "What the detail says to be corrected; what the leader can correct, it has corrected.",
    )


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

    def used_up(self, view: ClusterView) -> Iterator[Refusal]:
        """Yield what used up the steps, if they are."""
        for (row, why), steps in self.spent.most_common(int(self.left <= 0)):
            broker = f"{view.brokers.names[row]} with {len(view.owned.of(row)):,} bundles"
            took = f"took {steps:,} of {self.left + self.spent.total():,} steps {why}"
            yield Refusal("", Reason.WORK_BUDGET, f"{broker} {took}")


def cut_short(refusals: Iterable[Refusal]) -> str:
    """Return what used up the steps of a round, "" if they sufficed."""
    whole = (one for one in refusals if not one.subject)
    return next((one.detail for one in whole if one.reason is Reason.WORK_BUDGET), "")
