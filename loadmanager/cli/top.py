import itertools
import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import FrameType
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from loadmanager.cli.cluster import broker_rows, leader_of, snapshot_of
from loadmanager.cli.options import optimality_line
from loadmanager.cli.sidecar_client import RequestFailed, SidecarClient
from loadmanager.core.snapshot.document import Snapshot
from loadmanager.telemetry.visible import beneath, visible

_QUIT: Final = frozenset(b"qQ")
_POLL_S: Final = 0.05
_WIDTH: Final = 80
_BAR: Final = 10
_BUSY: Final = 0.6
_FULL: Final = 0.85
_KINDS: Final = ("move", "placement", "drain", "unload")
_MOVES: Final = 5
_BESIDES: Final = 12
"""Lines of the picture without brokers, moves and bundles, one for a message among them."""

_BEFORE_MOVE: Final = 21
"""Columns of the time and the kind of a move."""

_BALANCED: Final = (
    ("cpu", "cpuFraction"),
    ("net in", "bandwidthInFraction"),
    ("net out", "bandwidthOutFraction"),
)
"""The resources of a broker's load; memory depends on when the garbage collector runs."""

_RESOURCES: Final = (*_BALANCED, ("memory", "memoryFraction"))
_MARKS: Final = (("leads", "★"), ("draining", "↓"), ("unhealthy", "!"))
_LEGEND: Final = "★ leader   ↓ draining   ! unhealthy   load: the most used of CPU and network"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    snapshot: Snapshot
    leader: str
    brokers: Sequence[Mapping[str, Any]]
    moves: Sequence[Mapping[str, Any]]
    optimality: Mapping[str, Any] | None


def observe(client: SidecarClient) -> Observation:
    """Return the cluster as it is now; raises as `SidecarClient.ask`."""
    snapshot, leader = snapshot_of(client), leader_of(client).get("brokerId", "")
    answer = client.json("/admin/v2/loadmanager/decisions", limit=_MOVES, kind=_KINDS)
    return Observation(
        snapshot=snapshot,
        leader=visible(leader),
        brokers=list(broker_rows(snapshot, leader)),
        moves=visible(answer["decisions"]),
        optimality=client.json("/admin/v2/loadmanager/optimality")["optimality"],
    )


