"""From the names and settings of the configuration to strategies of the core.

A strategy's keys are the fields of its dataclass, under our name or Pulsar's; those of
a group of settings are written with the group's name before them (``weights_cpu``).
"""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import EnumType
from fnmatch import fnmatchcase
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from loadmanager.config.forms import ConfigError, SettingValue, ShadowSettings, plain_value
from loadmanager.config.sections import (
    LeaderSettings,
    PlacementSettings,
    PlannerSettings,
    ReportSettings,
    SheddingSettings,
    SplitSettings,
)
from loadmanager.core import planner_settings
from loadmanager.core.filters import Filters
from loadmanager.core.placement import PLACEMENTS, JointPlacement, Placement, PlannedPlacement
from loadmanager.core.planner import Planner
from loadmanager.core.report import ReportRules
from loadmanager.core.scores import ResourceWeights
from loadmanager.core.settings import Setting, SettingOutOfRange, groups_of, settings_of, values_of
from loadmanager.core.shedding import SHEDDERS, Deciding, JointShedder, Shedder
from loadmanager.core.snapshot.codec import in_force
from loadmanager.core.snapshot.document import Choice, InForce
from loadmanager.core.splitting.finder import SplitRules
from loadmanager.core.splitting.positions import SplitLimits

T = TypeVar("T")

_KINDS: Final[Mapping[type, str]] = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
}


STRATEGIES: Final[Mapping[str, Mapping[str, type]]] = {
    "shedding": SHEDDERS,
    "placement": PLACEMENTS,
}
"""The strategies that a section chooses from, by all their names."""

KINDS: Final = frozenset(kind for known in STRATEGIES.values() for kind in known.values())


def make_shedder(settings: SheddingSettings) -> Shedder:
    """Raises `ConfigError`: no strategy has that name, or a setting is not one of its own."""
    return _make(SHEDDERS, settings.strategy, settings.settings, "shedding")


def make_shadow(shadow: ShadowSettings) -> Shedder:
    """Raises `ConfigError`: a setting is not one of the shedder's."""
    kind = SHEDDERS[shadow.strategy]
    return filled(kind, shadow.settings, f"[shedding] shadows, settings for {kind.__name__}")


def make_placement(settings: PlacementSettings, shedder: type) -> Placement:
    """Return the configured placement, or the shedder's own; raises as `make_shedder`."""
    name = own_placement(shedder) if settings.strategy is None else settings.strategy
    return _make(PLACEMENTS, name, settings.settings, "placement")


def own_placement(shedder: type) -> str:
    return "joint" if shedder is JointShedder else "AvgShedder"


def go_together(shedder: type, placement: type) -> bool:
    """Return whether two strategies may be chosen together: the joint one is both or neither."""
    return (shedder is JointShedder) == (placement is JointPlacement)


def not_together(shedder: type) -> str:
    """Return what would be expected of a placement that does not go with ``shedder``."""
    if shedder is JointShedder:
        return "none, or joint: [shedding] strategy = 'joint' places bundles itself"
    return "another: joint places bundles only where it is the [shedding] strategy, too"


def _make(
    known: Mapping[str, type[T]], name: str, given: Mapping[str, SettingValue], section: str
) -> T:
    kind = strategy_named(known, name, f"[{section}] strategy = {name!r}")
    where = f"[{section}.settings] for {kind.__name__}"
    return filled(kind, given, where)


def strategy_named(known: Mapping[str, type[T]], name: str, where: str) -> type[T]:
    """Raises `ConfigError`: there is none; it begins with ``where``, and names those there are."""
    if name not in known:
        short = sorted({known_name for known_name in known if "." not in known_name})
        raise ConfigError([f"{where}; expected one of {', '.join(short)}"])
    return known[name]


def _hint(kind: type, key: str, known: Collection[str]) -> str:
    table: Mapping[str, type] = PLACEMENTS if kind in PLACEMENTS.values() else SHEDDERS
    if having := {repr(one.__name__) for one in table.values() if key in fields_of(one)}:
        return f"expected with strategy = {' or '.join(sorted(having))}"
    close = difflib.get_close_matches(key, known, 1)
    if close:
        return f"did you mean {close[0]}?"
    return f"expected one of {', '.join(known)}" if known else "it has no settings"


def filled(kind: type[T], given: Mapping[str, SettingValue], where: str) -> T:
    """Raises `ConfigError`: a setting is unknown, or has a value that it cannot have."""
    fields = fields_of(kind)
    values: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {group: {} for group in groups_of(kind)}
    faults = []
    for key, value in given.items():
        if key not in fields:
            faults.append(f"{where}: {key} is unknown; {_hint(kind, key, fields)}")
            continue
        group, setting = fields[key]
        try:
            number = _typed(setting, key, value)
        except ValidationError:
            faults.append(f"{where}: {key} = {value!r}; expected {_expected(setting)}")
            continue
        (groups[group] if group else values)[setting.name] = number
    if faults:
        raise ConfigError(faults)
    try:
        made = {group: groups_of(kind)[group](**inner) for group, inner in groups.items()}
        return kind(**values, **made)
    except SettingOutOfRange as error:
        raise ConfigError([f"{where}: {error}"]) from error


