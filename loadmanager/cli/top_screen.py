from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadmanager.cli.cluster import broker_rows, leader_of, snapshot_of
from loadmanager.cli.options import optimality_line
from loadmanager.cli.sidecar_client import SidecarClient
from loadmanager.core.snapshot.document import Snapshot
from loadmanager.telemetry.visible import visible

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
