"""What moves achieved, and what they cost clients."""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.charts import Chart, shown
from loadmanager.pipeline.reporting.formats import (
    COLOURS,
    UNKNOWN,
    VERDICTS,
    axis,
    bars,
    diagonal,
    layout,
    many,
    moment,
    percent,
    percent_1,
    plain,
    points,
    span,
    whole,
)
from loadmanager.pipeline.reporting.parts import (
    Finding,
    Section,
    Show,
    Shown,
    Weight,
    figures,
    grid,
)
from loadmanager.pipeline.reporting.sources import Row, Tables, rows

SAMPLE: Final = 1200
"""The number of moves in charts; tables include all."""

_LISTED: Final = 20
_GOOD, _POOR = 0.7, 0.5
_THRASHING: Final = 0.1


def _read(tables: Tables) -> Row | None:
    """Return the tables of moves; ``sample`` are some of the moves.

    ``pauses`` are numbers of pauses between powers of the square root of two, in seconds.
    """
    summary = rows(tables.table("move_summary").orderBy(F.desc("moves")))
    if not summary:
        return None
    effects = tables.table("move_effects")
    # Sampled by a hash of bundle and time, so that repeated reports show the same moves.
    drawn = effects.orderBy(F.xxhash64("bundle", "at")).limit(SAMPLE)
    columns = ("bundle", "source", "target", "cause", "verdict", "spread_expected", "spread_after")
    worst = effects.where("verdict = 'hurt'").orderBy("gain").limit(_LISTED)
    step = F.floor(F.log2("pause_s") * 2).alias("step")
    unknown = effects.where("verdict = 'unknown'").groupBy("reason").count()
    ping_pong = tables.table("ping_pong")
    return {
        "facts": tables.facts,
        "summary": summary,
        "sample": rows(drawn.where("verdict <> 'unknown'").select(*columns)),
        "worst": rows(worst.select(*columns, F.unix_millis("at").alias("at_ms"))),
        "returned": rows(ping_pong.where(F.col("rank") <= _LISTED).orderBy("rank")),
        "bouncing": ping_pong.count(),
        "reasons": rows(unknown.orderBy(F.desc("count")).limit(_LISTED)),
        "pauses": rows(effects.where("pause_s > 0").groupBy(step).count().orderBy("step")),
    }


def _show(found: Row) -> Shown:
    summary = found["summary"]
    body = [
        _verdicts(summary).html(),
        grid(
            "What moves came to, by cause and strategy",
            summary,
            Show("cause", "cause"),
            Show("strategy", "shedder", why="Shedder and placement.",
                 more=lambda row: {"note": row["placement"]}),
            Show("moves", "moves", whole),
            Show("judged", "judged", whole),
            Show("helped", "helped_fraction", percent, "% of judged"),
            Show("hurt", lambda row: row["hurt"] / row["judged"] if row["judged"] else None,
                 percent, "% of judged"),
            Show("gain", "gain_mean", _points, "points of load", "They came closer."),
            Show("returns", "returns", whole, "moves", "Brought a bundle back."),
            Show("pause", "pause_p50_s", plain, "median, s"),
            Show("pause p95", "pause_p95_s", plain, "s"),
            Show("messages delayed", "messages_delayed", whole),
            Show("connections", "connections", whole, "that had to reconnect"),
        ),
    ]  # fmt: skip
    if found["sample"]:
        worst = grid(
            "Moves that made source and target less even",
            found["worst"],
            Show("bundle", "bundle"),
            Show("when", "at_ms", moment),
            Show("from", "source"),
            Show("to", "target"),
            Show("cause", "cause"),
            Show("difference expected", "spread_expected", percent_1, "% of capacity"),
            Show("difference found", "spread_after", percent_1, "% of capacity"),
        )
        body += [_spreads(found).html(), figures("Moves that hurt most", worst)]
    if found["pauses"]:
        body.append(_pause_chart(found["pauses"]).html())
    within = span(found["facts"].get("back_within_s"))
    if found["returned"]:
        text = f"Bundles that went back, the first of {many(found['bouncing'], 'bundle')}"
        returned = grid(
            f"Bundles that came back to a broker within {within}",
            found["returned"],
            Show("bundle", "bundle"),
            Show("came back", "returns", whole, "times"),
            Show("for balance", "returns_for_balance", whole, "times",
                 "Not for drains and the like."),
            Show("moves", "moves", whole),
            Show("brokers", "brokers", whole),
            Show("away", "median_back_s", plain, "median, s"),
            Show("pause", "pause_s", plain, "s in all"),
            Show("messages delayed", "messages_delayed", whole),
            Show("usual cause", "usual_cause"),
        )  # fmt: skip
        body.append(figures(text, returned))
    if found["reasons"]:
        columns = Show("reason", "reason"), Show("moves", "count", whole)
        why = grid("Moves without a verdict", found["reasons"], *columns)
        body.append(figures("Why moves could not be judged", why))
    return body, _findings(found, within)


