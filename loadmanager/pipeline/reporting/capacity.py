"""Days until capacity is short: the trend of the mean load, adjusted for day and week."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.charts import Cell, Chart, Column, table
from loadmanager.core.bounds import HOUR_MS
from loadmanager.core.scores import RESOURCES
from loadmanager.pipeline.reporting.capacity_trend import (
    HORIZON_DAYS,
    LEAST_DAYS,
    SHORT,
    WEEK_DAYS,
    Trend,
    trend,
)
from loadmanager.pipeline.reporting.formats import (
    COLOURS,
    GREY,
    layout,
    line,
    named,
    on_axis,
    percent,
    plain,
)
from loadmanager.pipeline.reporting.parts import Finding, Part, Weight, figures
from loadmanager.pipeline.reporting.sources import Tables, rows, sound

TITLE: Final = "Days until capacity is short"
_MONDAY_H: Final = 96
"""Hours from 1970 to its first Monday: it began on a Thursday."""

_JUDGED: Final = tuple(name for name in RESOURCES if name != "memory")
_HOURS: Final = 24 * 7 * 26
_DRAWN: Final = 700
_SOON_DAYS: Final = 30.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Capacity:
    """Hourly mean load of all brokers, of the scarcest resource."""

    resource: str
    hours_ms: NDArray[np.int64]
    loads: NDArray[np.float64]
    brokers: int


def read(tables: Tables) -> Capacity | None:
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
    return Capacity(
        resource=resource,
        hours_ms=at_ms[known_hours],
        loads=by_resource[resource][known_hours],
        brokers=found[-1]["brokers"],
    )


def show(found: Capacity) -> Part:
    fitted = trend(found.hours_ms // HOUR_MS - _MONDAY_H, found.loads)
    words = _words(found, fitted)
    rows = _table_rows(found, fitted)
    columns = [Column(name="of the forecast"), Column(name="value")]
    shown = table("What it is computed from", columns, rows)
    return Part(
        title=TITLE,
        body=[_chart(found, fitted).html(), figures("The figures", shown)],
        findings=[words],
    )


def _days(found: Capacity) -> float:
    return float(found.hours_ms[-1] - found.hours_ms[0] + HOUR_MS) / HOUR_MS / 24


def _words(found: Capacity, fitted: Trend | None) -> Finding:
    name = named(found.resource)
    days = _days(found)
    if fitted is None:
        highest = percent(float(found.loads.max()))
        text = (
            f"There are {plain(days, 2)} days of history; a forecast of capacity needs at least "
            f"{LEAST_DAYS:g}. So far the cluster's mean {name} use was at most {highest} in an "
            "hour."
        )
        return Finding(Weight.LACKING, text)
    caution = (
        ""
        if days >= WEEK_DAYS
        else f" With only {plain(days, 2)} days of history, weekdays look like a trend."
    )
    foreseen = _foreseen(name, days, fitted)
    return Finding(foreseen.weight, foreseen.text + caution)


def _foreseen(name: str, days: float, fitted: Trend) -> Finding:
    if fitted.days_left == 0:
        uses = f"at its peak the cluster uses {percent(fitted.peak)} of its {name}"
        text = f"Capacity is short now: {uses}."
        return Finding(Weight.ACT, text)
    grows = f"mean {name} use changes by {100 * fitted.slope_per_day:+.2f} points a day"
    if fitted.soonest_days is None and days < WEEK_DAYS:
        text = f"No growth is to be seen yet ({grows}, peak {percent(fitted.peak)})."
        return Finding(Weight.FINE, text)
    if fitted.soonest_days is None:
        peak = percent(fitted.peak)
        text = f"Capacity lasts for at least {HORIZON_DAYS:g} days: {grows}, peak {peak}."
        return Finding(Weight.FINE, text)
    if fitted.days_left is None or fitted.slope_low <= 0:
        text = (
            f"There is no certain trend ({grows}, peak {percent(fitted.peak)}); at the fastest "
            f"growth that is likely, capacity is short in {plain(fitted.soonest_days, 2)} days."
        )
        soon = (fitted.soonest_days or HORIZON_DAYS) <= _SOON_DAYS
        return Finding(Weight.LOOK if soon else Weight.FINE, text)
    latest = "no end" if fitted.latest_days is None else plain(fitted.latest_days, 2)
    text = (
        f"Capacity is short in about {plain(fitted.days_left, 2)} days (90 % interval: "
        f"{plain(fitted.soonest_days, 2)} to {latest}): {grows}, peak {percent(fitted.peak)} now, "
        f"short above {percent(SHORT)}."
    )
    soon = (fitted.soonest_days or HORIZON_DAYS) <= _SOON_DAYS
    return Finding(Weight.ACT if soon else Weight.LOOK, text)


def _chart(found: Capacity, fitted: Trend | None) -> Chart:
    every = max(1, -(-len(found.hours_ms) // _DRAWN))
    times = [on_axis(at_ms) for at_ms in found.hours_ms[::every].tolist()]
    data = [line(times, found.loads[::every].tolist(), "measured", COLOURS[0])]
    if fitted is not None:
        data.append(line(times, fitted.fitted[::every].tolist(), "trend and rhythm", COLOURS[1]))
    limit = {
        "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": SHORT, "y1": SHORT,
        "line": {"color": GREY, "dash": "dash", "width": 1},
    }  # fmt: skip
    name = named(found.resource)
    rhythm = (
        ""
        if fitted is None
        else (
            f" The rhythm is that of the {'week' if fitted.period_h > 24 else 'day'}."  # noqa: PLR2004 - hours of a day
        )
    )
    return Chart(
        title=f"Mean {name} use of the cluster",
        summary=f"Mean over {found.brokers} brokers by the hour, % of capacity. The dashed line at "
        f"{percent(SHORT)} is where capacity is short even if load is spread evenly.{rhythm}",
        data=data,
        layout=layout(
            yaxis={"title": {"text": f"{name}, % of capacity"}, "tickformat": ".0%",
                   "rangemode": "tozero"},
            xaxis={"type": "date"},
            shapes=[limit],
        ),
    )  # fmt: skip


def _table_rows(found: Capacity, fitted: Trend | None) -> Sequence[Sequence[Cell]]:
    lines = [
        ("history", f"{plain(_days(found), 2)} days"),
        ("resource", named(found.resource)),
        ("mean use", percent(float(found.loads.mean()), 1)),
        ("highest hour", percent(float(found.loads.max()), 1)),
    ]
    if fitted is not None:
        lines += [
            ("change a day", f"{100 * fitted.slope_per_day:+.3f} points of capacity"),
            (
                "its 90 % interval",
                f"{100 * fitted.slope_low:+.3f} to {100 * fitted.slope_high:+.3f}",
            ),
            ("peak now (p95 of the rhythm)", percent(fitted.peak, 1)),
            ("short above", percent(SHORT)),
        ]
    return [[Cell(name), Cell(value)] for name, value in lines]
