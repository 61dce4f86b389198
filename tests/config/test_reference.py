import json
from pathlib import Path

from configuration_reference import configuration_reference
from strategy_guide import strategy_guide

from loadmanager.config import describe


def test_every_key_has_a_row_that_says_what_it_does() -> None:
    rows = [line for line in configuration_reference().splitlines() if line.startswith("| `")]
    for known in describe():
        assert any(row.startswith(f"| `{known.key}` | {known.description}") for row in rows)


def test_every_key_of_pulsar_is_told_of_here_or_in_the_strategy_guide() -> None:
    keys = json.loads((Path(__file__).parent / "pulsar_keys.json").read_text())
    told = configuration_reference() + strategy_guide()
    assert [known["key"] for known in keys if f"`{known['key']}`" not in told] == []