def fields_of(kind: type) -> Mapping[str, tuple[str, Setting]]:
    found: dict[str, tuple[str, Setting]] = {}
    for group, inner in {"": kind, **groups_of(kind)}.items():
        for setting in settings_of(inner):
            found[f"{group}_{setting.name}" if group else setting.name] = (group, setting)
            if setting.doc.pulsar_key:
                found[setting.doc.pulsar_key] = (group, setting)
    return found


def _typed(setting: Setting, key: str, value: SettingValue) -> Any:
    # A list becomes a set, and a text one of a fixed choice; nothing else is converted.
    converted = isinstance(value, list) or isinstance(setting.kind, EnumType)
    typed: Any = TypeAdapter(setting.kind).validate_python(value, strict=not converted)
    under_pulsar_name = key == setting.doc.pulsar_key and setting.doc.pulsar_divisor != 1.0
    return typed / setting.doc.pulsar_divisor if under_pulsar_name else typed


def _expected(setting: Setting) -> str:
    if isinstance(setting.kind, EnumType):
        return "one of " + ", ".join(map(str, setting.kind))
    return _KINDS.get(setting.kind, "a list of texts")


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
    beside = make_placement(placement, type(shedder))
    if not go_together(type(shedder), type(beside)):
        where = f"[placement] strategy = {placement.strategy!r}"
        raise ConfigError([f"{where}; expected {not_together(type(shedder))}"])
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
        placement=beside,
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


def report_rules_of(report: ReportSettings) -> ReportRules:
    return ReportRules(**report.model_dump(exclude={"sample_interval_s"}))


def default_planner() -> Planner:
    return planner_of(SheddingSettings(), PlacementSettings(), PlannerSettings(), LeaderSettings())


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to try instead of what was in force; None and empty keep that.

    ``settings`` are texts ``key=value``. A key goes to every part that has it, unless
    the part is named before it: ``placement.overloaded=0.9``. It is ours, Pulsar's, or
    that of ``[planner]`` in a file.
    """

    shedder: str | None = None
    placement: str | None = None
    mode: str | None = None
    settings: tuple[str, ...] = ()


@dataclass(slots=True)
class _Part:
    kind: type
    where: str
    values: dict[str, Any] = field(default_factory=dict)


def planner_for(where: str, in_use: InForce, wanted: Wanted) -> Planner:
    """Return the planner to decide on a snapshot with; ``where`` names its file.

    Settings that are not in the snapshot are those of a sidecar with an empty configuration. Raises
    `ConfigError`: a strategy or setting does not exist, or has a value it cannot have.
    """
    usual = in_force(default_planner())
    wanted = _together(in_use, wanted)
    planner, filters = {**usual.planner, **in_use.planner}, {**usual.filters, **in_use.filters}
    parts = {
        "shedder": _part(
            where, "shedder", SHEDDERS, (in_use.shedder, usual.shedder), wanted.shedder
        ),
        "placement": _part(
            where, "placement", PLACEMENTS, (in_use.placement, usual.placement), wanted.placement
        ),
        "planner": _Part(planner_settings.PlannerSettings, f"{where}: settings.planner", planner),
        "filters": _Part(Filters, f"{where}: settings.filters", filters),
    }
    shedder, placement = parts["shedder"].kind, parts["placement"].kind
    if not go_together(shedder, placement):
        told_as = f"{where}: {shedder.__name__} with {placement.__name__}"
        raise ConfigError([f"{told_as}; expected of the placement {not_together(shedder)}"])
    # What is set by hand is checked by itself first, so that its faults name it.
    given = _given(parts, wanted)
    made: dict[str, Any] = {}
    for name, part in parts.items():
        filled(part.kind, given[name], f"--set for {part.kind.__name__}")
        made[name] = filled(part.kind, {**part.values, **given[name]}, part.where)
    return Planner(
        shedder=made["shedder"],
        placement=made["placement"],
        settings=made["planner"],
        filters=made["filters"],
        weights=getattr(made["shedder"], "weights", None) or ResourceWeights(),
    )


def _together(in_use: InForce, wanted: Wanted) -> Wanted:
    shedder = wanted.shedder or (in_use.shedder.strategy if in_use.shedder else "")
    if shedder not in SHEDDERS or wanted.placement is not None:
        return wanted
    kind, former = SHEDDERS[shedder], in_use.placement.strategy if in_use.placement else ""
    other = PLACEMENTS.get(former, PlannedPlacement)
    if former and (wanted.shedder is None or go_together(kind, other)):
        return wanted
    return replace(wanted, placement=own_placement(kind))


def _parts_meant(kinds: Mapping[str, type], name: str) -> tuple[str, Mapping[str, type]]:
    """Return the core's key for a setting, and the part named before it, or all without a name."""
    part, _, key = name.rpartition(".")
    meant = {one: kind for one, kind in kinds.items() if part in {"", one}}
    return NAMES_IN_FILES.get(key, key), meant


