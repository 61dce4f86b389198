"""``loadmanager snapshot`` and ``loadmanager explain``: what a live leader sees and why."""

from pathlib import Path

import click

from loadmanager.cli.asking import Reach, reaching
from loadmanager.cli.options import ending, option, print_json


@click.command("snapshot")
@option(
    "--out",
    "file",
    required=True,
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    help="Where to write it; - for stdout.",
)
@reaching()
def snapshot_command(*, file: Path, reach: Reach) -> None:
    """Write a snapshot of the cluster as its leader sees it now.

    It contains load reports, averages, owners, orders, constraints, the memory of the strategies,
    and the settings in force. See docs/snapshot-format.md.

    Example: loadmanager snapshot --url http://sidecar:7750 --out cluster.json
    """
    content = reach.ask("/admin/v2/loadmanager/snapshot")
    if str(file) == "-":
        click.echo(content, nl=False)
        return
    with ending(OSError, code=2):
        file.write_bytes(content)


@click.command("explain")
@click.argument("subject", metavar="BUNDLE|BROKER")
@option("--json", "as_json", is_flag=True, help="Print the leader's answer as it is.")
@reaching()
def explain_command(*, subject: str, as_json: bool, reach: Reach) -> None:
    """Explain why a bundle or a broker was moved or left alone, and what would change it.

    Exits with 2 if there is no such bundle or broker, with 1 if no leader answers.

    Example: loadmanager explain public/default/0x00000000_0x08000000
    """
    from loadmanager.cli.explaining import print_account

    account = reach.json("/admin/v2/loadmanager/explain", subject=subject)
    if as_json:
        print_json(account)
    else:
        print_account(account)
