"""Advice on strategies, and the ratings of PIP-364: the content of strategy_advice.toml."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from loadmanager.simulator.ratings import Rating


@dataclass(frozen=True, slots=True)
class Advice:
    """A pair to choose, or to avoid, in a situation. ``scenario`` shows it, in safe mode."""

    situation: str
    pair: str
    scenario: str
    why: str


_DOCUMENT: Final[Mapping[str, Any]] = tomllib.loads(
    (resources.files(__package__) / "strategy_advice.toml").read_text(encoding="utf-8")
)

CHOOSE: Final = tuple(Advice(**one) for one in _DOCUMENT["choose"])
AVOID: Final = tuple(Advice(**one) for one in _DOCUMENT["avoid"])

PIP_364_RATINGS: Final[Mapping[str, Mapping[str, Rating]]] = {
    pair: {scenario: Rating(rating) for scenario, rating in ratings.items()}
    for pair, ratings in _DOCUMENT["pip_364"].items()
}
"""The ratings in PIP-364, by pair and scenario."""

COMMENTS: Final[Mapping[tuple[str, str], str]] = {
    (pair, scenario): text
    for pair, texts in _DOCUMENT["comments"].items()
    for scenario, text in texts.items()
}
"""Why a rating in parity mode differs from that of PIP-364, by pair and scenario."""
