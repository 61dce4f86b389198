import click

from loadmanager.cli.options import JSON_OPTION, option, print_json
from loadmanager.cli.sections import SectionedGroup
from loadmanager.cli.sidecar_client import SidecarClient, client_options, segment
from loadmanager.cli.text_tables import Columns, print_records

_CLUSTER = option(
    "--cluster",
    envvar="LOADMANAGER_CLUSTER",
    help="Name of the cluster.  [default: that of the sidecar that is asked]",
)


@click.group("isolation", cls=SectionedGroup)
def isolation_commands() -> None:
    """List, set and delete isolation policies, which keep namespaces on certain brokers.

    Example: loadmanager isolation list
    """


@isolation_commands.command("list")
@_CLUSTER
@JSON_OPTION
@client_options()
def list_command(*, cluster: str | None, as_json: bool, client: SidecarClient) -> None:
    """List the isolation policies.

    Example: loadmanager isolation list --cluster production
    """
    found = client.json(_path(cluster, client))
    if as_json:
        print_json(found)
        return
    columns: Columns = {
        "policy": "{name}",
        "namespaces": lambda one: " ".join(one["namespaces"]),
        "primary": lambda one: " ".join(one["primary"]),
        "secondary": lambda one: " ".join(one["secondary"]),
        "min brokers>": "{auto_failover_policy[parameters][min_limit]}",
        "usage>": "{auto_failover_policy[parameters][usage_threshold]}%",
    }
    policies = [{"name": name, **policy} for name, policy in sorted(found.items())]
    print_records(f"{len(policies)} isolation policies", columns, policies)


@isolation_commands.command("set")
@click.argument("name", metavar="POLICY")
@option(
    "--namespaces",
    required=True,
    multiple=True,
    metavar="REGEX",
    help="Namespaces that the policy is for. May be given again.",
)
@option(
    "--primary",
    required=True,
    multiple=True,
    metavar="REGEX",
    help="Their primary brokers. May be given again.",
)
@option(
    "--secondary",
    multiple=True,
    metavar="REGEX",
    help="Brokers to fail over to. May be given again.",
)
@option(
    "--min-brokers",
    default=1,
    type=click.IntRange(min=0),
    help="With fewer available primary brokers, secondary ones take bundles as well.",
)
@option(
    "--usage-threshold",
    default=100,
    type=click.IntRange(0, 100),
    help="Percent of usage from which a primary broker counts as not available.",
)
@_CLUSTER
@client_options()
def set_command(
    *,
    name: str,
    namespaces: tuple[str, ...],
    primary: tuple[str, ...],
    secondary: tuple[str, ...],
    min_brokers: int,
    usage_threshold: int,
    cluster: str | None,
    client: SidecarClient,
) -> None:
    """Create an isolation policy, or replace the one of that name.

    Example: loadmanager isolation set gold --namespaces 'gold/.*' --primary 'broker-[12].*'
    """
    policy = {
        "namespaces": list(namespaces),
        "primary": list(primary),
        "secondary": list(secondary),
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {
                "min_limit": str(min_brokers),
                "usage_threshold": str(usage_threshold),
            },
        },
    }
    client.ask(f"{_path(cluster, client)}/{segment(name)}", method="POST", body=policy)
    click.echo(f"{name} is set")


@isolation_commands.command("delete")
@click.argument("name", metavar="POLICY")
@_CLUSTER
@client_options()
def delete_command(*, name: str, cluster: str | None, client: SidecarClient) -> None:
    """Delete an isolation policy. Exits with 2 if there is none of that name.

    Example: loadmanager isolation delete gold
    """
    client.ask(f"{_path(cluster, client)}/{segment(name)}", method="DELETE")
    click.echo(f"{name} is deleted")


@isolation_commands.command("brokers")
@_CLUSTER
@JSON_OPTION
@client_options()
def brokers_command(*, cluster: str | None, as_json: bool, client: SidecarClient) -> None:
    """List the brokers with the isolation policies that name each.

    Example: loadmanager isolation brokers
    """
    found = client.json(f"{_path(cluster, client)}/brokers")
    if as_json:
        print_json(found)
        return
    columns: Columns = {
        "broker": "{brokerName}",
        "policy": lambda one: one.get("policyName") or "",
        "": lambda one: "primary" if one.get("isPrimary") else "",
        "namespaces": lambda one: " ".join(one.get("namespaceRegex") or ()),
    }
    print_records(f"{len(found)} brokers", columns, found)


def _path(cluster: str | None, client: SidecarClient) -> str:
    if cluster is None:
        cluster = str(client.json("/admin/v2/brokers/configuration/runtime")["cluster.name"])
    return f"/admin/v2/clusters/{segment(cluster)}/namespaceIsolationPolicies"
