import pytest
from click.testing import CliRunner

from loadmanager.cli import REMOVED, main


@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_command_names_what_replaces_it(name: str) -> None:
    got = CliRunner().invoke(main, [name, "--seeds", "1"])
    assert got.exit_code == 2
    assert f"command '{name}' was removed; use {REMOVED[name]}" in " ".join(got.output.split())
    assert name not in main.commands
