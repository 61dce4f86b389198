import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loadmanager.config.errors import ConfigError
from loadmanager.config.forms import SettingValue, plain_value
from loadmanager.config.planning import NAMES_IN_FILES, default_planner
from loadmanager.config.strategies import (
    fields_of,
    filled,
    go_together,
    not_together,
    own_placement,
    strategy_named,
)
from loadmanager.core.filters import Filters
from loadmanager.core.placement import PLACEMENTS, PlannedPlacement
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.scores import ResourceWeights
from loadmanager.core.settings import values_of
from loadmanager.core.shedding import SHEDDERS
from loadmanager.core.snapshot.document import Choice, InForce
from loadmanager.core.snapshot.encoding import in_force


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
        "planner": _Part(PlannerSettings, f"{where}: settings.planner", planner),
        "filters": _Part(Filters, f"{where}: settings.filters", filters),
    }
    shedder, placement = parts["shedder"].kind, parts["placement"].kind
    if not go_together(shedder, placement):
        told_as = f"{where}: {shedder.__name__} with {placement.__name__}"
        raise ConfigError([f"{told_as}; expected of the placement {not_together(shedder)}"])
    # What is set by hand is checked by itself first, so that its faults name it.
    given = _given(parts, wanted)
    made = {name: _made(part, given[name]) for name, part in parts.items()}
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
    former = in_use.placement.strategy if in_use.placement else ""
    if former and (wanted.shedder is None or _go_together(shedder, former)):
        return wanted
    return replace(wanted, placement=own_placement(SHEDDERS[shedder]))


def _go_together(shedder: str, placement: str) -> bool:
    return go_together(SHEDDERS[shedder], PLACEMENTS.get(placement, PlannedPlacement))


def part_and_key(name: str) -> tuple[str, str]:
    """Return the part that a setting's name begins with, or nothing, and the core's key."""
    part, _, key = name.rpartition(".")
    return part, NAMES_IN_FILES.get(key, key)


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
        part, inner = part_and_key(key)
        names = [part] if part in parts else ([] if part else list(parts))
        having = [name for name in names if inner in fields_of(parts[name].kind)]
        if not having:
            faults.append(f"--set {text}: {key} is unknown; {_alternatives(parts, names, inner)}")
        for name in having:
            given[name][inner] = plain_value(value)
    if faults:
        raise ConfigError(faults)
    if wanted.mode is not None:
        given["planner"]["mode"] = wanted.mode
    return given


def _made(part: _Part, given: Mapping[str, SettingValue]) -> Any:
    filled(part.kind, given, f"--set for {part.kind.__name__}")
    return filled(part.kind, {**part.values, **given}, part.where)


def _alternatives(parts: Mapping[str, _Part], names: Sequence[str], key: str) -> str:
    kinds = [parts[name].kind for name in names or parts]
    close = difflib.get_close_matches(key, {one for kind in kinds for one in fields_of(kind)}, 3)
    if close:
        return f"did you mean {' or '.join(close)}?"
    ours = {one for kind in kinds for one in values_of(kind())}
    return f"expected one of {', '.join(sorted(ours))}"
