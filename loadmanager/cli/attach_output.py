"""What ``attach`` reads of its options, and prints: tables, tasks, findings and commands."""

import json
import os
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from shlex import join
from time import monotonic
from typing import Any, Final, Literal
from urllib.parse import quote

import click

from loadmanager.cli.options import fitted, print_table, terminal_width
from loadmanager.config import Config, load_config
from loadmanager.config.strategies import go_together, not_together, planner_of
from loadmanager.core.bundle_task import BundleTask, TaskKind, TaskState
from loadmanager.core.filters import version_rank
from loadmanager.core.ids import BrokerId, BundleId, namespace_of, parse_full_topic
from loadmanager.core.placement import PLACEMENTS
from loadmanager.core.rates import Rates, total
from loadmanager.core.shedding import SHEDDERS, UniformLoadShedder
from loadmanager.core.shedding.joint import JointShedder
from loadmanager.pulsar.answers import (
    BALANCER_KEYS,
    BUFFERS,
    MANAGER,
    PulsarCluster,
    addresses,
    manager_of,
)
from loadmanager.pulsar.client import Cost
from loadmanager.pulsar.moves import CUT_AT, cut_of
from loadmanager.pulsar.observation import Observation, Strategy, document, refusal_text
from loadmanager.pulsar.orders import name_in
from loadmanager.pulsar.sampling import BrokerSample, Hosts, SampledLoads
from loadmanager.pulsar.state import SHEDDING, SWITCHES

_NO_BROKER: Final = "attach:1"  # A candidate has none; what it is called is never seen.


def strategy_of(options: Mapping[str, Any]) -> Strategy:
    if options["config"] is None:
        config = Config.model_validate({"broker": {"id": _NO_BROKER}})
    else:
        environment = {**os.environ, "LOADMANAGER_BROKER__ID": _NO_BROKER}
        config = load_config(options["config"], environment)
    shedding, placement = config.shedding, config.placement
    name = options["strategy"] or shedding.strategy
    shedding = _named(shedding, name, SHEDDERS, "strategy")
    if options["placement"] is not None:
        placement = _named(placement, options["placement"], PLACEMENTS, "placement")
    if options["tolerance"] is not None:
        if SHEDDERS[shedding.strategy] is not JointShedder:
            raise click.UsageError(f"--tolerance is for strategy joint, not {name}")
        settings = {**shedding.settings, "tolerance": options["tolerance"]}
        shedding = shedding.model_copy(update={"settings": settings})
    shedder, named = SHEDDERS[shedding.strategy], placement.strategy
    if named is not None and not go_together(shedder, PLACEMENTS[named]):
        text = f"strategy {shedding.strategy} with placement {named}"
        raise click.UsageError(f"{text}; expected as placement {not_together(shedder)}")
    planner = planner_of(shedding, placement, config.planner, config.leader)
    return Strategy(
        name=name,
        # Attach itself decides when brokers come and go.
        planner=replace(planner, settings=replace(planner.settings, settle_s=0.0)),
        loads=SampledLoads(
            addresses(options["urls"][0]),
            planner.weights,
            of_windows=isinstance(planner.shedder, JointShedder),
        ),
        # This shedder alone uses only traffic.
        hosts=None if isinstance(planner.shedder, UniformLoadShedder) else Hosts(options["cores"]),
        acts=options["balance"],
    )


