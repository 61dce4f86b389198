"""Days until capacity is short: the trend of the mean load, adjusted for day and week."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.charts import Chart
from loadmanager.core.bounds import HOUR_MS
from loadmanager.core.scores import RESOURCES
from loadmanager.pipeline.confidence import student_95
from loadmanager.pipeline.reporting.formats import (
    COLOURS,
    axis,
    layout,
    line,
    named,
    on_axis,
    percent,
    plain,
    straight,
)
from loadmanager.pipeline.reporting.parts import Finding, Section, Shown, Weight, facts, figures
from loadmanager.pipeline.reporting.sources import Row, Tables, rows, sound

_MONDAY_H: Final = 96
"""Hours from 1970 to its first Monday: it began on a Thursday."""

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


_JUDGED: Final = tuple(name for name in RESOURCES if name != "memory")
_HOURS: Final = 24 * 7 * 26
_DRAWN: Final = 700
_SOON_DAYS: Final = 30.0


def _read(tables: Tables) -> Row | None:
    """Return the hourly mean load of all brokers, of the scarcest resource."""
    hours = sound(tables.table("broker_hours"))
    known = [F.avg(f"{name}_fraction_mean").alias(name) for name in _JUDGED]
    by_hour = hours.groupBy(F.unix_millis("hour").alias("at_ms")).agg(
        *known, F.count("*").alias("brokers")
    )
    found = sorted(rows(by_hour.orderBy(F.desc("at_ms")).limit(_HOURS)), key=lambda r: r["at_ms"])
    levels = {
        name: np.array([np.nan if row[name] is None else row[name] for row in found], dtype=float)
        for name in _JUDGED
    }
    by_resource = {name: values for name, values in levels.items() if np.isfinite(values).any()}
    if not by_resource:
        return None
    resource = max(by_resource, key=lambda name: float(np.nanmean(by_resource[name])))
    known_hours = np.isfinite(by_resource[resource])
    at_ms = np.array([row["at_ms"] for row in found], dtype=np.int64)
    return {
        "resource": resource,
        "hours_ms": at_ms[known_hours],
        "loads": by_resource[resource][known_hours],
        "brokers": found[-1]["brokers"],
    }


def _show(found: Row) -> Shown:
    loads, hours_ms, name = found["loads"], found["hours_ms"], named(found["resource"])
    fitted = trend(hours_ms // HOUR_MS - _MONDAY_H, loads)
    days = float(hours_ms[-1] - hours_ms[0] + HOUR_MS) / HOUR_MS / 24
    lines = [
        ("history", f"{plain(days, 2)} days"),
        ("resource", name),
        ("mean use", percent(float(loads.mean()), 1)),
        ("highest hour", percent(float(loads.max()), 1)),
    ]
    if fitted is None:
        text = (
            f"There are {plain(days, 2)} days of history; a forecast of capacity needs at least "
            f"{LEAST_DAYS:g}. So far the cluster's mean {name} use was at most "
            f"{percent(float(loads.max()))} in an hour."
        )
        finding = Finding(Weight.LACKING, text)
    else:
        low, high = 100 * fitted.slope_low, 100 * fitted.slope_high
        lines += [
            ("change a day", f"{100 * fitted.slope_per_day:+.3f} points of capacity"),
            ("its 90 % interval", f"{low:+.3f} to {high:+.3f}"),
            ("peak now (p95 of the rhythm)", percent(fitted.peak, 1)),
            ("short above", percent(SHORT)),
        ]
        finding = _foreseen(name, days, fitted)
        if days < WEEK_DAYS:
            text = f" With only {plain(days, 2)} days of history, weekdays look like a trend."
            finding = Finding(finding.weight, finding.text + text)
    shown = facts("What it is computed from", "of the forecast", lines)
    return [_chart(found, fitted).html(), figures("The figures", shown)], [finding]


def _foreseen(name: str, days: float, fitted: Trend) -> Finding:
    peak = percent(fitted.peak)
    if fitted.days_left == 0:
        text = f"Capacity is short now: at its peak the cluster uses {peak} of its {name}."
        return Finding(Weight.ACT, text)
    grows = f"mean {name} use changes by {100 * fitted.slope_per_day:+.2f} points a day"
    if fitted.soonest_days is None:
        text = f"Capacity lasts for at least {HORIZON_DAYS:g} days: {grows}, peak {peak}."
        if days < WEEK_DAYS:
            text = f"No growth is to be seen yet ({grows}, peak {peak})."
        return Finding(Weight.FINE, text)
    soon, soonest = fitted.soonest_days <= _SOON_DAYS, plain(fitted.soonest_days, 2)
    if fitted.days_left is None or fitted.slope_low <= 0:
        text = (
            f"There is no certain trend ({grows}, peak {peak}); at the fastest growth that is "
            f"likely, capacity is short in {soonest} days."
        )
        return Finding(Weight.LOOK if soon else Weight.FINE, text)
    latest = "no end" if fitted.latest_days is None else plain(fitted.latest_days, 2)
    text = (
        f"Capacity is short in about {plain(fitted.days_left, 2)} days (90 % interval: "
        f"{soonest} to {latest}): {grows}, peak {peak} now, short above {percent(SHORT)}."
    )
    return Finding(Weight.ACT if soon else Weight.LOOK, text)


def _chart(found: Row, fitted: Trend | None) -> Chart:
    every = max(1, -(-len(found["hours_ms"]) // _DRAWN))
    times = [on_axis(at_ms) for at_ms in found["hours_ms"][::every].tolist()]
    data = [line(times, found["loads"][::every].tolist(), "measured", COLOURS[0])]
    rhythm = ""
    if fitted is not None:
        data.append(line(times, fitted.fitted[::every].tolist(), "trend and rhythm", COLOURS[1]))
        rhythm = f" The rhythm is that of the {'week' if fitted.period_h > _DAY_H else 'day'}."
    name = named(found["resource"])
    return Chart(
        title=f"Mean {name} use of the cluster",
        summary=f"Mean over {found['brokers']} brokers by the hour, % of capacity. The dotted line "
        f"at {percent(SHORT)} is where capacity is short even if load is spread evenly.{rhythm}",
        data=data,
        layout=layout(
            yaxis=axis(f"{name}, % of capacity", ".0%", zero=True),
            xaxis={"type": "date"},
            shapes=[straight(xref="paper", x0=0, x1=1, y0=SHORT, y1=SHORT)],
        ),
    )


CAPACITY: Final = Section("Days until capacity is short", "rollup", _read, _show)
