import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from loadmanager.core.averages import LONG_SAMPLES, SHORT_SAMPLES, Average, BundleAverages, Running
from loadmanager.core.errors import MalformedContent
from loadmanager.core.history.records import stats_of
from loadmanager.core.history.schema import SHORT_AND_LONG
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import BrokerUrls, LoadReport, ResourceUsage
from loadmanager.core.rates import Rates
from loadmanager.core.scores import RESOURCES
from loadmanager.core.snapshot.codec import SnapshotFields
from loadmanager.core.snapshot.document import Snapshot

Line = Mapping[str, Any]
_AVERAGES: Final = tuple(one.name for one in SHORT_AND_LONG)


def report_of(line: Line) -> LoadReport:
    """Return the load report in a ``report`` line; addresses are not in history."""
    columns = line["bundles"]
    usages: dict[str, Any] = {
        name: ResourceUsage(
            line[f"{name}_usage"],
            line[f"{name}_limit"],
            line[f"{name}_mean"],
            line[f"{name}_variance"],
        )
        for name in RESOURCES
        if line[f"{name}_limit"] > 0
    }
    return LoadReport(
        broker=BrokerId(line["broker"]),
        urls=BrokerUrls(http_url=""),
        sidecar_url="",
        reported_at_ms=line["reported_at_ms"],
        started_at_ms=line["started_at_ms"],
        version=line["version"],
        **usages,
        bundles={
            BundleId(bundle): stats
            for bundle, stats in zip(columns["bundle"], stats_of(columns), strict=True)
        },
        gains=frozenset(BundleId(one) for one in line["gains"]),
        losses=frozenset(BundleId(one) for one in line["losses"]),
        persistent_topics=line["persistent_topics"],
        non_persistent_topics=line["non_persistent_topics"],
        draining=line["draining"],
        healthy=line["healthy"],
        broker_class=line["broker_class"],
    )


def averages_of(lines: Iterable[Line]) -> dict[BundleId, BundleAverages]:
    found: dict[BundleId, BundleAverages] = {}
    for line in lines:
        columns = line["bundles"]
        names = ("bundle", "short_samples", "long_samples", "topics", *_AVERAGES)
        for bundle, short, long, topics, *rates in zip(
            *(columns[name] for name in names), strict=True
        ):
            found[BundleId(bundle)] = BundleAverages(
                Average(SHORT_SAMPLES, short, Rates(*rates[:4])),
                Average(LONG_SAMPLES, long, Rates(*rates[4:])),
                topics,
            )
    return found


def snapshot_of(
    line: Line, bundles: Iterable[Line], reports: Mapping[tuple[BrokerId, int], LoadReport]
) -> Snapshot:
    """Return the leader's state at a base round, before it decided.

    ``bundles`` are the lines of the round's bundles, ``reports`` are by broker and
    ``reported_at_ms``. Raises `MalformedContent`: the round is not a base round, or a report or
    line that it refers to is missing.
    """
    where = f"round {line['round']} of epoch {line['epoch']}"
    if not line["base"]:
        raise MalformedContent(where, "base = False", "a base")
    bundles = list(bundles)
    if bundles and len(bundles) != bundles[0]["parts"]:
        what = f"{len(bundles)} lines of bundles"
        raise MalformedContent(where, what, f"{bundles[0]['parts']}, as they say")
    known = _reports(where, line["brokers"], reports)
    columns = line["brokers"]
    texts = {name: json.loads(line[name]) for name in ("memory", "constraints", "settings")}
    parts = SnapshotFields(where, texts)
    return Snapshot(
        taken_at_ms=line["at_ms"],
        cluster=line["cluster"],
        epoch=line["epoch"],
        memory=parts.memory("memory"),
        policies=parts.policies("constraints"),
        in_force=parts.in_force("settings"),
        reports=known,
        age_s=dict(zip(known, columns["age_s"], strict=True)),
        averages=averages_of(bundles),
        running={
            broker: Running(load, bytes_per_s)
            for broker, load, bytes_per_s in zip(
                known, columns["load_ema"], columns["bytes_ema"], strict=True
            )
            if load is not None and bytes_per_s is not None
        },
        in_flight={
            BundleId(bundle): BrokerId(target)
            for bundle, target in zip(*line["in_flight"].values(), strict=True)
        },
        unowned=tuple(BundleId(one) for one in line["unowned"]),
        membership_changed_ago_s=line["membership_changed_ago_s"],
        departed_ago_s=tuple(line["departed_ago_s"]),
    )


def _reports(
    where: str, columns: Line, reports: Mapping[tuple[BrokerId, int], LoadReport]
) -> dict[BrokerId, LoadReport]:
    found: dict[BrokerId, LoadReport] = {}
    for broker, at_ms in zip(columns["broker"], columns["reported_at_ms"], strict=True):
        report = reports.get((broker, at_ms))
        if report is None:
            what = f"{broker} reported at {at_ms}"
            raise MalformedContent(where, what, "a report that is given")
        found[report.broker] = report
    return found
