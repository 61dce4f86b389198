"""The hottest and the most volatile bundles, and traffic by hour of the week."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.charts import Cell, Chart, Column, Html, numbers, shown, table
from loadmanager.pipeline.reporting.formats import COLOURS, SCALE, layout, percent, plain, scaled
from loadmanager.pipeline.reporting.parts import Finding, Part, Weight, figures
from loadmanager.pipeline.reporting.sources import Row, Tables, rows

TITLE: Final = "Hottest and most volatile bundles"
SHOWN: Final = 20
_HOT: Final = 0.10
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@dataclass(frozen=True, kw_only=True)
class Hottest:
    """The first of both rankings, and messages per second by hour of the week."""

    hottest: Sequence[Row]
    volatile: Sequence[Row]
    week: Sequence[Row]


def read(tables: Tables) -> Hottest | None:
    ranking = tables.table("bundle_ranking").where(F.col("rank") <= SHOWN)
    found = rows(ranking.orderBy("rank"))
    if not found:
        return None
    # In Spark, Monday is day 2 of the week.
    hour_of_week = (F.dayofweek("minute") + 5) % 7 * 24 + F.hour("minute")
    week = (
        tables.table("cluster_minutes")
        .groupBy(hour_of_week.alias("hour"))
        .agg(F.avg(F.col("msgs_in_per_s_mean") + F.col("msgs_out_per_s_mean")).alias("msgs_per_s"))
    )
    return Hottest(
        hottest=[row for row in found if row["ranking"] == "hottest"],
        volatile=[row for row in found if row["ranking"] != "hottest"],
        week=rows(week.orderBy("hour")),
    )


def show(found: Hottest) -> Part:
    body = [
        _bars(found.hottest).html(),
        figures("The hottest bundles in figures", _table("Hottest bundles", found.hottest)),
        _spread(found.volatile).html(),
        figures("The most volatile bundles in figures", _table("Most volatile", found.volatile)),
    ]
    if len(found.week) > 24:  # noqa: PLR2004 - more than a day
        body.append(_week(found.week).html())
    return Part(title=TITLE, body=body, findings=_findings(found))


def _findings(found: Hottest) -> list[Finding]:
    first = found.hottest[0]
    text = (
        f"The hottest bundle, {first['bundle']}, carries {percent(first['share'], 1)} of the "
        f"cluster's traffic"
    )
    if first["share"] > _HOT:
        return [Finding(Weight.LOOK, f"{text}: no move can make that even; consider a split.")]
    return [Finding(Weight.FINE, f"{text}.")]


def _bars(hottest: Sequence[Row]) -> Chart:
    upwards = list(reversed(hottest))
    return Chart(
        title="Hottest bundles",
        summary="The larger of a bundle's parts of all messages and of all bytes of the cluster, "
        f"in percent; the first {len(hottest)}.",
        data=[
            {
                "type": "bar",
                "orientation": "h",
                "y": [f"{row['rank']}" for row in upwards],
                "x": numbers([row["share"] for row in upwards], 5),
                "text": [shown(row["bundle"]) for row in upwards],
                "textposition": "auto",
                "insidetextanchor": "start",
                "marker": {"color": COLOURS[0]},
                "hovertemplate": "%{text}<br>%{x:.2%}<extra></extra>",
            }
        ],
        layout=layout(
            xaxis={"title": {"text": "part of the cluster's traffic, %"}, "tickformat": ".1%"},
            yaxis={"type": "category", "title": {"text": "rank"}},
        ),
        height_px=90 + 26 * len(hottest),
    )


def _spread(volatile: Sequence[Row]) -> Chart:
    return Chart(
        title="Most volatile bundles",
        summary="Mean messages per second and their standard deviation from minute to minute, "
        "both in and out; the further up, the more a bundle swings.",
        data=[
            {
                "type": "scatter",
                "mode": "markers",
                "x": numbers([row["msgs_per_s_mean"] for row in volatile]),
                "y": numbers([row["msgs_per_s_std"] for row in volatile]),
                "text": [shown(row["bundle"]) for row in volatile],
                "marker": {"color": COLOURS[1], "size": 10, "opacity": 0.8},
                "hovertemplate": "%{text}<br>mean %{x:,.0f}/s, deviation %{y:,.0f}/s"
                "<extra></extra>",
            }
        ],
        layout=layout(
            xaxis={"title": {"text": "mean, messages/s"}, "rangemode": "tozero"},
            yaxis={"title": {"text": "deviation, messages/s"}, "rangemode": "tozero"},
        ),
    )


def _week(week: Sequence[Row]) -> Chart:
    by_hour = {row["hour"]: row["msgs_per_s"] for row in week}
    grid = [
        numbers([by_hour.get(day * 24 + hour, float("nan")) for hour in range(24)], 1)
        for day in range(7)
    ]
    return Chart(
        title="The cluster's week",
        summary="Messages per second in and out, mean of each hour of the week in UTC. Empty "
        "fields were never seen.",
        data=[
            {
                "type": "heatmap",
                "x": list(range(24)),
                "y": list(_DAYS),
                "z": grid,
                "zmin": 0,
                "colorscale": SCALE,
                "colorbar": {"thickness": 12, "title": {"text": "msgs/s"}},
                "hovertemplate": "%{y} %{x}:00 UTC<br>%{z:,.0f} messages/s<extra></extra>",
            }
        ],
        layout=layout(
            yaxis={"autorange": "reversed"},
            xaxis={"title": {"text": "hour of the day, UTC"}, "dtick": 3},
        ),
        height_px=320,
    )


def _table(caption: str, ranked: Sequence[Row]) -> Html:
    columns = [
        Column(name="rank"),
        Column(name="bundle"),
        Column(name="part of traffic", unit="%", explanation="The larger of messages and bytes."),
        Column(name="messages", unit="per second, in and out"),
        Column(name="bytes", unit="per second, in and out"),
        Column(name="deviation", unit="messages/s", explanation="From minute to minute."),
        Column(name="deviation/mean"),
    ]
    cells = [
        [
            Cell(str(row["rank"]), row["rank"]),
            Cell(row["bundle"]),
            Cell(percent(row["share"], 2), row["share"]),
            Cell(scaled(row["msgs_per_s_mean"], "/s"), row["msgs_per_s_mean"]),
            Cell(scaled(row["bytes_per_s_mean"], "B/s"), row["bytes_per_s_mean"]),
            Cell(scaled(row["msgs_per_s_std"], "/s"), row["msgs_per_s_std"]),
            Cell(plain(row["msgs_std_over_mean"]), row["msgs_std_over_mean"]),
        ]
        for row in ranked
    ]
    return table(caption, columns, cells)
