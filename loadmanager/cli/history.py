import json
from pathlib import Path

import click

from loadmanager.cli.options import option
from loadmanager.cli.sections import SectionedGroup

_DIRECTORY = click.Path(path_type=Path, exists=True, file_okay=False)


@click.group(
    "history",
    cls=SectionedGroup,
    removed={"format": "docs/history-format.md, which `make reference` writes in a checkout"},
)
def history_group() -> None:
    """Check and finish the files that [history] and --history write.

    Example: loadmanager history check /var/lib/loadmanager/history
    """


@history_group.command("finish")
@click.argument("directory", type=_DIRECTORY)
def finish_command(directory: Path) -> None:
    """Finish the files that killed processes left in DIRECTORY.

    A sidecar finishes its own files when it starts; this command is for brokers that never return.
    Run it on the host of the killed writers: files of live writers on this host are skipped.

    Example: loadmanager history finish /var/lib/loadmanager/history
    """
    from loadmanager.adapters.history import finish_left

    click.echo(f"{finish_left(directory)} files finished")


@history_group.command("check")
@click.argument("directory", type=_DIRECTORY)
@option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check_command(*, directory: Path, as_json: bool) -> None:
    """Check every finished file in DIRECTORY, and count lines by kind.

    Reports files and lines that cannot be read, missing and duplicate lines, and lines that
    writers dropped. Exits with 1 if a file or a line cannot be read.

    Example: loadmanager history check --json /var/lib/loadmanager/history
    """
    from loadmanager.adapters.history.disk import check_history

    found = check_history(directory)
    if as_json:
        click.echo(json.dumps(found.to_json()))
    else:
        click.echo("\n".join(found.summary()))
    if found.faults:
        raise click.exceptions.Exit(1)
