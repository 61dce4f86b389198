"""The state of a run at one time, and the lines that show it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TextIO

from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from loadmanager.core.ids import BrokerId
from loadmanager.demo.cluster import NAMESPACE, Cluster, DemoSettings
from loadmanager.demo.figures import ClusterSample, Journal, KillEffects, Summary
from loadmanager.demo.traffic import TrafficReport


def join_lines(settings: DemoSettings, cluster: Cluster) -> list[str]:
    """Return how to join this cluster: a heading, commands that can be pasted, and addresses.

    They are those of the last sidecar that no ``--kill`` names.
    """
    named = {kill.target for kill in settings.kills}
    url = [one for one in cluster.members if str(one.number) not in named][-1].sidecar_url
    addresses = {
        **{m.name: f"http://{m.broker}   sidecar {m.sidecar_url}" for m in cluster.members},
        "ZooKeeper": cluster.zookeeper,
        "live page": f"{url}/",
        "REST paths": f"{url}/openapi.json",
        "logs": str(settings.data_dir),
    }
    return [
        "The cluster is up. Join it from another terminal:",
        f"  {settings.program} top --url {url}",
        f"  {settings.program} decisions --url {url}",
        f"  curl {url}/lookup/v2/topic/persistent/{NAMESPACE}/any-topic",
        f"  curl {url}/admin/v2/namespaces/{NAMESPACE}/bundles",
        "Its addresses:",
        *(f"  {name:<11} {address}" for name, address in addresses.items()),
    ]


LINE_EVERY_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run at one time. ``reports`` are the last two of the traffic generator."""

    names: Mapping[BrokerId, str]
    elapsed_s: float
    journal: Journal
    reports: Sequence[TrafficReport]
    kills: Sequence[KillEffects] = ()

    @property
    def sample(self) -> ClusterSample:
        return self.journal.samples[-1]

    @property
    def rates(self) -> tuple[float, float]:
        """Messages accepted, and lookups, per second between the last two reports."""
        first, last = self.reports[0], self.reports[-1]
        passed_s = max(0.001, last.at_s - first.at_s)
        published = (last.published - first.published) / passed_s
        return published, (last.lookups - first.lookups) / passed_s


class Display:
    """A line for each move and kill, and the figures every two seconds, in each of ``streams``."""

    def __init__(self, *streams: TextIO) -> None:
        self._streams = streams
        self._next_s = 0.0
        self._moves_shown = 0
        self._kills_shown = 0

    def step(self, *lines: str) -> None:
        for stream in self._streams:
            stream.write("".join(f"{line}\n" for line in lines))
            stream.flush()

    def update(self, state: RunState) -> None:
        for kill in state.kills[self._kills_shown :]:
            self.step(f"{state.elapsed_s:5.0f} s  killed {kill.name} and its sidecar")
        self._kills_shown = len(state.kills)
        for move in state.journal.moves[self._moves_shown :]:
            way = f"{state.names[move.source]} -> {state.names[move.target]}"
            bundle = move.bundle.rpartition("/")[2]
            self.step(f"{state.elapsed_s:5.0f} s  {bundle}  {way}  {move.reason}")
        self._moves_shown = len(state.journal.moves)
        if state.elapsed_s >= self._next_s:
            self._next_s = state.elapsed_s + LINE_EVERY_S
            self.step(figures_line(state))


def figures_line(state: RunState) -> str:
    loads = " ".join(
        "killed" if b.killed else "  ?  " if b.cpu_fraction is None else f"{b.cpu_fraction:4.0%} "
        for b in state.sample.brokers
    )
    journal, last = state.journal, state.reports[-1]
    published_per_s, lookups_per_s = state.rates
    return (
        f"{state.elapsed_s:5.0f} s  load {loads} max/mean {_ratio(journal.imbalance_now)}  "
        f"{published_per_s:.0f} msg/s  {lookups_per_s:.0f} lookups/s  moves {len(journal.moves)}  "
        f"waiting {last.waiting}  errors {last.lookup_errors + last.publish_errors}"
    )


def summary_table(summary: Summary) -> Padding:
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, what in _summary_rows(summary):
        table.add_row(name, what)
    return Padding(table, (0, 2))


def _summary_rows(summary: Summary) -> Iterator[tuple[str, str | Text]]:
    way = f"{_ratio(summary.imbalance_start)} → {_ratio(summary.imbalance_end)}"
    traffic = summary.traffic
    yield "busiest broker over the mean", Text(way, style="bold")
    yield "bundles moved", f"{summary.moves} to balance, {summary.taken_over} taken over"
    yield "owned by two brokers at once", _must_be_zero("", summary.evidence.double_owned)
    yield "asked", _must_be_zero(f"{traffic.lookups} lookups, errors ", traffic.lookup_errors)
    yield (
        "published",
        _must_be_zero(f"{traffic.published} messages, errors ", traffic.publish_errors),
    )
    for kill in summary.kills:
        yield f"{kill.name} killed", f"had {len(kill.lost)} bundles"
        if kill.led:
            yield "  a new leader after", _seconds(kill.new_leader_s)
        yield "  all bundles served after", _seconds(kill.reserved_s)
        yield "  longest wait of a message", _seconds(kill.publish_gap_s)
    yield "leader", Text.assemble(summary.leader_name, (f"  {summary.leader or ''}", "dim"))
    yield "ran for", _seconds(summary.seconds)


def _must_be_zero(what: str, count: int) -> Text:
    return Text.assemble(what, (str(count), "bold red" if count else "bold green"))


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _seconds(value: float | None) -> str:
    return "…" if value is None else f"{value:.1f} s"
