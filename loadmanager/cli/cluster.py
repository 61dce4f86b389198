from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from loadmanager.cli.options import (
    Columns,
    ending,
    json_option,
    option,
    print_json,
    print_records,
    terminal_width,
)
from loadmanager.cli.sidecar_client import (
    RequestFailed,
    SidecarClient,
    bundle_path,
    client_options,
    name_of,
    segment,
)

if TYPE_CHECKING:
    from loadmanager.core.load import ResourceUsage
    from loadmanager.core.snapshot.document import Snapshot

_WIDE = 140
"""Columns that the whole table of brokers takes."""


@click.command("brokers")
@json_option()
@client_options()
def brokers_command(*, client: SidecarClient) -> Iterator[object]:
    """List the brokers with their load, as the leader sees it.

    Example: loadmanager brokers --url http://broker-1.example.org:7750
    """
    snapshot = snapshot_of(client)
    leader = leader_of(client)
    rows = list(broker_rows(snapshot, leader.get("brokerId", "")))
    yield rows
    narrow = (terminal_width() or _WIDE) < _WIDE
    print_records(f"{len(rows)} brokers", _NARROW_COLUMNS if narrow else _COLUMNS, rows)


@click.command("leader")
@json_option()
@client_options()
def leader_command(*, client: SidecarClient) -> Iterator[object]:
    """Print the broker whose sidecar is the leader.

    Exits with 2 if there is no leader now.

    Example: loadmanager leader
    """
    leader = leader_of(client)
    yield leader
    click.echo(f"{leader.get('brokerId', '')}  {leader.get('serviceUrl', '')}".strip())


@click.command("lookup")
@click.argument("topic", metavar="TOPIC")
@json_option()
@client_options()
def lookup_command(*, topic: str, client: SidecarClient) -> Iterator[object]:
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
    path = f"{name.domain}/{name_of(name.namespace)}/{segment(name.local)}"
    owner: dict[str, Any] = client.json(f"/lookup/v2/topic/{path}")
    owner["bundle"] = client.ask(f"/lookup/v2/topic/{path}/bundle").decode().strip('" \n')
    yield owner
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


@click.command("bundles")
@click.argument("namespace", metavar="TENANT/NAMESPACE")
@json_option()
@client_options()
def bundles_command(*, namespace: str, client: SidecarClient) -> Iterator[object]:
    """List the bundles of a namespace with their owners and traffic.

    Example: loadmanager bundles acme/orders
    """
    from loadmanager.core.ids import BundleId

    if namespace.count("/") != 1 or not all(namespace.split("/")):
        raise click.BadParameter(f"{namespace!r}; expected tenant/namespace")
    answer = client.json(f"/admin/v2/namespaces/{name_of(namespace)}/bundles")
    snapshot = snapshot_of(client)
    rows: list[dict[str, Any]] = []
    for low, high in pairwise(answer["boundaries"]):
        bundle = BundleId(f"{namespace}/{low}_{high}")
        owner = snapshot.owners.get(bundle)
        report = snapshot.reports.get(owner) if owner else None
        load = report.bundles.get(bundle) if report else None
        rows.append(
            {
                "bundle": bundle,
                "owner": owner,
                "underWayTo": snapshot.in_flight.get(bundle),
                "topics": load.topics if load else 0,
                "msgsPerS": load.msgs_per_s if load else 0.0,
                "bytesPerS": load.bytes_per_s if load else 0.0,
            }
        )
    yield rows
    columns: Columns = {
        "bundle": lambda row: row["bundle"].rpartition("/")[2],
        "owner": lambda row: row["owner"] or "none",
        "moving to": lambda row: row["underWayTo"] or "",
        "topics>": "{topics}",
        "msg/s>": "{msgsPerS:,.0f}",
        "MB/s>": lambda row: f"{row['bytesPerS'] / 1e6:,.2f}",
    }
    print_records(f"{namespace}: {len(rows)} bundles", columns, rows)


@click.command("top")
@option(
    "--interval",
    "interval_s",
    default=2.0,
    type=click.FloatRange(0.2, 3600),
    help="Seconds between two updates.",
)
@option(
    "--times",
    type=click.IntRange(min=1),
    help="End after this many updates.  [default: until q or Ctrl-C]",
)
@option(
    "--bundles",
    "most_bundles",
    default=10,
    type=click.IntRange(0, 1000),
    help="Number of busiest bundles to show.",
)
@client_options()
def top_command(
    *, interval_s: float, times: int | None, most_bundles: int, client: SidecarClient
) -> None:
    """Show brokers, the last moves and the busiest bundles, and keep them up to date.

    On a terminal the picture is redrawn in place, and q or Ctrl-C ends it; elsewhere each
    picture is printed. If the sidecar does not answer for a while, the last picture stays
    and the reason is shown.

    Example: loadmanager top --interval 5
    """
    from loadmanager.cli.top import Screen

    Screen(client, interval_s, times, most_bundles).show()


