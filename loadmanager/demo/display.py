"""The state of a run at one time, and its display as plain lines or as a live table."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TextIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from loadmanager.core.ids import BrokerId
from loadmanager.demo.cluster import NAMESPACE, Cluster, DemoSettings
from loadmanager.demo.figures import BrokerSample, ClusterSample, Journal, KillEffects, Summary
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
        "REST paths": f"{url}/docs",
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

    settings: DemoSettings
    names: Mapping[BrokerId, str]
    elapsed_s: float
    journal: Journal
    reports: Sequence[TrafficReport]
    kills: Sequence[KillEffects] = ()

    @property
    def sample(self) -> ClusterSample:
        return self.journal.samples[-1]

    @property
    def errors(self) -> int:
        return self.reports[-1].lookup_errors + self.reports[-1].publish_errors

    @property
    def rates(self) -> tuple[float, float]:
        """Messages accepted, and lookups, per second between the last two reports."""
        first, last = self.reports[0], self.reports[-1]
        passed_s = max(0.001, last.at_s - first.at_s)
        published = (last.published - first.published) / passed_s
        return published, (last.lookups - first.lookups) / passed_s


class PlainDisplay:
    """A line every two seconds, for logs and pipes; each move and kill has a line as well."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._next_s = 0.0
        self._moves_shown = 0
        self._kills_shown = 0

    def step(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def cluster_started(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.step(line)

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

    def close(self) -> None:
        """Do nothing: lines need no end."""


def figures_line(state: RunState) -> str:
    loads = " ".join(
        "killed" if b.killed else "  ?  " if b.cpu_fraction is None else f"{b.cpu_fraction:4.0%} "
        for b in state.sample.brokers
    )
    imbalance = state.journal.imbalance_now
    published_per_s, lookups_per_s = state.rates
    return (
        f"{state.elapsed_s:5.0f} s  load {loads} max/mean {_ratio(imbalance)}  "
        f"{published_per_s:.0f} msg/s  {lookups_per_s:.0f} lookups/s  "
        f"moves {len(state.journal.moves)}  "
        f"waiting {state.reports[-1].waiting}  errors {state.errors}"
    )


BAR_WIDTH: Final = 28
MOVES_SHOWN: Final = 8
LINES_BESIDES: Final = 11
"""Lines of the picture besides those of brokers, kills and moves, and one below it."""

WARM_FRACTION: Final = 0.6
HOT_FRACTION: Final = 0.85
GOOD_IMBALANCE: Final = 1.25
POOR_IMBALANCE: Final = 1.6


class LiveDisplay:
    """A table that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._join = ""

    def step(self, text: str) -> None:
        self._console.print(Text.assemble(("  … ", "cyan"), (text, "dim")))

    def cluster_started(self, lines: Sequence[str]) -> None:
        self._console.print()
        for line in lines:
            self._console.print(Text(line), soft_wrap=True)
        self._join = lines[1].strip()

    def update(self, state: RunState) -> None:
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        taken = LINES_BESIDES + len(state.sample.brokers) + 2 * len(state.kills) + bool(self._join)
        moves_shown = max(1, min(MOVES_SHOWN, self._console.height - taken))
        self._live.update(draw(state, moves_shown, self._join), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


Display = PlainDisplay | LiveDisplay


def draw(state: RunState, moves_shown: int = MOVES_SHOWN, join: str = "") -> RenderableType:
    """Return the picture for 80 columns; ``join`` shows the cluster in another terminal."""
    settings, ends_at_s, journal = state.settings, state.settings.ends_at_s, state.journal
    until = "Ctrl-C ends" if ends_at_s is None else f"of {clock(ends_at_s)}"
    what = f"{settings.bundles} bundles · {settings.topics} topics"
    imbalance, start = journal.imbalance_now, _ratio(journal.imbalance_start)
    colour = "red"
    if imbalance is None or imbalance <= POOR_IMBALANCE:
        good = imbalance is None or imbalance <= GOOD_IMBALANCE
        colour = "green" if good else "yellow"
    published_per_s, lookups_per_s = state.rates
    blank = Text()
    parts: list[RenderableType] = [
        Text.from_markup(
            f"[bold cyan]loadmanager demo[/]   [dim]{what}[/]   "
            f"[bold]{clock(state.elapsed_s)}[/] [dim]{until}[/]"
        ),
        blank,
        _brokers(state),
        blank,
        Text.from_markup(
            f"[dim]busiest broker over the mean[/]  [bold {colour}]{_ratio(imbalance)}[/]"
            f"[dim]  (at the start {start})[/]"
        ),
        Text.from_markup(
            f"[dim]published[/] {published_per_s:.0f}/s   [dim]lookups[/] {lookups_per_s:.0f}/s"
            f"   [dim]waiting[/] {state.reports[-1].waiting}   [dim]errors[/] "
        )
        + _must_be_zero(state.errors),
    ]
    for kill in state.kills:
        led = f"[dim]new leader after[/] {_seconds(kill.new_leader_s)}   " if kill.led else ""
        who = f"{kill.name} and its sidecar killed{', the leader' if kill.led else ''}"
        served = f"its {len(kill.lost)} bundles served again after"
        parts += [
            Text.from_markup(f"[bold red]✗[/] [red]{who}[/]"),
            Text.from_markup(f"  {led}[dim]{served}[/] {_seconds(kill.reserved_s)}"),
        ]
    parts += [blank, _moves(state, moves_shown)]
    if join:
        parts.append(Text.assemble(("join: ", "dim"), join, no_wrap=True))
    return Padding(Group(*parts), (1, 2))


def _brokers(state: RunState) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("broker", no_wrap=True)
    table.add_column("load", no_wrap=True)
    table.add_column("", justify="right", min_width=4)
    table.add_column("msg/s", justify="right", min_width=5)
    table.add_column("bundles", justify="right")
    table.add_column("", no_wrap=True, min_width=9)
    loads = state.sample.loads
    mean = sum(loads.values()) / len(loads) if loads else 0.0
    for broker in state.sample.brokers:
        leads = broker.broker == state.sample.leader and not broker.killed
        table.add_row(*_row(broker, mean, leads=leads))
    return table


def _row(
    broker: BrokerSample, mean: float, *, leads: bool
) -> tuple[Text, Text, Text, str, str, Text]:
    style = "dim" if broker.killed else "bold" if leads else ""
    name = Text(broker.name, style=style)
    state = Text("★ leader", style="bold yellow") if leads else Text(broker.state, style="dim")
    if broker.state != "serving":
        state = Text(broker.state, style="bold red")
    if broker.killed or broker.bundles is None or broker.cpu_fraction is None:
        return name, Text("─" * BAR_WIDTH, style="dim"), Text("-"), "-", "-", state
    load = broker.cpu_fraction
    percent = Text(f"{load:.0%}", style=f"bold {_colour(load)}")
    rate = f"{broker.msgs_per_s:.1f}"
    return name, load_bar(load, mean), percent, rate, str(len(broker.bundles)), state


def load_bar(load: float, mean: float) -> Text:
    """Return a bar from 0 to 100 percent with a mark at the mean of all brokers."""
    filled = min(BAR_WIDTH, round(load * BAR_WIDTH))
    bar = Text("━" * filled, style=_colour(load)) + Text("─" * (BAR_WIDTH - filled), style="dim")
    at = min(BAR_WIDTH - 1, round(mean * BAR_WIDTH))
    return bar[:at] + Text("┃", style="bold") + bar[at + 1 :]


def _colour(load: float) -> str:
    return "green" if load < WARM_FRACTION else "yellow" if load < HOT_FRACTION else "red"


def _moves(state: RunState, shown: int) -> RenderableType:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    moves = state.journal.moves
    for move in reversed(moves[-shown:]):
        way = f"{state.names[move.source]} → {state.names[move.target]}"
        at = clock(move.at_s - state.journal.began_s)
        table.add_row(Text(at, style="dim"), move.bundle.rpartition("/")[2], way, move.reason)
    # The height of the picture is constant, so that nothing below it moves.
    for _ in range(shown - len(moves)):
        table.add_row("", "", "", "")
    return Group(Text(f"moves ({len(moves)})", style="dim"), table)


def summary_table(summary: Summary) -> RenderableType:
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    way = f"{_ratio(summary.imbalance_start)} → {_ratio(summary.imbalance_end)}"
    table.add_row("busiest broker over the mean", Text(way, style="bold"))
    table.add_row("bundles moved", f"{summary.moves} to balance, {summary.taken_over} taken over")
    table.add_row("owned by two brokers at once", _must_be_zero(summary.evidence.double_owned))
    traffic = summary.traffic
    lookups = Text(f"{traffic.lookups} lookups, errors ") + _must_be_zero(traffic.lookup_errors)
    table.add_row("asked", lookups)
    sent = Text(f"{traffic.published} messages, errors ") + _must_be_zero(traffic.publish_errors)
    table.add_row("published", sent)
    for kill in summary.kills:
        table.add_row(f"{kill.name} killed", f"had {len(kill.lost)} bundles")
        if kill.led:
            table.add_row("  a new leader after", _seconds(kill.new_leader_s))
        table.add_row("  all bundles served after", _seconds(kill.reserved_s))
        table.add_row("  longest wait of a message", _seconds(kill.publish_gap_s))
    leader = Text(summary.leader_name) + Text(f"  {summary.leader or ''}", style="dim")
    table.add_row("leader", leader)
    table.add_row("ran for", _seconds(summary.seconds))
    return Padding(table, (0, 2))


def _must_be_zero(count: int) -> Text:
    return Text(str(count), style="bold red" if count else "bold green")


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _seconds(value: float | None) -> str:
    return "…" if value is None else f"{value:.1f} s"


def clock(elapsed_s: float) -> str:
    minutes, seconds = divmod(int(elapsed_s), 60)
    return f"{minutes:02d}:{seconds:02d}"
