from typing import Any

import click

from loadmanager.cli.options import JSON_OPTION, option, print_json
from loadmanager.cli.sections import SectionedGroup
from loadmanager.cli.sidecar_client import (
    SidecarClient,
    bundle_path,
    client_options,
    name_of,
    segment,
)
from loadmanager.cli.text_tables import Columns, print_records

_SPLIT_ALGORITHMS = (
    "range_equally_divide",
    "topic_count_equally_divide",
    "specified_positions_divide",
    "flow_or_qps_equally_divide",
)


@click.group("namespaces", cls=SectionedGroup)
def namespaces_commands() -> None:
    """List, create and delete namespaces.

    Example: loadmanager namespaces list acme
    """


@namespaces_commands.command("list")
@click.argument("tenant", metavar="TENANT")
@JSON_OPTION
@client_options()
def list_command(*, tenant: str, as_json: bool, client: SidecarClient) -> None:
    """List the namespaces of a tenant.

    Example: loadmanager namespaces list acme
    """
    found = client.json(f"/admin/v2/namespaces/{segment(tenant)}")
    if as_json:
        print_json(found)
    else:
        click.echo("\n".join(found))


@namespaces_commands.command("create")
@click.argument("namespace", metavar="TENANT/NAMESPACE")
@option(
    "--bundles",
    type=click.IntRange(1, 32768),
    help="Number of bundles.  [default: that of the cluster]",
)
@client_options()
def create_command(*, namespace: str, bundles: int | None, client: SidecarClient) -> None:
    """Create a namespace. Exits with 1 if it exists.

    Example: loadmanager namespaces create acme/orders --bundles 16
    """
    body = {} if bundles is None else {"bundles": {"numBundles": bundles}}
    client.ask(f"/admin/v2/namespaces/{_namespace(namespace)}", method="PUT", body=body)
    click.echo(f"{namespace} is created")


@namespaces_commands.command("delete")
@click.argument("namespace", metavar="TENANT/NAMESPACE")
@click.confirmation_option(
    "--yes", prompt="Delete the namespace?", help="Do not ask for confirmation."
)
@client_options()
def delete_command(*, namespace: str, client: SidecarClient) -> None:
    """Delete a namespace that has no topics. Exits with 1 if it has some.

    Example: loadmanager namespaces delete acme/orders --yes
    """
    client.ask(f"/admin/v2/namespaces/{_namespace(namespace)}", method="DELETE")
    click.echo(f"{namespace} is deleted")


@click.command("bundles")
@click.argument("namespace", metavar="TENANT/NAMESPACE")
@JSON_OPTION
@client_options()
def bundles_command(*, namespace: str, as_json: bool, client: SidecarClient) -> None:
    """List the bundles of a namespace with their owners and traffic.

    Example: loadmanager bundles acme/orders
    """
    from itertools import pairwise

    from loadmanager.cli.cluster import snapshot_of
    from loadmanager.core.ids import BundleId

    answer = client.json(f"/admin/v2/namespaces/{_namespace(namespace)}/bundles")
    bounds = answer["boundaries"]
    snapshot = snapshot_of(client)
    rows: list[dict[str, Any]] = []
    for low, high in pairwise(bounds):
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
    if as_json:
        print_json(rows)
        return
    columns: Columns = {
        "bundle": lambda row: row["bundle"].rpartition("/")[2],
        "owner": lambda row: row["owner"] or "none",
        "moving to": lambda row: row["underWayTo"] or "",
        "topics>": "{topics}",
        "msg/s>": "{msgsPerS:,.0f}",
        "MB/s>": lambda row: f"{row['bytesPerS'] / 1e6:,.2f}",
    }
    print_records(f"{namespace}: {len(rows)} bundles", columns, rows)


@click.command("split")
@click.argument("bundle", metavar="BUNDLE")
@option(
    "--algorithm",
    type=click.Choice(_SPLIT_ALGORITHMS),
    help="How the positions are chosen.  [default: that of the cluster]",
)
@option(
    "--at",
    "positions",
    multiple=True,
    metavar="POSITION",
    help="A position to split at, such as 0x40000000, for specified_positions_divide.",
)
@option(
    "--unload", is_flag=True, help="Unload the parts afterwards, so that they are placed again."
)
@client_options(60.0)
def split_command(
    *,
    bundle: str,
    algorithm: str | None,
    positions: tuple[str, ...],
    unload: bool,
    client: SidecarClient,
) -> None:
    """Split a bundle.

    BUNDLE may end in LARGEST, the namespace's bundle with the most topics, or HOT, the one
    with the most traffic. Exits with 2 if there is no such bundle, with 1 if it cannot be
    split now.

    Example: loadmanager split acme/orders/HOT --algorithm flow_or_qps_equally_divide
    """
    path = f"/admin/v2/namespaces/{bundle_path(bundle)}/split"
    query = {"unload": "true"} if unload else {}
    if positions and algorithm is None:
        algorithm = "specified_positions_divide"
    if algorithm is not None:
        query["splitAlgorithmName"] = algorithm
    body = [_position(text) for text in positions] or None
    client.ask(path, method="PUT", body=body, **query)
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


def _position(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise click.BadParameter(f"--at {text}; expected a number, such as 0x40000000") from None


def _namespace(text: str) -> str:
    if text.count("/") != 1 or not all(text.split("/")):
        raise click.BadParameter(f"{text!r}; expected tenant/namespace")
    return name_of(text)
