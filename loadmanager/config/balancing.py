"""Sections for load reports, shedding, placement, the planner's limits and splits."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from loadmanager.config.forms import (
    Namespaces,
    Section,
    SettingValue,
    Shadows,
    Word,
    WordOrUnset,
)
from loadmanager.core.bounds import RATE


class ReportSettings(Section):
    """When a sidecar measures its broker and publishes its load."""

    dynamic = True

    sample_interval_s: float = Field(5, ge=0.1, le=300)
    """How often the host and the broker are measured."""
    min_interval_s: float = Field(5, ge=0.1, le=900)
    """Least time between two reports, however much changes. A shorter one informs the leader
    sooner; each report is a write to ZooKeeper."""
    max_interval_s: float = Field(60, ge=1, le=900)
    """A report this old is renewed even if nothing changed."""
    change_fraction: float = Field(0.10, ge=0, le=10)
    """Change of message rate, throughput or number of bundles, as a share of the last report, that
    makes a new one. 0.10 is ten percent."""
    change_points: float = Field(0.10, ge=0, le=1)
    """Change of a resource's usage, as a share of its limit, that makes a new report. 0.10 is from
    40 to 50 percent."""
    jitter_fraction: float = Field(0.2, ge=0, le=0.5)
    """How far intervals vary at random, so that sidecars started together do not write together."""


class LeaderSettings(Section):
    """Intervals and waiting times of the leader."""

    dynamic = True

    round_interval_s: float = Field(60, ge=0.1, le=3600)
    """Interval between two rounds, in which the leader decides on shedding and splits."""
    tick_interval_s: float = Field(10, ge=0.05, le=3600)
    """Interval between two samples of the averages. Together with the strategy's sample counts it
    determines how far back they reach."""
    settle_s: float = Field(10, ge=0, le=3600)
    """How long the set of brokers must be unchanged before bundles are moved, so that a rolling
    restart is not answered with a wave of moves."""
    return_wait_s: float = Field(10, ge=0, le=3600)
    """How long the bundles of brokers that vanished together, or are missing just after the leader
    connected, are kept for their return before others get them. More rides out longer outages of
    ZooKeeper, less serves sooner when many brokers really died. A single broker that crashes is
    never waited for."""
    report_stale_s: float = Field(180, ge=1, le=86400)
    """A report older than this moves nothing off or onto its broker."""


class SheddingSettings(Section):
    """Which bundles are moved off overloaded brokers."""

    dynamic = True

    enabled: bool = True
    """Whether loaded bundles are moved at all. Unowned bundles are placed always."""
    strategy: Word = "joint"
    """The algorithm, by our short name or Pulsar's class name; see the strategy guide."""
    observe: bool = False
    """Decide, log and count moves without carrying any out: for trying a strategy."""
    grace_period_s: float = Field(1800, ge=0, le=604800)
    """A bundle that moved is not moved again for its load for this long. A shorter period balances
    faster, and lets bundles move repeatedly."""
    excluded_namespaces: Namespaces = ()
    """Namespaces whose bundles are never moved for their load. They still leave a broker that
    drains."""
    shadows: Shadows = ()
    """Other strategies that decide beside this one and move nothing: `loadmanager shadows` compares
    them. A name alone has its default settings."""
    settings: Mapping[str, SettingValue] = Field(default_factory=dict)
    """The strategy's own keys; see the strategy guide."""


class PlacementSettings(Section):
    """Which broker takes a bundle."""

    dynamic = True

    strategy: WordOrUnset = Field(None, examples=["joint"])
    """The algorithm, by our short name or Pulsar's class name; see the strategy guide. Unset: joint
    beside the joint strategy, which places bundles itself and takes no other, and AvgShedder beside
    any other."""
    settings: Mapping[str, SettingValue] = Field(default_factory=dict)
    """The strategy's own keys; see the strategy guide."""
    max_topics_per_broker: int = Field(50_000, ge=1, le=1_000_000_000)
    """A broker with more topics takes no bundle while another has fewer."""
    prefer_later_versions: bool = False
    """Give bundles only to brokers of the newest version, as in a rolling upgrade."""
    failure_domains: bool = False
    """Spread the namespaces of an anti-affinity group over failure domains before brokers."""
    even_bundles: bool = False
    """Give a bundle only to brokers with the fewest of its namespace, whatever their load."""


