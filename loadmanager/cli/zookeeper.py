from pathlib import Path

import click

from loadmanager.cli.options import option, stopped_by_signals


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
    from loadmanager.adapters.zookeeper.embedded import (
        EmbeddedZooKeeper,
        EmbeddedZooKeeperError,
    )

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
