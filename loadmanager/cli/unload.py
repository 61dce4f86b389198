from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import click

from loadmanager.cli.options import option, print_json
from loadmanager.cli.sidecar_client import RequestFailed, SidecarClient, client_options, name_of


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
    told_of_all = []
    for answer in _unload_all(client, bundle):
        told_of_all.append(answer)
        if not as_json:
            click.echo(_where(answer), err="error" in answer)
    failed = sum("error" in answer for answer in told_of_all)
    if as_json:
        print_json(told_of_all)
    if failed:
        message = f"{failed} of {len(told_of_all)} bundles of {bundle} did not move"
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
