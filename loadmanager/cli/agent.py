import os
import sys
from pathlib import Path
from typing import Final

import click

from loadmanager.cli.options import SET_OPTION, ending, freeze_imported_objects, option

DISPLACED: Final = 3
"""Exit code of a sidecar whose broker another one has; see the unit in ``deploy/systemd``."""


@click.command()
@option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file; see deploy/loadmanager.toml. The environment may be used instead.",
)
@SET_OPTION
def agent(*, config_file: Path | None, overrides: tuple[str, ...]) -> None:
    """Run the sidecar of a broker until SIGTERM or SIGINT.

    On SIGTERM the broker's bundles move to other brokers before the process ends. Exit
    code 3 means that another sidecar has taken over this broker: a supervisor must not
    start this one again.

    Example: loadmanager agent --config /etc/loadmanager.toml
    """
    from loadmanager.agent.registration import Displaced
    from loadmanager.config import ConfigError, load_config
    from loadmanager.core.errors import LoadManagerError
    from loadmanager.telemetry.logging import configure_logging
    from loadmanager.wiring.sidecar import run_sidecar

    name = "loadmanager agent: "
    with (
        ending(LoadManagerError, OSError, prefix=name),
        ending(Displaced, code=DISPLACED, prefix=name),
        ending(ConfigError, code=2),
    ):
        config = load_config(config_file, os.environ, overrides)
        configure_logging(config.log.format, config.log.level, sys.stderr)
        freeze_imported_objects()
        run_sidecar(config)