class PlannerSettings(Section):
    """Which of the strategy's moves are refused, and how many bundles may move at a time."""

    dynamic = True

    mode: Literal["safe", "parity"] = "safe"
    """safe: moves that would worsen the balance are refused, and the limits of this section hold.
    parity: the strategy's decision is carried out as Pulsar would, its accidents included
    (docs/accidents.md); of this section only the limits on placements and drains hold, and those
    that stop shedding altogether. For comparisons, best on a copy of a cluster: limits on
    throughput that wrap around in Java split bundles, and bundles are merged only on request
    (`loadmanager merge`)."""
    margin_fraction: float = Field(0.02, ge=0, le=1)
    """How far the target must stay below where the source was, or the move is refused; 0.02 is two
    points of usage. A higher margin moves less, and does not react to noise."""
    max_moves_per_round: int = Field(16, ge=0, le=100_000)
    """Most moves one round may order. 0 moves nothing. With the joint strategy, whose moves have a
    price, it binds only where it is set, be it to its default."""
    max_moves_per_hour: int = Field(480, ge=0, le=1_000_000)
    """Most moves within any hour, over all rounds: each costs its clients a reconnect. With the
    joint strategy as for max_moves_per_round."""
    max_in_flight_per_broker: int = Field(4, ge=1, le=10_000)
    """Most bundles under way from or to one broker at a time. More drain a broker faster, and load
    the others more."""
    max_bytes_per_s_per_round: float | None = Field(
        None, ge=1, le=RATE.most, examples=[104857600.0]
    )
    """Most traffic, in plus out, that one round may move. Unset: no limit."""
    max_placements_per_round: int = Field(1000, ge=1, le=1_000_000)
    """Most unowned bundles placed in one round; the rest follow in the next ones. Bundles that a
    client looks up are placed at once and not counted."""
    max_drain_moves_per_round: int = Field(50, ge=1, le=1_000_000)
    """Most bundles that `loadmanager decide` moves off draining brokers in one round. A live leader
    drains them between the rounds: see max_in_flight_per_broker."""
    max_stale_fraction: float = Field(0.34, ge=0, le=1)
    """No shedding while more than this share of the brokers have a report older than [leader]
    report_stale_s: too little of the cluster is known."""
    max_lost_fraction: float = Field(0.34, ge=0, le=1)
    """No shedding while more than this share of the brokers were lost within lost_window_s: the
    remaining ones take over their bundles first."""
    lost_window_s: float = Field(600, ge=0, le=604_800)
    """How long a lost broker counts for max_lost_fraction."""


class SplitSettings(Section):
    """When and how bundles that are too large are split."""

    dynamic = True

    enabled: bool = True
    """Whether bundles are split automatically. `loadmanager split` works in any case."""
    algorithm: Literal[
        "range_equally_divide", "topic_count_equally_divide", "flow_or_qps_equally_divide"
    ] = "range_equally_divide"
    """Where to split: in the middle of the range, in the middle of the topics, or at as many
    positions as the traffic of the parts requires."""
    max_topics: int = Field(1000, ge=1, le=2**31 - 1)
    """A bundle with more topics is split."""
    max_sessions: int = Field(1000, ge=-1, le=2**31 - 1)
    """A bundle with more producers and consumers is split. -1: they do not count."""
    max_msgs_per_s: int = Field(30_000, ge=0, le=2**31 - 1)
    """A bundle with a higher long-term message rate, in plus out, is split."""
    max_mib_per_s: int = Field(100, ge=0, le=2**31 - 1)
    """A bundle with a higher long-term throughput, in plus out, is split. With [planner] mode
    parity, 2048 and more wrap around as in Pulsar."""
    difference_percent: int = Field(10, ge=0, le=1000)
    """flow_or_qps_equally_divide splits only bundles that exceed a limit by this much."""
    max_bundles_per_namespace: int = Field(128, ge=1, le=1_000_000)
    """Bundles of a namespace with this many are not split any more."""
    max_splits_per_round: int = Field(10, ge=0, le=10_000)
    """Most bundles that one round may split."""
