"""Which strategies and settings are replayed: pairs, each with a grid of settings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product
from typing import Final

from loadmanager.config import ConfigError
from loadmanager.config.balancing import SheddingSettings
from loadmanager.config.offline import Wanted, planner_for
from loadmanager.config.pairs import (
    SHEDDER_NAMES,
    has_setting,
    no_pair_like,
    parse_pair,
    placements_of,
    short_name,
)
from loadmanager.config.strategies import own_placement
from loadmanager.core.placement import PLACEMENTS, PlannedPlacement
from loadmanager.core.shedding import SHEDDERS, AvgShedder
from loadmanager.core.snapshot import InForce

AS_RECORDED: Final = "as recorded"
"""The combination that changes nothing: what it does otherwise is the replay's own error."""

SPREAD_ANEW: Final = "as recorded, spread anew"
"""The same from bundles that no strategy balanced: what all others are compared to."""

MOST_COMBINATIONS: Final = 10_000
_ACTING: Final = ("planner.observe=false", "planner.shedding=true")
"""A leader configured to observe would else do so in every combination."""


@dataclass(frozen=True, slots=True)
class Combination:
    """A shedder, a placement and settings, by our short names; both empty: as recorded.

    ``settings`` are texts ``key=value`` as for ``loadmanager decide``. All that they do
    not say is as it was recorded. ``spread_anew`` is whether it begins with bundles that no
    strategy balanced, instead of with those where they were recorded.
    """

    number: int
    shedder: str = ""
    placement: str = ""
    settings: tuple[str, ...] = ()
    spread_anew: bool = False

    @property
    def pair(self) -> str:
        """``shedder+placement``, or that it is as recorded."""
        return f"{self.shedder}+{self.placement}" if self.shedder else AS_RECORDED

    @property
    def name(self) -> str:
        """The pair with its settings."""
        pair = SPREAD_ANEW if self.spread_anew and not self.shedder else self.pair
        return " ".join([pair, *self.settings])

    @property
    def wanted(self) -> Wanted:
        """What to change of the settings that were in force."""
        if not self.shedder:
            return Wanted(settings=self.settings)
        given = {text.partition("=")[0].removeprefix("planner.") for text in self.settings}
        acting = tuple(
            text for text in _ACTING if text[8:].partition("=")[0] not in given
        )  # The part's name and its dot are left out.
        return Wanted(
            shedder=self.shedder, placement=self.placement, settings=(*acting, *self.settings)
        )


def combinations(strategies: Sequence[str], settings: Sequence[str]) -> tuple[Combination, ...]:
    """Return what is to be replayed: first as recorded, then each pair with its grid.

    ``strategies`` are texts ``shedder+placement``, in which ``*`` is anything, none for all
    that make sense; ``settings`` are texts ``key=v1,v2``. A setting goes to the pairs that have it.

    Raises:
        ConfigError: with everything that does not exist or has a value it cannot have.
    """
    pairs = _pairs(strategies) if strategies else _sensible()
    axes = [_axis(text) for text in settings]
    _refuse_unknown(tuple(pairs), axes)
    found = [Combination(0)]
    for shedder, placement in pairs:
        mine = [axis for axis in axes if has_setting(shedder, placement, axis.key)]
        for chosen in product(*(axis.texts for axis in mine)):
            found.append(Combination(len(found), shedder, placement, chosen))
            if len(found) > MOST_COMBINATIONS:
                raise ConfigError(
                    [f"--setting: more than {MOST_COMBINATIONS} combinations; expected fewer"]
                )
    _check(found)
    return tuple(found)


def default_pair() -> tuple[str, str]:
    """Return the shedder and the placement of a configuration that names none, by short names."""
    shedder = SheddingSettings().strategy
    return (
        short_name(SHEDDERS, shedder, "the default shedder"),
        short_name(PLACEMENTS, own_placement(SHEDDERS[shedder]), "the default placement"),
    )


def spread_anew(tried: Sequence[Combination]) -> tuple[Combination, ...]:
    """Return combinations such that each begins with bundles that no strategy balanced.

    ``as recorded``, which measures the replay's own error, begins as recorded; what the others
    are compared to is added.
    """
    anew = [replace(one, spread_anew=True) for one in tried if one.shedder]
    as_recorded = [one for one in tried if not one.shedder]
    return (*as_recorded, *anew, Combination(len(tried), spread_anew=True))


@dataclass(frozen=True, slots=True)
class _Axis:
    """One setting with the values to try."""

    text: str
    key: str
    values: tuple[str, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(f"{self.key}={value}" for value in self.values)


def _axis(text: str) -> _Axis:
    key, given, values = text.partition("=")
    found = tuple(dict.fromkeys(one.strip() for one in _split(values)))
    if not given or not key.strip() or "" in found:
        raise ConfigError([f"--setting {text}; expected key=value or key=value1,value2,..."])
    return _Axis(text, key.strip(), found)


def _split(values: str) -> list[str]:
    """Return what stands between commas, those within a list left alone."""
    found, depth = [""], 0
    for letter in values:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return found


def _pairs(texts: Sequence[str]) -> dict[tuple[str, str], None]:
    found: dict[tuple[str, str], None] = {}
    for text in texts:
        found |= dict.fromkeys(
            _like(text) if "*" in text else [parse_pair(text, f"--strategy {text}")]
        )
    return found


def _like(text: str) -> list[tuple[str, str]]:
    found = [pair for pair in _every_pair() if fnmatchcase("+".join(pair), text.strip())]
    if not found:
        raise no_pair_like(f"--strategy {text}")
    return found


def _every_pair() -> Iterator[tuple[str, str]]:
    for shedder in SHEDDER_NAMES:
        yield from ((shedder, placement) for placement in placements_of(shedder))


def _sensible() -> dict[tuple[str, str], None]:
    """Return every pair but those whose placement follows a plan that is not made."""
    return {
        pair: None
        for pair in _every_pair()
        if PLACEMENTS[pair[1]] is not PlannedPlacement or SHEDDERS[pair[0]] is AvgShedder
    }


def _refuse_unknown(pairs: Sequence[tuple[str, str]], axes: Sequence[_Axis]) -> None:
    faults = []
    keys = [axis.key for axis in axes]
    for axis in axes:
        if keys.count(axis.key) > 1:
            faults.append(f"--setting {axis.text}; expected {axis.key} once, with all its values")
        elif not any(has_setting(*pair, axis.key) for pair in pairs):
            faults += _faults(Combination(0, *pairs[0], axis.texts[:1]))
    if faults:
        raise ConfigError(list(dict.fromkeys(faults)))


def _check(found: Sequence[Combination]) -> None:
    """Refuse values that a setting cannot have."""
    faults = [
        fault
        for one in found
        for text in one.settings
        for fault in _faults(replace(one, settings=(text,)))
    ]
    # Values that are sound alone may still contradict each other.
    faults = faults or [fault for one in found for fault in _faults(one)]
    if faults:
        raise ConfigError(list(dict.fromkeys(faults)))


def _faults(one: Combination) -> list[str]:
    try:
        planner_for("--setting", InForce(), one.wanted)
    except ConfigError as error:
        return [fault.replace("--set ", "--setting ", 1) for fault in error.faults]
    return []