def _part(
    where: str,
    name: str,
    known: Mapping[str, type],
    choices: Sequence[Choice | None],
    wanted: str | None,
) -> _Part:
    before = next(one for one in choices if one is not None)
    place = f"{where}: settings.{name}.strategy = {before.strategy!r}"
    former: type = strategy_named(known, before.strategy, place)
    kind = former if wanted is None else strategy_named(known, wanted, f"--{name} {wanted}")
    # Another strategy begins with its own defaults.
    values = dict(before.settings) if kind is former else {}
    return _Part(kind, f"{where}: settings.{name} for {kind.__name__}", values)


def _given(parts: Mapping[str, _Part], wanted: Wanted) -> dict[str, dict[str, SettingValue]]:
    given: dict[str, dict[str, SettingValue]] = {name: {} for name in parts}
    faults = []
    for text in wanted.settings:
        key, found, value = text.partition("=")
        if not found:
            faults.append(f"--set {text}; expected key=value")
            continue
        kinds = {name: part.kind for name, part in parts.items()}
        inner, meant = _parts_meant(kinds, key)
        having = [name for name, kind in meant.items() if inner in fields_of(kind)]
        if not having:
            hint = alternatives((meant or kinds).values(), inner)
            faults.append(f"--set {text}: {key} is unknown; {hint}")
        for name in having:
            given[name][inner] = plain_value(value)
    if faults:
        raise ConfigError(faults)
    if wanted.mode is not None:
        given["planner"]["mode"] = wanted.mode
    return given


def alternatives(kinds: Iterable[type], key: str, without: str = "") -> str:
    """Return what may be meant by a setting that none of ``kinds`` has."""
    known = {one for kind in kinds for one in fields_of(kind)}
    if close := difflib.get_close_matches(key, sorted(known), 3):
        return f"did you mean {' or '.join(close)}?"
    ours = sorted({one for kind in kinds for one in values_of(kind())} - {without})
    return f"expected one of {', '.join(ours)}"


def _short_names(known: Mapping[str, type]) -> tuple[str, ...]:
    first: dict[type, str] = {}
    for name, kind in known.items():
        first.setdefault(kind, name)
    return tuple(first.values())


SHEDDER_NAMES: Final = _short_names(SHEDDERS)
PLACEMENT_NAMES: Final = _short_names(PLACEMENTS)


def placements_of(shedder: str) -> tuple[str, ...]:
    kind = SHEDDERS[shedder]
    return tuple(name for name in PLACEMENT_NAMES if go_together(kind, PLACEMENTS[name]))


def short_name(known: Mapping[str, type], name: str, where: str) -> str:
    """Raises `ConfigError`: there is none; it begins with ``where``."""
    kind: type = strategy_named(known, name, where)
    return next(short for short, its_kind in known.items() if its_kind is kind)


def parse_pair(text: str, where: str) -> tuple[str, str]:
    """Return the shedder and the placement of ``shedder+placement``.

    Raises `ConfigError`: not a pair, one of the two does not exist, or they do not go together; it
    begins with ``where``.
    """
    shedder, plus, placement = text.strip().partition("+")
    if not plus:
        example = "threshold+least_long_term_message_rate"
        raise ConfigError([f"{where}; expected shedder+placement, such as {example}"])
    found = (
        short_name(SHEDDERS, shedder, f"{where}: shedder {shedder!r}"),
        short_name(PLACEMENTS, placement, f"{where}: placement {placement!r}"),
    )
    if found[1] not in placements_of(found[0]):
        raise ConfigError([f"{where}: expected {not_together(SHEDDERS[found[0]])}"])
    return found


PAIRS: Final = tuple(
    (shedder, placement) for shedder in SHEDDER_NAMES for placement in placements_of(shedder)
)
"""All pairs that can be configured, by our short names."""


def pairs_like(text: str, where: str) -> list[tuple[str, str]]:
    """Return the pairs ``shedder+placement``; with ``*`` each half is a pattern or a name.

    A pattern alone is one of shedders. Raises as `parse_pair`.
    """
    if "*" not in text:
        return [parse_pair(text, where)]
    shedder, _, placement = text.strip().partition("+") if "+" in text else (text, "", "*")
    halves = [
        half if "*" in half else short_name(known, half, f"{where}: {what} {half!r}")
        for known, half, what in (
            (SHEDDERS, shedder, "shedder"),
            (PLACEMENTS, placement, "placement"),
        )
    ]
    found = [pair for pair in PAIRS if all(map(fnmatchcase, pair, halves))]
    if not found:
        shedders, placements = ", ".join(SHEDDER_NAMES), ", ".join(PLACEMENT_NAMES)
        expected = f"shedders are {shedders}, and placements {placements}"
        raise ConfigError([f"{where}: no pair is like that; {expected}"])
    return found


def parts_of(shedder: str, placement: str) -> Mapping[str, type]:
    return {
        "shedder": SHEDDERS[shedder],
        "placement": PLACEMENTS[placement],
        "planner": planner_settings.PlannerSettings,
        "filters": Filters,
    }


def has_setting(shedder: str, placement: str, name: str) -> bool:
    key, meant = _parts_meant(parts_of(shedder, placement), name)
    return any(key in fields_of(kind) for kind in meant.values())
