import pytest
from click.testing import CliRunner

from loadmanager.cli import main


@pytest.mark.parametrize(
    "address", ["", "8080", ":8080", "localhost", "localhost:x", "localhost:65536", "h:-1", "h:²"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    got = CliRunner().invoke(main, ["broker", "--listen", address])
    assert got.exit_code == 2
    assert f"{address!r}; expected HOST:PORT, as in 127.0.0.1:8080" in got.output


@pytest.mark.parametrize(
    "options",
    [["--hash", "md5"], ["--window-s", "0"], ["--cpu-ms-per-message", "-1"], ["--record", "/"]],
)
def test_settings_out_of_range_are_refused(options: list[str]) -> None:
    got = CliRunner().invoke(main, ["broker", *options])
    assert got.exit_code == 2
    assert f"Invalid value for '{options[0]}'" in got.output


def test_help_shows_an_example() -> None:
    got = CliRunner().invoke(main, ["broker", "--help"])
    assert got.exit_code == 0
    assert "Example: loadmanager broker --listen 127.0.0.1:8081" in got.output
