"""``loadmanager broker``: the in-memory broker, for demonstrations and tests."""

from pathlib import Path
from typing import Final, cast

import click

from loadmanager.core.hashing import HashName

_MAX_PORT: Final = 65_535


def _address(_context: click.Context, _option: click.Parameter, value: str) -> tuple[str, int]:
    """Return host and port; port 0 is any free one."""
    host, _, port = value.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > _MAX_PORT:
        raise click.BadParameter(f"{value!r}; expected HOST:PORT, as in 127.0.0.1:8080")
    return host.removeprefix("[").removesuffix("]"), int(port)


@click.command()
@click.option(
    "--listen",
    metavar="HOST:PORT",
    callback=_address,
    default="127.0.0.1:8080",
    show_default=True,
    help="Where clients and the sidecar connect. Port 0 takes any free one.",
)
@click.option(
    "--cpu-ms-per-message",
    type=click.FloatRange(0, 10_000),
    default=1.0,
    show_default=True,
    help="CPU time burnt on each message. 1 ms lets one core take a thousand a second.",
)
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append to this file when which bundle was served, as JSON lines.",
)
@click.option(
    "--window-s",
    type=click.FloatRange(0.1, 3600),
    default=2.0,
    show_default=True,
    help="How far back rates look. Shorter follows load sooner and is noisier.",
)
@click.option(
    "--hash",
    "hash_name",
    type=click.Choice(["murmur3", "crc32"]),
    default="murmur3",
    show_default=True,
    help="From topic to bundle; must be the cluster's.",
)
@click.option(
    "--max-body-bytes",
    type=click.IntRange(1024, 1024**3),
    default=1024 * 1024,
    show_default=True,
    help="Longer messages are refused.",
)
def broker(
    *,
    listen: tuple[str, int],
    cpu_ms_per_message: float,
    record: Path | None,
    window_s: float,
    hash_name: str,
    max_body_bytes: int,
) -> None:
    """Run an in-memory broker that a sidecar commands over the HTTP contract.

    It keeps no message: it burns CPU for each, counts it and answers. It serves nothing
    until a sidecar gives it a lease and loads bundles.

    Example: loadmanager broker --listen 127.0.0.1:8081 --record broker-1.jsonl
    """
    import asyncio  # noqa: PLC0415 - --help stays quick
    import sys  # noqa: PLC0415 - the same

    from loadmanager.adapters.broker.broker_process import (  # noqa: PLC0415 - the same
        BrokerSettings,
        run_broker,
    )
    from loadmanager.telemetry.logging import configure_logging  # noqa: PLC0415 - the same

    configure_logging("auto", "info", sys.stderr)
    settings = BrokerSettings(
        host=listen[0],
        port=listen[1],
        cpu_ms_per_message=cpu_ms_per_message,
        record=record,
        window_s=window_s,
        hash_name=cast("HashName", hash_name),
        max_body_bytes=max_body_bytes,
    )
    try:
        asyncio.run(run_broker(settings, _announce))
    except OSError as error:
        raise click.ClickException(f"broker on {listen[0]}:{listen[1]}: {error}") from None


def _announce(broker_name: str) -> None:
    click.echo(f"broker listening on http://{broker_name}")
