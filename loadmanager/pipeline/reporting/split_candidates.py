"""Bundles to split or merge, by the leader's rules and by their share of a broker's traffic."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.charts import Cell, Column, Html, table, tag
from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import BundleId, parse_bundle, range_of
from loadmanager.core.splitting.cutting import can_split
from loadmanager.core.splitting.finder import SplitRules, excess_of
from loadmanager.core.splitting.merging import Merge, cut_again
from loadmanager.pipeline.reporting.bundle_sizes import Sizes, largest, rates_of, small, stats_of
from loadmanager.pipeline.reporting.formats import many, percent, scaled
from loadmanager.pipeline.reporting.parts import Finding, Part, Weight
from loadmanager.pipeline.reporting.sources import Row, rows

TITLE: Final = "Bundles to split or to merge"
LISTED: Final = 50

TOO_LARGE: Final = 0.5
"""A bundle with more than half of the mean traffic of a broker cannot be balanced."""

TOO_SMALL: Final = 0.02
"""Neighbours are merged if each is below this fraction of all limits."""

_FEWEST_TOPICS: Final = 2


@dataclass(frozen=True, kw_only=True)
class Cuts:
    """Bundles to split with reasons, and bundles to merge: the first of each."""

    rules: SplitRules
    bundles: int
    brokers: int
    splits: Sequence[Row]
    merges: Sequence[Row]
    all_splits: int
    all_merges: int


def read(found: Sizes, rules: SplitRules | None = None) -> Cuts:
    rules = rules or SplitRules()
    splits = to_split(largest(found), found.brokers, rules)
    counts = {
        row["namespace"]: row["bundles"]
        for row in rows(
            found.bundles.groupBy("namespace")
            .agg(F.count("*").alias("bundles"))
            .orderBy(F.desc("bundles"))
            .limit(_NAMESPACES)
        )
    }
    merges = to_merge(small(found, rules, TOO_SMALL), found.brokers, rules, counts)
    return Cuts(
        rules=rules,
        bundles=found.count,
        brokers=found.brokers,
        splits=splits[:LISTED],
        merges=merges[:LISTED],
        all_splits=len(splits),
        all_merges=len(merges),
    )


_NAMESPACES: Final = 10_000


def to_split(large: Iterable[Row], brokers: int, rules: SplitRules) -> list[Row]:
    """Return the rows of bundles to split, with ``why`` and ``hint``, largest first."""
    found = []
    for row in large:
        why = excess_of(rules, stats_of(row), rates_of(row))
        of_broker = row["share"] * brokers
        if not why and brokers > 1 and of_broker > TOO_LARGE:
            why = f"{percent(of_broker)} of a broker's mean traffic"
        if why:
            found.append({**row, "why": why, "hint": _hint(row), "of_broker": of_broker})
    return sorted(found, key=lambda row: (-row["share"], row["bundle"]))


def _hint(row: Row) -> str:
    if row["topics"] < _FEWEST_TOPICS:
        return f"has {many(row['topics'], 'topic')}: partition the topic instead"
    if not _can_split(row["bundle"]):
        return "is a single position: it cannot be cut"
    return "can be cut"


def _can_split(bundle: str) -> bool:
    return _is_bundle(bundle) and can_split(BundleId(bundle))


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
        spare = counts.get(namespace, 0) - brokers
        for both in _pairs(mine, rules):
            if spare <= 0:
                break
            spare -= 1
            found.append(both)
    return sorted(found, key=lambda row: (row["share"], row["lower"]))


def _pairs(mine: Sequence[Row], rules: SplitRules) -> Iterable[Row]:
    in_order = sorted(mine, key=lambda row: range_of(BundleId(row["bundle"])))
    taken = ""
    for lower, upper in pairwise(in_order):
        low, high = BundleId(lower["bundle"]), BundleId(upper["bundle"])
        adjacent = range_of(low)[1] == range_of(high)[0]
        if low == taken or not adjacent or cut_again(rules, stats_of(lower), stats_of(upper)):
            continue
        taken = high
        yield {
            "lower": low,
            "upper": high,
            "whole": Merge(low, high).whole,
            "share": lower["share"] + upper["share"],
            "topics": lower["topics"] + upper["topics"],
            "same_broker": lower["broker"] == upper["broker"],
        }


def show(found: Cuts) -> Part:
    rules = found.rules
    sessions = "" if rules.max_sessions <= 0 else f"{rules.max_sessions:,} sessions, "
    text = (
        f"Limits of the default configuration: {rules.max_topics:,} topics, {sessions}"
        f"{rules.max_msgs_per_s:,} messages/s, {rules.max_mib_per_s:,} MiB/s in a bundle. Besides, "
        f"a bundle with more than {percent(TOO_LARGE)} of what a broker has on the mean. "
        f"Sizes are means of the last hour of history; {many(found.bundles, 'bundle')} on "
        f"{many(found.brokers, 'broker')}."
    )
    body = [tag("p", text)]
    body.append(_splits(found) if found.splits else tag("p", "No bundle is too large."))
    body.append(_merges(found) if found.merges else tag("p", "No neighbours are worth merging."))
    return Part(title=TITLE, body=body, findings=[_finding(found)])


def _finding(found: Cuts) -> Finding:
    merges = f"{many(found.all_merges, 'pair')} of small neighbours could be merged"
    if not found.splits:
        return Finding(Weight.FINE, f"No bundle needs to be split; {merges}.")
    first = found.splits[0]
    text = (
        f"{many(found.all_splits, 'bundle')} should be split, first of all {first['bundle']} "
        f"({first['why']}); {merges}."
    )
    return Finding(Weight.ACT, text)


def _splits(found: Cuts) -> Html:
    columns = [
        Column(name="bundle"),
        Column(name="why"),
        Column(name="of a broker", unit="% of its mean traffic"),
        Column(name="messages", unit="per second, in and out"),
        Column(name="bytes", unit="per second, in and out"),
        Column(name="topics"),
        Column(name="sessions"),
        Column(name="remark"),
    ]
    cells = [
        [
            Cell(row["bundle"]),
            Cell(row["why"]),
            Cell(percent(row["of_broker"]), row["of_broker"]),
            Cell(scaled(rates_of(row).msgs_per_s, "/s"), rates_of(row).msgs_per_s),
            Cell(scaled(rates_of(row).bytes_per_s, "B/s"), rates_of(row).bytes_per_s),
            Cell(f"{row['topics']:,}", row["topics"]),
            Cell(f"{row['producers'] + row['consumers']:,}", row["producers"] + row["consumers"]),
            Cell(row["hint"]),
        ]
        for row in found.splits
    ]
    return table(_first("Bundles to split", len(cells), found.all_splits), columns, cells)


def _merges(found: Cuts) -> Html:
    columns = [
        Column(name="lower"),
        Column(name="upper"),
        Column(name="together", unit="% of the cluster's traffic"),
        Column(name="topics"),
        Column(name="on one broker", explanation="Else one of them moves first."),
    ]
    cells = [
        [
            Cell(row["lower"]),
            Cell(row["upper"]),
            Cell(percent(row["share"], 3), row["share"]),
            Cell(f"{row['topics']:,}", row["topics"]),
            Cell("yes" if row["same_broker"] else "no"),
        ]
        for row in found.merges
    ]
    return table(_first("Neighbours to merge", len(cells), found.all_merges), columns, cells)


def _first(what: str, listed: int, of_all: int) -> str:
    return what if listed == of_all else f"{what}, the first {listed} of {of_all:,}"
