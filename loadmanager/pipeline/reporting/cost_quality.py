"""Quality of the cost model: terms with their intervals, and errors of predictions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.charts import Cell, Chart, Column, Html, Json, numbers, shown, table
from loadmanager.pipeline.costs import UNITS
from loadmanager.pipeline.reporting.formats import (
    COLOURS,
    GREY,
    diagonal,
    layout,
    named,
    percent,
    plain,
    points,
)
from loadmanager.pipeline.reporting.parts import Finding, Part, Weight, figures
from loadmanager.pipeline.reporting.sources import Row, Tables, broker_hours, rows, terms_of

TITLE: Final = "Quality of the cost model"
SAMPLE: Final = 1200
_PER: Final = {
    "msgs_in_per_s": ("message in", 1.0, "message/s in"),
    "msgs_out_per_s": ("message out", 1.0, "message/s out"),
    "bytes_in_per_s": ("byte in", 1e6, "MB/s in"),
    "bytes_out_per_s": ("byte out", 1e6, "MB/s out"),
    "topics": ("topic", 1.0, "topic"),
    "connections": ("connection", 1.0, "connection"),
}
_CLOSE, _FAIR = 0.10, 0.20


@dataclass(frozen=True, kw_only=True)
class CostQuality:
    """Terms, quality by class and resource, and some broker-hours: predicted and measured."""

    terms: Sequence[Row]
    quality: Sequence[Row]
    hours: Sequence[Row]


def read(tables: Tables) -> CostQuality | None:
    terms = terms_of(tables)
    quality = rows(tables.table("cost_quality").orderBy("resource", "broker_class"))
    if not terms and not quality:
        return None
    hours: list[Row] = []
    if tables.made("rollup"):
        known = broker_hours(tables, terms).where("by_traffic IS NOT NULL")
        total = F.col("by_traffic") + F.coalesce("background", F.lit(0.0))
        drawn = known.orderBy(F.xxhash64("broker", "at_ms")).limit(SAMPLE)
        hours = rows(drawn.select("broker", "broker_class", "used", total.alias("predicted")))
    return CostQuality(terms=terms, quality=quality, hours=hours)


def show(found: CostQuality) -> Part:
    body = [_quality(found.quality)]
    charts = [
        _shares(found.terms, resource).html()
        for resource in ("cpu", "memory")
        if any(_typical(row) for row in found.terms if row["resource"] == resource)
    ]
    if found.hours:
        charts.append(_measured(found.hours).html())
    return Part(
        title=TITLE,
        body=[*body, *charts, figures("All terms in figures", _terms(found.terms))],
        findings=[_finding(found)],
    )


def _finding(found: CostQuality) -> Finding:
    cpu = [row for row in found.quality if row["resource"] == "cpu" and row["mape"] is not None]
    if not cpu:
        why = next((row["refused"] for row in found.quality if row["refused"]), "")
        text = "No costs of CPU could be learned yet"
        return Finding(Weight.LACKING, f"{text}: {why}." if why else f"{text}.")
    worst = max(cpu, key=lambda row: row["mape"])
    rule = worst["baseline_mape"]
    text = (
        f"The cost model predicts CPU within {percent(worst['mape'], 1)} on held-out days"
        f"{'' if rule is None else f' (the rule of traffic shares: {percent(rule, 1)})'}"
    )
    if worst["mape"] <= _CLOSE:
        return Finding(Weight.FINE, f"{text}.")
    weight = Weight.FINE if worst["mape"] <= _FAIR else Weight.LOOK
    return Finding(weight, f"{text}; more history, or more varied traffic, would make it better.")


def _typical(row: Row) -> float:
    return float(row["typical_usage"] or 0.0)


def _typical_off(row: Row, end: str) -> float:
    """Return the distance from the value to an end of the interval, for typical traffic."""
    return _typical(row) * (row[end] / row["value"] - 1.0) if row["value"] else 0.0


def _shares(terms: Sequence[Row], resource: str) -> Chart:
    mine = [row for row in terms if row["resource"] == resource]
    data: list[Mapping[str, Json]] = []
    for place, name in enumerate(sorted({row["broker_class"] for row in mine})):
        own = [row for row in mine if row["broker_class"] == name]
        data.append(
            {
                "type": "bar",
                "name": shown(name or "(no class)"),
                "x": [_PER[row["rate"]][0] for row in own],
                "y": numbers([_typical(row) for row in own], 4),
                "error_y": {
                    "color": GREY,
                    "type": "data",
                    "symmetric": False,
                    "array": numbers([_typical_off(row, "high") for row in own], 4),
                    "arrayminus": numbers([-_typical_off(row, "low") for row in own], 4),
                },
                "marker": {"color": COLOURS[place % len(COLOURS)]},
            }
        )  # fmt: skip
    name, unit = named(resource), UNITS[resource]
    title = name[:1].upper() + name[1:]
    return Chart(
        title=f"{title}: what typical traffic costs",
        summary=f"What the mean traffic of each class of brokers costs of {name} ({unit}), by what "
        "it is for; the lines are 90 % intervals. A long line is a cost that is not well known.",
        data=data,
        layout=layout(barmode="group", yaxis={"title": {"text": unit}, "rangemode": "tozero"}),
    )


def _measured(hours: Sequence[Row]) -> Chart:
    data = []
    for place, name in enumerate(sorted({row["broker_class"] for row in hours})):
        own = [row for row in hours if row["broker_class"] == name]
        data.append(
            points(
                [row["used"] for row in own],
                [row["predicted"] for row in own],
                shown(name or "(no class)"),
                COLOURS[place % len(COLOURS)],
                text=[shown(row["broker"]) for row in own],
                hovertemplate="%{text}<br>measured %{x:.1f}, predicted %{y:.1f}<extra></extra>",
            )
        )
    top = max(max(row["used"], row["predicted"]) for row in hours)
    return Chart(
        title="CPU of brokers: predicted and measured",
        summary="Percent of one core, mean of an hour of a broker, by its traffic and its "
        "background. On the dotted line a prediction is right. These hours include those that "
        "the costs were learned from; the table above shows those held out.",
        data=data,
        layout=layout(
            xaxis={"title": {"text": "measured, % of one core"}, "rangemode": "tozero"},
            yaxis={"title": {"text": "predicted, % of one core"}, "rangemode": "tozero"},
            shapes=[diagonal(top)],
        ),
    )


def _quality(quality: Sequence[Row]) -> Html:
    columns = [
        Column(name="resource"),
        Column(name="class"),
        Column(name="error", unit="% of measured", explanation="Mean, in held-out minutes."),
        Column(name="traffic shares", unit="% of measured", explanation="The same of that rule."),
        Column(name="in interval", unit="% of minutes", explanation="90 is as it should be."),
        Column(name="minutes", explanation="Of brokers, in all."),
        Column(name="remark"),
    ]  # fmt: skip
    cells = [
        [
            Cell(named(row["resource"])),
            Cell(row["broker_class"] or "(no class)"),
            *(
                Cell(percent(row[name], 1), row[name])
                for name in ("mape", "baseline_mape", "coverage")
            ),
            Cell(f"{row['minutes']:,}", row["minutes"]),
            Cell(_remark(row)),
        ]
        for row in quality
    ]
    return table("How well the costs predicted what was held out", columns, cells)


def _remark(row: Row) -> str:
    if row["refused"]:
        return f"not learned: {row['refused']}"
    if row["drifted"]:
        return f"changed by {percent(row['drift'])} from the first half to the last"
    return ""


def _terms(terms: Sequence[Row]) -> Html:
    columns = [
        Column(name="resource"),
        Column(name="class"),
        Column(name="for each"),
        Column(name="costs"),
        Column(name="90 % interval"),
        Column(name="unit"),
        Column(name="how sure"),
    ]
    cells = []
    for row in terms:
        _, by, per = _PER[row["rate"]]
        low, value, high = (
            None if row[n] is None else row[n] * by for n in ("low", "value", "high")
        )
        partners = f" with {row['partners']}" if row["partners"] else ""
        cells.append(
            [
                Cell(named(row["resource"])),
                Cell(row["broker_class"] or "(no class)"),
                Cell(per),
                Cell(plain(value), value),
                Cell(f"{plain(low)} to {plain(high)}"),
                Cell(f"{UNITS[row['resource']]} per {per}"),
                Cell(f"{row['verdict']}{partners}"),
            ]
        )
    return table("What one unit of each rate uses", columns, cells)
