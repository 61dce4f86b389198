import os
import socket
from collections.abc import Iterator
from pathlib import Path

import click

from loadmanager.cli.options import (
    SET_OPTION,
    SectionedGroup,
    ending,
    json_option,
    option,
    write_output,
)
from loadmanager.cli.sidecar_client import SidecarClient, client_options, segment

_DYNAMIC_PATH = "/admin/v2/brokers/configuration"


@click.group("config", cls=SectionedGroup)
def config_commands() -> None:
    """Check configuration files, and read or change the settings of a running cluster.

    Example: loadmanager config check --config /etc/loadmanager.toml
    """


config_commands.removed = {
    "show-reference": "docs/configuration.md, which `make reference` writes",
    "show-scenario-format": "docs/scenario-format.md, which `make reference` writes",
    "show-strategies": "docs/strategies.md, which `make ratings` writes",
}


@config_commands.command()
@option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="The TOML file; without it, only the environment and --set are read.",
)
@SET_OPTION
def check(path: Path | None, overrides: tuple[str, ...]) -> None:
    """Check a configuration and report all errors; exits with 1 if there is one.

    Example: loadmanager config check --config sidecar.toml --set log.level=debug
    """
    from loadmanager.config import ConfigError, load_config
    from loadmanager.config.model import lease_warning

    with ending(ConfigError):
        checked = load_config(path, os.environ, overrides, reachable=True)
    for warning in filter(None, (checked.broker.exposure(), lease_warning(checked))):
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"The configuration of {checked.broker.id} is sound.")


@config_commands.command("show-defaults")
def show_defaults() -> None:
    """Print an annotated file of all keys with their defaults.

    Example: loadmanager config show-defaults > /etc/loadmanager.toml
    """
    from loadmanager.config import annotated_toml

    click.echo(annotated_toml(), nl=False)


@config_commands.command("check-scenario")
@click.argument("scenarios", metavar="SCENARIO...", nargs=-1, required=True)
@option(
    "--trace",
    type=click.Path(path_type=Path),
    help="Recorded topic rates, CSV or Parquet, in place of the load of the scenarios.",
)
def check_scenario(scenarios: tuple[str, ...], trace: Path | None) -> None:
    """Check scenarios and their traces and report all errors; exits with 1 if there is one.

    SCENARIO is a TOML file, or the name of one that comes with the package.

    Example: loadmanager config check-scenario mine.toml --trace rates.csv
    """
    from loadmanager.simulator.scenario import ScenarioError
    from loadmanager.simulator.scenario_files import checked_file, find

    failed = False
    for name in scenarios:
        try:
            click.echo(checked_file(find(name), trace=trace))
        except ScenarioError as error:
            click.echo(str(error), err=True)
            failed = True
    if failed:
        raise click.exceptions.Exit(1)


@config_commands.command("import")
@click.argument("broker_conf", type=click.Path(path_type=Path))
@option(
    "--host",
    help="Name of the broker's host where advertisedAddress is not set; else that of this machine.",
)
@option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="Where to write the file; without it, it is printed.",
)
def import_broker_conf(broker_conf: Path, host: str | None, out: Path | None) -> None:
    """Translate Pulsar's broker.conf, and report every key without a counterpart.

    The configuration goes to standard output, the report to standard error. Exits with 1 if a
    value is not valid.

    Example: loadmanager config import /etc/pulsar/broker.conf > /etc/loadmanager.toml
    """
    from loadmanager.config import ConfigError
    from loadmanager.config.load import checked
    from loadmanager.config.pulsar_import import import_settings, read_broker_conf

    with ending(ConfigError):
        imported = import_settings(read_broker_conf(broker_conf), host or socket.getfqdn())
        checked(imported.given(broker_conf))
    if out is None:
        click.echo(imported.toml(), nl=False)
    else:
        write_output(out, imported.toml())
    for line in imported.summary():
        click.echo(f"{broker_conf}: {line}", err=True)


@config_commands.command("get")
@click.argument("name", metavar="[NAME]", required=False)
@json_option()
@client_options()
def get_command(*, name: str | None, client: SidecarClient) -> Iterator[object]:
    """Print the settings made for the whole cluster: all, or one.

    Exits with 2 if NAME is not set.

    Example: loadmanager config get leader.round_interval_s
    """
    values = client.json(f"{_DYNAMIC_PATH}/values")
    if name is not None:
        if name not in values:
            click.echo(f"{name} is not set; every sidecar uses its own value", err=True)
            raise click.exceptions.Exit(2)
        values = {name: values[name]}
    yield values
    for known, value in sorted(values.items()):
        click.echo(value if name is not None else f"{known} = {value}")


@config_commands.command("set")
@click.argument("name", metavar="NAME")
@click.argument("value", metavar="VALUE")
@client_options()
def set_command(*, name: str, value: str, client: SidecarClient) -> None:
    """Change a dynamic setting of the whole cluster; sidecars apply it within seconds.

    NAME is section.key as in docs/configuration.md, or Pulsar's name, and then VALUE is in
    Pulsar's unit. Exits with 2 if NAME is not dynamic, or VALUE is not valid for it.

    Example: loadmanager config set leader.round_interval_s 120
    """
    client.ask(f"{_DYNAMIC_PATH}/{segment(name)}/{segment(value)}", method="POST")
    click.echo(f"{name} is set to {value}")


@config_commands.command("unset")
@click.argument("name", metavar="NAME")
@client_options()
def unset_command(*, name: str, client: SidecarClient) -> None:
    """Remove a setting of the whole cluster: each sidecar uses its own configuration again.

    Example: loadmanager config unset leader.round_interval_s
    """
    client.ask(f"{_DYNAMIC_PATH}/{segment(name)}", method="DELETE")
    click.echo(f"{name} is not set any more")


@config_commands.command("show")
@option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="Print the settings of this file and the environment; no sidecar is asked.",
)
@json_option()
@client_options()
def show_command(*, path: Path | None, client: SidecarClient) -> Iterator[object]:
    """Print all settings in force on one sidecar, with secrets hidden.

    Example: loadmanager config show --url http://broker-1.example.org:7750
    """
    if path is None:
        values = client.json(f"{_DYNAMIC_PATH}/runtime")
    else:
        from loadmanager.config import ConfigError, load_config
        from loadmanager.config.describe import shown

        with ending(ConfigError):
            values = dict(shown(load_config(path, os.environ)))
    yield values
    section = ""
    for name, value in values.items():
        here, _, key = name.partition(".")
        if here != section:
            click.echo(f"[{here}]" if not section else f"\n[{here}]")
            section = here
        click.echo(f"{key} = {value}")
