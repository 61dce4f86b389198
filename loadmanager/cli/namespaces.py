from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import click

from loadmanager.cli.options import JSON_OPTION, Columns, option, print_json, print_records
from loadmanager.cli.sidecar_client import (
    RequestFailed,
    SidecarClient,
    bundle_path,
    client_options,
    name_of,
)


@click.command("bundles")
@click.argument("namespace", metavar="TENANT/NAMESPACE")
@JSON_OPTION
@client_options()
def bundles_command(*, namespace: str, as_json: bool, client: SidecarClient) -> None:
    """List the bundles of a namespace with their owners and traffic.

    Example: loadmanager bundles acme/orders
    """
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


def _namespace(text: str) -> str:
    if text.count("/") != 1 or not all(text.split("/")):
        raise click.BadParameter(f"{text!r}; expected tenant/namespace")
    return name_of(text)


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
