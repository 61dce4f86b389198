"""What people read of an observation: tables for a terminal, findings, and commands to sign off."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from shlex import join
from typing import Final, Literal
from urllib.parse import quote

from loadmanager.adapters.pulsar_admin.answers import manager_of
from loadmanager.adapters.pulsar_admin.moves import CUT_AT
from loadmanager.attach.discovery import BALANCER_KEYS, BUFFERS, MANAGER, PulsarCluster
from loadmanager.attach.observation import Observation, refusal_text
from loadmanager.attach.observer import name_in
from loadmanager.attach.sampling import BrokerSample
from loadmanager.attach.state import SHEDDING, SWITCHES
from loadmanager.attach.tasks import Proposal
from loadmanager.core.filters import version_rank
from loadmanager.core.ids import BrokerId, BundleId, namespace_of, parse_full_topic
from loadmanager.core.rates import total

_MOST_SHOWN = 10


def columns(seen: Observation) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    names = ("broker", "msg/s>", "of mean>", "MB/s>", "of mean>", "CPU>", "topics>", "bundles>")
    totals = {broker: sample.total for broker, sample in seen.samples.items()}
    whole, count = total(totals.values()), len(totals) or 1
    rows: list[tuple[str, ...]] = [
        (
            broker,
            f"{rates.msgs_per_s:,.0f}",
            _share(rates.msgs_per_s, whole.msgs_per_s / count),
            f"{rates.bytes_per_s / 1e6:,.2f}",
            _share(rates.bytes_per_s, whole.bytes_per_s / count),
            _cpu(seen.samples[broker]),
            f"{seen.samples[broker].topics_in_bundles:,}",
            f"{len(seen.samples[broker].bundles):,}",
        )
        for broker, rates in sorted(totals.items(), key=lambda one: -one[1].msgs_per_s)
    ]
    return names, rows


def title(seen: Observation) -> str:
    cluster = seen.cluster
    kind = f"{cluster.manager} load manager"
    return f"{cluster.name}: Pulsar {cluster.version}, {kind}, {len(cluster.brokers)} brokers"


def summary(seen: Observation, *, proposals: bool = True) -> Iterator[str]:
    for broker, why in seen.missing.items():
        yield f"{broker}: no sample, so it neither gives nor takes ({why})"
    if seen.plan is not None:
        least = f"no assignment of these bundles can be below {seen.plan.least_max_over_mean:.2f}"
        yield f"fullest broker: {seen.plan.max_over_mean:.2f} times the mean; {least}"
    if not seen.whole and seen.samples:
        yield "some topics were loaded within the window: their rates are lower bounds"
    splits = [f"  cut {one.bundle} at 0x{one.cut:08x}: {one.reason}" for one in seen.splits]
    moves = [
        f"  {number}. {move.bundle}: {move.source} -> {move.target}\n     {move.reason}"
        for number, move in enumerate(seen.proposals, 1)
    ]
    yield from _first(splits if proposals else ())
    yield seen.verdict
    yield from _first(moves if proposals else ())
    about = (one for one in seen.refusals if one.subject)
    yield from _first(f"  {one.subject}: {refusal_text(one)}" for one in about)
    staying = Counter((*seen.staying.values(), *seen.late.values())).most_common()
    yield from _first(f"  {count} stay (with traffic): {why}" for why, count in staying)


def _first(texts: Iterable[str]) -> Iterator[str]:
    every = list(texts)
    for text in every[:_MOST_SHOWN]:
        yield from text.splitlines()
    if len(every) > _MOST_SHOWN:
        yield f"  and {len(every) - _MOST_SHOWN} more (--json has all)"


def _share(value: float, mean: float) -> str:
    return f"{value / mean:.2f}" if mean > 0 else "-"


def _cpu(sample: BrokerSample) -> str:
    known = None if sample.host is None else sample.host.usages.get("cpu")
    percent = sample.usages.get("cpu")
    if known is not None and known.fraction is not None:
        percent = 100 * known.fraction
    cores = "" if sample.cpu_cores is None else f"{sample.cpu_cores:.2f} cores"
    return ", ".join(filter(None, (cores, "" if percent is None else f"{percent:.0f} %"))) or "-"


Level = Literal["ok", "note", "problem"]
_MOST_TRAFFIC: Final = 0.95


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    about: str
    what: str
    remedy: str = ""


def findings(found: tuple[Finding, ...]) -> Iterator[str]:
    for one in found:
        yield f"{one.level:8}{one.about}: {one.what}"
        if one.remedy:
            yield f"{'':8}-> {one.remedy}"


def examine(seen: Observation, restore: str = "") -> tuple[Finding, ...]:
    """Return what is found, problems first.

    Each remedy is to be followed as it stands, and leaves `--balance` able to start. ``restore`` is
    the command that restores what a controller has stored, "" if it has stored nothing.
    """
    cluster = seen.cluster
    refused = cluster.isolation.refused.values()
    found = [
        Finding("problem", "isolation", f"{why}; bundles that it is for stay") for why in refused
    ]
    every = (_brokers(seen), _metrics(seen), _manager(cluster), _balancer(cluster, restore))
    found += chain.from_iterable(every)
    if not cluster.encrypted:
        what = "plain HTTP: who can read the network can read requests, answers and tokens"
        remedy = "set webServicePortTls in broker.conf, restart the brokers one by one, and give "
        found.append(Finding("note", "TLS", what, f"{remedy}https:// in --pulsar"))
    rank = {"problem": 0, "note": 1, "ok": 2}
    return tuple(sorted(found, key=lambda one: rank[one.level]))


def _brokers(seen: Observation) -> Iterator[Finding]:
    for broker, why in {**seen.cluster.silent, **seen.missing}.items():
        yield Finding("problem", broker, f"{why}: it neither gives nor takes bundles meanwhile")
    used = "a --strategy that needs CPU uses the process if this lasts; --cores has its limit"
    for broker, sample in seen.samples.items():
        if sample.host is not None and sample.host.distrusted:
            yield Finding("note", broker, f"{sample.host.distrusted}; {used}")
    if seen.samples:
        count = f"{len(seen.samples)} of {len(seen.cluster.brokers)} brokers answer"
        yield Finding("ok", "brokers", f"{count}; version {seen.cluster.version}")


def _metrics(seen: Observation) -> Iterator[Finding]:
    if seen.cluster.topic_metrics is False:
        key = "exposeTopicLevelMetricsInPrometheus"
        what = f"{key} is false: bundles have no rates"
        yield Finding("problem", "metrics", what, _in_file(key, "true"))
    elif seen.samples:
        topics = sum(sample.topics_in_bundles for sample in seen.samples.values())
        yield Finding("ok", "metrics", f"{topics:,} topics have counters")
    repeating = [name for name, one in seen.samples.items() if one.repeated_s]
    repeating += [name for name in seen.missing if BUFFERS in seen.missing[name]]
    repeating += seen.cluster.differing(BUFFERS).get("true", ())
    if repeating:
        named = _named(tuple(dict.fromkeys(repeating)))
        what = f"pages are repeated by {named}: rates are of up to two minutes, and moves wait for"
        yield Finding("note", "metrics", f"{what} them", _in_file(BUFFERS, "false"))
    homeless = sum(sample.homeless.topics for sample in seen.samples.values())
    if homeless:
        yield Finding("note", "metrics", f"{homeless:,} topics lie in no listed bundle (moving?)")
    if seen.shares:
        level: Level = "ok" if seen.shares["counted"] >= _MOST_TRAFFIC else "note"
        yield Finding(level, "traffic", seen.coverage)
    may = "its topics may be served twice, or by neither; if it is not on its way:"
    for bundle, brokers in seen.twice.items():
        bounds, namespace = bundle.rpartition("/")[2], namespace_of(bundle)
        remedy = f"pulsar-admin namespaces unload --bundle {bounds} {namespace}"
        yield Finding("problem", bundle, f"listed by {' and '.join(brokers)}: {may}", remedy)


def _manager(cluster: PulsarCluster) -> Iterator[Finding]:
    for broker, kind in cluster.managers.items():
        configured = manager_of(cluster.settings[broker][MANAGER])
        if kind != configured:
            what = f"{broker} is configured to run the {configured} one and runs the {kind} one"
            yield Finding("problem", "manager", f"{what}: the log of its start has the reason")
    level: Level = "ok"
    what = cluster.manager
    if cluster.migration:
        level, what = "problem", f"{cluster.migration}: nothing moves until all run the same one"
    elif what not in {"modular", "extensible"}:
        level, what = (
            "note",
            f"{what}; moves were tried with the modular and the extensible one only",
        )
    yield Finding(level, "manager", what)


def _balancer(cluster: PulsarCluster, restore: str) -> Iterator[Finding]:
    for key in BALANCER_KEYS:
        values = cluster.differing(key)
        if len(values) > 1:
            text = "; ".join(f"{value}: {_named(names)}" for value, names in sorted(values.items()))
            most = max(values, key=lambda value: (len(values[value]), value))
            command = f"pulsar-admin brokers update-dynamic-config --config {key} --value {most}"
            remedy = _in_file(key, most) if key == BALANCER_KEYS[0] else command
            yield Finding("problem", key, f"brokers differ ({text})", remedy)
    for key in SWITCHES:
        if "true" in cluster.differing(key):
            what = "true: Pulsar's own balancer acts until --balance or sidecars switch it off"
            yield Finding("ok", key, f"{what}; two balancers would undo each other's moves")
    if "true" in cluster.differing(SHEDDING) or not cluster.settings:
        return
    what = "false: without attach --balance or sidecars no load manager balances this cluster"
    why, remedy = "in broker.conf, so it stays so after --balance", ""
    if cluster.dynamic.get(SHEDDING) == "false":
        delete = f"pulsar-admin brokers delete-dynamic-config --config {SHEDDING}"
        why, remedy = "if none of them runs now:", restore or delete
    yield Finding("note", SHEDDING, f"{what}; {why}", remedy)


def _in_file(key: str, value: str) -> str:
    return f"set {key} to {value} in broker.conf and restart the brokers one by one"


def _named(brokers: tuple[BrokerId, ...], most: int = 3) -> str:
    more = f" and {len(brokers) - most} more" if len(brokers) > most else ""
    return ", ".join(brokers[:most]) + more


# The first version whose ``namespaces unload`` has ``--destinationBroker``.
_WITH_DESTINATIONS: Final = (3,)


def commands(seen: Observation, address: Callable[[BrokerId], str]) -> Iterator[str]:
    """Yield the proposed moves and splits as commands, to be read, signed off and run.

    With the modular load manager a destination is only a wish, which the first lookup of any client
    uses up. So there each move ends with the lookup that makes the target serve the bundle.
    """
    cluster = seen.cluster
    yield _comment(f"{cluster.name}, Pulsar {cluster.version}, {cluster.manager} load manager")
    yield _comment(seen.verdict)
    for broker, why in seen.missing.items():
        yield _comment(f"{broker} takes no part: {why}")
    if "true" in cluster.differing(SHEDDING):
        off = f"brokers update-dynamic-config --config {SHEDDING} --value false"
        yield _comment("Pulsar's own shedding is on, and may undo these moves; to switch it off:")
        yield _comment(f"pulsar-admin {off}")
    if cluster.manager != "extensible" and seen.proposals:
        yield _comment("Where brokers require authentication, give curl the header of a token.")
    for number, one in enumerate((*seen.splits, *seen.proposals), 1):
        yield ""
        yield _comment(f"{number}. {one.source} -> {one.target}: {one.reason}")
        if one.cut is not None:
            named = ["--split-algorithm-name", CUT_AT, "--split-boundaries", str(one.cut)]
            yield join([*_command("split-bundle", one.bundle), *named])
        elif one.bundle in {split.bundle for split in seen.splits}:
            yield _comment(f"{one.bundle} is split: propose the moves of its parts afterwards")
        else:
            yield _move(seen, one, address)


def _move(seen: Observation, one: Proposal, address: Callable[[BrokerId], str]) -> str:
    command = _command("unload", one.bundle)
    if version_rank(seen.cluster.version) >= _WITH_DESTINATIONS:
        command += ["--destinationBroker", one.target]
    if seen.cluster.manager == "extensible" or one.source is None:
        return join(command)
    loaded = seen.samples[one.source].bundles[one.bundle].topic
    topic = parse_full_topic(loaded) if loaded else name_in(one.bundle)
    if topic is None:
        return join(command)
    where = f"{topic.domain}/{topic.namespace}/{quote(topic.local, safe='')}"
    claim = f"{address(one.target)}/lookup/v2/topic/{where}?authoritative=true"
    return f"{join(command)} && {join(['curl', '-fsS', '-o', '/dev/null', claim])}"


def _command(name: str, bundle: BundleId) -> list[str]:
    namespace, _, bounds = bundle.rpartition("/")
    return ["pulsar-admin", "namespaces", name, namespace, "--bundle", bounds]


def _comment(text: str) -> str:
    shown = "".join(one if one.isprintable() else " " for one in text)
    return f"# {shown}"