@click.command("split")
@click.argument("bundle", metavar="BUNDLE")
@client_options(60.0)
def split_command(*, bundle: str, client: SidecarClient) -> None:
    """Split a bundle, as [split] algorithm says.

    BUNDLE may end in LARGEST, the namespace's bundle with the most topics, or HOT, the one
    with the most traffic. Exits with 2 if there is no such bundle, with 1 if it cannot be
    split now.

    Example: loadmanager split acme/orders/HOT
    """
    client.ask(f"/admin/v2/namespaces/{bundle_path(bundle)}/split", method="PUT")
    click.echo(f"{bundle} is split")


@click.command("merge")
@click.argument("bundle", metavar="BUNDLE")
@click.argument("neighbour", metavar="BUNDLE")
@client_options(60.0)
def merge_command(*, bundle: str, neighbour: str, client: SidecarClient) -> None:
    """Merge two adjacent bundles into one.

    Both move to the owner of the busier one first; lookups wait while they are merged.
    Exits with 2 if there is no such bundle or the two cannot be merged, with 1 if one of
    them is moving or being split, or the merge was not done in time.

    Example: loadmanager merge acme/orders/0x00000000_0x40000000
    acme/orders/0x40000000_0x80000000
    """
    path, _ = bundle_path(bundle), bundle_path(neighbour)
    namespace, _, range_text = neighbour.rpartition("/")
    if bundle.rpartition("/")[0] != namespace:
        raise click.BadParameter(f"{neighbour}; expected a bundle of the same namespace")
    path = f"/admin/v2/loadmanager/namespaces/{path}/merge"
    whole = client.json(path, method="PUT", **{"with": range_text})
    click.echo(f"{bundle} and {neighbour} are {namespace}/{whole['bundle']} now")


@click.command("unload")
@click.argument("bundle", metavar="BUNDLE|NAMESPACE")
@option(
    "--to",
    "destination",
    default="",
    metavar="BROKER",
    help="The broker to move it to, whatever its load.  [default: the best one but its owner]",
)
@option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
@client_options(60.0)
def unload_command(*, bundle: str, destination: str, as_json: bool, client: SidecarClient) -> None:
    """Move a bundle, or each bundle of a namespace, to another broker.

    Prints the former and the new owner of each bundle, and the time until the new owner
    served it. The bundles of a namespace move one after the other; one that cannot move
    stays where it is served, and the others go on. Exits with 2 if there is no such bundle
    or namespace, with 1 if a bundle did not move.

    Example: loadmanager unload public/default/0x00000000_0x08000000
    """
    parts = bundle.split("/")
    if len(parts) not in {2, 3} or not all(parts):
        expected = "tenant/namespace/0xLLLLLLLL_0xUUUUUUUU or tenant/namespace"
        raise click.BadParameter(f"{bundle!r}; expected {expected}")
    if len(parts) == 3:  # noqa: PLR2004 - tenant, namespace, range
        answer = _unload(client, bundle, destination)
        if as_json:
            print_json(answer)
        else:
            click.echo(_where(answer))
        return
    if destination:
        raise click.BadParameter("--to is for one bundle, not for a namespace")
    answers = []
    for answer in _unload_all(client, bundle):
        answers.append(answer)
        if not as_json:
            click.echo(_where(answer), err="error" in answer)
    failed = sum("error" in answer for answer in answers)
    if as_json:
        print_json(answers)
    if failed:
        message = f"{failed} of {len(answers)} bundles of {bundle} did not move"
        raise RequestFailed(message, refused=True)


def _unload(client: SidecarClient, bundle: str, destination: str = "") -> Mapping[str, Any]:
    path = f"/admin/v2/loadmanager/namespaces/{name_of(bundle)}/unload"
    query = {"destinationBroker": destination} if destination else {}
    try:
        answer: dict[str, Any] = client.json(path, method="PUT", **query)
    except RequestFailed as error:
        if error.refused:
            raise
        hint = f"{bundle} may move all the same: `loadmanager explain {bundle}`"
        raise RequestFailed(f"{error.message}\n{hint}") from None
    return answer


def _unload_all(client: SidecarClient, namespace: str) -> Iterator[Mapping[str, Any]]:
    found = client.json(f"/admin/v2/namespaces/{name_of(namespace)}/bundles")
    for low, high in pairwise(found["boundaries"]):
        bundle = f"{namespace}/{low}_{high}"
        try:
            yield _unload(client, bundle)
        except RequestFailed as error:
            if not error.refused:
                raise
            yield {"bundle": bundle, "error": error.message}


def _where(content: Mapping[str, Any]) -> str:
    bundle, source, target = content["bundle"], content.get("source"), content.get("target")
    if "error" in content:
        return f"{bundle} did not move: {content['error']}"
    if source is None:
        return f"{bundle} has no owner; there is nothing to unload"
    if target is None:
        return f"{bundle} left {source}; it was split meanwhile"
    if source == target:
        return f"{bundle} is on {target} already"
    return f"{bundle} moved from {source} to {target} in {content['tookS']:.3f} s"
