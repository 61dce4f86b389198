"""What there is to show at one moment, how to join the demo, and the plain way to show it."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, Self, TextIO

from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.testbed.demo.cluster import NAMESPACE, Cluster
from loadmanager.testbed.demo.counts import TrafficReport
from loadmanager.testbed.demo.figures import Journal, KillStory
from loadmanager.testbed.demo.observation import ClusterLook
from loadmanager.testbed.demo.settings import DemoSettings


@dataclass(frozen=True, slots=True)
class Invitation:
    """What is printed once the cluster is up; ``commands`` are ready to paste."""

    commands: Sequence[str]
    addresses: Sequence[tuple[str, str]]

    @classmethod
    def of(cls, settings: DemoSettings, cluster: Cluster) -> Self:
        """Return how to join this cluster.

        The sidecar that is asked is the last one that no ``--kill`` names.
        """
        named = {kill.target for kill in settings.kills}
        stays = [one for one in cluster.members if str(one.number) not in named]
        url = stays[-1].sidecar_url
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
        """Yield all of it as lines of text."""
        yield "The cluster is up. Join it from another terminal:"
        yield from (f"  {command}" for command in self.commands)
        yield "Its addresses:"
        yield from (f"  {name:<11} {address}" for name, address in self.addresses)


LINE_EVERY_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The run at one moment. ``reports`` are the traffic generator's last two."""

    settings: DemoSettings
    names: Mapping[BrokerId, str]
    elapsed_s: float
    look: ClusterLook
    journal: Journal
    reports: Sequence[TrafficReport]
    kills: Sequence[KillStory] = ()

    @property
    def errors(self) -> int:
        """Lookups and messages that failed, since the start."""
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
        """Return the bundle's range alone: all are of one namespace."""
        return bundle.rpartition("/")[2]

    def _per_s(self, count: Callable[[TrafficReport], int]) -> float:
        first, last = self.reports[0], self.reports[-1]
        return (count(last) - count(first)) / max(0.001, last.at_s - first.at_s)


class Show(Protocol):
    """Where a run is shown while it goes on."""

    def step(self, text: str) -> None:
        """Show what is being waited for before the run begins."""

    def invite(self, invitation: Invitation) -> None:
        """Print how to join the cluster, which is up now."""

    def update(self, scene: Scene) -> None:
        """Show the run as it is now."""

    def close(self) -> None:
        """Give the terminal back."""


class Shows:
    """Several shows of the same run: the live one, and the log that stays."""

    def __init__(self, *shows: Show) -> None:
        self._shows = shows

    def step(self, text: str) -> None:
        """Show everything."""
        for show in self._shows:
            show.step(text)

    def invite(self, invitation: Invitation) -> None:
        """Print it on all."""
        for show in self._shows:
            show.invite(invitation)

    def update(self, scene: Scene) -> None:
        """Update all."""
        for show in self._shows:
            show.update(scene)

    def close(self) -> None:
        """Close all."""
        for show in self._shows:
            show.close()


class PlainShow:
    """A line every two seconds, for logs and pipes; each move and kill has a line too."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._next_s = 0.0
        self._moves_shown = 0
        self._kills_shown = 0

    def step(self, text: str) -> None:
        """Print the step."""
        self._print(text)

    def invite(self, invitation: Invitation) -> None:
        """Print all lines."""
        for line in invitation.lines():
            self._print(line)

    def update(self, scene: Scene) -> None:
        """Print what is new, and the figures when it is time."""
        for kill in scene.kills[self._kills_shown :]:
            self._print(f"{scene.elapsed_s:5.0f} s  killed {kill.name} and its sidecar")
        self._kills_shown = len(scene.kills)
        for move in scene.journal.moves[self._moves_shown :]:
            way = f"{scene.names[move.source]} -> {scene.names[move.target]}"
            bundle = scene.short(move.bundle)
            self._print(f"{scene.elapsed_s:5.0f} s  {bundle}  {way}  {move.reason}")
        self._moves_shown = len(scene.journal.moves)
        if scene.elapsed_s >= self._next_s:
            self._next_s = scene.elapsed_s + LINE_EVERY_S
            self._print(figures_line(scene))

    def close(self) -> None:
        """Leave the terminal as it is."""

    def _print(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


def figures_line(scene: Scene) -> str:
    """Return the run's figures in one line."""
    loads = " ".join(
        "killed" if b.killed else "  ?  " if b.cpu_fraction is None else f"{b.cpu_fraction:4.0%} "
        for b in scene.look.brokers
    )
    imbalance = scene.journal.imbalance_now
    ratio = "-" if imbalance is None else f"{imbalance:.2f}"
    return (
        f"{scene.elapsed_s:5.0f} s  load {loads} max/mean {ratio}  "
        f"{scene.published_per_s:.0f} msg/s  {scene.lookups_per_s:.0f} lookups/s  "
        f"moves {len(scene.journal.moves)}  waiting {scene.waiting}  errors {scene.errors}"
    )
