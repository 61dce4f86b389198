"""``loadmanager config get|set|unset|show``: settings of a cluster that runs."""

from pathlib import Path

import click

from loadmanager.cli.asking import Reach, reaching, whole_segment
from loadmanager.cli.options import JSON_OPTION, ending, option, print_json

_PATH = "/admin/v2/brokers/configuration"


@click.command("get")
@click.argument("name", metavar="[NAME]", required=False)
@JSON_OPTION
@reaching()
def get_command(*, name: str | None, as_json: bool, reach: Reach) -> None:
    """Print the settings made for the whole cluster: all, or one.

    Exits with 2 if NAME is not set.

    Example: loadmanager config get leader.round_interval_s
    """
    values = reach.json(f"{_PATH}/values")
    if name is not None:
        if name not in values:
            click.echo(f"{name} is not set; every sidecar uses its own value", err=True)
            raise click.exceptions.Exit(2)
        values = {name: values[name]}
    if as_json:
        print_json(values)
    elif name is not None:
        click.echo(values[name])
    else:
        for known, value in sorted(values.items()):
            click.echo(f"{known} = {value}")


@click.command("set")
@click.argument("name", metavar="NAME")
@click.argument("value", metavar="VALUE")
@reaching()
def set_command(*, name: str, value: str, reach: Reach) -> None:
    """Change a dynamic setting of the whole cluster; sidecars apply it within seconds.

    NAME is section.key as in docs/configuration.md, or Pulsar's name, and then VALUE is in
    Pulsar's unit. Exits with 2 if NAME is not dynamic, or VALUE is not valid for it.

    Example: loadmanager config set leader.round_interval_s 120
    """
    reach.ask(f"{_PATH}/{whole_segment(name)}/{whole_segment(value)}", method="POST")
    click.echo(f"{name} is set to {value}")


@click.command("unset")
@click.argument("name", metavar="NAME")
@reaching()
def unset_command(*, name: str, reach: Reach) -> None:
    """Remove a setting of the whole cluster: each sidecar uses its own configuration again.

    Example: loadmanager config unset leader.round_interval_s
    """
    reach.ask(f"{_PATH}/{whole_segment(name)}", method="DELETE")
    click.echo(f"{name} is not set any more")


@click.command("show")
@option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="Print the settings of this file and the environment; no sidecar is asked.",
)
@JSON_OPTION
@reaching()
def show_command(*, path: Path | None, as_json: bool, reach: Reach) -> None:
    """Print all settings in force on one sidecar, with secrets hidden.

    Example: loadmanager config show --url http://broker-1.example.org:7750
    """
    values = reach.json(f"{_PATH}/runtime") if path is None else _of_file(path)
    if as_json:
        print_json(values)
        return
    section = ""
    for name, value in values.items():
        here, _, key = name.partition(".")
        if here != section:
            click.echo(f"[{here}]" if not section else f"\n[{here}]")
            section = here
        click.echo(f"{key} = {value}")


def _of_file(path: Path) -> dict[str, str]:
    import os

    from loadmanager.config import ConfigError, load_config
    from loadmanager.config.describe import shown

    with ending(ConfigError):
        return dict(shown(load_config(path, os.environ)))
