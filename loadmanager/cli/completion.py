"""``loadmanager completion``: commands and options for shells."""

import click


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print a script that lets a shell complete commands and options.

    Example: loadmanager completion bash > ~/.local/share/bash-completion/completions/loadmanager
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"{shell}: this version of click cannot complete for it")
    root = context.find_root()
    click.echo(kind(root.command, {}, "loadmanager", "_LOADMANAGER_COMPLETE").source())
