from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

MSGS_IN, MSGS_OUT, BYTES_IN, BYTES_OUT = range(4)
"""The order of the columns of traffic in arrays."""

_DIGITS: Final = 6


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages and bytes per second: "in" from producers, "out" to consumers."""

    msgs_in_per_s: float = 0.0
    msgs_out_per_s: float = 0.0
    bytes_in_per_s: float = 0.0
    bytes_out_per_s: float = 0.0

    @property
    def msgs_per_s(self) -> float:
        return self.msgs_in_per_s + self.msgs_out_per_s

    @property
    def bytes_per_s(self) -> float:
        return self.bytes_in_per_s + self.bytes_out_per_s

    def row(self) -> tuple[float, float, float, float]:
        return (self.msgs_in_per_s, self.msgs_out_per_s, self.bytes_in_per_s, self.bytes_out_per_s)


def total(every: Collection[Rates]) -> Rates:
    return Rates(
        sum(one.msgs_in_per_s for one in every),
        sum(one.msgs_out_per_s for one in every),
        sum(one.bytes_in_per_s for one in every),
        sum(one.bytes_out_per_s for one in every),
    )


def six_digits(rate: float) -> float:
    """Return the figure rounded to six significant digits, as written to nodes and files."""
    return float(f"{rate:.{_DIGITS}g}")
