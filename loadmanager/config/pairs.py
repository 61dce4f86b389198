from collections.abc import Mapping
from typing import Final

from loadmanager.config.errors import ConfigError
from loadmanager.config.offline import part_and_key
from loadmanager.config.strategies import fields_of, go_together, not_together, strategy_named
from loadmanager.core.filters import Filters
from loadmanager.core.placement import PLACEMENTS
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.shedding import SHEDDERS


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


def no_pair_like(where: str) -> ConfigError:
    shedders, placements = ", ".join(SHEDDER_NAMES), ", ".join(PLACEMENT_NAMES)
    expected = f"shedders are {shedders}, and placements {placements}"
    return ConfigError([f"{where}: no pair is like that; {expected}"])


def parts_of(shedder: str, placement: str) -> Mapping[str, type]:
    return {
        "shedder": SHEDDERS[shedder],
        "placement": PLACEMENTS[placement],
        "planner": PlannerSettings,
        "filters": Filters,
    }


def has_setting(shedder: str, placement: str, name: str) -> bool:
    part, key = part_and_key(name)
    parts = parts_of(shedder, placement)
    kinds = ([parts[part]] if part in parts else []) if part else list(parts.values())
    return any(key in fields_of(kind) for kind in kinds)
