"""docs/command-line.md, from the declarations of the commands."""

from collections.abc import Iterator
from typing import Final

import click

from loadmanager.cli.sections import SectionedGroup

_HELP: Final = ["-h", "--help"]
_HEAD = """\
# Command line

Made from the commands' own declarations; do not edit it.

Commands that ask a sidecar find it by `--url`, else `LOADMANAGER_URL`, else a profile (`--profile`,
`LOADMANAGER_PROFILE`, else `default`) in `profiles.toml` of `~/.config/loadmanager`, else on
`http://127.0.0.1:7750`:

    [default]
    url = "https://broker-1.example.org:7750"
    token_file = "~/.config/loadmanager/token.jwt"
    ca_file = "/etc/ssl/brokers.pem"

Any sidecar will do; requests that only the leader can answer are forwarded to it. `--json` prints
machine-readable output. Exit codes: 0 for success, 2 for invalid input or a name that does not
exist, 1 if the sidecar refuses, fails or cannot be reached. Every
command has `-h`, and `loadmanager --version` prints the version.

`loadmanager completion bash` (`zsh`, `fish`) prints a script that lets a shell complete commands
and options.
"""


def command_reference(root: SectionedGroup) -> str:
    context = click.Context(
        root,
        info_name="loadmanager",
        terminal_width=96,
        max_content_width=96,
        help_option_names=_HELP,
    )
    parts = [_HEAD]
    for title, names in root.in_sections().items():
        parts.append(f"## {title}\n")
        for name in names:
            command = root.commands[name]
            for leaf, inner in _leaves(command, _below(context, command, name)):
                parts.append(f"### {inner.command_path}\n\n{_shown(leaf, inner)}\n")
    return "\n".join(parts)


def _shown(command: click.Command, context: click.Context) -> str:
    usage, *rest = command.get_help(context).split("\n\n")
    text = "\n\n".join([usage.removeprefix("Usage: "), *rest])
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())


def _leaves(
    command: click.Command, context: click.Context
) -> Iterator[tuple[click.Command, click.Context]]:
    if not isinstance(command, click.Group):
        yield command, context
        return
    for name in sorted(command.commands):
        inner = command.commands[name]
        yield from _leaves(inner, _below(context, inner, name))


def _below(context: click.Context, command: click.Command, name: str) -> click.Context:
    return click.Context(
        command,
        context,
        info_name=name,
        terminal_width=context.terminal_width,
        max_content_width=context.max_content_width,
    )
