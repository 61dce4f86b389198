"""``loadmanager top``: the cluster as it changes."""

from typing import TYPE_CHECKING, Any, Final

import click

from loadmanager.cli.asking import Reach, reaching

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from loadmanager.core.snapshot import Snapshot

_BAR: Final = 20
_BUSY: Final = 0.6
_FULL: Final = 0.85
_USAGES: Final = ("cpuFraction", "memoryFraction", "bandwidthInFraction", "bandwidthOutFraction")


@click.command("top")
@click.option(
    "--interval",
    "interval_s",
    default=2.0,
    show_default=True,
    type=click.FloatRange(0.2, 3600),
    help="Seconds between two looks.",
)
@click.option(
    "--times",
    type=click.IntRange(min=1),
    help="Look so many times and end.  [default: until interrupted]",
)
@click.option(
    "--bundles",
    "most_bundles",
    default=10,
    show_default=True,
    type=click.IntRange(0, 1000),
    help="How many of the busiest bundles to show.",
)
@reaching()
def top_command(*, interval_s: float, times: int | None, most_bundles: int, reach: Reach) -> None:
    """Show brokers and the busiest bundles, and go on showing them.

    On a terminal the picture is drawn anew in place; elsewhere each look is printed.

    Example: loadmanager top --interval 5
    """
    import itertools
    import sys
    import time

    from rich.console import Console
    from rich.live import Live

    looks = itertools.count(1) if times is None else range(1, times + 1)
    console = Console(width=None if sys.stdout.isatty() else 120)
    try:
        if not sys.stdout.isatty():
            for number in looks:
                console.print(_look(reach, most_bundles))
                if number != times:
                    time.sleep(interval_s)
            return
        with Live(console=console, auto_refresh=False, screen=times is None) as live:
            for number in looks:
                live.update(_look(reach, most_bundles), refresh=True)
                if number != times:
                    time.sleep(interval_s)
    except KeyboardInterrupt:
        return


def _look(reach: Reach, most_bundles: int) -> "RenderableType":
    from rich.console import Group

    from loadmanager.cli.cluster import broker_rows, leader_of, snapshot_of

    snapshot, leader = snapshot_of(reach), leader_of(reach).get("brokerId", "")
    rows = list(broker_rows(snapshot, leader))
    return Group(_title(snapshot, leader, rows), _brokers(rows), *_bundles(snapshot, most_bundles))


def _title(snapshot: "Snapshot", leader: str, rows: list[dict[str, Any]]) -> "Text":
    from rich.text import Text

    used = [row["used"] for row in map(_with_use, rows) if row["used"] is not None]
    mean = sum(used) / len(used) if used else 0.0
    imbalance = f"{max(used) / mean:.2f}" if mean > 0 else "-"
    return Text(
        f"{snapshot.cluster}   leader {leader or 'none'}   term {snapshot.epoch}   "
        f"{len(rows)} brokers   {len(snapshot.owners)} bundles owned   "
        f"{len(snapshot.in_flight)} under way   {len(snapshot.unowned)} waiting   "
        f"busiest {imbalance} times the mean",
        style="bold",
    )


def _with_use(row: dict[str, Any]) -> dict[str, Any]:
    known = [row[usage] for usage in _USAGES if row[usage] is not None]
    return {**row, "used": max(known, default=None)}


def _brokers(rows: list[dict[str, Any]]) -> "RenderableType":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("broker", "", "most used resource"):
        table.add_column(name, no_wrap=True)
    for name in ("bundles", "topics", "msg/s", "MB/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in sorted(map(_with_use, rows), key=lambda row: -(row["used"] or 0.0)):
        marks = "".join(
            mark
            for mark, holds in (
                ("★", row["leads"]),
                ("↓", row["draining"]),
                ("!", not row["healthy"]),
            )
            if holds
        )
        table.add_row(
            Text(row["broker"]),
            marks,
            _bar(row["used"]),
            str(row["bundles"]),
            str(row["topics"]),
            f"{row['msgsInPerS'] + row['msgsOutPerS']:,.0f}",
            f"{(row['bytesInPerS'] + row['bytesOutPerS']) / 1e6:,.2f}",
        )
    return table


def _bar(used: float | None) -> "Text":
    from rich.text import Text

    if used is None:
        return Text("unknown", style="dim")
    style = "red" if used >= _FULL else "yellow" if used >= _BUSY else "green"
    full = min(round(used * _BAR), _BAR)
    return Text.assemble(("█" * full, style), ("░" * (_BAR - full), "dim"), f" {used:4.0%}")


def _bundles(snapshot: "Snapshot", most: int) -> "list[RenderableType]":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    loads = [
        (stats, bundle, broker)
        for broker, report in snapshot.reports.items()
        for bundle, stats in report.bundles.items()
    ]
    loads.sort(key=lambda one: (-one[0].bytes_per_s, -one[0].msgs_per_s, one[1]))
    if not loads or not most:
        return []
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("busiest bundles", no_wrap=True)
    table.add_column("owner", no_wrap=True)
    for name in ("topics", "msg/s", "MB/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for stats, bundle, broker in loads[:most]:
        going = snapshot.in_flight.get(bundle)
        table.add_row(
            Text(bundle),
            Text(broker if going is None else f"{broker} → {going}"),
            str(stats.topics),
            f"{stats.msgs_per_s:,.0f}",
            f"{stats.bytes_per_s / 1e6:,.2f}",
        )
    return [table]
