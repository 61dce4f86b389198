"""What `loadmanager -h` shows: every command, in sections, with a whole sentence."""

import re
from collections.abc import Iterator
from importlib.metadata import version

import click
import pytest
from click.testing import CliRunner

from loadmanager.cli import main


def shown(*arguments: str) -> str:
    got = CliRunner().invoke(main, arguments, terminal_width=80)
    assert got.exit_code == 0, got.output
    return got.output


def groups(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(command, click.Group):
        yield path
        for name, inner in command.commands.items():
            yield from groups(inner, (*path, name))


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands(inner, (*path, name))


def test_commands_are_listed_in_five_sections() -> None:
    titles = re.findall(r"^(\w+):$", shown("-h"), re.MULTILINE)
    assert titles == ["Options", "Cluster", "Decisions", "Operate", "Try", "Data"]


@pytest.mark.parametrize("path", list(groups(main)), ids="-".join)
def test_a_group_lists_each_command_with_its_whole_sentence_in_80_columns(
    path: tuple[str, ...],
) -> None:
    text = shown(*path, "-h")
    assert "..." not in text.partition("[ARGS]...")[2]
    assert max(map(len, text.splitlines())) <= 80
    group = main
    for name in path:
        group = group.commands[name]  # type: ignore[assignment] # a group, as `groups` has it
    for name, command in group.commands.items():
        sentence = " ".join((command.help or "").partition("\n\n")[0].split())
        assert f"{name} {sentence}" in " ".join(text.split())


@pytest.mark.parametrize("path", list(commands(main)), ids="-".join)
def test_every_command_has_a_short_option_for_help(path: tuple[str, ...]) -> None:
    assert shown(*path, "-h") == shown(*path, "--help")


def test_the_version_is_that_of_the_package() -> None:
    assert shown("--version") == f"loadmanager {version('loadmanager')}\n"
