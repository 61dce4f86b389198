from pathlib import Path

from loadmanager.config import describe
from loadmanager.config.reference import configuration_reference

COMMITTED = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_committed_reference_is_the_generated_one() -> None:
    # Renew it with: loadmanager config show-reference > docs/configuration.md
    assert COMMITTED.read_text() == configuration_reference()


def test_every_key_has_a_row_that_says_what_it_does() -> None:
    rows = [line for line in configuration_reference().splitlines() if line.startswith("| `")]
    for known in describe():
        assert any(row.startswith(f"| `{known.key}` | {known.description}") for row in rows)
