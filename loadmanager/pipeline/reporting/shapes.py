"""Bundles to split or merge, and namespaces with too few: by their sizes in the last hour."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from math import ceil, log2
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.charts import Chart, Html, shown, tag
from loadmanager.core.errors import InvalidName
from loadmanager.core.history import schema as history
from loadmanager.core.ids import BundleId, parse_bundle, range_of
from loadmanager.core.load import BundleStats
from loadmanager.core.rates import Rates
from loadmanager.core.splitting.cutting import can_split
from loadmanager.core.splitting.finder import SplitRules, excess_of
from loadmanager.core.splitting.merging import Merge, cut_again
from loadmanager.pipeline.reporting.formats import (
    COLOURS,
    axis,
    layout,
    many,
    messages,
    percent,
    percent_1,
    points,
    volume,
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
    of_first,
)
from loadmanager.pipeline.reporting.sources import Row, Tables, one_row, rows, sound
from loadmanager.pipeline.rollup.minutes import covered_s

LATELY_H: Final = 1
"""Sizes are those of reports of this many last hours."""

LISTED: Final = 50
_CANDIDATES: Final = 200
"""The number of the largest bundles by each limit that are examined."""

_SMALLEST: Final = 20_000
_NAMESPACES: Final = 10_000
TRAFFIC: Final = tuple(one.name for one in history.TRAFFIC)
_COUNTS: Final = ("topics", "producers", "consumers")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of bundles as means of the last hour.

    ``bundles`` has ``bundle, namespace, broker, msgs_in_per_s ... , topics, producers,
    consumers``, ``sessions, msgs_per_s, bytes_per_s`` and ``share`` (of the cluster's traffic, the
    larger of messages and bytes).
    """

    bundles: DataFrame
    brokers: int
    count: int


@lru_cache(maxsize=1)
def sizes(tables: Tables) -> Sizes | None:
    """Return the sizes of bundles that were reported in the last hours; None without any.

    If two brokers report a bundle, the last report counts. Both sections share them.
    """
    lately = _lately(tables)
    if lately is None:
        return None
    latest = F.max_by(F.struct("broker", *_COUNTS), "reported_at_ms").alias("latest")
    seconds = covered_s()
    means = [
        F.coalesce(F.try_divide(F.sum(F.col(name) * seconds), F.sum(seconds)), F.lit(0.0)).alias(
            name
        )
        for name in TRAFFIC
    ]
    every = lately.groupBy("bundle", "namespace").agg(latest, *means)
    both = [
        (F.col(f"{what}_in_per_s") + F.col(f"{what}_out_per_s")).alias(f"{what}_per_s")
        for what in ("msgs", "bytes")
    ]
    found = every.select("bundle", "namespace", "latest.*", *TRAFFIC, *both).persist()
    totals = (F.sum(f"{what}_per_s").alias(what) for what in ("msgs", "bytes"))
    counts = (F.count("*").alias("count"), F.countDistinct("broker").alias("brokers"))
    all_of = one_row(found.agg(*totals, *counts))
    if not all_of["count"]:
        return None
    parts = (
        F.coalesce(F.try_divide(F.col(f"{what}_per_s"), F.lit(all_of[what])), F.lit(0.0))
        for what in ("msgs", "bytes")
    )
    sized = found.withColumns(
        {"share": F.greatest(*parts), "sessions": F.col("producers") + F.col("consumers")}
    )
    return Sizes(bundles=sized, brokers=all_of["brokers"], count=all_of["count"])


def _lately(tables: Tables) -> DataFrame | None:
    """Return the rows of bundles of the last hours of history; None without any.

    The end is determined by the second newest broker: a single clock that is ahead would exclude
    all other brokers.
    """
    load = sound(tables.table("broker_load"))
    newest = load.groupBy("broker").agg(F.max("at").alias("at"), F.max("date").alias("date"))
    lasts = rows(newest.orderBy(F.desc("at")).limit(2))
    if not lasts:
        return None
    since = F.lit(lasts[-1]["at"]) - F.expr(f"INTERVAL {LATELY_H} HOURS")
    of_days = F.col("date").between(
        F.date_sub(F.lit(lasts[-1]["date"]), 1), F.lit(lasts[0]["date"])
    )
    return tables.table("bundle_load").where((F.col("at") > since) & of_days)


