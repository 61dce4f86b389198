"""From a broker's counters of its topics to rates over any window.

A counter of a topic begins at zero when a broker loads the topic and only grows until it
unloads it. So between two readings of one broker a topic that was there both times has a
rate; one that was loaded in between, or loaded again, has counted for less than the window.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from loadmanager.core.rates import Rates


class Counters(NamedTuple):
    """What one topic has counted since it was loaded: messages, and bytes, in and out."""

    msgs_in: float = 0.0
    msgs_out: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0


NOTHING: Final = Counters()


@dataclass(frozen=True, slots=True)
class Window:
    """The traffic of one broker's topics between two readings.

    Attributes:
        rates: of each topic that the second reading has.
        partial: those whose counters began within the window: their rates are lower bounds.
    """

    rates: Mapping[str, Rates]
    partial: frozenset[str]


def between(before: Mapping[str, Counters], after: Mapping[str, Counters], took_s: float) -> Window:
    """Return the traffic between two readings of one broker, ``took_s`` (above 0) apart."""
    rates: dict[str, Rates] = {}
    partial: set[str] = set()
    for topic, now in after.items():
        then = before.get(topic)
        if then is None or any(later < earlier for later, earlier in zip(now, then, strict=True)):
            partial.add(topic)
            then = NOTHING
        grown = (later - earlier for later, earlier in zip(now, then, strict=True))
        rates[topic] = Rates(*(count / took_s for count in grown))
    return Window(rates, frozenset(partial))
