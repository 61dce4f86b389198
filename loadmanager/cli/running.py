import os
import sys
from pathlib import Path
from typing import Any, Final

import click

from loadmanager.cli.options import (
    SET_OPTION,
    ending,
    freeze_imported_objects,
    option,
    stopped_by_signals,
)
from loadmanager.core.hashing import DEFAULT_HASH

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


_MAX_PORT: Final = 65_535


def _address(_context: click.Context, _option: click.Parameter, value: str) -> tuple[str, int]:
    """Return host and port; port 0 is any free one."""
    host, _, port = value.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > _MAX_PORT:
        raise click.BadParameter(f"{value!r}; expected HOST:PORT, as in 127.0.0.1:8080")
    return host.removeprefix("[").removesuffix("]"), int(port)


@click.command()
@option(
    "--listen",
    metavar="HOST:PORT",
    callback=_address,
    default="127.0.0.1:8080",
    help="Where clients and the sidecar connect. Port 0 takes any free one.",
)
@option(
    "--cpu-ms-per-message",
    type=click.FloatRange(0, 10_000),
    default=1.0,
    help="CPU time used for each message. With 1 ms one core handles a thousand a second.",
)
@option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append the times at which bundles were served to this file, as JSON lines.",
)
@option(
    "--hash",
    "hash_name",
    type=click.Choice(["murmur3", "crc32"]),
    default=DEFAULT_HASH,
    help="Hash from topic to bundle; must be that of the cluster.",
)
@option(
    "--control-secret-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with the secret of the sidecar's broker.control_secret_file, 16 characters or "
    "more: requests of the contract without it get 401.",
)
def broker(
    *,
    listen: tuple[str, int],
    control_secret_file: Path | None,
    cpu_ms_per_message: float,
    **settings: Any,
) -> None:
    """Run an in-memory broker that implements the broker contract, for demonstrations and tests.

    Messages are not stored: the broker uses CPU for each one, counts it and answers. It serves
    nothing until a sidecar gives it a lease and loads bundles.

    Example: loadmanager broker --listen 127.0.0.1:8081 --record broker-1.jsonl
    """
    import asyncio

    from loadmanager.adapters.broker.contract import SecretUnusable, read_secret
    from loadmanager.reference_broker.server import BrokerSettings, run_broker
    from loadmanager.telemetry.logging import configure_logging

    configure_logging("auto", "info", sys.stderr)
    try:
        secret = "" if control_secret_file is None else read_secret(control_secret_file)
    except SecretUnusable as error:
        raise click.ClickException(str(error)) from None
    host, port = listen
    made = BrokerSettings(
        host=host,
        port=port,
        control_secret=secret,
        cpu_s_per_message=cpu_ms_per_message / 1000,
        **settings,
    )
    freeze_imported_objects()
    try:
        asyncio.run(run_broker(made, lambda url: click.echo(f"broker listening on {url}")))
    except OSError as error:
        raise click.ClickException(f"broker on {host}:{port}: {error}") from None


@click.command("zookeeper")
@option("--host", default="127.0.0.1", help="Address to listen on.")
@option("--port", default=2181, help="Client port; 0 takes a free one.")
@option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for its data. Without it, a temporary one that is removed at the end.",
)
@option(
    "--tick-ms",
    default=2000,
    type=click.IntRange(50, 60_000),
    help="ZooKeeper's tick; the shortest session timeout is two ticks.",
)
def zookeeper_command(host: str, port: int, data_dir: Path | None, tick_ms: int) -> None:
    """Run a single ZooKeeper server in the foreground, for demonstrations and tests.

    Not for production. Needs PySpark's jars and Java:
    pip install 'loadmanager[demo]' brings both.

    \b
    Example:
      loadmanager zookeeper --port 2181 --tick-ms 500
    """  # noqa: D301 - the backspace keeps click from wrapping the example
    from loadmanager.adapters.zookeeper.embedded import EmbeddedZooKeeper, EmbeddedZooKeeperError

    stopping = stopped_by_signals()
    try:
        with EmbeddedZooKeeper(host=host, port=port, data_dir=data_dir, tick_ms=tick_ms) as server:
            click.echo(f"ZooKeeper is ready on {server.address}; Ctrl-C stops it.")
            while not stopping.wait(0.2):
                code = server.exit_code()
                if code is not None:
                    raise click.ClickException(
                        f"ZooKeeper ended by itself with exit code {code}; "
                        f"its log ends:\n{server.log_tail()}"
                    )
    except EmbeddedZooKeeperError as error:
        raise click.ClickException(str(error)) from error
