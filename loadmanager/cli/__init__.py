"""The command line."""

import click

from loadmanager.cli.broker import broker
from loadmanager.cli.config import config_commands


@click.group()
def main() -> None:
    """Run and steer a load manager for topic brokers."""


main.add_command(broker)
main.add_command(config_commands)