def draw(
    seen: Observation, most_bundles: int, *, width: int = 80, height: int | None = None
) -> RenderableType:
    """Return the picture, for so many columns and, unless that is None, lines."""
    brokers = sorted(seen.brokers, key=lambda row: -(_load(row) or 0.0))
    moves = list(seen.moves)
    if height is not None:
        left = max(height - _BESIDES, 2)
        brokers = brokers[:left]
        left -= len(brokers)
        moves = moves[: left // 2]
        most_bundles = min(most_bundles, left - len(moves))
    parts = [_title(seen), Text(), _brokers(brokers)]
    if len(brokers) < len(seen.brokers):
        parts.append(Text(f"and {len(seen.brokers) - len(brokers)} brokers with less load"))
    parts.append(Text(_LEGEND, style="dim", no_wrap=True))
    if moves:
        parts += [Text(), _moves(moves, width)]
    if most_bundles > 0:
        parts += [Text(), _bundles(seen.snapshot, most_bundles)]
    return Group(*parts)


def _title(seen: Observation) -> RenderableType:
    snapshot = seen.snapshot
    loads = [load for load in map(_load, seen.brokers) if load is not None]
    mean = sum(loads) / len(loads) if loads else 0.0
    imbalance = f"{max(loads) / mean:.2f}" if mean > 0 else "-"
    first = f"{snapshot.cluster}   leader {seen.leader or 'none'}   term {snapshot.epoch}"
    second = (
        f"{len(seen.brokers)} brokers   {len(snapshot.owners)} bundles owned   "
        f"{len(snapshot.in_flight)} moving   {len(snapshot.unowned)} without an owner   "
        f"max/mean {imbalance}"
    )
    third = Text(optimality_line(seen.optimality), no_wrap=True)
    return Group(Text(first, style="bold"), Text(second), third)


def _load(row: Mapping[str, Any]) -> float | None:
    return max((row[key] for _, key in _BALANCED if row[key] is not None), default=None)


def _scarcest(row: Mapping[str, Any]) -> str:
    known = [(row[key], name) for name, key in _RESOURCES if row[key] is not None]
    if not known:
        return "unknown"
    fraction, name = max(known)
    return f"{name} {fraction:.0%}"


def _table(padding: int = 2) -> Table:
    return Table(box=None, pad_edge=False, padding=(0, padding, 0, 0), header_style="dim")


def _brokers(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(padding=1)
    table.add_column("broker", overflow="fold")
    table.add_column("", no_wrap=True)
    for name in ("load", "scarcest", "bundles", "topics", "msg/s", "MB/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", max_width=_BAR, no_wrap=True, overflow="crop")
    for row in rows:
        load = _load(row)
        states = {**row, "unhealthy": not row["healthy"]}
        table.add_row(
            Text(row["broker"]),
            "".join(mark for state, mark in _MARKS if states[state]),
            "-" if load is None else Text(f"{load:.0%}", style=_style(load)),
            _scarcest(row),
            str(row["bundles"]),
            str(row["topics"]),
            f"{row['msgsInPerS'] + row['msgsOutPerS']:,.0f}",
            f"{(row['bytesInPerS'] + row['bytesOutPerS']) / 1e6:,.2f}",
            _bar(load),
        )
    return table


def _style(load: float) -> str:
    return "red" if load >= _FULL else "yellow" if load >= _BUSY else "green"


def _bar(load: float | None) -> Text:
    full = 0 if load is None else min(round(load * _BAR), _BAR)
    return Text.assemble(("█" * full, _style(load or 0.0)), ("░" * (_BAR - full), "dim"))


def _moves(moves: Sequence[Mapping[str, Any]], width: int) -> Table:
    """Return the moves with both brokers if they fit, else with the one that has the bundle now."""
    table = _table()
    table.add_column("UTC", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("last moves", overflow="fold")
    whole = [(one["subject"], f"{one['source'] or 'no owner'} -> {one['target']}") for one in moves]
    fits = all(_BEFORE_MOVE + len(subject) + 2 + len(way) <= width for subject, way in whole)
    table.add_column("from -> to" if fits else "to", overflow="fold")
    for one, (subject, way) in zip(moves, whole, strict=True):
        at = datetime.fromtimestamp(one["atMs"] / 1000, UTC)
        to = way if fits else one["target"]
        table.add_row(f"{at:%H:%M:%S}", one["kind"], Text(subject), Text(to))
    return table


def _bundles(snapshot: Snapshot, most: int) -> Table:
    loads = [
        (stats, bundle, broker)
        for broker, report in snapshot.reports.items()
        for bundle, stats in report.bundles.items()
    ]
    loads.sort(key=lambda one: (-one[0].bytes_per_s, -one[0].msgs_per_s, one[1]))
    table = _table()
    for name in ("msg/s", "MB/s", "topics"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("busiest bundles", overflow="fold")
    table.add_column("owner", overflow="fold")
    for stats, bundle, broker in loads[:most]:
        going = snapshot.in_flight.get(bundle)
        table.add_row(
            f"{stats.msgs_per_s:,.0f}",
            f"{stats.bytes_per_s / 1e6:,.2f}",
            str(stats.topics),
            Text(bundle),
            Text(broker if going is None else f"{broker} -> {going}"),
        )
    return table


@contextmanager
def _reading_keys() -> Iterator[bool]:
    """Have the terminal pass on each key at once, and not show it; yield whether there is one."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield False
        return
    former = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield True
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, former)


def _quits_within(seconds: float, *, has_keys: bool) -> bool:
    until_s = time.monotonic() + seconds
    while True:
        left_s = max(0.0, until_s - time.monotonic())
        if not has_keys:
            time.sleep(left_s)
            return False
        ready, _, _ = select.select([sys.stdin], [], [], left_s)
        if not ready:
            return False
        keys = os.read(sys.stdin.fileno(), 64)
        if not keys or _QUIT & set(keys):  # nothing to read: the terminal is gone
            return True


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP end what is inside as exceptions do, so that it cleans up.

    SIGINT as well where the parent had it ignored, as scripts have for what they start beside
    themselves: on a terminal Ctrl-C has to end it.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: end, signal.SIGHUP: end}
    former = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class Screen:
    client: SidecarClient
    interval_s: float
    times: int | None
    most_bundles: int
    console: Console = field(
        default_factory=lambda: Console(
            width=None if sys.stdout.isatty() else _WIDTH, file=beneath(sys.stdout)
        )
    )

    def show(self) -> None:
        """Draw until ``times`` pictures, a key or a signal end it."""
        with suppress(KeyboardInterrupt), _ended_by_signals():
            if sys.stdout.isatty():
                self.redraw()
            else:
                self.print()

    def print(self) -> None:
        for number in self._rounds():
            try:
                self.console.print(self._draw(observe(self.client)))
            except RequestFailed as error:
                if number == 1:
                    raise
                error.show()
            time.sleep(self._wait_s(number))

    def redraw(self) -> None:
        last, whole_screen = observe(self.client), self.times is None
        live = Live(console=self.console, auto_refresh=False, screen=whole_screen)
        with _reading_keys() as has_keys, live:
            for number in self._rounds():
                trouble = []
                if number > 1:
                    answer = self._observe_in_background()
                    while not answer.done():
                        if _quits_within(_POLL_S, has_keys=has_keys):
                            return
                    try:
                        last = answer.result()
                    except RequestFailed as error:
                        text = visible(f"no news: {error.message}")
                        trouble = [Text(text, style="bold red", no_wrap=True)]
                height = self.console.height if whole_screen else None
                live.update(Group(*trouble, self._draw(last, height)), refresh=True)
                if _quits_within(self._wait_s(number), has_keys=has_keys):
                    return

    def _rounds(self) -> Iterable[int]:
        return itertools.count(1) if self.times is None else range(1, self.times + 1)

    def _wait_s(self, number: int) -> float:
        return 0.0 if number == self.times else self.interval_s

    def _draw(self, seen: Observation, height: int | None = None) -> RenderableType:
        return draw(seen, self.most_bundles, width=self.console.width, height=height)

    def _observe_in_background(self) -> Future[Observation]:
        """Return the observation that will come; keys work while a sidecar is slow."""
        answer: Future[Observation] = Future()

        def ask() -> None:
            try:
                answer.set_result(observe(self.client))
            except BaseException as error:  # noqa: BLE001 - raised where the answer is awaited
                answer.set_exception(error)

        # No executor: the end of the process would wait for its threads.
        threading.Thread(target=ask, daemon=True).start()
        return answer
