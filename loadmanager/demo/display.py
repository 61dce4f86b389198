"""The state of a run at one time, how to join the cluster, and the display as plain lines."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, Self, TextIO

from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.demo.cluster import NAMESPACE, Cluster
from loadmanager.demo.counts import TrafficReport
from loadmanager.demo.figures import Journal, KillEffects
from loadmanager.demo.samples import ClusterSample
from loadmanager.demo.settings import DemoSettings


@dataclass(frozen=True, slots=True)
class JoinInstructions:
    """How to join the running cluster; ``commands`` can be pasted into a terminal."""

    commands: Sequence[str]
    addresses: Sequence[tuple[str, str]]

    @classmethod
    def of(cls, settings: DemoSettings, cluster: Cluster) -> Self:
        """Return those of this cluster, at the last sidecar that no ``--kill`` names."""
        named = {kill.target for kill in settings.kills}
        url = [one for one in cluster.members if str(one.number) not in named][-1].sidecar_url
        program = settings.program
        return cls(
            commands=(
                f"{program} top --url {url}",
                f"{program} decisions --url {url}",
                f"curl {url}/lookup/v2/topic/persistent/{NAMESPACE}/any-topic",
                f"curl {url}/admin/v2/namespaces/{NAMESPACE}/bundles",
            ),
            addresses=(
                *(
                    (one.name, f"http://{one.broker}   sidecar {one.sidecar_url}")
                    for one in cluster.members
                ),
                ("ZooKeeper", cluster.zookeeper),
                ("live page", f"{url}/"),
                ("REST paths", f"{url}/docs"),
                ("logs", str(settings.data_dir)),
            ),
        )

    def lines(self) -> Iterator[str]:
        """Yield the lines of text."""
        yield "The cluster is up. Join it from another terminal:"
        yield from (f"  {command}" for command in self.commands)
        yield "Its addresses:"
        yield from (f"  {name:<11} {address}" for name, address in self.addresses)


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
        """The last sample of the cluster."""
        return self.journal.samples[-1]

    @property
    def errors(self) -> int:
        """Failed lookups and messages since the start."""
        return self.reports[-1].lookup_errors + self.reports[-1].publish_errors

    @property
    def waiting(self) -> int:
        """Messages due and not accepted yet."""
        return self.reports[-1].waiting

    @property
    def published_per_s(self) -> float:
        """Messages accepted per second between the last two reports."""
        return self._per_s(lambda report: report.published)

    @property
    def lookups_per_s(self) -> float:
        """Lookups per second between the last two reports."""
        return self._per_s(lambda report: report.lookups)

    def short(self, bundle: BundleId) -> str:
        """Return the range of a bundle; all are of one namespace."""
        return bundle.rpartition("/")[2]

    def _per_s(self, count: Callable[[TrafficReport], int]) -> float:
        first, last = self.reports[0], self.reports[-1]
        return (count(last) - count(first)) / max(0.001, last.at_s - first.at_s)


class Display(Protocol):
    """Shows a run while it lasts."""

    def step(self, text: str) -> None:
        """Show a step of the start."""

    def cluster_started(self, instructions: JoinInstructions) -> None:
        """Show how to join the cluster."""

    def update(self, state: RunState) -> None:
        """Show the current state."""

    def close(self) -> None:
        """Release the terminal."""


class Displays:
    """Several displays of the same run: for example a live one and a log file."""

    def __init__(self, *displays: Display) -> None:
        self._displays = displays

    def step(self, text: str) -> None:
        """Show it on all."""
        for display in self._displays:
            display.step(text)

    def cluster_started(self, instructions: JoinInstructions) -> None:
        """Show it on all."""
        for display in self._displays:
            display.cluster_started(instructions)

    def update(self, state: RunState) -> None:
        """Update all."""
        for display in self._displays:
            display.update(state)

    def close(self) -> None:
        """Close all."""
        for display in self._displays:
            display.close()


class PlainDisplay:
    """A line every two seconds, for logs and pipes; each move and kill has a line as well."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._next_s = 0.0
        self._moves_shown = 0
        self._kills_shown = 0

    def step(self, text: str) -> None:
        """Print the step."""
        self._print(text)

    def cluster_started(self, instructions: JoinInstructions) -> None:
        """Print all lines."""
        for line in instructions.lines():
            self._print(line)

    def update(self, state: RunState) -> None:
        """Print new kills and moves, and the figures when they are due."""
        for kill in state.kills[self._kills_shown :]:
            self._print(f"{state.elapsed_s:5.0f} s  killed {kill.name} and its sidecar")
        self._kills_shown = len(state.kills)
        for move in state.journal.moves[self._moves_shown :]:
            way = f"{state.names[move.source]} -> {state.names[move.target]}"
            bundle = state.short(move.bundle)
            self._print(f"{state.elapsed_s:5.0f} s  {bundle}  {way}  {move.reason}")
        self._moves_shown = len(state.journal.moves)
        if state.elapsed_s >= self._next_s:
            self._next_s = state.elapsed_s + LINE_EVERY_S
            self._print(figures_line(state))

    def close(self) -> None:
        """Do nothing."""

    def _print(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


def figures_line(state: RunState) -> str:
    """Return the run's figures in one line."""
    loads = " ".join(
        "killed" if b.killed else "  ?  " if b.cpu_fraction is None else f"{b.cpu_fraction:4.0%} "
        for b in state.sample.brokers
    )
    imbalance = state.journal.imbalance_now
    ratio = "-" if imbalance is None else f"{imbalance:.2f}"
    return (
        f"{state.elapsed_s:5.0f} s  load {loads} max/mean {ratio}  "
        f"{state.published_per_s:.0f} msg/s  {state.lookups_per_s:.0f} lookups/s  "
        f"moves {len(state.journal.moves)}  waiting {state.waiting}  errors {state.errors}"
    )
