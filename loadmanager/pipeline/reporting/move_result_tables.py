"""The tables beside the charts of `move_results`."""

from collections.abc import Mapping, Sequence
from typing import Any

from loadmanager.charts import Cell, Column, Html, table
from loadmanager.pipeline.cost_model.results import UNITS
from loadmanager.pipeline.reporting.formats import UNKNOWN, moment, named, percent, plain, span
from loadmanager.pipeline.reporting.sources import Row


def summary_table(summary: Sequence[Row]) -> Html:
    columns = [
        Column(name="cause"),
        Column(name="strategy", explanation="Shedder and placement."),
        Column(name="moves"),
        Column(name="judged"),
        Column(name="helped", unit="% of judged"),
        Column(name="hurt", unit="% of judged"),
        Column(name="gain", unit="points of load", explanation="They came closer."),
        Column(name="returns", unit="moves", explanation="Brought a bundle back."),
        Column(name="pause", unit="median, s"),
        Column(name="pause p95", unit="s"),
        Column(name="messages delayed"),
        Column(name="connections", unit="that had to reconnect"),
    ]  # fmt: skip
    cells = []
    for row in summary:
        judged = row["judged"]
        hurt = row["hurt"] / judged if judged else None
        gain = row["gain_mean"]
        cells.append(
            [
                Cell(row["cause"]),
                Cell(row["shedder"], note=row["placement"]),
                *(Cell(f"{row[name]:,}", row[name]) for name in ("moves", "judged")),
                Cell(percent(row["helped_fraction"]), row["helped_fraction"]),
                Cell(percent(hurt), hurt),
                Cell(UNKNOWN if gain is None else f"{100 * gain:+.2f}", gain),
                Cell(f"{row['returns']:,}", row["returns"]),
                *(Cell(plain(row[name]), row[name]) for name in ("pause_p50_s", "pause_p95_s")),
                Cell(f"{row['messages_delayed']:,.0f}", row["messages_delayed"]),
                Cell(f"{row['connections']:,}", row["connections"]),
            ]
        )
    return table("What moves came to, by cause and strategy", columns, cells)


def worst_table(worst: Sequence[Row]) -> Html:
    columns = [
        Column(name="bundle"),
        Column(name="when"),
        Column(name="from"),
        Column(name="to"),
        Column(name="cause"),
        Column(name="difference expected", unit="% of capacity"),
        Column(name="difference found", unit="% of capacity"),
    ]
    cells = [
        [
            Cell(row["bundle"]),
            Cell(moment(row["at_ms"]), row["at_ms"]),
            Cell(row["source"]),
            Cell(row["target"]),
            Cell(row["cause"]),
            *(
                Cell(percent(row[name], 1), row[name])
                for name in ("spread_expected", "spread_after")
            ),
        ]
        for row in worst
    ]
    return table("Moves that made source and target less even", columns, cells)


def returned_table(returned: Sequence[Row], facts: Mapping[str, Any]) -> Html:
    columns = [
        Column(name="bundle"),
        Column(name="came back", unit="times"),
        Column(name="for balance", unit="times", explanation="Not for drains and the like."),
        Column(name="moves"),
        Column(name="brokers"),
        Column(name="away", unit="median, s"),
        Column(name="pause", unit="s in all"),
        Column(name="messages delayed"),
        Column(name="usual cause"),
    ]
    cells = [
        [
            Cell(row["bundle"]),
            *(Cell(f"{row[name]:,}", row[name])
              for name in ("returns", "returns_for_balance", "moves", "brokers")),
            *(Cell(plain(row[name]), row[name]) for name in ("median_back_s", "pause_s")),
            Cell(f"{row['messages_delayed']:,.0f}", row["messages_delayed"]),
            Cell(row["usual_cause"]),
        ]
        for row in returned
    ]  # fmt: skip
    within = span(facts.get("back_within_s"))
    return table(f"Bundles that came back to a broker within {within}", columns, cells)


def errors_table(predictions: Sequence[Row]) -> Html:
    columns = [
        Column(name="resource"),
        Column(name="model"),
        Column(name="changes", explanation="Targets and times that could be compared."),
        Column(name="added", unit="mean"),
        Column(name="error", unit="mean"),
        Column(name="bias", unit="mean", explanation="Above 0: too much was predicted."),
        Column(name="error", unit="% of what was added"),
    ]
    cells = [
        [
            Cell(named(row["resource"]), note=UNITS[row["resource"]]),
            Cell(row["model"].replace("_", " ")),
            Cell(f"{row['changes']:,}", row["changes"]),
            *(Cell(plain(row[n]), row[n]) for n in ("realised_mean", "error_mean", "bias_mean")),
            Cell(percent(row["error_fraction"], 1), row["error_fraction"]),
        ]
        for row in predictions
    ]
    return table("What moves were to add to their targets, against what they did", columns, cells)


def reasons_table(reasons: Sequence[Row]) -> Html:
    columns = [Column(name="reason"), Column(name="moves")]
    cells = [[Cell(row["reason"]), Cell(f"{row['count']:,}", row["count"])] for row in reasons]
    return table("Moves without a verdict", columns, cells)
