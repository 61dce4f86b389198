from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final, Literal

from loadmanager.attach.discovery import (
    BALANCER_KEYS,
    BUFFERS,
    MANAGER,
    PulsarCluster,
    manager_of,
)
from loadmanager.attach.observation import Observation
from loadmanager.attach.pulsar_balancer import SHEDDING, SWITCHES
from loadmanager.core.ids import BrokerId, namespace_of

Level = Literal["ok", "note", "problem"]

_MOST_TRAFFIC: Final = 0.95


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    about: str
    what: str
    remedy: str = ""


def examine(seen: Observation, restore: str = "") -> tuple[Finding, ...]:
    """Return what is found, problems first.

    Each remedy is to be followed as it stands, and leaves `--balance` able to start. ``restore`` is
    the command that restores what a controller has stored, "" if it has stored nothing.
    """
    cluster = seen.cluster
    every = (_brokers(seen), _metrics(seen), _manager(cluster), _balancer(cluster, restore))
    found = [*chain.from_iterable(every), *_encryption(cluster)]
    rank = {"problem": 0, "note": 1, "ok": 2}
    return tuple(sorted(found, key=lambda one: rank[one.level]))


def _brokers(seen: Observation) -> Iterator[Finding]:
    for broker, why in {**seen.cluster.silent, **seen.missing}.items():
        yield Finding("problem", broker, f"{why}: it neither gives nor takes bundles meanwhile")
    for broker, sample in seen.samples.items():
        if sample.host is not None and sample.host.distrusted:
            used = (
                "a --strategy that needs CPU uses the process if this lasts; --cores has its limit"
            )
            yield Finding("note", broker, f"{sample.host.distrusted}; {used}")
    if seen.samples:
        count = f"{len(seen.samples)} of {len(seen.cluster.brokers)} brokers answer"
        yield Finding("ok", "brokers", f"{count}; version {seen.cluster.version}")


def _encryption(cluster: PulsarCluster) -> Iterator[Finding]:
    if not cluster.encrypted:
        what = "plain HTTP: who can read the network can read requests, answers and tokens"
        remedy = "set webServicePortTls in broker.conf, restart the brokers one by one, and give "
        yield Finding("note", "TLS", what, f"{remedy}https:// in --pulsar")


def _metrics(seen: Observation) -> Iterator[Finding]:
    if seen.cluster.topic_metrics is False:
        key = "exposeTopicLevelMetricsInPrometheus"
        yield Finding(
            "problem", "metrics", f"{key} is false: bundles have no rates", _in_file(key, "true")
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
            _in_file(BUFFERS, "false"),
        )
    homeless = sum(sample.homeless.topics for sample in seen.samples.values())
    if homeless:
        yield Finding("note", "metrics", f"{homeless:,} topics lie in no listed bundle (moving?)")
    if seen.shares:
        level: Level = "ok" if seen.shares["counted"] >= _MOST_TRAFFIC else "note"
        yield Finding(level, "traffic", seen.coverage)
    for bundle, brokers in seen.twice.items():
        yield Finding(
            "problem",
            bundle,
            f"listed by {' and '.join(brokers)}: its topics may be served twice, or by neither; "
            "if it is not on its way:",
            f"pulsar-admin namespaces unload --bundle {bundle.rpartition('/')[2]} "
            f"{namespace_of(bundle)}",
        )


def _manager(cluster: PulsarCluster) -> Iterator[Finding]:
    for broker, kind in cluster.managers.items():
        configured = manager_of(cluster.settings[broker][MANAGER])
        if kind != configured:
            what = f"{broker} is configured to run the {configured} one and runs the {kind} one"
            yield Finding("problem", "manager", f"{what}: the log of its start has the reason")
    if cluster.migration:
        what = f"{cluster.migration}: nothing moves until all run the same one"
        yield Finding("problem", "manager", what)
    elif cluster.manager in {"modular", "extensible"}:
        yield Finding("ok", "manager", cluster.manager)
    else:
        what = f"{cluster.manager}; moves were tried with the modular and the extensible one only"
        yield Finding("note", "manager", what)


def _balancer(cluster: PulsarCluster, restore: str) -> Iterator[Finding]:
    for key in BALANCER_KEYS:
        values = cluster.differing(key)
        if len(values) > 1:
            text = "; ".join(f"{value}: {_named(names)}" for value, names in sorted(values.items()))
            most = max(values, key=lambda value: (len(values[value]), value))
            remedy = _in_file(key, most) if key == BALANCER_KEYS[0] else _dynamic(key, most)
            yield Finding("problem", key, f"brokers differ ({text})", remedy)
    for key in SWITCHES:
        if "true" in cluster.differing(key):
            what = "true: Pulsar's own balancer acts until --balance or sidecars switch it off"
            yield Finding("ok", key, f"{what}; two balancers would undo each other's moves")
    if "true" in cluster.differing(SHEDDING) or not cluster.settings:
        return
    overridden = cluster.dynamic.get(SHEDDING) == "false"
    what = "false: without attach --balance or sidecars no load manager balances this cluster"
    if not overridden:
        yield Finding("note", SHEDDING, f"{what}; in broker.conf, so it stays so after --balance")
        return
    delete = f"pulsar-admin brokers delete-dynamic-config --config {SHEDDING}"
    yield Finding("note", SHEDDING, f"{what}; if none of them runs now:", restore or delete)


def _dynamic(key: str, value: str) -> str:
    return f"pulsar-admin brokers update-dynamic-config --config {key} --value {value}"


def _in_file(key: str, value: str) -> str:
    return f"set {key} to {value} in broker.conf and restart the brokers one by one"


def _named(brokers: tuple[BrokerId, ...], most: int = 3) -> str:
    more = f" and {len(brokers) - most} more" if len(brokers) > most else ""
    return ", ".join(brokers[:most]) + more