def _named(settings: Any, name: str, known: Mapping[str, type], option: str) -> Any:
    """Return a section with another strategy; the settings of the one it had go with that."""
    if name not in known:
        expected = f"expected one of {', '.join(sorted({one for one in known if one.islower()}))}"
        if name == "greedy_rate":
            expected += " (greedy_rate was removed: joint evens out rates)"
        raise click.UsageError(f"--{option} {name}; {expected}")
    same = known[name] is known.get(settings.strategy)
    kept = settings.settings if same else {}
    return settings.model_copy(update={"strategy": name, "settings": kept})


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
    for broker in sorted(seen.cluster.cordoned - seen.cluster.draining):
        yield f"{broker}: cordoned, takes no bundle"
    for broker, left in seen.leaving.items():
        stay = Counter(why for why in left.values() if why)
        whys = "".join(f"; {count} stay: {why}" for why, count in stay.items())
        yield f"{broker}: {f'drained, {len(left)} bundles left' if left else 'safe to stop'}{whys}"
    if seen.plan is not None:
        least = f"no assignment of these bundles can be below {seen.plan.least_max_over_mean:.2f}"
        yield f"fullest broker: {seen.plan.max_over_mean:.2f} times the mean; {least}"
    if not seen.whole and seen.samples:
        yield "some topics were loaded within the window: their rates are lower bounds"
    splits = [f"  cut {one.bundle} at 0x{cut_of(one):08x}: {one.reason}" for one in seen.splits]
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
    of_host: defaultdict[str, list[BrokerId]] = defaultdict(list)
    for broker, sample in seen.samples.items():
        if sample.host is not None and sample.host.usages and not sample.host.cpu_limit:
            of_host[broker.rpartition(":")[0]].append(broker)
    for host, brokers in of_host.items():
        if len(brokers) > 1:
            what = f"{_some(tuple(brokers))} may each report the CPU of the whole host as theirs"
            remedy = "--cores N, of one broker: then the CPU time of each process counts"
            yield Finding("note", host, what, remedy)
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
        named = _some(tuple(dict.fromkeys(repeating)))
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
        level = "note"
        what += "; moves were tried with the modular and the extensible one only"
    yield Finding(level, "manager", what)


def _balancer(cluster: PulsarCluster, restore: str) -> Iterator[Finding]:
    for key in BALANCER_KEYS:
        values = cluster.differing(key)
        if len(values) > 1:
            text = "; ".join(f"{value}: {_some(names)}" for value, names in sorted(values.items()))
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


def _some(brokers: tuple[BrokerId, ...], most: int = 3) -> str:
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
        if (cut := cut_of(one)) is not None:
            named = ["--split-algorithm-name", CUT_AT, "--split-boundaries", str(cut)]
            yield join([*_command("split-bundle", one.bundle), *named])
        elif one.bundle in {split.bundle for split in seen.splits}:
            yield _comment(f"{one.bundle} is split: propose the moves of its parts afterwards")
        else:
            yield _move(seen, one, address)


def _move(seen: Observation, one: BundleTask, address: Callable[[BrokerId], str]) -> str:
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


MOST_COLUMNS: Final = 120
_HOUR_S: Final = 3600.0
_OFTEN: Final = 3


def line(task: BundleTask) -> str:
    """Return a task as one line, with why it was ordered unless it has ended."""
    tries = f" after {task.attempts} attempts" if task.attempts > 1 else ""
    cut = cut_of(task)
    text = f"{task.source or 'no broker'} -> {task.target}"
    text = text if cut is None else f"cut at 0x{cut:08x}"
    if task.state is TaskState.SERVING and task.kind is TaskKind.MOVE:
        text += f", {task.influence.msgs_per_s:,.0f} msg/s" if task.influence else ""
        text += "" if task.pause_s is None else f", pause {task.pause_s:.1f} s"
    note = task.note if task.state.ended else task.reason
    return f"{task.state}{tries}  {task.bundle}: {text}{note and f': {note}'}"


def short_line(task: BundleTask, columns: int) -> str:
    text = line(task)
    if len(text) > columns:
        for broker in {task.source, task.target} - {None}:
            host = str(broker).rpartition(":")[0]
            first = host.partition(".")[0]
            text = text.replace(str(broker), host if first.isdecimal() else first)
    return text if len(text) <= columns else f"{text[: columns - 1]}…"


