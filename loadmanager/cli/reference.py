"""``loadmanager show-commands``: the reference of the command line, made from the commands."""

from collections.abc import Iterator

import click

_HEAD = """\
# Command line

Made by `loadmanager show-commands` from the commands' own declarations; do not edit it.

Commands that ask a sidecar find it by `--url`, else `LOADMANAGER_URL`, else a profile (`--profile`,
`LOADMANAGER_PROFILE`, else `default`) in `profiles.toml` of `~/.config/loadmanager`, else on
`http://127.0.0.1:7750`:

    [default]
    url = "https://broker-1.example.org:7750"
    token_file = "~/.config/loadmanager/token.jwt"
    ca_file = "/etc/ssl/brokers.pem"

Any sidecar will do; what only the leader knows is asked of the leader. `--json` prints what
scripts can read. They end with 0 if all went well, with 2 if the question was wrong or names
something that does not exist, with 1 if the sidecar refuses, fails or cannot be reached.

`loadmanager completion bash` (`zsh`, `fish`) prints what a shell needs to complete all this.
"""


@click.command("show-commands")
def show_commands_command() -> None:
    """Print the reference of all commands.

    Example: loadmanager show-commands > docs/command-line.md
    """
    root = click.get_current_context().find_root().command
    click.echo(command_reference(root), nl=False)


def command_reference(root: click.Command) -> str:
    """Return all commands with their options, as Markdown."""
    context = click.Context(root, info_name="loadmanager", terminal_width=96, max_content_width=96)
    parts = [_HEAD]
    for command, inner in _leaves(root, context):
        usage, *rest = command.get_help(inner).split("\n\n")
        text = "\n\n".join([usage.removeprefix("Usage: "), *rest])
        indented = "\n".join(f"    {line}".rstrip() for line in text.splitlines())
        parts.append(f"## {inner.command_path}\n\n{indented}\n")
    return "\n".join(parts)


def _leaves(
    command: click.Command, context: click.Context
) -> Iterator[tuple[click.Command, click.Context]]:
    if not isinstance(command, click.Group):
        yield command, context
        return
    for name in sorted(command.commands):
        inner = command.commands[name]
        yield from _leaves(
            inner,
            click.Context(
                inner,
                context,
                info_name=name,
                terminal_width=context.terminal_width,
                max_content_width=context.max_content_width,
            ),
        )
