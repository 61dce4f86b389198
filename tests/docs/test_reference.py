"""The pages that are made from declarations are current."""

import pytest
from reference import DOCS, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_declarations_say(name: str) -> None:
    # How click breaks lines changes with its versions.
    found, made = (DOCS / name).read_text(encoding="utf-8"), PAGES[name]()
    if name == "command-line.md":
        assert found.split() == made.split(), "run: make reference"
    else:
        assert found == made, "run: make reference"
