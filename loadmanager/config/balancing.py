"""Sections that say how load is reported, moved and looked up."""

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
    """Least time between two reports, however much changes. Shorter lets the leader see sooner and
    costs ZooKeeper one write each."""
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
    """The rhythm of the leader."""

    dynamic = True

    round_interval_s: float = Field(60, ge=0.1, le=3600)
    """How often the leader looks for bundles to move."""
    tick_interval_s: float = Field(10, ge=0.05, le=3600)
    """How often the averages take a sample. Together with the strategy's sample counts it says how
    far back they reach."""
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
    """Which bundles leave a broker that does too much."""

    dynamic = True

    enabled: bool = True
    """Whether loaded bundles are moved at all. Unowned bundles are placed always."""
    strategy: Word = "joint"
    """The algorithm, by our short name or Pulsar's class name; see the strategy guide."""
    observe: bool = False
    """Decide, log and count moves without carrying any out: for trying a strategy."""
    grace_period_s: float = Field(1800, ge=0, le=604800)
    """A moved bundle stays where it is for so long. Shorter balances faster and lets a bundle
    wander."""
    excluded_namespaces: Namespaces = ()
    """Namespaces whose bundles are never moved for their load. They still leave a broker that
    drains."""
    shadows: Shadows = ()
    """Other strategies that decide beside this one and move nothing: what each would have had is
    shown by `loadmanager shadows`. A name alone has its default settings."""
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
    """How far the strategy is trusted, and how much may move at once whatever it wants."""

    dynamic = True

    mode: Literal["safe", "parity"] = "safe"
    """safe: what would make things worse is refused, and the budgets of this section hold. parity:
    the strategy's decision is carried out as Pulsar would, its accidents included
    (docs/accidents.md); of this section only the pace of placing and draining holds, and what stops
    shedding altogether. For comparisons, best on a copy: limits on throughput that wrap around in
    Java split bundles, and only people join them again (`loadmanager merge`)."""
    margin_fraction: float = Field(0.02, ge=0, le=1)
    """How far the target must stay below where the source was, or the move is refused; 0.02 is two
    points of usage. Higher moves less and never bounces on noise."""
    learned_costs: bool = True
    """Whether moves are computed by the cost model that `loadmanager cost-model publish` gave the
    cluster, where there is one and it is good enough. false: by shares of the traffic, as where
    there is none. Never in parity mode."""
    max_moves_per_round: int = Field(16, ge=0, le=100_000)
    """Most moves one round may order. 0 moves nothing. With the joint strategy, whose moves have a
    price, it binds only where it is set, be it to its default."""
    max_moves_per_hour: int = Field(480, ge=0, le=1_000_000)
    """Most moves within any hour, over all rounds: each costs its clients a reconnect. With the
    joint strategy as for max_moves_per_round."""
    max_in_flight_per_broker: int = Field(4, ge=1, le=10_000)
    """Most bundles under way from or to one broker at a time. More drains a broker faster and loads
    its neighbours harder."""
    max_bytes_per_s_per_round: float | None = Field(
        None, ge=1, le=RATE.most, examples=[104857600.0]
    )
    """Most traffic, in plus out, that one round may move. Unset: no limit."""
    max_placements_per_round: int = Field(1000, ge=1, le=1_000_000)
    """Most unowned bundles placed in one round; the next goes on with the rest. Those that a client
    asks for are placed at once and not counted."""
    max_drain_moves_per_round: int = Field(50, ge=1, le=1_000_000)
    """Most bundles that `loadmanager decide` takes off draining brokers in one round. A live leader
    empties them between the rounds: see max_in_flight_per_broker."""
    max_stale_fraction: float = Field(0.34, ge=0, le=1)
    """No shedding while more than this share of the brokers have a report older than [leader]
    report_stale_s: too little is known of the cluster."""
    max_lost_fraction: float = Field(0.34, ge=0, le=1)
    """No shedding while more than this share of the brokers were lost within lost_window_s: what is
    left has enough to take up."""
    lost_window_s: float = Field(600, ge=0, le=604_800)
    """How long a lost broker counts as lately lost."""


class SplitSettings(Section):
    """When and how a bundle that has grown too large is cut."""

    dynamic = True

    enabled: bool = True
    """Whether bundles are cut by themselves. Those cut by hand are cut always."""
    algorithm: Literal[
        "range_equally_divide", "topic_count_equally_divide", "flow_or_qps_equally_divide"
    ] = "range_equally_divide"
    """Where to cut: in the middle of the range, of the topics, or as often as the traffic of the
    parts demands."""
    max_topics: int = Field(1000, ge=1, le=2**31 - 1)
    """A bundle with more topics is cut."""
    max_sessions: int = Field(1000, ge=-1, le=2**31 - 1)
    """A bundle with more producers and consumers is cut; -1 does not look at them."""
    max_msgs_per_s: int = Field(30_000, ge=0, le=2**31 - 1)
    """A bundle with a higher long-term message rate, in plus out, is cut."""
    max_mib_per_s: int = Field(100, ge=0, le=2**31 - 1)
    """A bundle with a higher long-term throughput, in plus out, is cut. With [planner] mode parity,
    2048 and more wrap around as in Pulsar."""
    difference_percent: int = Field(10, ge=0, le=1000)
    """flow_or_qps_equally_divide cuts only what is over a limit by this much."""
    max_bundles_per_namespace: int = Field(128, ge=1, le=1_000_000)
    """A namespace with this many bundles is cut no further."""
    max_splits_per_round: int = Field(10, ge=0, le=10_000)
    """Most bundles one round may order to be cut."""
