"""``loadmanager broker``: the in-memory broker, for demonstrations and tests."""

from pathlib import Path
from typing import Any, Final

import click

from loadmanager.cli.options import freeze_imported_objects, option
from loadmanager.core.hashing import DEFAULT_HASH

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
    "--window-s",
    type=click.FloatRange(0.1, 3600),
    default=2.0,
    help="Window of the reported rates. A shorter one reacts faster and is noisier.",
)
@option(
    "--hash",
    "hash_name",
    type=click.Choice(["murmur3", "crc32"]),
    default=DEFAULT_HASH,
    help="Hash from topic to bundle; must be that of the cluster.",
)
@option(
    "--max-body-bytes",
    type=click.IntRange(1024, 1024**3),
    default=1024 * 1024,
    help="Longer messages are refused.",
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
    import sys

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
