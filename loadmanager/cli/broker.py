"""``loadmanager broker``: the in-memory broker, for demonstrations and tests."""

from pathlib import Path
from typing import Any, Final

import click

from loadmanager.cli.options import freeze_imported_objects, option
from loadmanager.core.hashing import DEFAULT_HASH

_MAX_PORT: Final = 65_535


def _address(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> tuple[str, int] | None:
    """Return host and port, None for none; port 0 is any free one."""
    if value is None:
        return None
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
@option(
    "--pulsar-listen",
    metavar="HOST:PORT",
    callback=_address,
    help="Serve Pulsar's own clients here, over its binary protocol. Port 0 takes any free one.",
)
@option(
    "--pulsar-url",
    metavar="URL",
    default="",
    help="How clients reach that port, as in the sidecar's broker.broker_url.  "
    "[default: pulsar://HOST:PORT]",
)
@option(
    "--ledger",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for messages of Pulsar's clients; brokers that share it keep them when a "
    "bundle moves, and after a kill. Without it, messages are lost with the process.",
)
@option(
    "--sidecar-url",
    metavar="URL",
    default="",
    help="The sidecar's HTTP address, at which the broker looks up the new owner of a bundle for "
    "Pulsar's clients.",
)
@option(
    "--sidecar-token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the bearer token for --sidecar-url, if the sidecar requires one.",
)
def broker(
    *,
    listen: tuple[str, int],
    control_secret_file: Path | None,
    pulsar_listen: tuple[str, int] | None,
    pulsar_url: str,
    ledger: Path | None,
    sidecar_url: str,
    sidecar_token_file: Path | None,
    cpu_ms_per_message: float,
    **settings: Any,
) -> None:
    """Run an in-memory broker that implements the broker contract, for demonstrations and tests.

    Messages published over HTTP are not stored: the broker uses CPU for each one, counts it and
    answers. With --pulsar-listen it also serves Pulsar's clients, and stores their messages until
    they are consumed. It serves nothing until a sidecar gives it a lease and loads bundles.

    Example: loadmanager broker --listen 127.0.0.1:8081 --record broker-1.jsonl
    """
    import asyncio
    import sys

    from loadmanager.adapters.broker.secret import SecretUnusable, read_secret
    from loadmanager.reference_broker.broker_process import (
        BrokerSettings,
        PulsarSettings,
        run_broker,
    )
    from loadmanager.telemetry.logging import configure_logging

    configure_logging("auto", "info", sys.stderr)
    pulsar = None
    if pulsar_listen is not None:
        _require_protobuf()
        token = "" if sidecar_token_file is None else sidecar_token_file.read_text().strip()
        pulsar = PulsarSettings(
            host=pulsar_listen[0],
            port=pulsar_listen[1],
            url=pulsar_url,
            ledger=ledger,
            sidecar_url=sidecar_url,
            sidecar_token=token,
        )
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
        pulsar=pulsar,
        **settings,
    )
    freeze_imported_objects()
    try:
        asyncio.run(run_broker(made, lambda url: click.echo(f"broker listening on {url}")))
    except OSError as error:
        raise click.ClickException(f"broker on {host}:{port}: {error}") from None


def _require_protobuf() -> None:
    from importlib.util import find_spec

    def is_installed(name: str) -> bool:
        try:
            return find_spec(name) is not None
        except ModuleNotFoundError:
            return False

    absent = [name for name in ("google.protobuf", "google_crc32c") if not is_installed(name)]
    if absent:
        raise click.ClickException(
            f"--pulsar-listen needs {' and '.join(absent)}: pip install 'loadmanager[pulsar]'"
        )
