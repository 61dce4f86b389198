"""Reasons and causes in plain words: what each means, and what would change it."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from loadmanager.core.plan import Cause, Reason


@dataclass(frozen=True, slots=True)
class Telling:
    """The text of a reason: a sentence, and what would have to change for it not to apply."""

    says: str
    takes: str


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
    }
)

REASONS: Final[Mapping[Reason, Telling]] = MappingProxyType(
    {
        Reason.SHEDDING_OFF: Telling(
            "Shedding is switched off, so loaded bundles stay where they are.",
            "Set [shedding] enabled = true.",
        ),
        Reason.SESSION_DOUBTFUL: Telling(
            "The leader was not sure of its own session, so it decided nothing.",
            "A connection to ZooKeeper that lasts through a round.",
        ),
        Reason.MEMBERSHIP_CHANGING: Telling(
            "A broker joined or left a moment ago, so nothing was moved until that settles.",
            "No broker joining or leaving for settle_s seconds.",
        ),
        Reason.BROKERS_LOST: Telling(
            "So many brokers were lost lately that moving load could make it worse.",
            "Brokers coming back, lost_window_s seconds passing, or a higher max_lost_fraction.",
        ),
        Reason.REPORTS_STALE: Telling(
            "Too many brokers have not reported for long, so the cluster's load is not known.",
            "Fresh reports of those brokers, or a higher max_stale_fraction.",
        ),
        Reason.TOO_FEW_BROKERS: Telling(
            "There are not two brokers with load data, so there is nowhere to move anything.",
            "A second broker that reports its load.",
        ),
        Reason.COOLING_DOWN: Telling(
            "A broker took part in a move and has not reported long enough since then.",
            "A report of that broker more than shedding_delay_s after the move.",
        ),
        Reason.WITHIN_THRESHOLD: Telling(
            "The load is within what the strategy tolerates.",
            "More load than the threshold allows, or a lower threshold.",
        ),
        Reason.CLUSTER_IDLE: Telling(
            "No broker carries any load.",
            "Load on some broker.",
        ),
        Reason.TOO_FEW_BUNDLES: Telling(
            "The broker has no bundle to spare: giving its only one away moves the problem.",
            "More bundles on the broker; split the one that is too heavy.",
        ),
        Reason.BELOW_MINIMUM: Telling(
            "What the broker would shed is less than a move is worth.",
            "More difference between brokers, or lower minimums of the strategy.",
        ),
        Reason.NO_BUNDLE_FITS: Telling(
            "The broker should shed, but none of its bundles may move now or fits the amount.",
            "Smaller bundles (split them), or recently moved ones becoming free again.",
        ),
        Reason.HITS_PENDING: Telling(
            "The imbalance has not lasted for as many rounds as the strategy waits for.",
            "The same imbalance in more rounds, or fewer hits in the strategy's settings.",
        ),
        Reason.LOAD_UNKNOWN: Telling(
            "There is no load data of a broker that takes part.",
            "A load report, and one sample of the averages after it.",
        ),
        Reason.LOAD_OUTDATED: Telling(
            "The load data is too old to decide on.",
            "Fresh load reports.",
        ),
        Reason.ROLLING_RESTART: Telling(
            "Brokers restart one after the other: what is moved now is moved again within minutes.",
            "The end of the rolling restart, or more than 0.9 of a resource in use.",
        ),
        Reason.DRAINING: Telling(
            "The broker is draining (marked, stopping, unhealthy) or takes no locks: it gets none.",
            "No mark, good health for a while, and locks taken in time.",
        ),
        Reason.REPORT_STALE: Telling(
            "The broker's load report is too old, so it neither takes nor sheds anything.",
            "A report younger than report_stale_s.",
        ),
        Reason.DOMAIN_UNSUPPORTED: Telling(
            "The broker does not serve topics of that domain.",
            "Persistent or non-persistent topics switched on at that broker.",
        ),
        Reason.TOO_MANY_TOPICS: Telling(
            "The broker has more topics than a broker should have, and another has fewer.",
            "Fewer topics on it, or a higher max_topics_per_broker.",
        ),
        Reason.OLDER_VERSION: Telling(
            "The broker runs an older version than others, which are preferred.",
            "An upgrade of that broker, or prefer_later_versions = false.",
        ),
        Reason.ISOLATED: Telling(
            "Isolation policies keep that namespace off the broker.",
            "Another isolation policy for the namespace or for the broker.",
        ),
        Reason.ANTI_AFFINITY: Telling(
            "The broker serves more namespaces of the same anti-affinity group than others do.",
            "Namespaces of the group leaving it, or another group.",
        ),
        Reason.FAILURE_DOMAIN: Telling(
            "The broker's failure domain serves more of the anti-affinity group than others do.",
            "Namespaces of the group leaving the domain, or brokers in other domains.",
        ),
        Reason.MORE_OF_NAMESPACE: Telling(
            "The broker has more bundles of that namespace than others; they are spread evenly.",
            "even_bundles = false, or bundles of the namespace leaving it.",
        ),
        Reason.NOT_OFFERED: Telling(
            "The strategy offered others, or saw nothing to shed here.",
            "More load here than on the others, by the measure of the strategy.",
        ),
        Reason.NO_CANDIDATE: Telling(
            "No broker may take the bundle now.",
            "A broker that is refused for none of the reasons given.",
        ),
        Reason.SAME_BROKER: Telling(
            "Its own broker is the best place for it.",
            "A broker that the placement prefers.",
        ),
        Reason.NO_IMPROVEMENT: Telling(
            "Wherever it went, that broker would stand about as high as its own does now.",
            "A broker with more room, a smaller bundle, or a smaller margin.",
        ),
        Reason.UNBALANCEABLE: Telling(
            "The bundle is most of its broker's load: moving it would move the problem.",
            "A split of the bundle, or a larger broker.",
        ),
        Reason.RECENTLY_MOVED: Telling(
            "The bundle moved a short time ago and rests.",
            "The end of its grace period, or a shorter one.",
        ),
        Reason.IN_FLIGHT: Telling(
            "The bundle is on its way to another broker.",
            "Its arrival there.",
        ),
        Reason.NAMESPACE_EXCLUDED: Telling(
            "Bundles of its namespace are never shed.",
            "The namespace taken out of excluded_namespaces.",
        ),
        Reason.ROUND_BUDGET: Telling(
            "The round had moved as many bundles as one round may.",
            "The next round, or a higher max_moves_per_round.",
        ),
        Reason.TRAFFIC_BUDGET: Telling(
            "The round had moved as much traffic as one round may.",
            "The next round, or a higher max_bytes_per_s_per_round.",
        ),
        Reason.BROKER_BUDGET: Telling(
            "As many moves as allowed were under way to or from its broker.",
            "Their arrival, or a higher max_in_flight_per_broker.",
        ),
        Reason.HOUR_BUDGET: Telling(
            "As many bundles as allowed had moved within the hour.",
            "Time, or a higher max_moves_per_hour.",
        ),
        Reason.NAMESPACE_FULL: Telling(
            "The namespace has as many bundles as a namespace may have.",
            "A higher limit of bundles per namespace.",
        ),
        Reason.NAMESPACE_UNKNOWN: Telling(
            "The namespace's boundaries are not known, so nothing of it can be cut.",
            "Boundaries in the namespace's local policies.",
        ),
        Reason.OUT_OF_STEP: Telling(
            "Orders, locks, lists, reports or boundaries did not agree about it.",
            "What the detail says to be corrected; what the leader can correct, it has corrected.",
        ),
    }
)


def sentence(code: Reason | Cause) -> str:
    """Return a sentence that describes a reason or cause."""
    return CAUSES[code] if isinstance(code, Cause) else REASONS[code].says
