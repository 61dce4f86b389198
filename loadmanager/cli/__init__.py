"""The command line."""

import click


@click.group()
def main() -> None:
    """Run and steer a load manager for topic brokers."""
