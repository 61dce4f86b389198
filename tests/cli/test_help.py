"""What commands show: help, a whole sentence each, and tables as wide as a terminal."""

import re
from collections.abc import Iterator
from importlib.metadata import version

import click
import pytest
from click.testing import CliRunner

from loadmanager.cli import REMOVED, main
from loadmanager.cli.options import fitted, plain_lines

COLUMNS = ("bundle", "msg/s>", "because")
ROWS = [("t/ns/0x00000000_0x20000000", "1,500", "Its broker carried more than is allowed.")]


WHOLE = [
    "bundle                      msg/s  because",
    "t/ns/0x00000000_0x20000000  1,500  Its broker carried more than is allowed.",
]
BESIDE = [
    "bundle                      msg/s  because",
    "t/ns/0x00000000_0x20000000  1,500  Its broker carried more",
    "                                   than is allowed.",
]
BELOW = [
    "bundle                      msg/s",
    "t/ns/0x00000000_0x20000000  1,500",
    "    because: Its broker carried more",
    "      than is allowed.",
]


@pytest.mark.parametrize(
    ("width", "lines"), [(None, WHOLE), (80, WHOLE), (60, BESIDE), (40, BELOW)]
)
def test_texts_are_wrapped_beside_the_columns_that_fit_or_follow_below(
    width: int | None, lines: list[str]
) -> None:
    assert plain_lines(COLUMNS, ROWS, width) == lines
    figures = plain_lines(("a>", "b>"), [("1234567", "23456")], 13)
    assert figures == ["      a", "1234567", "    b: 23456"]
    # A first column that does not fit is kept whole.
    assert plain_lines(COLUMNS, ROWS, 20)[:2] == ["bundle", "t/ns/0x00000000_0x20000000"]


def test_a_long_line_is_wrapped_between_words_and_keeps_its_indent() -> None:
    line = "  Numbers: margin 0.02, failure_domains true"
    assert fitted(line, None) == fitted(line, 80) == line
    assert fitted(line, 24) == "  Numbers: margin 0.02,\n    failure_domains true"


@pytest.mark.parametrize(
    "address", ["", "8080", ":8080", "localhost", "localhost:x", "localhost:65536", "h:-1", "h:²"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    got = CliRunner().invoke(main, ["broker", "--listen", address])
    assert got.exit_code == 2
    assert f"{address!r}; expected HOST:PORT, as in 127.0.0.1:8080" in got.output


@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_command_names_what_replaces_it(name: str) -> None:
    got = CliRunner().invoke(main, [name, "--seeds", "1"])
    assert got.exit_code == 2
    assert f"command '{name}' was removed; use {REMOVED[name]}" in " ".join(got.output.split())
    assert name not in main.commands


def commands(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            yield from commands(one, *path, name)


EVERY = dict(commands(main))
GROUPS = {path: one for path, one in EVERY.items() if isinstance(one, click.Group)}


def test_every_command_says_what_it_does_and_gives_an_example_and_every_option_its_use() -> None:
    for path, command in EVERY.items() - GROUPS.items():
        text = command.help or ""
        assert text.splitlines()[0].endswith("."), path
        assert "Example" in text, path
        assert f" loadmanager {' '.join(path)}" in text, path
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.help, f"{path} {option.name}"


def shown(*arguments: str) -> str:
    got = CliRunner().invoke(main, arguments, terminal_width=80)
    assert got.exit_code == 0, got.output
    return got.output


def test_commands_are_listed_in_five_sections() -> None:
    titles = re.findall(r"^(\w+):$", shown("-h"), re.MULTILINE)
    assert titles == ["Options", "Cluster", "Decisions", "Operate", "Try", "Data"]


@pytest.mark.parametrize("path", GROUPS, ids="-".join)
def test_a_group_lists_each_command_with_its_sentence_in_80_columns(path: tuple[str, ...]) -> None:
    text = shown(*path, "-h")
    assert "..." not in text.partition("[ARGS]...")[2]
    assert max(map(len, text.splitlines())) <= 80
    for name, command in GROUPS[path].commands.items():
        sentence = " ".join((command.help or "").partition("\n\n")[0].split())
        assert f"{name} {sentence}" in " ".join(text.split())


@pytest.mark.parametrize("path", EVERY, ids="-".join)
def test_every_command_has_a_short_option_for_help(path: tuple[str, ...]) -> None:
    assert shown(*path, "-h") == shown(*path, "--help")


def test_the_version_is_that_of_the_package() -> None:
    assert shown("--version") == f"loadmanager {version('loadmanager')}\n"
