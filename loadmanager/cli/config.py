"""``loadmanager config``: look at settings without starting anything."""

from pathlib import Path

import click


@click.group("config")
def config_commands() -> None:
    """Check a configuration, or print all keys with their defaults.

    Example: loadmanager config check --config /etc/loadmanager.toml
    """


@config_commands.command()
@click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="The TOML file; without it only the environment and --set count.",
)
@click.option(
    "--set",
    "overrides",
    metavar="SECTION.KEY=VALUE",
    multiple=True,
    help="Set one key, over file and environment. May be given several times.",
)
def check(path: Path | None, overrides: tuple[str, ...]) -> None:
    """Tell every mistake in a configuration at once; exit with 1 if there is one.

    Example: loadmanager config check --config sidecar.toml --set log.level=debug
    """
    import os  # noqa: PLC0415 - --help stays quick

    from loadmanager.config import ConfigError, load_config  # noqa: PLC0415 - the same

    try:
        checked = load_config(path, os.environ, overrides)
    except ConfigError as error:
        for fault in error.faults:
            click.echo(fault, err=True)
        raise click.exceptions.Exit(1) from None
    click.echo(f"The configuration of {checked.broker.id} is sound.")


@config_commands.command("show-defaults")
def show_defaults() -> None:
    """Print an annotated file of all keys with their defaults.

    Example: loadmanager config show-defaults > /etc/loadmanager.toml
    """
    from loadmanager.config import annotated_toml  # noqa: PLC0415 - --help stays quick

    click.echo(annotated_toml(), nl=False)


@config_commands.command("show-strategies")
def show_strategies() -> None:
    """Print the strategy guide: every shedder and placement with its settings.

    Example: loadmanager config show-strategies > docs/strategies.md
    """
    from loadmanager.config.guide import strategy_guide  # noqa: PLC0415 - --help stays quick

    click.echo(strategy_guide(), nl=False)
