"""What replays say of other strategies, and what of the history was read at all."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.charts import Best, Chart, Html, shown, tag
from loadmanager.pipeline.replay.combinations import default_pair
from loadmanager.pipeline.replay.judging import Advice, Level, Verdict
from loadmanager.pipeline.reporting.formats import (
    COLOURS,
    GREY,
    axis,
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
from loadmanager.pipeline.reporting.parts import Finding, Section, Show, Shown, Weight, facts, grid
from loadmanager.pipeline.reporting.sources import Row, Tables, bounds_ms, one_row, rows, sound

BEST: Final = 5
_DRAWN: Final = 40
_WEIGHTS: Final = {
    Verdict.TRY: Weight.ACT,
    Verdict.STAY: Weight.FINE,
    Verdict.NONE: Weight.LACKING,
}


def _read_replayed(tables: Tables) -> Row | None:
    """Return combinations by rank with their trust, and the advice of the replay.

    None if the replay was made by a version without advice. ``bound`` is the mean lower bound of
    the largest load; None if no leader recorded it.
    """
    advice = (tables.store.facts("replay") or {}).get("advice")
    if advice is None:
        return None
    scores = tables.table("replay_scores")
    is_default = F.concat_ws("+", "shedder", "placement") == "+".join(default_pair())
    wanted = (F.col("rank") <= _DRAWN) | (F.col("shedder") == "") | is_default
    first = rows(scores.where(wanted).orderBy("rank"))
    named = [row["combination"] for row in first]
    trust = rows(tables.table("replay_trust").where(F.col("combination").isin(named)))
    return {
        "scores": first,
        "trust": {row["combination"]: row for row in trust},
        "count": scores.count(),
        "advice": Advice.of(advice),
        "bound": one_row(tables.table("optimality").agg(F.avg("bound").alias("bound")))["bound"],
    }


def _show_replayed(found: Row) -> Shown:
    advice = found["advice"]
    behind = [
        tag(kind, text)
        for what, why in advice.behind.items()
        for kind, text in (("dt", what), ("dd", why))
    ]
    body = [tag("dl", *behind)] if behind else []
    if found["scores"]:
        body += [_chart(found["scores"]).html(), _table(found)]
    evidence = next(iter(found["trust"].values()), None)
    if evidence is not None:
        body.append(tag("p", _evidence(evidence)))
    weight = _WEIGHTS[advice.verdict]
    if weight is Weight.ACT and advice.sure is Level.LOW:
        weight = Weight.LOOK
    return body, [Finding(weight, advice.text)]


def _evidence(row: Row) -> str:
    text = f"{many(row['rounds'], 'round')} in the history, {row['refused']:,} of them refused"
    if row["bases"]:
        text += (
            f"; {row['reproduced']:,} of {row['bases']:,} base rounds were decided again exactly "
            "as recorded"
        )
    if row["cpu_changed_error"] is not None:
        off = percent(row["cpu_changed_error"], 1)
        text += f"; CPU of brokers whose bundles changed was predicted within {off} of capacity"
    return f"{text}."


def _chart(scores: Sequence[Row]) -> Chart:
    kinds = (
        ("other strategies", COLOURS[0], "circle", [row for row in scores if row["shedder"]]),
        ("in force", COLOURS[1], "star", [row for row in scores if not row["shedder"]]),
    )
    data = [
        points(
            [row["moved_per_hour"] for row in mine],
            [row["max_over_mean"] for row in mine],
            name,
            colour,
            text=[shown(row["name"]) for row in mine],
            marker={
                "color": colour,
                "symbol": symbol,
                "size": 14 if symbol == "star" else 9,
                "line": {"width": 1, "color": GREY},
            },
            hovertemplate="%{text}<br>max/mean %{y:.3f}, moved %{x:.3f} of the traffic each hour"
            "<extra></extra>",
        )
        for name, colour, symbol, mine in kinds
        if mine
    ]
    return Chart(
        title="Balance and what it costs",
        summary="How uneven brokers would have been (largest load over the mean, over time) "
        "against how much of the cluster's traffic would have moved each hour. Down and to the "
        "left is better. What was in force is drawn from the recorded owners and spread anew.",
        data=data,
        layout=layout(
            xaxis=axis("moved, multiple of the traffic an hour", zero=True), yaxis=axis("max/mean")
        ),
    )


def _table(found: Row) -> Html:
    tried = [row for row in found["scores"] if row["shedder"]]
    default = [row for row in tried if (row["shedder"], row["placement"]) == default_pair()]
    kept = {row["combination"] for row in (*tried[:BEST], *default[:1])}
    listed = [r for r in found["scores"] if not r["shedder"] or r["combination"] in kept]
    if found["bound"] is not None:
        bound = {"name": "bound", "max_over_mean": 1, "max_over_mean_p95": 1}
        listed.append({**bound, "largest": found["bound"]})

    def score(name: str, what: str, form: Callable[[Any], str], unit: str = "") -> Show:
        return Show(what, lambda row: row.get(name), form, unit, best=Best.LEAST)

    def hourly(name: str, what: str) -> Show:
        def of(row: Row) -> float | None:
            return row[name] / row["covered_s"] * 3600 if name in row else None

        return Show(what, of, partial(plain, digits=2), "an hour", best=Best.LEAST)

    def trust(row: Row) -> Row:
        return dict(found["trust"].get(row.get("combination"), {}))

    return grid(
        f"The best {BEST} of {many(found['count'], 'row')}, the default, and what was in force",
        listed,
        Show("strategies and settings", "name",
             more=lambda row: {"tone": "" if row.get("shedder") else "known"}),
        score("penalty", "penalty", plain, "the order is by it"),
        score("max_over_mean", "max/mean", plain),
        score("max_over_mean_p95", "p95", plain, "of max/mean"),
        score("largest", "largest load", percent_1, "mean"),
        score("overload_fraction", "overload", percent_1, "% of time"),
        hourly("moves", "moves"),
        hourly("returned", "back"),
        hourly("moved_connections", "reconnects"),
        Show("trust", lambda row: trust(row).get("level", ""),
             more=lambda row: {"hover": trust(row).get("because") or ""}),
    )  # fmt: skip


REPLAYED: Final = Section(
    "What other strategies would have done", "replay", _read_replayed, _show_replayed
)


_LISTED: Final = 20
_MANY: Final = 0.001


def _read_intake(tables: Tables) -> Row:
    """Return totals of all batches, reasons of quarantined lines, and records writers dropped."""
    batches = tables.store.batches()
    names = ("read", "kept", "quarantined", "duplicate")
    # A reason may contain values of the line; the words before them identify it.
    about = F.regexp_extract("reason", r"^[^:;,0-9]*", 0)
    grouped = (
        tables.store.table("quarantine")
        .groupBy(about.alias("about"))
        .agg(
            F.count("*").alias("lines"),
            F.min("reason").alias("reason"),
            F.min("file").alias("file"),
        )
        .orderBy(F.desc("lines"), "about")
    )
    lost = [
        {"stream": stream, **row}
        for stream in ("reports", "rounds")
        for row in rows(
            tables.table(f"lost_{stream}")
            .groupBy("why")
            .agg(F.sum("records").alias("records"), F.countDistinct("writer").alias("writers"))
            .orderBy("why")
        )
    ]
    load = tables.table("broker_load")
    return {
        "batches": len(batches),
        "totals": {n: sum(one.manifest["lines"].get(n, 0) for one in batches) for n in names},
        "reasons": rows(grouped.limit(_LISTED)),
        "lost": lost,
        "bounds_ms": bounds_ms(sound(load), "at"),
        "brokers": one_row(load.agg(F.countDistinct("broker").alias("brokers")))["brokers"],
    }


def _show_intake(found: Row) -> Shown:
    totals, reasons, lost = found["totals"], found["reasons"], found["lost"]
    lines = [
        ("lines read", whole(totals["read"])),
        ("of them kept", whole(totals["kept"])),
        ("quarantined", whole(totals["quarantined"])),
        ("duplicate", whole(totals["duplicate"])),
        ("batches", whole(found["batches"])),
        ("brokers that reported", whole(found["brokers"])),
    ]
    if found["bounds_ms"] is not None:
        first_ms, last_ms = found["bounds_ms"]
        lines += [
            ("first report", moment(first_ms)),
            ("last report", moment(last_ms)),
            ("time between", span((last_ms - first_ms) / 1000)),
        ]
    body, findings = [facts("Totals", "of all history", lines)], []
    if reasons:
        body.append(
            grid(
                "What was quarantined",
                reasons,
                Show("reason, an example", lambda row: row["reason"] or ""),
                Show("lines", "lines", whole),
                Show("a file with it", lambda row: row["file"] or ""),
            )
        )
    if lost:
        body.append(
            grid(
                "What sidecars had to give up",
                lost,
                Show("stream", "stream"),
                Show("why", "why"),
                Show("records", "records", whole),
                Show("sidecars", "writers", whole),
            )
        )
    bad = totals["quarantined"]
    if bad > _MANY * totals["read"]:
        share = percent(bad / totals["read"], 2)
        words = f"{many(bad, 'line')} of {totals['read']:,} ({share}) could not be used"
        example = f": {reasons[0]['reason']}" if reasons else ""
        findings.append(Finding(Weight.LOOK, f"{words}{example}."))
    given_up = sum(row["records"] for row in lost)
    if given_up:
        words = f"Sidecars had to give up {many(given_up, 'record')}: {lost[0]['why']}."
        findings.append(Finding(Weight.LOOK, words))
    return body, findings


INTAKE: Final = Section("What was read", "ingest", _read_intake, _show_intake)
