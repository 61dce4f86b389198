import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from types import MappingProxyType
from typing import Any

import click

from loadmanager.telemetry.visible import VisibleStream

HELP_OPTIONS = ("-h", "--help")


def _with_short_help(command: click.Command) -> None:
    """Give a command and all below it ``-h``, also where one is called by itself.

    click makes a command's help option once, by whatever context comes first.
    """
    command.context_settings.setdefault("help_option_names", [*HELP_OPTIONS])
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            _with_short_help(inner)


class SectionedGroup(click.Group):
    """A group whose help lists commands by section, and cuts no sentence short.

    Commands that no section names are listed under "Commands". ``removed`` says for each command
    of a former version what to use instead.
    """

    def __init__(
        self, *arguments: object, removed: Mapping[str, str] | None = None, **settings: object
    ) -> None:
        super().__init__(*arguments, **settings)  # type: ignore[arg-type] # click's own parameters
        self._removed = removed or {}
        self.sections: dict[str, tuple[str, ...]] = {}

    def main(self, *arguments: Any, **settings: Any) -> Any:
        with redirect_stdout(VisibleStream(sys.stdout)), redirect_stderr(VisibleStream(sys.stderr)):
            return super().main(*arguments, **settings)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name what replaces a removed command; else see `click.Group`."""
        instead = self._removed.get(args[0])
        if instead is not None:
            ctx.fail(f"command '{args[0]}' was removed; use {instead}")
        return super().resolve_command(ctx, args)

    def add_section(self, title: str, *commands: click.Command) -> None:
        for command in commands:
            self.add_command(command)
            _with_short_help(command)
        self.sections[title] = tuple(command.name or "" for command in commands)

    def in_sections(self) -> dict[str, tuple[str, ...]]:
        placed = {name for names in self.sections.values() for name in names}
        rest = tuple(sorted(self.commands.keys() - placed))
        return {**self.sections, "Commands": rest} if rest else self.sections

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max((len(name) for name in self.list_commands(ctx)), default=0)
        for title, names in self.in_sections().items():
            rows = [(name.ljust(widest), _sentence(self.commands[name])) for name in names]
            with formatter.section(title):
                formatter.write_dl(rows)


class SectionedCommand(click.Command):
    """A command whose help lists options by section; ``sections`` has the first option of each."""

    sections: Mapping[str, str] = MappingProxyType({})

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        title, rows = "Options", dict[str, list[tuple[str, str]]]()
        for parameter in self.get_params(ctx):
            title = self.sections.get(parameter.name or "", title)
            if (row := parameter.get_help_record(ctx)) is not None:
                rows.setdefault(title, []).append(row)
        for title, listed in rows.items():
            with formatter.section(title):
                formatter.write_dl(listed)


def _sentence(command: click.Command) -> str:
    paragraph, _, _ = (command.help or "").partition("\n\n")
    return " ".join(paragraph.split())
