from collections.abc import Mapping
from typing import Any, Final

from loadmanager.config.balancing import (
    LeaderSettings,
    PlacementSettings,
    PlannerSettings,
    SheddingSettings,
    SplitSettings,
)
from loadmanager.config.forms import ShadowSettings
from loadmanager.config.strategies import go_together, make_shadow, make_shedder, placement_beside
from loadmanager.core import planner_settings
from loadmanager.core.filters import Filters
from loadmanager.core.placement import PLACEMENTS
from loadmanager.core.planner import Planner
from loadmanager.core.scores import ResourceWeights
from loadmanager.core.shedding import Deciding
from loadmanager.core.splitting.finder import SplitRules
from loadmanager.core.splitting.positions import SplitLimits

NAMES_IN_FILES: Final[Mapping[str, str]] = {
    "margin_fraction": "margin",
    "max_moves_per_round": "moves_per_round",
    "max_moves_per_hour": "moves_per_hour",
    "max_bytes_per_s_per_round": "bytes_per_s_per_round",
    "max_in_flight_per_broker": "in_flight_per_broker",
    "max_placements_per_round": "placements_per_round",
    "max_drain_moves_per_round": "drain_moves_per_round",
}
"""The keys of ``[planner]`` in files, where they are called otherwise than in the core."""

NO_LIMIT: Final = 1e15
"""More bytes per second than there are: the most that a budget of traffic may be."""

BUDGETS: Final = ("max_moves_per_round", "max_moves_per_hour")
MANY: Final = 1_000_000
"""More moves than there are: where a strategy bounds its moves by their price."""


def planner_of(
    shedding: SheddingSettings,
    placement: PlacementSettings,
    budgets: PlannerSettings,
    leader: LeaderSettings,
) -> Planner:
    """Return the planner that the configuration asks for.

    A strategy that weighs its moves by their price is held to a number of moves in a round or an
    hour only where the configuration gives one. Raises `ConfigError`: a strategy or one of its
    settings does not exist.
    """
    shedder = make_shedder(shedding)
    weights = getattr(shedder, "weights", None) or ResourceWeights()
    limits: dict[str, Any] = {NAMES_IN_FILES.get(key, key): value for key, value in budgets}
    limits["mode"] = planner_settings.Mode(budgets.mode)
    if budgets.max_bytes_per_s_per_round is None:
        limits["bytes_per_s_per_round"] = NO_LIMIT
    if isinstance(shedder, Deciding):
        limits |= dict.fromkeys(
            (NAMES_IN_FILES[key] for key in BUDGETS if key not in budgets.model_fields_set), MANY
        )
    settings = planner_settings.PlannerSettings(
        observe=shedding.observe,
        shedding=shedding.enabled,
        excluded_namespaces=frozenset(shedding.excluded_namespaces),
        cool_down_s=shedding.grace_period_s,
        settle_s=leader.settle_s,
        **limits,
    )
    return Planner(
        shedder=shedder,
        placement=placement_beside(type(shedder), placement),
        settings=settings,
        filters=Filters(
            max_report_age_s=leader.report_stale_s,
            max_topics=placement.max_topics_per_broker,
            prefer_later_versions=placement.prefer_later_versions,
            failure_domains=placement.failure_domains,
            even_bundles=placement.even_bundles,
            weights=weights,
        ),
        weights=weights,
    )


def shadows_of(
    shedding: SheddingSettings,
    placement: PlacementSettings,
    budgets: PlannerSettings,
    leader: LeaderSettings,
) -> Mapping[str, Planner]:
    """Return the planner of each strategy that decides beside the active one, by its class.

    It is the one that the configuration would ask for with that strategy and its settings, and
    another placement where the configured one does not go with it. Raises `ConfigError`: a setting
    of a strategy does not exist.
    """
    found = {}
    for shadow in map(ShadowSettings.of, shedding.shadows):
        kind, beside = type(make_shadow(shadow)), placement
        given = placement.strategy
        if given is not None and not go_together(kind, PLACEMENTS[given]):
            kept = placement.model_dump(exclude={"strategy", "settings"}, exclude_unset=True)
            beside = PlacementSettings(**kept)
        own = {**shadow.model_dump(), "enabled": True, "observe": False}
        found[kind.__name__] = planner_of(shedding.model_copy(update=own), beside, budgets, leader)
    return found


def split_rules_of(split: SplitSettings, planner: PlannerSettings) -> SplitRules:
    return SplitRules(
        max_topics=split.max_topics,
        max_sessions=split.max_sessions,
        max_msgs_per_s=split.max_msgs_per_s,
        max_mib_per_s=split.max_mib_per_s,
        max_bundles=split.max_bundles_per_namespace,
        like_java=planner.mode == "parity",
    )


def split_limits_of(split: SplitSettings, planner: PlannerSettings) -> SplitLimits:
    return SplitLimits(
        max_msgs_per_s=split.max_msgs_per_s,
        max_mib_per_s=split.max_mib_per_s,
        difference_percent=split.difference_percent,
        like_java=planner.mode == "parity",
    )


def default_planner() -> Planner:
    return planner_of(SheddingSettings(), PlacementSettings(), PlannerSettings(), LeaderSettings())