def _points(gain: float | None) -> str:
    return UNKNOWN if gain is None else f"{100 * gain:+.2f}"


def _findings(found: Row, within: str) -> list[Finding]:
    def total(name: str) -> float:
        return float(sum(row[name] or 0 for row in found["summary"]))

    moves, judged, returns = (round(total(name)) for name in ("moves", "judged", "returns"))
    paid = (
        f"clients waited {span(total('pause_s'))} in all (about "
        f"{plain(total('messages_delayed'))} messages)"
    )
    words = f"{many(moves, 'move')}, none of which could be judged; {paid}."
    findings = [Finding(Weight.LACKING, words)]
    if judged:
        share = total("helped") / judged
        weight = Weight.FINE if share >= _GOOD else Weight.LOOK if share >= _POOR else Weight.ACT
        words = (
            f"Of {many(judged, 'move')} that could be judged, {percent(share)} made source and "
            f"target more even and {percent(total('hurt') / judged)} less; {paid}."
        )
        if weight is Weight.ACT:
            words += " Raise the shedder's threshold, or choose another strategy."
        findings = [Finding(weight, words)]
    if returns > _THRASHING * moves:
        first = found["returned"][0]["bundle"] if found["returned"] else "?"
        words = (
            f"{percent(returns / moves)} of all moves brought a bundle back within {within}: "
            f"the strategy thrashes, worst with {first}. Try others by the job replay."
        )
        findings.append(Finding(Weight.ACT, words))
    return findings


def _verdicts(summary: Sequence[Row]) -> Chart:
    names = [f"{row['cause']}<br>{shown(row['shedder'])}" for row in summary]
    counts = {
        name: [row[name.replace(" ", "_")] for row in summary]
        for name in ("helped", "no difference", "hurt")
    }
    counts["unknown"] = [row["moves"] - row["judged"] for row in summary]
    return Chart(
        title="Did moves help?",
        summary="Moves by cause and strategy. A move helped if source and target were closer "
        "after it than they would have been had both only done what untouched brokers did.",
        data=[bars(names, values, name, VERDICTS[name]) for name, values in counts.items()],
        layout=layout(barmode="stack", yaxis=axis("moves"), xaxis={"type": "category"}),
        height_px=360,
    )


def _spreads(found: Row) -> Chart:
    sample = found["sample"]
    data = []
    for verdict in ("helped", "no difference", "hurt"):
        mine = [row for row in sample if row["verdict"] == verdict]
        if mine:
            data.append(
                points(
                    [row["spread_expected"] for row in mine],
                    [row["spread_after"] for row in mine],
                    verdict,
                    VERDICTS[verdict],
                    text=[_path(row) for row in mine],
                    hovertemplate="%{text}<br>expected %{x:.1%}, found %{y:.1%}<extra></extra>",
                )
            )
    window = span(found["facts"].get("window_s"))
    top = max(max(row["spread_expected"], row["spread_after"]) for row in sample)
    return Chart(
        title="Difference between source and target",
        summary=f"In load, % of capacity, mean of {window} before and after. Below the dotted line "
        f"a move made it smaller than was to be expected. {many(len(sample), 'move')} drawn.",
        data=data,
        layout=layout(
            xaxis=axis("expected without the move", ".0%", zero=True),
            yaxis=axis("found after it", ".0%", zero=True),
            shapes=[diagonal(top)],
        ),
    )


def _path(row: Row) -> str:
    return shown(f"{row['bundle']}: {row['source']} to {row['target']} ({row['cause']})")


def _pause_chart(pauses: Sequence[Row]) -> Chart:
    names = [span(2 ** (row["step"] / 2)) for row in pauses]
    return Chart(
        title="For how long clients waited",
        summary="Moves by the time in which no broker served the bundle; each bar holds those from "
        "its time to the next bar's.",
        data=[bars(names, [row["count"] for row in pauses], "moves", COLOURS[0])],
        layout=layout(xaxis=axis("pause from", type="category"), yaxis=axis("moves")),
        height_px=300,
    )


MOVES: Final = Section("Moves and their effect", "moves", _read, _show)
