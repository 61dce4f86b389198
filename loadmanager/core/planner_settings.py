"""Settings of the planner: its mode, gates and budgets."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from annotated_types import Interval

from loadmanager.core.ids import Namespace
from loadmanager.core.settings import Doc, check

_Moves = Annotated[int, Interval(ge=0, le=1_000_000)]
_Seconds = Annotated[float, Interval(ge=0.0, le=604_800.0)]
_Fraction = Annotated[float, Interval(ge=0.0, le=1.0)]


class Mode(StrEnum):
    """How far the planner trusts the strategy.

    SAFE refuses what would make things worse and keeps to the budgets. PARITY carries
    out the strategy's decision as Pulsar would, its accidents included; only the gates
    hold it back.
    """

    SAFE = "safe"
    PARITY = "parity"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings:
    """The planner's mode, gates and budgets. Budgets and ``margin`` hold in SAFE mode."""

    mode: Annotated[Mode, Doc("safe, or parity: as Pulsar decides, its accidents included.")] = (
        Mode.SAFE
    )
    observe: Annotated[bool, Doc("Decide and record, but move nothing.")] = False
    shedding: Annotated[
        bool,
        Doc("Whether bundles are moved at all.", pulsar_key="loadBalancerSheddingEnabled"),
    ] = True
    excluded_namespaces: Annotated[
        frozenset[Namespace],
        Doc(
            "Namespaces whose bundles are never shed.",
            pulsar_key="loadBalancerSheddingExcludedNamespaces",
        ),
    ] = frozenset()
    margin: Annotated[
        _Fraction,
        Doc(
            "How far the target must stay below where the source was, or the move is refused. "
            "Higher moves less and never bounces on noise.",
            "fraction",
        ),
    ] = 0.02
    learned_costs: Annotated[
        bool,
        Doc(
            "Whether moves are computed by the published cost model, where there is one and it is "
            "good enough, instead of by shares of the traffic. Never in parity mode."
        ),
    ] = True
    moves_per_round: Annotated[_Moves, Doc("Most moves in one round.", "moves")] = 50
    bytes_per_s_per_round: Annotated[
        float,
        Interval(ge=0.0, le=1e15),
        Doc("Most traffic moved in one round; one move is always allowed.", "bytes/s"),
    ] = 1e9
    in_flight_per_broker: Annotated[
        _Moves, Doc("Most moves under way to and from one broker.", "moves")
    ] = 10
    moves_per_hour: Annotated[_Moves, Doc("Most moves within an hour.", "moves")] = 1000
    placements_per_round: Annotated[
        _Moves, Doc("Most unowned bundles placed in one round.", "bundles")
    ] = 1000
    drain_moves_per_round: Annotated[
        _Moves, Doc("Most bundles taken off draining brokers in one round.", "moves")
    ] = 50
    cool_down_s: Annotated[
        float,
        Interval(ge=0.0, le=604_800.0),
        Doc(
            "A bundle that moved is not shed again for this long.",
            "seconds",
            "loadBalancerSheddingGracePeriodMinutes",
            pulsar_divisor=1.0 / 60.0,
        ),
    ] = 1800.0
    settle_s: Annotated[
        _Seconds, Doc("No shedding until this long after a broker joined or left.", "seconds")
    ] = 30.0
    max_stale_fraction: Annotated[
        _Fraction, Doc("No shedding while more of the brokers have a stale report.", "fraction")
    ] = 0.34
    max_lost_fraction: Annotated[
        _Fraction,
        Doc(
            "No shedding while more of the brokers were lost within ``lost_window_s``.", "fraction"
        ),
    ] = 0.34
    lost_window_s: Annotated[
        _Seconds, Doc("How long a lost broker counts as lately lost.", "seconds")
    ] = 600.0

    def __post_init__(self) -> None:
        """Refuse settings outside their range."""
        check(self)