TOO_LARGE: Final = 0.5
"""A bundle with more than half of the mean traffic of a broker cannot be balanced."""

TOO_SMALL: Final = 0.02
"""Neighbours are merged if each is below this fraction of all limits."""

_FEWEST_TOPICS: Final = 2


def _read_cuts(found: Sizes) -> Row:
    """Return bundles to split with reasons, and bundles to merge."""
    rules = SplitRules()
    by: dict[str, Row] = {}
    for name in ("topics", "sessions", "msgs_per_s", "bytes_per_s", "share"):
        # Each that could exceed a limit is among the largest by it.
        for row in rows(found.bundles.orderBy(F.desc(name), "bundle").limit(_CANDIDATES)):
            by[row["bundle"]] = row
    counted = found.bundles.groupBy("namespace").agg(F.count("*").alias("bundles"))
    of_namespaces = rows(counted.orderBy(F.desc("bundles")).limit(_NAMESPACES))
    counts = {row["namespace"]: row["bundles"] for row in of_namespaces}
    return {
        "rules": rules,
        "bundles": found.count,
        "brokers": found.brokers,
        "splits": to_split(by.values(), found.brokers, rules),
        "merges": to_merge(_small(found, rules), found.brokers, rules, counts),
    }


def _small(found: Sizes, rules: SplitRules) -> list[Row]:
    """Return the smallest bundles: far below each limit, and below a broker's share."""
    few = F.col("share") < TOO_SMALL / max(found.brokers, 1)
    within = (
        few
        & (F.col("topics") < TOO_SMALL * rules.max_topics)
        & (F.lit(rules.max_sessions <= 0) | (F.col("sessions") < TOO_SMALL * rules.max_sessions))
        & (F.col("msgs_per_s") < TOO_SMALL * rules.max_msgs_per_s)
        & (F.col("bytes_per_s") < TOO_SMALL * rules.max_bytes_per_s)
    )
    return rows(found.bundles.where(within).orderBy("share", "bundle").limit(_SMALLEST))


def to_split(large: Iterable[Row], brokers: int, rules: SplitRules) -> list[Row]:
    """Return the rows of bundles to split, with ``why`` and ``hint``, largest first."""
    found = []
    for row in large:
        why = excess_of(rules, _stats_of(row), Rates(*(row[name] for name in TRAFFIC)))
        of_broker = row["share"] * brokers
        if not why and brokers > 1 and of_broker > TOO_LARGE:
            why = f"{percent(of_broker)} of a broker's mean traffic"
        if why:
            found.append({**row, "why": why, "hint": _hint(row), "of_broker": of_broker})
    return sorted(found, key=lambda row: (-row["share"], row["bundle"]))


def _stats_of(row: Row) -> BundleStats:
    return BundleStats(**{name: row[name] for name in (*TRAFFIC, *_COUNTS)})


def _hint(row: Row) -> str:
    if row["topics"] < _FEWEST_TOPICS:
        return f"has {many(row['topics'], 'topic')}: partition the topic instead"
    if not (_is_bundle(row["bundle"]) and can_split(BundleId(row["bundle"]))):
        return "is a single position: it cannot be cut"
    return "can be cut"


def _is_bundle(name: str) -> bool:
    """Return whether a name is a valid name of a bundle; history accepts any text."""
    try:
        parse_bundle(name)
    except InvalidName:
        return False
    return True


def to_merge(
    small: Iterable[Row], brokers: int, rules: SplitRules, counts: Mapping[str, int]
) -> list[Row]:
    """Return pairs of small neighbours whose union would not be split again at once.

    Namespaces with no more bundles than brokers keep them. Each bundle is in at most one pair.
    """
    by_namespace: dict[str, list[Row]] = {}
    for row in small:
        if _is_bundle(row["bundle"]):
            by_namespace.setdefault(row["namespace"], []).append(row)
    found: list[Row] = []
    for namespace, mine in sorted(by_namespace.items()):
        spare = max(counts.get(namespace, 0) - brokers, 0)
        found += _pairs(mine, rules)[:spare]
    return sorted(found, key=lambda row: (row["share"], row["lower"]))


