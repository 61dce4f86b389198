"""Formats of numbers and times with their units."""

import math
from datetime import UTC, datetime
from typing import Final

_PREFIXES: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
UNKNOWN: Final = "\N{EN DASH}"
"""Shown in place of a missing number."""

_RESOURCES: Final = {
    "cpu": "CPU",
    "bandwidth_in": "inbound bandwidth",
    "bandwidth_out": "outbound bandwidth",
}
_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86400.0


def plain(value: float | None, digits: int = 3) -> str:
    """Return a number with some significant digits and thousands; a dash for none."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(places, 12)}f}"


def scaled(value: float | None, unit: str) -> str:
    """Return a rate as ``1.2 M messages/s``; a dash for none."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor:
            return f"{plain(value / factor)} {prefix} {unit}"
    return f"{plain(value)} {unit}"


def percent(fraction: float | None, digits: int = 0) -> str:
    """Return a fraction in percent; a dash for none."""
    if fraction is None or not math.isfinite(fraction):
        return UNKNOWN
    return f"{100 * fraction:.{digits}f} %"


def span(seconds: float | None) -> str:
    """Return a duration in a suitable unit; a dash for none."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    for unit_s, name in ((_DAY_S, "days"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if abs(seconds) >= 2 * unit_s:
            return f"{plain(seconds / unit_s, 2)} {name}"
    return f"{plain(seconds, 2)} s"


def moment(at_ms: float) -> str:
    return f"{_utc(at_ms):%Y-%m-%d %H:%M} UTC"


def on_axis(at_ms: float) -> str:
    return f"{_utc(at_ms):%Y-%m-%d %H:%M:%S}"


def _utc(at_ms: float) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def named(resource: str) -> str:
    return _RESOURCES.get(resource, resource.replace("_", " "))


def many(count: int, one: str, several: str = "") -> str:
    """Return ``1 move`` or ``1,234 moves``."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"
