from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from loadmanager.cli.options import (
    JSON_OPTION,
    Columns,
    ending,
    option,
    print_json,
    print_records,
    terminal_width,
)
from loadmanager.cli.sidecar_client import (
    RequestFailed,
    SidecarClient,
    client_options,
    name_of,
    whole_segment,
)

if TYPE_CHECKING:
    from loadmanager.core.load import ResourceUsage
    from loadmanager.core.snapshot.document import Snapshot

_WIDE = 140
"""Columns that the whole table of brokers takes."""


@click.command("brokers")
@JSON_OPTION
@client_options()
def brokers_command(*, as_json: bool, client: SidecarClient) -> None:
    """List the brokers with their load, as the leader sees it.

    Example: loadmanager brokers --url http://broker-1.example.org:7750
    """
    snapshot = snapshot_of(client)
    leader = leader_of(client)
    rows = list(broker_rows(snapshot, leader.get("brokerId", "")))
    if as_json:
        print_json(rows)
        return
    narrow = (terminal_width() or _WIDE) < _WIDE
    print_records(f"{len(rows)} brokers", _NARROW_COLUMNS if narrow else _COLUMNS, rows)


@click.command("leader")
@JSON_OPTION
@client_options()
def leader_command(*, as_json: bool, client: SidecarClient) -> None:
    """Print the broker whose sidecar is the leader.

    Exits with 2 if there is no leader now.

    Example: loadmanager leader
    """
    leader = leader_of(client)
    if as_json:
        print_json(leader)
    else:
        click.echo(f"{leader.get('brokerId', '')}  {leader.get('serviceUrl', '')}".strip())


@click.command("lookup")
@click.argument("topic", metavar="TOPIC")
@JSON_OPTION
@client_options()
def lookup_command(*, topic: str, as_json: bool, client: SidecarClient) -> None:
    """Print the bundle of a topic, and the broker that serves it.

    A short name stands for persistent://public/default/NAME. Exits with 2 if the
    namespace does not exist, with 1 if no broker can serve it.

    Example: loadmanager lookup persistent://acme/orders/payments
    """
    from loadmanager.core.errors import InvalidName
    from loadmanager.core.ids import parse_topic

    try:
        name = parse_topic(topic)
    except InvalidName as error:
        raise click.BadParameter(str(error)) from None
    path = f"{name.domain}/{name_of(name.namespace)}/{whole_segment(name.local)}"
    owner: dict[str, Any] = client.json(f"/lookup/v2/topic/{path}")
    owner["bundle"] = client.ask(f"/lookup/v2/topic/{path}/bundle").decode().strip('" \n')
    if as_json:
        print_json(owner)
        return
    for label, key in (
        ("bundle", "bundle"),
        ("broker", "brokerUrl"),
        ("broker with TLS", "brokerUrlTls"),
        ("web", "httpUrl"),
        ("web with TLS", "httpUrlTls"),
    ):
        if owner.get(key):
            click.echo(f"{label + ':':<16} {owner[key]}")


@click.command("snapshot")
@option(
    "--out",
    "file",
    required=True,
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    help="Where to write it; - for stdout.",
)
@client_options()
def snapshot_command(*, file: Path, client: SidecarClient) -> None:
    """Write a snapshot of the cluster as its leader sees it now.

    It contains load reports, averages, owners, orders, constraints, the memory of the strategies,
    and the settings in force. See docs/snapshot-format.md.

    Example: loadmanager snapshot --url http://sidecar:7750 --out cluster.json
    """
    content = client.ask("/admin/v2/loadmanager/snapshot")
    if str(file) == "-":
        click.echo(content, nl=False)
        return
    with ending(OSError, code=2):
        file.write_bytes(content)


def snapshot_of(client: SidecarClient) -> "Snapshot":
    from loadmanager.core.errors import MalformedContent
    from loadmanager.core.snapshot.codec import decode_snapshot

    content = client.ask("/admin/v2/loadmanager/snapshot")
    try:
        return decode_snapshot(client.url, content, lenient=True)
    except MalformedContent as error:
        raise RequestFailed(str(error)) from None


def leader_of(client: SidecarClient) -> dict[str, Any]:
    found: dict[str, Any] = client.json("/admin/v2/brokers/leaderBroker")
    return found


def broker_rows(snapshot: "Snapshot", leader: str) -> Iterator[dict[str, Any]]:
    owned: dict[str, int] = {}
    for broker in snapshot.owners.values():
        owned[broker] = owned.get(broker, 0) + 1
    for broker, report in sorted(snapshot.reports.items()):
        yield {
            "broker": broker,
            "leads": broker == leader,
            "draining": report.draining,
            "healthy": report.healthy,
            "bundles": owned.get(broker, 0),
            "topics": report.topics,
            "msgsInPerS": report.totals.msgs_in_per_s,
            "msgsOutPerS": report.totals.msgs_out_per_s,
            "bytesInPerS": report.totals.bytes_in_per_s,
            "bytesOutPerS": report.totals.bytes_out_per_s,
            "cpuFraction": _fraction(report.cpu),
            "memoryFraction": _fraction(report.memory),
            "bandwidthInFraction": _fraction(report.bandwidth_in),
            "bandwidthOutFraction": _fraction(report.bandwidth_out),
            "reportAgeS": snapshot.age_s.get(broker, 0.0),
            "version": report.version,
        }


def _fraction(usage: "ResourceUsage | None") -> float | None:
    return None if usage is None else usage.fraction


def _state(row: Mapping[str, Any]) -> str:
    states = (
        ("leader", row["leads"]),
        ("draining", row["draining"]),
        ("unhealthy", not row["healthy"]),
    )
    return " ".join(word for word, holds in states if holds)


def _sum(row: Mapping[str, Any], kind: str) -> float:
    return float(row[f"{kind}InPerS"] + row[f"{kind}OutPerS"])


def _network(row: Mapping[str, Any]) -> str:
    known = [row[key] for key in ("bandwidthInFraction", "bandwidthOutFraction")]
    used = [fraction for fraction in known if fraction is not None]
    return f"{max(used):.0%}" if used else "-"


_COLUMNS: Final[Columns] = {
    "broker": "{broker}",
    "state": _state,
    "bundles>": "{bundles}",
    "topics>": "{topics}",
    "msg/s in>": "{msgsInPerS:,.0f}",
    "msg/s out>": "{msgsOutPerS:,.0f}",
    "MB/s in>": lambda row: f"{row['bytesInPerS'] / 1e6:,.2f}",
    "MB/s out>": lambda row: f"{row['bytesOutPerS'] / 1e6:,.2f}",
    "CPU>": "{cpuFraction:.0%}",
    "memory>": "{memoryFraction:.0%}",
    "net in>": "{bandwidthInFraction:.0%}",
    "net out>": "{bandwidthOutFraction:.0%}",
    "report age>": "{reportAgeS:.0f} s",
    "version": "{version}",
}
_NARROW_COLUMNS: Final[Columns] = {
    "broker": "{broker}",
    "bundles>": "{bundles}",
    "topics>": "{topics}",
    "msg/s>": lambda row: f"{_sum(row, 'msgs'):,.0f}",
    "MB/s>": lambda row: f"{_sum(row, 'bytes') / 1e6:,.2f}",
    "CPU>": "{cpuFraction:.0%}",
    "mem>": "{memoryFraction:.0%}",
    "net>": _network,
    "age>": "{reportAgeS:.0f} s",
    "state": _state,
}
"""What fits 80 columns: both directions together."""