def _pairs(mine: Sequence[Row], rules: SplitRules) -> list[Row]:
    in_order = sorted(mine, key=lambda row: range_of(BundleId(row["bundle"])))
    found: list[Row] = []
    for lower, upper in pairwise(in_order):
        low, high = BundleId(lower["bundle"]), BundleId(upper["bundle"])
        adjacent = range_of(low)[1] == range_of(high)[0]
        taken = found and found[-1]["upper"] == low
        if taken or not adjacent or cut_again(rules, _stats_of(lower), _stats_of(upper)):
            continue
        found.append(
            {
                "lower": low,
                "upper": high,
                "whole": Merge(low, high).whole,
                "share": lower["share"] + upper["share"],
                "topics": lower["topics"] + upper["topics"],
                "same_broker": lower["broker"] == upper["broker"],
            }
        )
    return found


def _show_cuts(found: Row) -> Shown:
    rules, splits, merges = found["rules"], found["splits"], found["merges"]
    sessions = "" if rules.max_sessions <= 0 else f"{rules.max_sessions:,} sessions, "
    text = (
        f"Limits of the default configuration: {rules.max_topics:,} topics, {sessions}"
        f"{rules.max_msgs_per_s:,} messages/s, {rules.max_mib_per_s:,} MiB/s in a bundle. Besides, "
        f"a bundle with more than {percent(TOO_LARGE)} of what a broker has on the mean. "
        f"Sizes are means of the last hour of history; {many(found['bundles'], 'bundle')} on "
        f"{many(found['brokers'], 'broker')}."
    )
    pairs = f"{many(len(merges), 'pair')} of small neighbours could be merged"
    finding = Finding(Weight.FINE, f"No bundle needs to be split; {pairs}.")
    if splits:
        first = f"first of all {splits[0]['bundle']} ({splits[0]['why']})"
        what = f"{many(len(splits), 'bundle')} should be split, {first}; {pairs}."
        finding = Finding(Weight.ACT, what)
    return [tag("p", text), _splits(splits), _merges(merges)], [finding]


def _splits(splits: Sequence[Row]) -> Html:
    if not splits:
        return tag("p", "No bundle is too large.")
    return grid(
        of_first("Bundles to split", min(len(splits), LISTED), len(splits)),
        splits[:LISTED],
        Show("bundle", "bundle"),
        Show("why", "why"),
        Show("of a broker", "of_broker", percent, "% of its mean traffic"),
        Show("messages", lambda row: row["msgs_in_per_s"] + row["msgs_out_per_s"], messages,
             "per second, in and out"),
        Show("bytes", lambda row: row["bytes_in_per_s"] + row["bytes_out_per_s"], volume,
             "per second, in and out"),
        Show("topics", "topics", whole),
        Show("sessions", lambda row: row["producers"] + row["consumers"], whole),
        Show("remark", "hint"),
    )  # fmt: skip


def _merges(merges: Sequence[Row]) -> Html:
    if not merges:
        return tag("p", "No neighbours are worth merging.")
    return grid(
        of_first("Neighbours to merge", min(len(merges), LISTED), len(merges)),
        merges[:LISTED],
        Show("lower", "lower"),
        Show("upper", "upper"),
        Show("together", "share", lambda share: percent(share, 3), "% of the cluster's traffic"),
        Show("topics", "topics", whole),
        Show("on one broker", lambda row: "yes" if row["same_broker"] else "no",
             why="Else one of them moves first."),
    )  # fmt: skip


BUNDLES_PER_BROKER: Final = 2
"""Bundles per broker that a namespace with the whole traffic should have."""

FAIR: Final = 0.5
"""The largest share of a broker's mean traffic that a bundle should have."""

_MATTERS: Final = 0.1
"""Namespaces with less than this share of a broker's traffic are not judged."""

_FINE: Final = 10
_MOST_BUNDLES: Final = 128


def _read_namespaces(found: Sizes) -> Row:
    """Return the largest namespaces by their traffic, each judged."""
    every = found.bundles.groupBy("namespace").agg(
        F.count("*").alias("bundles"),
        F.sum("share").alias("share"),
        F.max("share").alias("largest_share"),
        F.max_by("bundle", "share").alias("largest_bundle"),
    )
    matter = every.where(F.col("share") * found.brokers >= _MATTERS)
    largest = rows(matter.orderBy(F.desc("share"), "namespace").limit(LISTED * 20))
    judged_all = [judged(one, found.brokers) for one in largest]
    return {"brokers": found.brokers, "largest": judged_all, "count": every.count()}