@dataclass(slots=True)
class LastHour:
    """The moves of the last hour; times are on any monotonic clock."""

    _moves: deque[tuple[float, BundleTask]] = field(default_factory=deque)

    def add(self, now_s: float, task: BundleTask) -> None:
        if task.kind is TaskKind.MOVE and task.attempts:
            self._moves.append((now_s, task))

    def summary(self, now_s: float) -> Iterator[str]:
        while self._moves and self._moves[0][0] <= now_s - _HOUR_S:
            self._moves.popleft()
        if not self._moves:
            return
        tasks = [task for _, task in self._moves]
        states = Counter(str(task.state) for task in tasks)
        ends = ", ".join(f"{count} {state}" for state, count in states.most_common())
        moved = total([task.influence or Rates() for task in tasks])
        whole = f"{moved.msgs_per_s:,.0f} msg/s and {moved.bytes_per_s / 1e6:,.1f} MB/s moved"
        yield f"last hour: {len(self._moves)} moves ({ends}), {whole}"
        counts = Counter(task.bundle for task in tasks).most_common()
        if often := [f"{bundle} ({count})" for bundle, count in counts if count >= _OFTEN]:
            more = f" and {len(often) - _OFTEN} more" if len(often) > _OFTEN else ""
            yield f"moved more than twice: {', '.join(often[:_OFTEN])}{more}"
        paused = [(task.pause_s or 0.0, task.bundle) for task in tasks]
        if max(paused)[0] > 0:
            yield f"longest pause: {max(paused)[0]:.1f} s, of {max(paused)[1]}"


def task_document(task: BundleTask) -> dict[str, Any]:
    return {
        "epoch": task.epoch,
        "number": task.number,
        "kind": task.kind.value,
        "bundle": task.bundle,
        "source": task.source,
        "target": task.target,
        "cut": cut_of(task),
        "cause": task.cause.value,
        "why": task.reason,
        "askedBy": task.asked_by.word,
        "state": task.state.value,
        "attempts": task.attempts,
        "pauseS": task.pause_s,
        "reason": task.note,
    }


@dataclass(slots=True)
class PrintedLog:
    cost: Cost
    as_json: bool
    verbose: bool = False
    _last_hour: LastHour = field(default_factory=LastHour)

    def round(self, seen: Observation, held: str) -> None:
        self.window(seen, held=held)
        if held and not self.as_json:
            self.event(f"nothing moves in this round: {held}")

    def window(self, seen: Observation, *, traffic: bool = False, held: str | None = None) -> None:
        requests, size = self.cost.requests, self.cost.answer_bytes
        if self.as_json:
            content = document(seen, requests=requests, answer_bytes=size, traffic=traffic)
            _print_json(content if held is None else {"at": _now(), **content, "held": held})
            return
        print_table(title(seen), *columns(seen))
        lines = summary(seen, proposals=held is None or self.verbose)
        for one in (*lines, *self._last_hour.summary(monotonic())):
            click.echo(fitted(_one_line(one), terminal_width()))
        click.echo(f"read with {requests} requests and {size / 1e6:.1f} MB so far")

    def task(self, task: BundleTask) -> None:
        if task.state.ended:
            self._last_hour.add(monotonic(), task)
        if self.as_json:
            _print_json({"at": _now(), "task": task_document(task)})
        elif self.verbose:
            self.event(line(task))
        elif task.state.ended:
            columns = MOST_COLUMNS - len(_now(short=True)) - 2
            self.event(short_line(task, columns))

    def findings(self, seen: Observation, restore: str) -> bool:
        """Return whether any is a problem."""
        found = examine(seen, restore)
        # Not cut to the terminal: remedies are to be copied.
        click.echo(title(seen))
        for one in found:
            click.echo(f"{one.level:8}{one.about}: {_one_line(one.what)}")
            if one.remedy:
                click.echo(f"{'':8}-> {one.remedy}")
        return any(one.level == "problem" for one in found)

    def commands(self, seen: Observation, address: Callable[[BrokerId], str]) -> None:
        click.echo("\n".join(commands(seen, address)))

    def event(self, what: str) -> None:
        with suppress(OSError):
            if self.as_json:
                _print_json({"at": _now(), "event": what})
            else:
                click.echo(f"{_now(short=True)}  {_one_line(what)}")


def _one_line(text: str) -> str:
    """Return a text in which lines of what came from outside begin no line here."""
    return text.replace("\n", r"\n")


def _print_json(content: dict[str, Any]) -> None:
    click.echo(json.dumps(content, allow_nan=False))


def _now(*, short: bool = False) -> str:
    at = datetime.now(tz=UTC).isoformat(timespec="seconds" if short else "milliseconds")
    return at.replace("+00:00", "Z") if short else at
