"""Brokers that need more or less CPU than their class for the same traffic."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.charts import Cell, Chart, Column, Html, Json, numbers, shown, table
from loadmanager.pipeline.confidence import NORMAL_95
from loadmanager.pipeline.reporting.formats import COLOURS, GREY, layout, percent, plain
from loadmanager.pipeline.reporting.parts import Finding, Part, Weight, figures
from loadmanager.pipeline.reporting.sources import Row, Tables, broker_hours, rows, terms_of

TITLE: Final = "Brokers that are differently fast"
SHOWN: Final = 40
_LEAST_HOURS: Final = 3
_DIFFERENT: Final = 0.15
_SPREAD: Final = 0.10
_LEAST_RANGE: Final = 0.2
_MARGIN: Final = 0.02


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """The CPU of brokers relative to the costs of their class or, without costs, per message.

    ``slope`` is 1 for a broker that needs as much CPU for its traffic as its class, 1.3 for one
    that needs 30 % more. Without a cost model it is the CPU per message over the median of the
    class.
    """

    learned: bool
    brokers: Sequence[Row]
    all_brokers: int


def read(tables: Tables) -> Speeds | None:
    terms = terms_of(tables) if tables.made("costs") else []
    learned = any(row["resource"] == "cpu" for row in terms)
    found = _by_costs(tables, terms) if learned else []
    if not found:
        found, learned = _by_messages(tables), False
    if not found:
        return None
    odd = sorted(found, key=lambda row: (-abs(row["slope"] - 1.0), row["broker"]))
    return Speeds(learned=learned, brokers=odd[:SHOWN], all_brokers=len(found))


def _by_costs(tables: Tables, terms: list[Row]) -> list[Row]:
    hours = broker_hours(tables, terms).where("by_traffic > 0")
    found = hours.groupBy("broker", "broker_class").agg(
        F.regr_slope("used", "by_traffic").alias("slope"),
        F.regr_intercept("used", "by_traffic").alias("idle"),
        F.regr_r2("used", "by_traffic").alias("r2"),
        F.try_divide(F.stddev_samp("by_traffic"), F.avg("by_traffic")).alias("varied"),
        F.first("background").alias("background"),
        F.count("*").alias("hours"),
    )
    enough = (F.col("hours") >= _LEAST_HOURS) & F.col("slope").isNotNull()
    error = (
        NORMAL_95
        * F.abs("slope")
        * F.sqrt(
            F.try_divide(1 - F.col("r2"), F.col("r2") * F.greatest(F.col("hours") - 2, F.lit(1)))
        )
    )
    compared = found.where(enough & (F.col("varied") >= _SPREAD)).withColumn("error", error)
    return rows(compared.where("error IS NOT NULL"))


def _by_messages(tables: Tables) -> list[Row]:
    minutes = tables.table("broker_minutes").where("cpu_limit > 0")
    msgs = F.col("msgs_in_per_s_mean") + F.col("msgs_out_per_s_mean")
    found = rows(
        minutes.groupBy("broker", "broker_class").agg(
            F.try_divide(F.sum("cpu_usage_mean"), F.sum(msgs)).alias("each"),
            F.count("*").alias("hours"),
        )
    )
    known = [row for row in found if row["each"]]
    medians = {
        name: median(row["each"] for row in known if row["broker_class"] == name)
        for name in {row["broker_class"] for row in known}
    }
    return [
        {
            "broker": row["broker"],
            "broker_class": row["broker_class"],
            "slope": row["each"] / medians[row["broker_class"]],
            "error": None,
            "idle": None,
            "background": None,
            "hours": row["hours"] // 60,
        }
        for row in known
    ]


def show(found: Speeds) -> Part:
    return Part(
        title=TITLE,
        body=[_chart(found).html(), figures("The figures", _table(found))],
        findings=[_finding(found)],
    )


def _surely_odd(row: Row) -> bool:
    off = abs(row["slope"] - 1.0)
    return bool(off > _DIFFERENT and (row["error"] is None or off - row["error"] > _DIFFERENT / 2))


def _finding(found: Speeds) -> Finding:
    odd = [row for row in found.brokers if _surely_odd(row)]
    slow = [row for row in odd if row["slope"] > 1]
    if slow:
        first = slow[0]
        others = "" if len(slow) == 1 else f", and {len(slow) - 1} more brokers do too"
        text = (
            f"{first['broker']} needs {percent(first['slope'] - 1)} more CPU than its class for "
            f"the same traffic{others}: "
            "look for a noisy neighbour or throttling, or give them a class of their own."
        )
        return Finding(Weight.LOOK, text)
    if odd:
        text = f"{odd[0]['broker']} needs {percent(1 - odd[0]['slope'])} less CPU than its class."
        return Finding(Weight.FINE, text)
    return Finding(Weight.FINE, "No broker needs clearly more CPU than its class for its traffic.")


def _chart(found: Speeds) -> Chart:
    upwards = sorted(found.brokers, key=lambda row: row["slope"])
    middle = {
        "type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1,
        "line": {"color": GREY, "dash": "dot", "width": 1},
    }  # fmt: skip
    by = (
        "CPU for its traffic, by the cost model of its class; the lines are 90 % intervals"
        if found.learned
        else "CPU for each message, over the median of its class (the job costs would compare "
        "brokers by all of their traffic)"
    )
    which = (
        ""
        if len(upwards) == found.all_brokers
        else (f" The {len(upwards)} of {found.all_brokers} brokers that are furthest from 1.")
    )
    return Chart(
        title="CPU needed for the same traffic",
        summary=f"{by}. Right of 1 a broker is slower than its class.{which}",
        data=_points(upwards),
        layout=layout(
            xaxis={"title": {"text": "times its class"}, "range": _range(upwards)},
            yaxis={"type": "category", "categoryarray": [shown(r["broker"]) for r in upwards]},
            shapes=[middle],
        ),
        height_px=max(240, 110 + 20 * len(upwards)),
    )


def _points(upwards: Sequence[Row]) -> list[Mapping[str, Json]]:
    classes = sorted({row["broker_class"] for row in upwards})
    data: list[Mapping[str, Json]] = []
    for place, name in enumerate(classes):
        own = [row for row in upwards if row["broker_class"] == name]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": shown(name or "(no class)"),
                "y": [shown(row["broker"]) for row in own],
                "x": numbers([row["slope"] for row in own]),
                "error_x": {
                    "type": "data",
                    "array": numbers([row["error"] or 0.0 for row in own]),
                },
                "marker": {"size": 9, "color": COLOURS[place % len(COLOURS)]},
                "hovertemplate": "%{y}: %{x:.2f} times its class<extra></extra>",
            }
        )
    return data


def _range(brokers: Sequence[Row]) -> list[float]:
    """Return the range of the axis, wide enough that small differences look small."""
    ends = [row["slope"] + sign * (row["error"] or 0.0) for row in brokers for sign in (-1, 1)]
    return [min(1 - _LEAST_RANGE, *ends) - _MARGIN, max(1 + _LEAST_RANGE, *ends) + _MARGIN]


def _table(found: Speeds) -> Html:
    columns = [
        Column(name="broker"),
        Column(name="class"),
        Column(name="CPU for its traffic", unit="times its class"),
        Column(name="90 % interval", unit="±"),
        Column(name="background", unit="% of a core", explanation="CPU without any traffic."),
        Column(name="hours"),
    ]
    cells = [
        [
            Cell(row["broker"]),
            Cell(row["broker_class"] or "(no class)"),
            Cell(plain(row["slope"]), row["slope"], tone="bad" if _surely_odd(row) else ""),
            *(Cell(plain(row[name]), row[name]) for name in ("error", "background")),
            Cell(f"{row['hours']:,}", row["hours"]),
        ]
        for row in found.brokers
    ]
    return table("Brokers, those furthest from their class first", columns, cells)
