"""Pairs of strategies to compare, and the planner of each in a scenario."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from loadmanager.config import ConfigError, strategies
from loadmanager.config.strategies import (
    PAIRS,
    alternatives,
    has_setting,
    pairs_like,
    parse_pair,
    parts_of,
    planner_of,
)
from loadmanager.core.placement import PLACEMENTS, PlannedPlacement
from loadmanager.core.planner import Planner
from loadmanager.core.shedding import SHEDDERS, AvgShedder
from loadmanager.core.snapshot.codec import in_force
from loadmanager.simulator.scenario import Scenario

Mode = Literal["safe", "parity"]

MODES: Final[tuple[Mode, ...]] = get_args(Mode)


PAIR_NAMES: Final = tuple(map("+".join, PAIRS))


@dataclass(frozen=True, slots=True)
class Strategy(strategies.Wanted):
    """A shedder and a placement by our short names, the mode of the planner, and settings."""

    shedder: str
    placement: str
    mode: Mode = "safe"

    @property
    def name(self) -> str:
        """The pair without mode and settings: ``threshold+least_long_term_message_rate``."""
        return f"{self.shedder}+{self.placement}"

    @property
    def remark(self) -> str:
        """A note on a pair that is not designed to work together, or empty."""
        planned = SHEDDERS[self.shedder] is AvgShedder
        follows = PLACEMENTS[self.placement] is PlannedPlacement
        if follows and not planned:
            return "this placement follows AvgShedder's plan; without one it picks at random"
        return ""

    @classmethod
    def parse(cls, text: str, mode: Mode = "safe", settings: tuple[str, ...] = ()) -> "Strategy":
        """Return the pair ``shedder+placement``; raises as `parse_pair`."""
        return cls(*parse_pair(text, f"strategy {text!r}"), mode, settings=settings)


def parse_strategies(
    text: str, modes: Sequence[Mode] = ("safe",), settings: tuple[str, ...] = ()
) -> tuple[Strategy, ...]:
    """Return the pairs of ``a+b,c+d``, each in all ``modes``; ``*`` is a wildcard.

    A setting applies to the pairs that have it, so that different pairs can be compared. Raises
    `ConfigError`: with all unknown names, and all settings that no pair has.
    """
    pairs: dict[str, Strategy] = {}
    faults: list[str] = []
    for one in text.split(","):
        try:
            for pair in pairs_like(one.strip(), f"strategy {one.strip()!r}"):
                pairs["+".join(pair)] = Strategy(*pair)
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError(faults)
    return _with_settings(list(pairs.values()), modes, settings)


def planner_for(scenario: Scenario, strategy: Strategy) -> Planner:
    """Return the planner for ``scenario`` with ``strategy``.

    Other settings are those of the scenario. Its settings of a strategy only apply to that
    strategy; another one starts with its defaults. Raises `ConfigError`: a setting of the scenario
    or the strategy does not exist, or has an invalid value.
    """
    shedding, placement = scenario.shedding, scenario.placement
    if SHEDDERS[strategy.shedder] is not SHEDDERS[shedding.strategy]:
        shedding = shedding.model_copy(update={"strategy": strategy.shedder, "settings": {}})
    if PLACEMENTS[strategy.placement] is not PLACEMENTS.get(placement.strategy or ""):
        placement = placement.model_copy(update={"strategy": strategy.placement, "settings": {}})
    usual = planner_of(shedding, placement, scenario.planner, scenario.leader)
    return strategies.planner_for(scenario.title, in_force(usual), strategy)


def _with_settings(
    pairs: Sequence[Strategy], modes: Sequence[Mode], settings: Sequence[str]
) -> tuple[Strategy, ...]:
    faults = [
        _unknown(text, pairs)
        for text in settings
        if _is_mode(text) or not any(_has(pair, text) for pair in pairs)
    ]
    if faults:
        raise ConfigError(faults)
    return tuple(
        replace(pair, mode=mode, settings=tuple(text for text in settings if _has(pair, text)))
        for pair in pairs
        for mode in modes
    )


def _has(pair: Strategy, text: str) -> bool:
    name, given, _ = text.partition("=")
    return bool(given) and has_setting(pair.shedder, pair.placement, name)


def _is_mode(text: str) -> bool:
    return text.partition("=")[0] in {"mode", "planner.mode"}


def _unknown(text: str, pairs: Sequence[Strategy]) -> str:
    name, given, _ = text.partition("=")
    if not given:
        return f"--set {text}; expected key=value"
    if _is_mode(text):
        return f"--set {text}; expected --mode, which says what is compared"
    kinds = {kind for pair in pairs for kind in parts_of(pair.shedder, pair.placement).values()}
    hint = alternatives(kinds, name.rpartition(".")[2], without="mode")
    return f"--set {text}: {name} is unknown to the strategies that are compared; {hint}"
