from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from loadmanager.core.plan import Cause, Reason


@dataclass(frozen=True, slots=True)
class ReasonText:
    """The meaning of a reason as a sentence, and a change after which it would not apply."""

    meaning: str
    remedy: str


CAUSES: Final[Mapping[Cause, str]] = MappingProxyType(
    {
        Cause.OVERLOADED: "Its broker carried more than the strategy allows.",
        Cause.UNDERLOADED: "Another broker carried far less than the rest.",
        Cause.IMBALANCE: "Its broker carried more than the one it went to.",
        Cause.SWAP: "It went back in exchange for a larger bundle, to even a pair of brokers out.",
        Cause.DRAINING: "Its broker is draining: everything is taken off it.",
        Cause.UNOWNED: "No broker owned it, and it was asked for or its broker had left.",
        Cause.REQUESTED: "An operator requested its unload from the broker.",
        Cause.OVERSIZED: "It has more traffic, topics or sessions than one bundle may have.",
        Cause.INHERITED: "A former leader ordered it, and it is not carried out yet.",
        Cause.ISOLATION: "An isolation policy forbids its broker to serve it.",
        Cause.ANTI_AFFINITY: "Its broker served other namespaces of its anti-affinity group.",
        Cause.COUNT: "Its broker had more bundles without traffic than others.",
    }
)

