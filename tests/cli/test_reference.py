from collections.abc import Iterator

import click

from loadmanager.cli import main


def leaves(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from leaves(inner, f"{path} {name}")
    else:
        yield path, command


def test_every_command_says_what_it_does_and_gives_an_example() -> None:
    for path, command in leaves(main, "loadmanager"):
        text = command.help or ""
        assert text.splitlines()[0].endswith("."), path
        assert "Example" in text, path
        assert f" {path}" in text, path


def test_every_option_says_what_it_is_for() -> None:
    for path, command in leaves(main, "loadmanager"):
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.help, f"{path} {option.name}"
