"""Namespaces with too few bundles: their traffic cannot be spread over the brokers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import Final

from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.charts import Cell, Chart, Column, Html, Json, numbers, shown, table
from loadmanager.pipeline.reporting.bundle_sizes import Sizes
from loadmanager.pipeline.reporting.formats import COLOURS, layout, many, percent
from loadmanager.pipeline.reporting.parts import Finding, Part, Weight, figures
from loadmanager.pipeline.reporting.sources import Row, rows

TITLE: Final = "Namespaces with too few bundles"
LISTED: Final = 50

BUNDLES_PER_BROKER: Final = 2
"""Bundles per broker that a namespace with the whole traffic should have."""

FAIR: Final = 0.5
"""The largest share of a broker's mean traffic that a bundle should have."""

_MATTERS: Final = 0.1
"""Namespaces with less than this share of a broker's traffic are not judged."""

_FINE: Final = 10
_MOST_BUNDLES: Final = 128


@dataclass(frozen=True, kw_only=True)
class Namespaces:
    """Namespaces by their traffic; ``poor`` have too few bundles, with ``why`` and ``wanted``."""

    brokers: int
    largest: Sequence[Row]
    poor: Sequence[Row]
    count: int


def read(found: Sizes) -> Namespaces:
    every = found.bundles.groupBy("namespace").agg(
        F.count("*").alias("bundles"),
        F.sum("share").alias("share"),
        F.max("share").alias("largest_share"),
        F.max_by("bundle", "share").alias("largest_bundle"),
        F.countDistinct("broker").alias("brokers"),
    )
    matter = every.where(F.col("share") * found.brokers >= _MATTERS)
    largest = rows(matter.orderBy(F.desc("share"), "namespace").limit(LISTED * 20))
    poor = [row for row in (judged(one, found.brokers) for one in largest) if row["why"]]
    return Namespaces(
        brokers=found.brokers, largest=largest[:LISTED], poor=poor, count=every.count()
    )


def judged(row: Row, brokers: int) -> Row:
    """Return the row with ``why`` there are too few bundles (empty if not), and ``wanted``."""
    of_broker = row["largest_share"] * brokers
    reach = min(brokers, max(1, ceil(row["share"] * brokers)))
    least = BUNDLES_PER_BROKER * reach
    why = ""
    if brokers > 1 and row["bundles"] < least:
        why = f"{many(row['bundles'], 'bundle')} for traffic of {many(reach, 'broker')}"
    elif brokers > 1 and of_broker > FAIR:
        why = f"its largest bundle is {percent(of_broker)} of a broker's mean traffic"
    return {**row, "of_broker": of_broker, "why": why, "wanted": wanted(row, brokers)}


def wanted(row: Row, brokers: int) -> int:
    """Return a sufficient number of bundles: a power of two, each a tenth of a broker or less."""
    least = max(BUNDLES_PER_BROKER, row["bundles"], ceil(row["share"] * brokers * _FINE))
    return int(min(max(2 ** ceil(log2(least)), row["bundles"]), max(_MOST_BUNDLES, row["bundles"])))


def show(found: Namespaces) -> Part:
    body = [_chart(found).html()] if found.largest else []
    if found.poor:
        body.append(_table("Namespaces with too few bundles", found.poor[:LISTED]))
    lines = [judged(row, found.brokers) for row in found.largest]
    body.append(figures("All large namespaces in figures", _table("Largest namespaces", lines)))
    return Part(title=TITLE, body=body, findings=[_finding(found)])


def _finding(found: Namespaces) -> Finding:
    if not found.poor:
        return Finding(Weight.FINE, f"All of {many(found.count, 'namespace')} have enough bundles.")
    first = found.poor[0]
    more = "" if len(found.poor) == 1 else f", and {len(found.poor) - 1} more namespaces too"
    text = (
        f"{first['namespace']} has too few bundles ({first['why']}): split it up to "
        f"{first['wanted']}{more}."
    )
    return Finding(Weight.ACT, text)


def _chart(found: Namespaces) -> Chart:
    poor = {row["namespace"] for row in found.poor}
    data: list[Mapping[str, Json]] = []
    for name, colour, mine in (
        ("enough bundles", COLOURS[0], [r for r in found.largest if r["namespace"] not in poor]),
        ("too few", COLOURS[1], [r for r in found.largest if r["namespace"] in poor]),
    ):
        if mine:
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": name,
                    "x": [row["bundles"] for row in mine],
                    "y": numbers([row["share"] * found.brokers for row in mine], 4),
                    "text": [shown(row["namespace"]) for row in mine],
                    "marker": {"color": colour, "size": 11, "opacity": 0.8},
                    "hovertemplate": "%{text}<br>%{x} bundles, traffic of %{y:.2f} brokers"
                    "<extra></extra>",
                }
            )
    return Chart(
        title="Bundles and traffic of namespaces",
        summary="How many bundles a namespace has, and how many of the "
        f"{found.brokers} brokers its traffic would fill at the mean. Up and to the left, there "
        "are too few bundles to spread "
        "the traffic evenly.",
        data=data,
        layout=layout(
            xaxis={"title": {"text": "bundles"}, "rangemode": "tozero"},
            yaxis={"title": {"text": "traffic, brokers' worth"}, "rangemode": "tozero"},
        ),
    )


def _table(caption: str, lines: Sequence[Row]) -> Html:
    columns = [
        Column(name="namespace"),
        Column(name="bundles"),
        Column(name="of the traffic", unit="%"),
        Column(name="largest bundle", unit="% of a broker's mean"),
        Column(name="would do", unit="bundles"),
        Column(name="why"),
    ]
    cells = [
        [
            Cell(row["namespace"]),
            Cell(f"{row['bundles']:,}", row["bundles"]),
            Cell(percent(row["share"], 1), row["share"]),
            Cell(percent(row["of_broker"]), row["of_broker"], hover=row["largest_bundle"]),
            Cell(f"{row['wanted']:,}", row["wanted"]),
            Cell(row["why"]),
        ]
        for row in lines
    ]
    return table(caption, columns, cells)
