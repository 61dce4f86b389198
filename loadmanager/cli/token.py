import asyncio
import contextlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from loadmanager.cli.options import SET_OPTION, ending, option

if TYPE_CHECKING:
    from loadmanager.config import Config

_SECTIONS: Final = frozenset({"broker", "cluster", "security", "tls", "zookeeper"})
_DAY_S: Final = 86_400


@click.command("token")
@option(
    "--right",
    required=True,
    type=click.Choice(["lookup", "read", "admin"]),
    help="Right of the bearer; each includes those before it.",
)
@option("--days", default=90, type=click.IntRange(1, 3650), help="Days until the token expires.")
@option(
    "--name",
    metavar="NAME",
    help="The name of the bearer in the log of changes.  [default: the right]",
)
@option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The sidecars' TOML file, for ZooKeeper's hosts, chroot and login. Environment "
    "variables apply as for a sidecar.",
)
@SET_OPTION
@option("--zookeeper", metavar="HOSTS", help="The same as --set zookeeper.hosts=HOSTS.")
@option(
    "--replace-key",
    is_flag=True,
    help="Replace the key first, which invalidates all existing tokens.",
)
@option(
    "--timeout",
    "timeout_s",
    default=15.0,
    type=click.FloatRange(0.1, 3600),
    help="Seconds to wait for ZooKeeper.",
)
def token_command(  # noqa: PLR0917 - one for each option
    right: str,
    days: int,
    name: str | None,
    config_file: Path | None,
    overrides: tuple[str, ...],
    zookeeper: str | None,
    timeout_s: float,
    *,
    replace_key: bool,
) -> None:
    """Print a token for sidecars without [security].

    It is signed with the key that the sidecars share in ZooKeeper, which is created if missing: a
    token can be issued before the first sidecar runs. A token is valid until it expires or the key
    is replaced.

    Example: loadmanager token --right admin --config /etc/loadmanager.toml > admin.jwt
    """
    from loadmanager.adapters.http.routes import Role
    from loadmanager.adapters.http.security.guard import sign
    from loadmanager.config import ConfigError
    from loadmanager.core.errors import LoadManagerError
    from loadmanager.telemetry.logging import configure_logging

    more = [] if zookeeper is None else [f"zookeeper.hosts={zookeeper}"]
    with ending(LoadManagerError, prefix="loadmanager token: "), ending(ConfigError, code=2):
        config = _config(config_file, (*overrides, *more))
        _refuse_other_signers(config)
        configure_logging("console", "error", sys.stderr)
        try:
            key = asyncio.run(_key(config, timeout_s, replace_key=replace_key))
        except TimeoutError:
            where = f"ZooKeeper at {config.zookeeper.hosts}"
            raise LoadManagerError(f"{where}: no session within {timeout_s:g} s") from None
    click.echo(sign(key, name=name or right, right=Role(right), valid_s=days * _DAY_S))


def _config(path: Path | None, overrides: tuple[str, ...]) -> "Config":
    """Return the sections that say where the key is; what a broker needs may be missing."""
    from loadmanager.config.load import GivenValue, checked, gather

    given = gather(path, os.environ, overrides)
    kept = {at: one for at, one in given.settings.items() if at[0] in _SECTIONS}
    kept["broker", "id"] = GivenValue("localhost:8080", "of no importance here")
    return checked(replace(given, settings=kept))


def _refuse_other_signers(config: "Config") -> None:
    security = config.security
    if config.uses_cluster_key:
        return
    if security.token_secret_key_file:
        signer = f"the secret in {security.token_secret_key_file}"
        option = f"--secret-key file://{security.token_secret_key_file}"
    elif security.token_public_key_file:
        signer = f"the private key that belongs to {security.token_public_key_file}"
        option = "--private-key file://..."
    else:
        raise click.UsageError(
            "[security] or [tls] client_authorities_file sets the rights, and names no key "
            "that tokens are signed with; see docs/security.md"
        )
    raise click.UsageError(
        f"[security] is set: tokens are signed with {signer}, for example by Pulsar's\n"
        f"  bin/pulsar tokens create {option} --subject NAME\n"
        f"The name stands in the claim {security.token_claim!r}, and admins, readers and lookers "
        "in [security] say what it may do."
    )


async def _key(config: "Config", timeout_s: float, *, replace_key: bool) -> bytes:
    from loadmanager.adapters.zookeeper import ZooKeeperCoordination, zookeeper_options
    from loadmanager.common.cluster_conditions import (
        conditions_of,
        key_of_cluster,
        refuse_nodes_of_others,
    )
    from loadmanager.core import znodes
    from loadmanager.ports.coordination import Connection, NodeMissing, SessionState

    coordination = ZooKeeperCoordination(zookeeper_options(config))
    connected = asyncio.Event()

    def changed(state: SessionState) -> None:
        if state.connection is Connection.CONNECTED:
            connected.set()

    coordination.on_session(changed)
    try:
        async with asyncio.timeout(timeout_s):
            await coordination.start()
            await connected.wait()
            await refuse_nodes_of_others(coordination, conditions_of(config).default_chroot)
            if replace_key:
                with contextlib.suppress(NodeMissing):
                    await coordination.delete(znodes.KEY)
            return await key_of_cluster(coordination)
    finally:
        await coordination.close()
