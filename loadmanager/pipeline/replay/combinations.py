"""The combinations of strategies and settings to replay."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from loadmanager.config import ConfigError
from loadmanager.config.sections import SheddingSettings
from loadmanager.config.strategies import (
    PAIRS,
    Wanted,
    has_setting,
    own_placement,
    pairs_like,
    planner_for,
    short_name,
)
from loadmanager.core.placement import PLACEMENTS, PlannedPlacement
from loadmanager.core.shedding import SHEDDERS, AvgShedder
from loadmanager.core.snapshot.document import InForce

AS_RECORDED: Final = "as recorded"
"""The combination without changes: its deviation from the recorded is the replay's own error."""

SPREAD_ANEW: Final = "as recorded, spread anew"
"""The same with initial owners that no strategy chose: the reference for all others."""

MOST_COMBINATIONS: Final = 10_000
_ACTING: Final = ("planner.observe=false", "planner.shedding=true")
"""Otherwise a leader that was configured to observe would observe in every combination."""


@dataclass(frozen=True, slots=True)
class Combination:
    """A shedder, a placement and settings, by our short names; both empty: as recorded.

    ``settings`` are texts ``key=value`` as for ``loadmanager decide``; other settings are as
    recorded. With ``spread_anew`` it starts with owners that no strategy chose, instead of the
    recorded owners.
    """

    number: int
    shedder: str = ""
    placement: str = ""
    settings: tuple[str, ...] = ()
    spread_anew: bool = False

    @property
    def pair(self) -> str:
        return f"{self.shedder}+{self.placement}" if self.shedder else AS_RECORDED

    @property
    def name(self) -> str:
        pair = SPREAD_ANEW if self.spread_anew and not self.shedder else self.pair
        return " ".join([pair, *self.settings])

    @property
    def wanted(self) -> Wanted:
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
    """Return the combinations: first as recorded, then each pair with its grid of settings.

    ``strategies`` are texts ``shedder+placement`` with ``*`` as wildcard; without any, all
    sensible pairs. ``settings`` are texts ``key=v1,v2``, applied to the pairs that have the key.

    Raises:
        ConfigError: with all unknown strategies and settings, and all invalid values.
    """
    pairs = dict.fromkeys(
        pair for text in strategies for pair in pairs_like(text, f"--strategy {text}")
    )
    pairs = pairs or _sensible()
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
    shedder = SheddingSettings().strategy
    return (
        short_name(SHEDDERS, shedder, "the default shedder"),
        short_name(PLACEMENTS, own_placement(SHEDDERS[shedder]), "the default placement"),
    )


def spread_anew(tried: Sequence[Combination]) -> tuple[Combination, ...]:
    """Return the combinations with ``spread_anew``.

    ``as recorded``, which measures the replay's own error, is unchanged; the reference
    `SPREAD_ANEW` is added.
    """
    anew = [replace(one, spread_anew=True) for one in tried if one.shedder]
    as_recorded = [one for one in tried if not one.shedder]
    return (*as_recorded, *anew, Combination(len(tried), spread_anew=True))


@dataclass(frozen=True, slots=True)
class _Axis:
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
    """Return the parts between commas; commas within brackets do not separate."""
    found, depth = [""], 0
    for letter in values:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return found


def _sensible() -> dict[tuple[str, str], None]:
    """Return every pair except those whose placement needs a plan of another shedder."""
    return {
        pair: None
        for pair in PAIRS
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
    faults = [
        fault
        for one in found
        for text in one.settings
        for fault in _faults(replace(one, settings=(text,)))
    ]
    # Values that are valid alone may contradict each other.
    faults = faults or [fault for one in found for fault in _faults(one)]
    if faults:
        raise ConfigError(list(dict.fromkeys(faults)))


def _faults(one: Combination) -> list[str]:
    try:
        planner_for("--setting", InForce(), one.wanted)
    except ConfigError as error:
        return [fault.replace("--set ", "--setting ", 1) for fault in error.faults]
    return []