def judged(row: Row, brokers: int) -> Row:
    """Return the row with ``why`` there are too few bundles (empty if not), and ``wanted``."""
    of_broker = row["largest_share"] * brokers
    reach = min(brokers, max(1, ceil(row["share"] * brokers)))
    why = ""
    if brokers > 1 and row["bundles"] < BUNDLES_PER_BROKER * reach:
        why = f"{many(row['bundles'], 'bundle')} for traffic of {many(reach, 'broker')}"
    elif brokers > 1 and of_broker > FAIR:
        why = f"its largest bundle is {percent(of_broker)} of a broker's mean traffic"
    return {**row, "of_broker": of_broker, "why": why, "wanted": _wanted(row, brokers)}


def _wanted(row: Row, brokers: int) -> int:
    """Return a sufficient number of bundles: a power of two, each a tenth of a broker or less."""
    least = max(BUNDLES_PER_BROKER, row["bundles"], ceil(row["share"] * brokers * _FINE))
    return int(min(max(2 ** ceil(log2(least)), row["bundles"]), max(_MOST_BUNDLES, row["bundles"])))


def _show_namespaces(found: Row) -> Shown:
    largest = found["largest"]
    poor = [row for row in largest if row["why"]]
    body = [_chart(largest[:LISTED], found["brokers"]).html()] if largest else []
    if poor:
        body.append(_table("Namespaces with too few bundles", poor[:LISTED]))
    every = _table("Largest namespaces", largest[:LISTED])
    body.append(figures("All large namespaces in figures", every))
    if not poor:
        text = f"All of {many(found['count'], 'namespace')} have enough bundles."
        return body, [Finding(Weight.FINE, text)]
    first = poor[0]
    more = "" if len(poor) == 1 else f", and {len(poor) - 1} more namespaces too"
    text = (
        f"{first['namespace']} has too few bundles ({first['why']}): split it up to "
        f"{first['wanted']}{more}."
    )
    return body, [Finding(Weight.ACT, text)]


def _chart(largest: Sequence[Row], brokers: int) -> Chart:
    kinds = (
        ("enough bundles", COLOURS[0], [row for row in largest if not row["why"]]),
        ("too few", COLOURS[1], [row for row in largest if row["why"]]),
    )
    return Chart(
        title="Bundles and traffic of namespaces",
        summary=f"How many bundles a namespace has, and how many of the {brokers} brokers its "
        "traffic would fill at the mean. Up and to the left, there are too few bundles to spread "
        "the traffic evenly.",
        data=[
            points(
                [row["bundles"] for row in mine],
                [row["share"] * brokers for row in mine],
                name,
                colour,
                text=[shown(row["namespace"]) for row in mine],
                hovertemplate="%{text}<br>%{x} bundles, traffic of %{y:.2f} brokers<extra></extra>",
            )
            for name, colour, mine in kinds
            if mine
        ],
        layout=layout(
            xaxis=axis("bundles", zero=True), yaxis=axis("traffic, brokers' worth", zero=True)
        ),
    )


def _table(caption: str, lines: Sequence[Row]) -> Html:
    return grid(
        caption,
        lines,
        Show("namespace", "namespace"),
        Show("bundles", "bundles", whole),
        Show("of the traffic", "share", percent_1, "%"),
        Show("largest bundle", "of_broker", percent, "% of a broker's mean",
             more=lambda row: {"hover": row["largest_bundle"]}),
        Show("would do", "wanted", whole, "bundles"),
        Show("why", "why"),
    )  # fmt: skip


def _read(of: Callable[[Sizes], Row], tables: Tables) -> Row | None:
    found = sizes(tables)
    return None if found is None else of(found)


_WITHOUT: Final = "No bundle was reported lately. "
CUTS: Final = Section(
    "Bundles to split or to merge", "ingest", partial(_read, _read_cuts), _show_cuts, _WITHOUT
)
NAMESPACES: Final = Section(
    "Namespaces with too few bundles",
    "ingest",
    partial(_read, _read_namespaces),
    _show_namespaces,
    _WITHOUT,
)
