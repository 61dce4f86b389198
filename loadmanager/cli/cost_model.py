"""``loadmanager cost-model``: what traffic costs, learned by the pipeline, used by the leader."""

from pathlib import Path

import click

from loadmanager.cli.options import option
from loadmanager.cli.sections import SectionedGroup
from loadmanager.cli.sidecar_client import SidecarClient, client_options

_PATH = "/admin/v2/loadmanager/cost-model"
_FILE = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


@click.group("cost-model", cls=SectionedGroup)
def cost_model_group() -> None:
    """Publish, show or remove the cost model that the leader decides with.

    Example: loadmanager cost-model publish /var/lib/loadmanager/pipeline/cost-model.json
    """


@cost_model_group.command("publish")
@click.argument("file", metavar="FILE", type=_FILE)
@option("--force", is_flag=True, help="Publish it even if it was learned from another cluster.")
@client_options()
def publish_command(*, file: Path, force: bool, client: SidecarClient) -> None:
    """Publish a cost model; the leader uses it from its next round on.

    FILE is what `loadmanager pipeline costs` wrote; - reads stdin. It is checked before
    anything is sent, and its content is printed. Exits with 2 if it is not a cost model.

    Example: loadmanager cost-model publish out/cost-model.json
    """
    from loadmanager.cli.cost_model_output import print_costs, read_costs
    from loadmanager.core.cost.document import costs_to_json

    document = read_costs(file)
    client.ask(_PATH, method="PUT", body=costs_to_json(document), force=str(force).lower())
    print_costs(document)
    click.echo("\nPublished.")


@cost_model_group.command("show")
@click.argument("file", metavar="[FILE]", type=_FILE, required=False)
@option("--json", "as_json", is_flag=True, help="Print the document as JSON.")
@client_options()
def show_command(*, file: Path | None, as_json: bool, client: SidecarClient) -> None:
    """Print the published cost model, or the one in FILE.

    Prints the terms with their 90 % intervals, how well they predict held-out data,
    and which of them the leader decides by. Exits with 2 if none is published.

    Example: loadmanager cost-model show
    """
    from loadmanager.cli.cost_model_output import asked_costs, print_costs, read_costs
    from loadmanager.core.cost.document import encode_costs

    document = asked_costs(client, _PATH) if file is None else read_costs(file)
    if as_json:
        click.echo(encode_costs(document).decode())
    else:
        print_costs(document)


@cost_model_group.command("remove")
@client_options()
def remove_command(*, client: SidecarClient) -> None:
    """Remove the cost model: the leader uses shares of the traffic again.

    Exits with 2 if no cost model is published.

    Example: loadmanager cost-model remove
    """
    client.ask(_PATH, method="DELETE")
    click.echo("no cost model is published any more")
