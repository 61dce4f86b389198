"""The time when capacity gets short: a linear trend with daily or weekly seasonality."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadmanager.pipeline.confidence import student_95

Floats = NDArray[np.float64]

SHORT: Final = 0.85
"""Above this mean load at the peak there is no room for imbalance."""

LEAST_DAYS: Final = 3.0
"""With less history no trend is significant."""

WEEK_DAYS: Final = 14.0
"""From this much history on the season is a week instead of a day."""

HORIZON_DAYS: Final = 365.0
"""No forecast extends beyond this."""

_DAY_H: Final = 24
_WEEK_H: Final = 168
_PEAK: Final = 0.95


@dataclass(frozen=True, eq=False, kw_only=True)
class Trend:
    """A linear trend with a season: ``slope * days + season[hour]``.

    ``slope_per_day`` and its 90 % interval are fractions of capacity. ``peak`` is the 95th
    percentile of the fitted load over the hours of the season on the last day. ``days_left`` is
    the time until it reaches `SHORT`, by the slope; ``soonest_days`` and ``latest_days`` are those
    by the ends of its interval; None if not within `HORIZON_DAYS`. ``fitted`` are fitted loads.
    """

    period_h: int
    slope_per_day: float
    slope_low: float
    slope_high: float
    peak: float
    days_left: float | None
    soonest_days: float | None
    latest_days: float | None
    fitted: Floats


def trend(hours: NDArray[np.int64], loads: Floats) -> Trend | None:
    """Return the trend of hourly ``loads``; None if there is too little history.

    ``hours`` are whole hours since any Monday 0:00, ascending; hours may be missing. The interval
    is computed from the residuals of daily means: hours of one day are correlated.
    """
    known_days = (hours[-1] - hours[0] + 1) / _DAY_H if len(hours) else 0.0
    if known_days < LEAST_DAYS:
        return None
    period_h = _WEEK_H if known_days >= WEEK_DAYS else _DAY_H
    days = hours / _DAY_H
    slope, season = _fit(days, hours % period_h, loads, period_h)
    base = season[hours % period_h]
    fitted = base + slope * (days - days[-1])
    error = _slope_error(days, loads - fitted)
    peak = float(np.nanquantile(season[np.isfinite(season)], _PEAK))
    low, high = slope - error, slope + error
    return Trend(
        period_h=period_h,
        slope_per_day=slope,
        slope_low=low,
        slope_high=high,
        peak=peak,
        days_left=_days_until(peak, slope),
        soonest_days=_days_until(peak, high),
        latest_days=_days_until(peak, low),
        fitted=fitted,
    )


def _fit(
    days: Floats, phase: NDArray[np.int64], loads: Floats, period_h: int
) -> tuple[float, Floats]:
    """Return the slope per day, and the load of each hour of the period on the last day.

    A least squares fit of a slope and a level for each hour of the period: days and loads are
    centred within each hour, which leaves a line through the origin.
    """
    counts = np.bincount(phase, minlength=period_h).astype(np.float64)
    safe = np.where(counts > 0, counts, 1.0)
    mean_day = np.bincount(phase, weights=days, minlength=period_h) / safe
    mean_load = np.bincount(phase, weights=loads, minlength=period_h) / safe
    x, y = days - mean_day[phase], loads - mean_load[phase]
    square = float(x @ x)
    slope = float(x @ y) / square if square > 0 else 0.0
    season = np.where(counts > 0, mean_load + slope * (days[-1] - mean_day), np.nan)
    return slope, season


def _slope_error(days: Floats, residuals: Floats) -> float:
    """Return half of the 90 % interval of the slope, from the means of whole days."""
    number = np.floor(days - days[0]).astype(np.int64)
    counts = np.bincount(number).astype(np.float64)
    kept = counts > 0
    means = (np.bincount(number, weights=residuals)[kept]) / counts[kept]
    at = np.flatnonzero(kept).astype(np.float64)
    off = at - at.mean()
    square = float(off @ off)
    freedom = max(len(means) - 2, 1)
    variance = float(means @ means) / freedom
    return student_95(freedom) * float(np.sqrt(variance / square)) if square > 0 else float("inf")


def _days_until(peak: float, slope: float) -> float | None:
    if peak >= SHORT:
        return 0.0
    if slope <= 0:
        return None
    days = (SHORT - peak) / slope
    return days if days <= HORIZON_DAYS else None
