from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from loadmanager.core.ids import Namespace
from loadmanager.core.settings import Settings, setting

_MOVES: Final = (0, 1_000_000)
_SECONDS: Final = (0.0, 604_800.0)
_FRACTION: Final = (0.0, 1.0)


class Mode(StrEnum):
    """Whether the planner checks the decisions of the strategy.

    SAFE refuses moves that do not improve the balance, and enforces the budgets. PARITY carries
    out the decisions as Pulsar does, including its accidents; only the gates apply.
    """

    SAFE = "safe"
    PARITY = "parity"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings(Settings):
    """The planner's mode, gates and budgets. Budgets and ``margin`` apply in SAFE mode."""

    mode: Mode = setting(
        "safe, or parity: as Pulsar decides, including its accidents.", default=Mode.SAFE
    )
    observe: bool = setting("Decide and record, but move nothing.", default=False)
    shedding: bool = setting(
        "Whether bundles are moved for load.",
        default=True,
        pulsar_key="loadBalancerSheddingEnabled",
    )
    excluded_namespaces: frozenset[Namespace] = setting(
        "Namespaces whose bundles are never shed.",
        default=frozenset(),
        pulsar_key="loadBalancerSheddingExcludedNamespaces",
    )
    margin: float = setting(
        "How far the target must stay below the former load of the source, or the move is refused. "
        "Higher values cause fewer moves, and none because of noise.",
        "fraction",
        default=0.02,
        within=_FRACTION,
    )
    moves_per_round: int = setting("Most moves in one round.", "moves", default=50, within=_MOVES)
    bytes_per_s_per_round: float = setting(
        "Most traffic moved in one round; one move is always allowed.",
        "bytes/s",
        default=1e9,
        within=(0.0, 1e15),
    )
    in_flight_per_broker: int = setting(
        "Most moves under way to and from one broker.", "moves", default=10, within=_MOVES
    )
    moves_per_hour: int = setting(
        "Most moves within an hour.", "moves", default=1000, within=_MOVES
    )
    placements_per_round: int = setting(
        "Most unowned bundles placed in one round.", "bundles", default=1000, within=_MOVES
    )
    drain_moves_per_round: int = setting(
        "Most bundles taken off draining brokers in one round.", "moves", default=50, within=_MOVES
    )
    steps_per_round: int = setting(
        "Most work of one round; to weigh a bundle for a broker is one step.",
        "steps",
        default=20_000_000,
        within=(1, 10**12),
    )
    cool_down_s: float = setting(
        "A bundle that moved is not shed again for this long, unless brokers come or go.",
        "seconds",
        "loadBalancerSheddingGracePeriodMinutes",
        default=1800.0,
        within=(0.0, 604_800.0),
        pulsar_divisor=1.0 / 60.0,
    )
    settle_s: float = setting(
        "No shedding until this long after a broker joined or left.",
        "seconds",
        default=30.0,
        within=_SECONDS,
    )
    max_stale_fraction: float = setting(
        "No shedding while more of the brokers have a stale report.",
        "fraction",
        default=0.34,
        within=_FRACTION,
    )
    max_lost_fraction: float = setting(
        "No shedding while more of the brokers were lost within ``lost_window_s``.",
        "fraction",
        default=0.34,
        within=_FRACTION,
    )
    lost_window_s: float = setting(
        "How long a lost broker counts as recently lost.", "seconds", default=600.0, within=_SECONDS
    )
