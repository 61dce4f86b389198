from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from loadmanager.attach.discovery import BALANCER_KEYS, BUFFERS, PulsarCluster
from loadmanager.attach.observation import Observation
from loadmanager.core.ids import BrokerId, namespace_of

Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    about: str
    what: str
    remedy: str = ""


def examine(seen: Observation) -> tuple[Finding, ...]:
    found = [*_brokers(seen), *_metrics(seen), *_manager(seen.cluster), *_balancer(seen.cluster)]
    rank = {"problem": 0, "note": 1, "ok": 2}
    return tuple(sorted(found, key=lambda one: rank[one.level]))


def _brokers(seen: Observation) -> Iterator[Finding]:
    for broker, why in {**seen.cluster.silent, **seen.missing}.items():
        yield Finding("problem", broker, why, "it neither gives nor takes bundles meanwhile")
    for broker, sample in seen.samples.items():
        if sample.host is not None and sample.host.distrusted:
            remedy = (
                "a --strategy that needs CPU uses the process if this lasts; --cores has its limit"
            )
            yield Finding("note", broker, sample.host.distrusted, remedy)
    if seen.samples:
        count = f"{len(seen.samples)} of {len(seen.cluster.brokers)} brokers answer"
        yield Finding("ok", "brokers", f"{count}; version {seen.cluster.version}")


def _metrics(seen: Observation) -> Iterator[Finding]:
    if seen.cluster.topic_metrics is False:
        yield Finding(
            "problem",
            "metrics",
            "exposeTopicLevelMetricsInPrometheus is false: bundles have no rates",
            "set it to true in broker.conf and restart the brokers one by one",
        )
    elif seen.samples:
        topics = sum(sample.topics_in_bundles for sample in seen.samples.values())
        yield Finding("ok", "metrics", f"{topics:,} topics have counters")
    repeating = [name for name, one in seen.samples.items() if one.repeated_s]
    repeating += [name for name in seen.missing if BUFFERS in seen.missing[name]]
    repeating += seen.cluster.differing(BUFFERS).get("true", ())
    if repeating:
        yield Finding(
            "note",
            "metrics",
            f"pages are repeated by {_named(tuple(dict.fromkeys(repeating)))}: rates are of up to "
            "two minutes, and moves wait for them",
            f"set {BUFFERS} to false in broker.conf and restart the brokers one by one",
        )
    homeless = sum(sample.homeless.topics for sample in seen.samples.values())
    if homeless:
        yield Finding("note", "metrics", f"{homeless:,} topics lie in no listed bundle (moving?)")
    if seen.shares:
        yield Finding("ok", "traffic", seen.coverage)
    for bundle, brokers in seen.twice.items():
        yield Finding(
            "problem",
            bundle,
            f"listed by {' and '.join(brokers)}: its topics may be served twice, or by neither",
            "if it is not on its way: pulsar-admin namespaces unload --bundle "
            f"{bundle.rpartition('/')[2]} {namespace_of(bundle)}",
        )


def _manager(cluster: PulsarCluster) -> Iterator[Finding]:
    known = cluster.manager in {"modular", "extensible"}
    yield Finding(
        "ok" if known else "note",
        "manager",
        cluster.manager,
        "" if known else "moves were tried with the modular and the extensible manager only",
    )


def _balancer(cluster: PulsarCluster) -> Iterator[Finding]:
    for key in BALANCER_KEYS:
        values = cluster.differing(key)
        if len(values) > 1:
            text = "; ".join(f"{value}: {_named(names)}" for value, names in sorted(values.items()))
            yield Finding("problem", key, f"brokers differ ({text})", "make them alike")
    for key in ("loadBalancerSheddingEnabled", "loadBalancerAutoBundleSplitEnabled"):
        if "true" in cluster.differing(key):
            yield Finding(
                "note",
                key,
                "true: Pulsar's own balancer acts, too; two balancers undo each other's moves",
                f"pulsar-admin brokers update-dynamic-config --config {key} --value false",
            )
    if "true" not in cluster.differing("loadBalancerSheddingEnabled") and cluster.settings:
        yield Finding(
            "note",
            "loadBalancerSheddingEnabled",
            "false: without attach --balance or sidecars no load manager balances this cluster",
            "if none runs: "
            "pulsar-admin brokers delete-dynamic-config --config loadBalancerSheddingEnabled",
        )


def _named(brokers: tuple[BrokerId, ...], most: int = 3) -> str:
    more = f" and {len(brokers) - most} more" if len(brokers) > most else ""
    return ", ".join(brokers[:most]) + more
