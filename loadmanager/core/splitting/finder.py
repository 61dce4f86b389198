from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from loadmanager.core.ids import BrokerId, BundleId, Namespace, namespace_of
from loadmanager.core.load import BundleStats
from loadmanager.core.plan import Reason, Refusal
from loadmanager.core.rates import Rates
from loadmanager.core.settings import Settings, setting
from loadmanager.core.splitting.cutting import can_split

_MIB: Final = 1048576
_FEWEST_TOPICS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRules(Settings):
    """The limits above which a bundle is split.

    Topics and sessions are those of the latest report, traffic is long-term.

    Pulsar's accident `wrapped-limit`: the limit on throughput is computed in bytes with
    32 bits. 2048 MiB/s overflow to a negative limit that every bundle with two topics
    exceeds, 4096 to a limit of zero.
    """

    max_topics: int = setting(
        "Most topics in a bundle.",
        "topics",
        "loadBalancerNamespaceBundleMaxTopics",
        default=1000,
        within=(1, 2**31 - 1),
    )
    max_sessions: int = setting(
        "Most producers and consumers in a bundle; 0 or less ignores them.",
        "sessions",
        "loadBalancerNamespaceBundleMaxSessions",
        default=1000,
        within=(-1, 2**31 - 1),
    )
    max_msgs_per_s: int = setting(
        "Most messages per second in a bundle.",
        "messages/s",
        "loadBalancerNamespaceBundleMaxMsgRate",
        default=30_000,
        within=(0, 2**31 - 1),
    )
    max_mib_per_s: int = setting(
        "Most throughput in a bundle.",
        "MiB/s",
        "loadBalancerNamespaceBundleMaxBandwidthMbytes",
        default=100,
        within=(0, 2**31 - 1),
    )
    max_bundles: int = setting(
        "Bundles of a namespace with this many bundles are not split.",
        "bundles",
        "loadBalancerNamespaceMaximumBundles",
        default=128,
        within=(1, 1_000_000),
    )
    like_java: bool = False

    @property
    def max_bytes_per_s(self) -> int:
        limit = self.max_mib_per_s * _MIB
        return (limit + 2**31) % 2**32 - 2**31 if self.like_java else limit  # wrapped-limit


@dataclass(frozen=True, slots=True)
class Split:
    bundle: BundleId
    broker: BrokerId
    excess: str


@dataclass(frozen=True, slots=True)
class Splits:
    chosen: tuple[Split, ...]
    refusals: tuple[Refusal, ...]


def find_splits(
    rules: SplitRules,
    reports: Mapping[BrokerId, Mapping[BundleId, BundleStats]],
    long_rates: Callable[[BundleId], Rates | None],
    bundle_counts: Mapping[Namespace, int],
) -> Splits:
    """Return the bundles to split in this round.

    ``long_rates`` returns the long-term traffic of a bundle, None without data, which counts as
    no traffic. ``bundle_counts`` has the current number of bundles of each namespace; a
    namespace whose boundaries could not be read is absent, and is left alone.

    Pulsar's accident `hash-order`: near a namespace's limit of bundles, which bundles are split
    depends on the order of a hash map. Here the heaviest are split, in both modes.
    """
    refusals: list[Refusal] = []
    large: list[tuple[float, Split]] = []
    for broker, bundles in reports.items():
        for bundle, stats in bundles.items():
            rates = long_rates(bundle) or Rates()
            excess = excess_of(rules, stats, rates)
            if excess and stats.topics < _FEWEST_TOPICS:
                detail = f"{excess}, and {stats.topics} topics"
                refusals.append(Refusal(bundle, Reason.UNBALANCEABLE, detail))
            elif excess:
                large.append((-rates.bytes_per_s, Split(bundle, broker, excess)))
    large.sort(key=lambda item: (item[0], item[1].bundle))
    chosen = _within_cap(rules, (split for _, split in large), bundle_counts, refusals)
    return Splits(tuple(chosen), tuple(refusals))


def excess_of(rules: SplitRules, stats: BundleStats, rates: Rates) -> str:
    """Return the figure of the bundle that exceeds a limit, as text; empty if none does."""
    sessions = stats.producers + stats.consumers
    if stats.topics > rules.max_topics:
        return f"{stats.topics} topics"
    if 0 < rules.max_sessions < sessions:
        return f"{sessions} sessions"
    if rates.msgs_per_s > rules.max_msgs_per_s:
        return f"{rates.msgs_per_s:.0f} messages/s"
    if rates.bytes_per_s > rules.max_bytes_per_s:
        return f"{rates.bytes_per_s:.0f} bytes/s"
    return ""


def _within_cap(
    rules: SplitRules,
    large: Iterable[Split],
    bundle_counts: Mapping[Namespace, int],
    refusals: list[Refusal],
) -> list[Split]:
    chosen: list[Split] = []
    cut: Counter[Namespace] = Counter()
    for split in large:
        namespace = namespace_of(split.bundle)
        count = bundle_counts.get(namespace)
        if count is None:
            refusals.append(Refusal(split.bundle, Reason.NAMESPACE_UNKNOWN, split.excess))
        elif not can_split(split.bundle):
            refusals.append(Refusal(split.bundle, Reason.UNBALANCEABLE, "a single position"))
        elif count + cut[namespace] >= rules.max_bundles:
            detail = f"{split.excess}; {count} bundles of {rules.max_bundles}"
            refusals.append(Refusal(split.bundle, Reason.NAMESPACE_FULL, detail))
        else:
            cut[namespace] += 1
            chosen.append(split)
    return chosen