REASONS: Final[Mapping[Reason, ReasonText]] = MappingProxyType(
    {
        Reason.SHEDDING_OFF: ReasonText(
            "Shedding is switched off, so loaded bundles stay where they are.",
            "Set [shedding] enabled = true.",
        ),
        Reason.SESSION_DOUBTFUL: ReasonText(
            "The leader was not sure of its own session, so it decided nothing.",
            "A connection to ZooKeeper that lasts through a round.",
        ),
        Reason.MEMBERSHIP_CHANGING: ReasonText(
            "A broker joined or left a moment ago, so nothing was moved until that settles.",
            "No broker joining or leaving for settle_s seconds.",
        ),
        Reason.BROKERS_LOST: ReasonText(
            "So many brokers were lost lately that moving load could make it worse.",
            "Brokers coming back, lost_window_s seconds passing, or a higher max_lost_fraction.",
        ),
        Reason.REPORTS_STALE: ReasonText(
            "Too many brokers have not reported for long, so the cluster's load is not known.",
            "Fresh reports of those brokers, or a higher max_stale_fraction.",
        ),
        Reason.TOO_FEW_BROKERS: ReasonText(
            "There are not two brokers with load data, so there is nowhere to move anything.",
            "A second broker that reports its load.",
        ),
        Reason.COOLING_DOWN: ReasonText(
            "A broker took part in a move and has not reported long enough since then.",
            "A report of that broker more than shedding_delay_s after the move.",
        ),
        Reason.WITHIN_THRESHOLD: ReasonText(
            "The load is within what the strategy tolerates.",
            "More load than the threshold allows, or a lower threshold.",
        ),
        Reason.CLUSTER_IDLE: ReasonText(
            "No broker carries any load.",
            "Load on some broker.",
        ),
        Reason.TOO_FEW_BUNDLES: ReasonText(
            "The broker has no bundle to spare: giving its only one away moves the problem.",
            "More bundles on the broker; split the one that is too heavy.",
        ),
        Reason.BELOW_MINIMUM: ReasonText(
            "What the broker would shed is less than a move is worth.",
            "More difference between brokers, or lower minimums of the strategy.",
        ),
        Reason.NO_BUNDLE_FITS: ReasonText(
            "The broker should shed, but none of its bundles may move now or fits the amount.",
            "Smaller bundles (split them), or recently moved ones becoming free again.",
        ),
        Reason.HITS_PENDING: ReasonText(
            "The imbalance has not lasted for as many rounds as the strategy waits for.",
            "The same imbalance in more rounds, or fewer hits in the strategy's settings.",
        ),
        Reason.LOAD_UNKNOWN: ReasonText(
            "There is no load data of a broker that takes part.",
            "A load report, and one sample of the averages after it.",
        ),
        Reason.LOAD_OUTDATED: ReasonText(
            "The load data is too old to decide on.",
            "Fresh load reports.",
        ),
        Reason.ROLLING_RESTART: ReasonText(
            "Brokers restart one after the other: what is moved now is moved again within minutes.",
            "The end of the rolling restart, or more than 0.9 of a resource in use.",
        ),
        Reason.CONTRADICTED: ReasonText(
            "For five minutes the broker reports more than the level by 15 percent, while what its "
            "bundles are predicted to use is within it.",
            "Nothing: this is a fault of the strategy. Report it with the history.",
        ),
        Reason.DRAINING: ReasonText(
            "The broker is draining (marked, stopping, unhealthy) or takes no locks: it gets none.",
            "No mark, good health for a while, and locks taken in time.",
        ),
        Reason.REPORT_STALE: ReasonText(
            "The broker's load report is too old, so it neither takes nor sheds anything.",
            "A report younger than report_stale_s.",
        ),
        Reason.DOMAIN_UNSUPPORTED: ReasonText(
            "The broker does not serve topics of that domain.",
            "Persistent or non-persistent topics switched on at that broker.",
        ),
        Reason.TOO_MANY_TOPICS: ReasonText(
            "The broker has more topics than a broker should have, and another has fewer.",
            "Fewer topics on it, or a higher max_topics_per_broker.",
        ),
        Reason.OLDER_VERSION: ReasonText(
            "The broker runs an older version than others, which are preferred.",
            "An upgrade of that broker, or prefer_later_versions = false.",
        ),
        Reason.ISOLATED: ReasonText(
            "Isolation policies keep that namespace off the broker.",
            "Another isolation policy for the namespace or for the broker.",
        ),
        Reason.ANTI_AFFINITY: ReasonText(
            "The broker serves more namespaces of the same anti-affinity group than others do.",
            "Namespaces of the group leaving it, or another group.",
        ),
        Reason.FAILURE_DOMAIN: ReasonText(
            "The broker's failure domain serves more of the anti-affinity group than others do.",
            "Namespaces of the group leaving the domain, or brokers in other domains.",
        ),
        Reason.MORE_OF_NAMESPACE: ReasonText(
            "The broker has more bundles of that namespace than others; they are spread evenly.",
            "even_bundles = false, or bundles of the namespace leaving it.",
        ),
        Reason.NOT_OFFERED: ReasonText(
            "The strategy offered others, or saw nothing to shed here.",
            "More load here than on the others, by the measure of the strategy.",
        ),
        Reason.NO_CANDIDATE: ReasonText(
            "No broker may take the bundle now.",
            "A broker that is refused for none of the reasons given.",
        ),
        Reason.SAME_BROKER: ReasonText(
            "Its own broker is the best place for it.",
            "A broker that the placement prefers.",
        ),
        Reason.NO_IMPROVEMENT: ReasonText(
            "Wherever it went, that broker would stand about as high as its own does now.",
            "A broker with more room, a smaller bundle, or a smaller margin.",
        ),
        Reason.UNBALANCEABLE: ReasonText(
            "The bundle is most of its broker's load: moving it would move the problem.",
            "A split of the bundle, or a larger broker.",
        ),
        Reason.RECENTLY_MOVED: ReasonText(
            "The bundle moved a short time ago and rests.",
            "The end of its grace period, or a shorter one.",
        ),
        Reason.IN_FLIGHT: ReasonText(
            "The bundle is on its way to another broker.",
            "Its arrival there.",
        ),
        Reason.NAMESPACE_EXCLUDED: ReasonText(
            "Bundles of its namespace are never shed.",
            "The namespace taken out of excluded_namespaces.",
        ),
        Reason.ROUND_BUDGET: ReasonText(
            "The round had moved as many bundles as one round may.",
            "The next round, or a higher max_moves_per_round.",
        ),
        Reason.WORK_BUDGET: ReasonText(
            "The round had used all steps that it may take to decide.",
            "The next round, or less of what the detail names.",
        ),
        Reason.TRAFFIC_BUDGET: ReasonText(
            "The round had moved as much traffic as one round may.",
            "The next round, or a higher max_bytes_per_s_per_round.",
        ),
        Reason.BROKER_BUDGET: ReasonText(
            "As many moves as allowed were under way to or from its broker.",
            "Their arrival, or a higher max_in_flight_per_broker.",
        ),
        Reason.HOUR_BUDGET: ReasonText(
            "As many bundles as allowed had moved within the hour.",
            "Time, or a higher max_moves_per_hour.",
        ),
        Reason.NAMESPACE_FULL: ReasonText(
            "The namespace has as many bundles as a namespace may have.",
            "A higher limit of bundles per namespace.",
        ),
        Reason.NAMESPACE_UNKNOWN: ReasonText(
            "The namespace's boundaries are not known, so nothing of it can be cut.",
            "Boundaries in the namespace's local policies.",
        ),
        Reason.OUT_OF_STEP: ReasonText(
            "Orders, locks, lists, reports or boundaries did not agree about it.",
            "What the detail says to be corrected; what the leader can correct, it has corrected.",
        ),
    }
)


def sentence(code: Reason | Cause) -> str:
    return CAUSES[code] if isinstance(code, Cause) else REASONS[code].meaning
